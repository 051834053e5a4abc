"""DPEM by epsilon and number of patients, on open and planted data, with measures side by side.

    python benchmarks/dpem_real.py [--sets claims diabetes planted] [--sizes 1000 3000 8000 0] [--epsilon .1 .5 1 2 8]
                                   [--seeds 5] [--first 0] [--rank 20] [--quick] [--json FILE]

80 % of the patients (or ``size`` of them) train, 20 % judge; delta 1e-6, patient level (one patient added or removed),
masked sum over the data's sites, simulated noise. The code lists are the most frequent codes of the data, so a card of these
runs is not formal: in production they must be public. One row is the mean over the splits with half the width of its 95 %
interval (Student):

- kept: (L_model - L_marginals) / (L_reference - L_marginals), L the log-likelihood of held-out patients placed by their own
  events, reference = plain EM of rank 20 without noise. It rises with the rank.
- cells: nats an event gained over the exact marginals when half of a patient's cells predict the rest. An artefact where cells
  are products of codes: a hidden cell's codes are still seen.
- codes: the same when whole codes are hidden (:func:`polyclinic.evaluation.heldout.code_completion`). On claims and on
  diabetes-130 no model gains much, with or without privacy.
- same: likeness of the phenotypes shown under two noises of the same start; FMS and ghosts: planted data only.

Without privacy: ranks 10, 20 and 40, and the best of them by each measure. ``--quick``: one split, two epsilons, 3,000 patients.
A cell of these data counts the visits that hold both codes; a code occurs once a visit, so ``count = "product"`` and
``"visits"`` give the same cells.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
from scipy.stats import t as student

import polyclinic as pc
from polyclinic.evaluation.heldout import (
    CountModel,
    code_completion,
    completion,
    log_likelihood,
    marginal_model,
)
from polyclinic.evaluation.prediction import split
from polyclinic.federation.protocol import seeds
from polyclinic.sites.site import Site, Sites, pooled
from polyclinic.tensors.matching import match

RANKS = (10, 20, 40)
COLUMNS = ("kept", "cells", "codes", "same", "fms", "ghosts", "shown", "seconds")


def some(sites: list[Site], size: int, seed: int) -> list[Site]:
    """``size`` patients, in every site's proportion; 0: all."""
    whole = sum(s.patients for s in sites)
    if not size or size >= whole:
        return sites
    rng = seeds(seed, "some")
    return [s.take(np.sort(rng.permutation(s.patients)[: round(size * s.patients / whole)])) for s in sites]


def reference(train: list[Site], rank: int, seed: int) -> CountModel:
    """Plain EM without noise; kept on disk, since it depends on the data and the seed alone."""
    t = pooled(train).counts()
    key = sha256(t.coords.tobytes() + t.values.tobytes() + f"{t.shape} {rank} {seed}".encode()).hexdigest()
    folder = Path(os.environ.get("POLYCLINIC_BENCH_CACHE") or Path(tempfile.gettempdir()) / "polyclinic-bench")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"dpem-{key[:24]}.pkl"
    if not path.exists():
        free = pc.DPEM(rank=rank, rounds=30, seed=seed, background=False, regroup=False, prune=False).fit(train)
        path.write_bytes(pickle.dumps(CountModel.of(free)))
    return pickle.loads(path.read_bytes())


