"""The honest table of DPEM on open data: structure kept and completion on held-out patients, by epsilon.

    python benchmarks/dpem_real.py [--data DIR] [--seeds 3] [--rank 20] [--json FILE]

80 % of the patients train, 20 % judge; delta 1e-6, patient level (one patient added or removed), masked sum over five
sites, so the noise is added once; noise is simulated. The reference is plain EM of the same rank without noise (30
rounds). The code lists are the most frequent codes of the data, so a card of these runs is not formal: in production
they must be public. Without privacy and with random factors are printed beside it; AUC is no measure of utility here.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

import polyclinic as pc
from polyclinic.evaluation.heldout import CountModel, completion, marginal_model, structure_kept
from polyclinic.evaluation.prediction import split
from polyclinic.federation.protocol import seeds
from polyclinic.tensors.site import pooled

EPSILONS = (0.5, 1.0, 2.0, 8.0)


def table(name: str, sites: list[pc.Site], *, rank: int, repeats: int) -> list[dict[str, object]]:
    """Rows (data, epsilon, kept, completion ...), means over the splits."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for seed in range(repeats):
        train, test = split(sites, 0.8, seed)
        everyone, judge = pooled(train).counts(), pooled(test).counts()
        marginals = marginal_model(everyone)
        free = pc.DPEM(rank=rank, rounds=30, seed=seed, background=False, regroup=False, prune=False).fit(train)
        reference = CountModel.of(free)
        rng = seeds(seed, "random factors")
        random = CountModel([rng.gamma(1.0, size=(n, rank)) for n in everyone.shape[1:]])

        models = [("none (reference)", reference, 0.0, float("nan")), ("random factors", random, 0.0, float("nan"))]
        for epsilon in EPSILONS:
            began = time.perf_counter()
            m = pc.DPEM(rank=rank, rounds=8, seed=seed, aggregation="masked", privacy=pc.Privacy(epsilon, 1e-6)).fit(
                train
            )
            codes = len(m.phenotypes_) / len(m.weights_)
            models.append((f"{epsilon:g}", CountModel.of(m), time.perf_counter() - began, codes))
        for label, model, seconds, codes in models:
            kept = structure_kept(model, reference, marginals, judge)
            gain = completion(model, marginals, judge, seeds(seed, "halves"))
            found.setdefault(label, []).append((kept, gain, seconds, codes))
    print(f"\n{name}: {pooled(sites).counts()!r}, rank {rank}, {repeats} splits")
    print(
        f"{'epsilon (patient level, delta 1e-6)':<36}{'kept':>8}{'worst':>8}{'completion':>12}{'worst':>8}{'codes':>7}{'s':>6}"
    )
    rows = []
    for label, values in found.items():
        v = np.array(values)
        mean, worst = v.mean(0), v.min(0)
        print(
            f"{label:<36}{mean[0]:>8.3f}{worst[0]:>8.3f}{mean[1]:>12.3f}{worst[1]:>8.3f}{mean[3]:>7.1f}{mean[2]:>6.1f}"
        )
        rows.append(
            {"data": name, "epsilon": label, "kept": mean[0], "kept_worst": worst[0], "completion": mean[1]}
            | {"completion_worst": worst[1], "seconds": mean[2]}
        )
    return rows


def main() -> None:
    """Print both tables."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--data", type=Path, default=None, help="folder of the open data (default POLYCLINIC_DATA)")
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--rank", type=int, default=20)
    ask.add_argument("--json", type=Path, default=None)
    given = ask.parse_args()
    if given.data is not None:
        os.environ["POLYCLINIC_DATA"] = str(given.data)
    rows = table("diabetes-130", pc.datasets.load_diabetes130(), rank=given.rank, repeats=given.seeds)
    rows += table("DE-SynPUF 01-05", pc.datasets.load_synpuf(), rank=given.rank, repeats=given.seeds)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
