"""Recall, precision and rank on records that repeat (docs/explanation/records.md).

    python benchmarks/topics.py today [SEED ...]     the methods without Topics, by which the generator was calibrated
    python benchmarks/topics.py topics [SEED ...]    Topics at the rank that the matrix says, and the same on permuted codes

Sizes vary with the seed: 2,000 to 8,000 patients, 80 to 300 codes a mode, 5 to 14 phenotypes, 3 to 20 sites.
Recall is the sum of the likeness of matched columns over the true rank, precision the same sum over the columns shown.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np

import polyclinic as pc
from polyclinic.errors import PolyclinicError
from polyclinic.tensors.matching import cosines, match

DELTA = 1e-6


def records(seed: int) -> pc.Sites:
    """One network; its sizes follow from the seed."""
    rng = np.random.default_rng([seed, 5])
    patients, codes = int(rng.choice([2000, 4000, 8000])), int(rng.choice([80, 150, 300]))
    phenotypes, sites = int(rng.integers(5, 15)), int(rng.choice([3, 5, 10, 20]))
    return pc.datasets.repeated_records(patients, codes, phenotypes, seed, sites=sites)


def recovery(factors: Sequence[np.ndarray], truth: pc.datasets.Truth) -> tuple[float, float]:
    """(recall, precision) of columns."""
    table = cosines(truth.factors, factors)
    alike = float(match(list(truth.factors), list(factors), table).likeness.sum())
    return alike / truth.rank, alike / factors[0].shape[1]


def private(net: pc.Sites, epsilon: float) -> tuple[float, float]:
    """DPEM under patient-level privacy."""
    people = sum(s.patients for s in net)
    privacy = pc.Privacy(epsilon=epsilon, delta=DELTA)
    fitted = pc.DPEM(privacy=privacy, aggregation="masked", planning_size=people, seed=0).fit(net)
    return recovery(fitted.factors_, net.truth)


def automatic(net: pc.Sites) -> str:
    """The rank that ``rank="auto"`` takes."""
    try:
        return str(pc.SumALS(rank="auto", rounds=1, seed=0).fit(net).factors_[0].shape[1])
    except PolyclinicError:
        return "refused"


def today(net: pc.Sites) -> dict[str, object]:
    """TRIP at the true rank plus one, DPEM at epsilon 1, and the automatic rank."""
    rank = net.truth.rank
    trip = recovery(pc.TRIP(rank=rank + 1, seed=0).fit(net).factors_, net.truth)[0]
    recall, precision = private(net, 1.0)
    return {"trip": trip, "dpem": recall, "precision": precision, "auto": automatic(net)}


def permuted(net: pc.Sites) -> list[pc.Site]:
    """The same codes dealt to all patients anew, each mode by itself."""
    whole = pc.SparseTensor.stack([s.counts() for s in net])
    rng, who = np.random.default_rng(0), np.repeat(whole.rows, np.diff(whole.indptr))
    coords = np.column_stack([who, *(rng.permutation(c) for c in whole.codes)])
    dealt = pc.SparseTensor(coords, whole.values, whole.shape, whole.axes)
    ends = np.cumsum([0, *(s.patients for s in net)])
    return [pc.Site(s.name, dealt.take(np.arange(a, b))) for s, a, b in zip(net, ends, ends[1:])]


def topics(net: pc.Sites) -> dict[str, object]:
    """Topics with ``rank="auto"``; ``directions`` are those that two halves of the patients confirm."""
    started = time.process_time()
    model = pc.Topics(seed=0).fit(net)
    seconds = time.process_time() - started
    recall, precision = recovery(model.factors_, net.truth)
    try:
        chance = pc.Topics(seed=0, rounds=1).fit(permuted(net)).confirmed_
    except PolyclinicError:
        chance = 0
    row = {"directions": model.confirmed_, "columns": len(model.weights_), "recall": recall, "precision": precision}
    return {**row, "permuted": chance, "rounds": model.traffic_.rounds, "seconds": seconds}


TABLES: dict[str, Callable[[pc.Sites], dict[str, object]]] = {"today": today, "topics": topics}


def main() -> None:
    name, *seeds = sys.argv[1:]
    for seed in [int(s) for s in seeds] or range(10):
        net = records(seed)
        size = f"seed {seed} patients {sum(s.patients for s in net)} sites {len(net)} true rank {net.truth.rank}"
        row = TABLES[name](net)
        print(size, *(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