class Bench:
    """One split: who trains, who judges, and what is known without privacy."""

    def __init__(self, sites: Sites, size: int, seed: int) -> None:
        self.seed, self.truth = seed, sites.truth
        train, test = split(sites, 0.8, seed)
        self.train, self.judge = some(list(train), size, seed), pooled(test).counts()
        self.marginals = marginal_model(pooled(self.train).counts())
        self.free = {r: reference(self.train, r, seed) for r in RANKS}
        self.none = log_likelihood(self.marginals, self.judge)
        self.full = log_likelihood(self.free[20], self.judge)

    def measured(self, model: CountModel) -> dict[str, float]:
        """The three measures on held-out patients."""
        kept = (log_likelihood(model, self.judge) - self.none) / (self.full - self.none)
        cells = completion(model, self.marginals, self.judge, seeds(self.seed, "halves"))
        return {"kept": kept, "cells": cells, "codes": code_completion(model, self.marginals, self.judge, self.seed)}

    def private(self, epsilon: float, rank: int | None) -> dict[str, float]:
        """Two fits that differ in the noise."""
        began = time.process_time()
        one, two = (
            pc.DPEM(rank=rank, seed=self.seed, aggregation="masked", privacy=pc.Privacy(epsilon, 1e-6)).fit(self.train)
            for _ in range(2)
        )
        out = {"seconds": (time.process_time() - began) / 2, "shown": float(len(one.weights_))}
        out |= self.measured(CountModel.of(one)) | {"same": float(match(one.factors_, two.factors_).likeness.mean())}
        if self.truth is not None:
            pairs = match(one.factors_, list(self.truth.factors))
            shown = [s[:, pairs.left] for s in one.shown_]
            real = [f[:, pairs.right] > 0 for f in self.truth.factors]
            wrong = sum(int((s & ~f).sum()) for s, f in zip(shown, real))
            out |= {"fms": float(pairs.likeness.mean()), "ghosts": wrong / max(sum(int(s.sum()) for s in shown), 1)}
        return out


def table(
    name: str,
    sites: Sites,
    *,
    rank: int | None,
    repeats: int,
    first: int = 0,
    size: int = 0,
    epsilons: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 8.0),
) -> list[dict[str, object]]:
    """Rows (data, patients, epsilon, every measure with its mean, half interval and worst)."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(first, first + repeats):
        bench = Bench(sites, size, seed)
        free = {r: bench.measured(m) for r, m in bench.free.items()}
        for r, measures in free.items():
            found.setdefault(f"none, rank {r}", []).append(measures)
        found.setdefault("none, best rank", []).append(
            {k: max(m[k] for m in free.values()) for k in ("kept", "cells", "codes")}
        )
        for epsilon in epsilons:
            found.setdefault(f"{epsilon:g}", []).append(bench.private(epsilon, rank))
    patients = sum(s.patients for s in bench.train)
    print(f"\n{name}: {patients:,} patients, rank {rank or 'by the rule'}, {repeats} splits from {first}")
    print(f"{'epsilon':<18}" + "".join(f"{c:>16}" for c in COLUMNS))
    rows: list[dict[str, object]] = []
    for label, values in found.items():
        row: dict[str, object] = {"data": name, "patients": patients, "epsilon": label}
        line = f"{label:<18}"
        for c in COLUMNS:
            v = np.array([x[c] for x in values if c in x])
            if not len(v):
                line += f"{'-':>16}"
                continue
            half = float(student.ppf(0.975, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else np.nan
            row |= {c: float(v.mean()), f"{c}_half": half, f"{c}_worst": float(v.min())}
            line += f"{v.mean():>9.3f} ±{half:5.3f}"
        print(line, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Print the tables."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--data", type=Path, default=None, help="folder of the open data (default POLYCLINIC_DATA)")
    ask.add_argument("--sets", nargs="*", default=["claims", "diabetes", "planted"])
    ask.add_argument("--sizes", type=int, nargs="*", default=[1000, 3000, 8000, 0])
    ask.add_argument("--epsilon", type=float, nargs="*", default=[0.1, 0.5, 1.0, 2.0, 8.0])
    ask.add_argument("--seeds", type=int, default=5)
    ask.add_argument("--first", type=int, default=0, help="seed of the first split")
    ask.add_argument("--rank", type=int, default=20, help="0: the public rule")
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--json", type=Path, default=None)
    given = ask.parse_args()
    if given.data is not None:
        os.environ["POLYCLINIC_DATA"] = str(given.data)
    if given.quick:
        given.seeds, given.epsilon, given.sizes = 1, [0.5, 2.0], [3000]
    load = {
        "claims": pc.datasets.load_synpuf,
        "diabetes": pc.datasets.load_diabetes130,
        "planted": lambda: pc.datasets.planted_counts(12_500, seed=given.first, sites=5),
    }
    rows = []
    for name in given.sets:
        sites = load[name]()
        for size in given.sizes:
            rows += table(
                name,
                sites,
                rank=given.rank or None,
                repeats=given.seeds,
                first=given.first,
                size=size,
                epsilons=tuple(given.epsilon),
            )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
