"""DPEM against known phenotypes: 200 x 300 codes, 15 planted, rank 30, rounds by the rule, masked sum of three sites.

    python benchmarks/dpem_planted.py [--seeds 5] [--first 0] [--patients 20000 5000] [--epsilon 0.5 1 2] [--jobs 1] [--large] [--json FILE]

FMS, AUC of the planted outcome beside the planted factors' and random factors' AUC, codes shown and how many of them
are ghosts (outside the planted support of the matched phenotype), and seconds. Patient level (one patient added or
removed), delta 1e-6, simulated noise; processor seconds. ``±``: standard error of the mean over seeds. ``--large`` adds 100,000 patients at epsilon 0.5.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from math import nan, sqrt
from pathlib import Path

import numpy as np

import polyclinic as pc
from polyclinic.datasets.truth import Truth
from polyclinic.records.sites.site import Sites, pooled
from polyclinic.tensors.matching import match, recovery
from polyclinic_papers.heldout import CountModel, marginal_model
from polyclinic_papers.prediction import predict, split


def auc(model: CountModel, net: Sites, drop: int) -> float:
    """Area under the ROC curve of held-out patients, from shares of the phenotypes (the last ``drop`` left out)."""
    train, test = (pooled(part) for part in split(net, 0.6, 0))
    a, b = (model.place(s.counts())[:, : len(model.factors[0][0]) - drop] for s in (train, test))
    return predict(a, train.labels, b, test.labels).auc


def ghosts(model: pc.DPEM, truth: Truth) -> tuple[float, float, float]:
    """Codes shown per matched phenotype, share of them outside the planted support, share of planted codes not shown."""
    pairs = match(model.factors_, list(truth.factors))
    shown = [s[:, pairs.left] for s in model.shown_]
    real = [f[:, pairs.right] > 0 for f in truth.factors]
    codes = sum(s.sum() for s in shown)
    wrong = sum((s & ~f).sum() for s, f in zip(shown, real))
    missed = sum((f & ~s).sum() for s, f in zip(shown, real)) / sum(f.sum() for f in real)
    return float(codes / len(pairs.left)), float(wrong / max(codes, 1)), float(missed)


def one(patients: int, epsilon: float, seed: int) -> dict[str, float]:
    """One seed of data, start and noise."""
    net = pc.datasets.planted_counts(patients, seed=seed, sites=3)
    began = time.process_time()
    m = pc.DPEM(rank=30, seed=seed, aggregation="masked", privacy=pc.Privacy(epsilon, 1e-6)).fit(net)
    seconds = time.process_time() - began
    everyone = pooled(net).counts()
    known = [np.column_stack([f / f.sum(0), b]) for f, b in zip(net.truth.factors, marginal_model(everyone).factors)]
    rng = np.random.default_rng(seed)
    random = CountModel([rng.gamma(0.5, size=(n, 30)) for n in everyone.shape[1:]])
    codes, wrong, missed = ghosts(m, net.truth)
    score = recovery(list(net.truth.factors), m.factors_)
    return {
        "fms": score.recall,
        "precision": score.precision,
        "auc": auc(CountModel.of(m), net, 1),
        "auc_planted": auc(CountModel(known), net, 1),
        "auc_random": auc(random, net, 0),
        "codes": codes,
        "ghosts": wrong,
        "missed": missed,
        "phenotypes": float(len(m.weights_)),
        "seconds": seconds,
    }


def row(patients: int, epsilon: float, repeats: int, first: int = 0, jobs: int = 1) -> dict[str, float]:
    """Means over seeds of data, start and noise; ``jobs`` processes share the seeds."""
    seeds = range(first, first + repeats)
    if jobs == 1:
        found = [one(patients, epsilon, s) for s in seeds]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            found = list(pool.map(one, repeat(patients), repeat(epsilon), seeds))
    v = {k: np.array([f[k] for f in found]) for k in found[0]}
    out = {"patients": float(patients), "epsilon": epsilon, **{k: float(x.mean()) for k, x in v.items()}}
    out |= {f"{k}_se": float(v[k].std(ddof=1) / sqrt(repeats)) if repeats > 1 else nan for k in ("fms", "ghosts")}
    out |= {"fms_worst": float(v["fms"].min()), "fms_sd": float(v["fms"].std())}
    print(
        f"{patients:>8,}{epsilon:>6g}{out['fms']:>8.3f} ±{out['fms_se']:.3f}{out['fms_worst']:>7.3f}{out['precision']:>10.3f}{out['auc']:>7.3f}"
        f"{out['auc_planted']:>9.3f}{out['auc_random']:>8.3f}{out['codes']:>7.1f}{out['ghosts']:>8.1%} ±{out['ghosts_se']:.1%}"
        f"{out['missed']:>8.1%}{out['phenotypes']:>6.1f}{out['seconds']:>7.1f}",
        flush=True,
    )
    return out


def main() -> None:
    """Print the table."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--seeds", type=int, default=5)
    ask.add_argument("--first", type=int, default=0)
    ask.add_argument("--patients", type=int, nargs="*", default=[20_000, 5_000])
    ask.add_argument("--epsilon", type=float, nargs="*", default=[0.5, 1.0, 2.0])
    ask.add_argument("--jobs", type=int, default=1, help="processes")
    ask.add_argument("--large", action="store_true")
    ask.add_argument("--json", type=Path, default=None)
    given = ask.parse_args()
    print(
        f"{'patients':>8}{'eps':>6}{'FMS':>15}{'worst':>7}{'precision':>10}{'AUC':>7}{'planted':>9}{'random':>8}{'codes':>7}{'ghosts':>14}{'missed':>8}{'R':>6}{'s':>7}"
    )
    rows = [row(n, e, given.seeds, given.first, given.jobs) for n in given.patients for e in given.epsilon]
    if given.large:
        rows.append(row(100_000, 0.5, 1))
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
