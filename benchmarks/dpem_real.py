"""DPEM by epsilon and number of patients, on open and planted data, with measures side by side.

    python benchmarks/dpem_real.py [--sets claims diabetes planted ...] [--sizes 1000 3000 8000 0] [--epsilon .1 .5 1 2 8]
                                   [--seeds 5] [--first 0] [--rank 20] [--jobs 1] [--quick] [--json FILE]

80 % of the patients (or ``size`` of them) train, 20 % judge; delta 1e-6, patient level (one patient added or removed),
masked sum over the data's sites, simulated noise. The code lists are the most frequent codes of the data, so a card of these
runs is not formal: in production they must be public. One row is the mean over the splits with half the width of its 95 %
interval (Student):

- kept: (L_model - L_marginals) / (L_reference - L_marginals), L the log-likelihood of held-out patients placed by their own
  events, reference = plain EM of rank 20 without noise. It rises with the rank.
- cells: nats an event gained over the exact marginals when half of a patient's cells predict the rest. An artefact where cells
  are products of codes: a hidden cell's codes are still seen.
- codes: the same when whole codes are hidden (:func:`polyclinic_papers.heldout.code_completion`). On claims and on
  diabetes-130 no model gains much, with or without privacy.
- same: likeness of the phenotypes shown under two noises of the same start; FMS and ghosts: planted data only.
- back, flagged: of the phenotypes of :func:`pc.replicate` (two halves of the patients, the whole budget each, since nobody is in
  both) how many come back in the other half, and how many of these also hold together in the patients of the other half. The
  second test is not paid for: it is made in the clear, for this table alone. Without privacy: of plain EM of rank 20 on halves.

Without privacy: ranks 10, 20 and 40, and the best of them by each measure. ``--quick``: one split, two epsilons, 3,000 patients.
Sets: ``claims`` and ``diabetes`` are loaded as pairs of codes of a stay, where a code occurs once: product and visits are the
same there. ``claims-visits``, ``claims-product``, ``icu-visits`` and ``icu-product`` come through the reader of events with
that ``count`` (DE-SynPUF inpatient procedures and diagnoses by claim; MIMIC-III demo drugs and diagnoses by admission).
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

import polyclinic as pc
from polyclinic.analysis.replication.consensus import matched
from polyclinic.analysis.replication.replicate import links, published, verdict
from polyclinic.analysis.replication.replicate_fits import KEY, ReplicateFits
from polyclinic.config import Study
from polyclinic.datasets.truth import Truth
from polyclinic.protocol.composition import Parallel
from polyclinic.protocol.interfaces import seeds
from polyclinic.protocol.loop import run
from polyclinic.records.ingest import read_sites
from polyclinic.records.sites.site import Site, Sites, pooled
from polyclinic.tensors.matching import match, recovery
from polyclinic_papers.heldout import (
    CountModel,
    code_completion,
    completion,
    log_likelihood,
    marginal_model,
)
from polyclinic_papers.prediction import split

RANKS = (10, 20, 40)
COLUMNS = ("kept", "cells", "codes", "same", "fms", "precision", "ghosts", "shown", "back", "flagged", "seconds")
READ = {  # kind of source, folder, modes, codes kept of each
    "claims": ("synpuf", "cms_desynpuf", {"procedure": 202, "diagnosis": 316}),
    "icu": ("mimic3", "mimic3_demo", {"drug": 100, "diagnosis": 200}),
}


class Job(NamedTuple):
    """One split of one set at one size."""

    name: str
    size: int
    seed: int
    first: int
    rank: int | None
    epsilons: tuple[float, ...]


def cache(name: str) -> Path:
    """Where what depends on data and seed alone is kept."""
    folder = Path(os.environ.get("POLYCLINIC_BENCH_CACHE") or Path(tempfile.gettempdir()) / "polyclinic-bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def read(name: str) -> Sites:
    """A set through the reader of events."""
    source, count = name.split("-")
    kind, folder, top = READ[source]
    where = Path(os.environ["POLYCLINIC_DATA"]) / folder
    with tempfile.TemporaryDirectory() as scratch:
        node = Path(scratch) / "node.toml"
        node.write_text(f'[site]\nname = "all"\n[source]\nkind = "{kind}"\nfolder = "{where}"\n')
        asked = {
            "study": {"name": "dpem"},
            "tensor": {"modes": list(top), "count": count, "top": top},
            "sites": {"nodes": [str(node)], "split": True},
        }
        return read_sites(Study.parse(asked, folder=Path(scratch)))


def loaded(name: str, first: int = 0) -> Sites:
    """The sites of a set; open data are kept as they were read."""
    if name == "planted":
        return pc.datasets.planted_counts(12_500, seed=first, sites=5)
    path = cache(f"set-{name}.pkl")
    if not path.exists():
        load = {"claims": pc.datasets.load_synpuf, "diabetes": pc.datasets.load_diabetes130}
        path.write_bytes(pickle.dumps(load[name]() if name in load else read(name)))
    sites: Sites = pickle.loads(path.read_bytes())
    return sites


def some(sites: list[Site], size: int, seed: int) -> list[Site]:
    """``size`` patients, in every site's proportion; 0: all."""
    whole = sum(s.patients for s in sites)
    if not size or size >= whole:
        return sites
    rng = seeds(seed, "some")
    return [s.take(np.sort(rng.permutation(s.patients)[: round(size * s.patients / whole)])) for s in sites]


def flags(method: pc.DPEM, train: list[Site]) -> dict[str, float]:
    """How many phenotypes come back in the other half, and how many also hold together there.

    A private method is told half of the patients as its planning size: two counts that are bought apart could open the gate for one
    half alone, and the halves would ask for different noise.
    """
    half = max(sum(s.patients for s in train) // 2, 1)
    rungs = ReplicateFits(
        method.with_params(**({"planning_size": half} if method.params.privacy is not None else {})), KEY, 1
    )
    outcome = run(rungs, train)
    found = matched(rungs.chosen(outcome.public), method.params.privacy is not None)
    model = published(rungs.method, found.public, outcome)
    acts = links(found.halves, rungs.method, outcome.setting, KEY, "masked")
    ladder = Parallel(acts, name="link")
    table = verdict(found, acts, list(ladder.publics(run(ladder, train).public)), model.order_, len(train))
    back = sum(r["comes_back"] == "yes" for r in table)
    return {"back": float(back), "flagged": float(sum(bool(r["replicable"]) for r in table))}


class Bench:
    """One split: who trains, who judges, and what is known without privacy."""

    def __init__(self, sites: Sites, size: int, seed: int) -> None:
        self.seed, self.truth = seed, sites.truth
        train, test = split(sites, 0.8, seed)
        self.train, self.judge = some(list(train), size, seed), pooled(test).counts()
        t = pooled(self.train).counts()
        key = sha256(t.coords.tobytes() + t.values.tobytes() + f"{t.shape} {seed}".encode()).hexdigest()
        path = cache(f"dpem-{key[:24]}.pkl")
        if not path.exists():
            path.write_bytes(pickle.dumps(self._references()))
        self.free, self.flagged = pickle.loads(path.read_bytes())
        self.marginals = marginal_model(t)
        self.none = log_likelihood(self.marginals, self.judge)
        self.full = log_likelihood(self.free[20], self.judge)

    def _references(self) -> tuple[dict[int, CountModel], dict[str, float]]:
        """Plain EM without noise by rank, and what is flagged of rank 20."""
        plain = {
            r: pc.DPEM(rank=r, rounds=30, seed=self.seed, background=False, regroup=False, prune=False) for r in RANKS
        }
        free = {r: CountModel.of(m.fit(self.train)) for r, m in plain.items()}
        return free, flags(plain[20].with_params(), self.train)

    def measured(self, model: CountModel) -> dict[str, float]:
        """The three measures on held-out patients."""
        kept = (log_likelihood(model, self.judge) - self.none) / (self.full - self.none)
        cells = completion(model, self.marginals, self.judge, seeds(self.seed, "halves"))
        return {"kept": kept, "cells": cells, "codes": code_completion(model, self.marginals, self.judge, self.seed)}

    def private(self, epsilon: float, rank: int | None) -> dict[str, float]:
        """Two fits that differ in the noise, and one on halves."""
        method = pc.DPEM(rank=rank, seed=self.seed, aggregation="masked", privacy=pc.Privacy(epsilon, 1e-6))
        began = time.process_time()
        one, two = (method.with_params().fit(self.train) for _ in range(2))
        out = {"seconds": (time.process_time() - began) / 2, "shown": float(len(one.weights_))}
        out |= self.measured(CountModel.of(one)) | {"same": float(match(one.factors_, two.factors_).likeness.mean())}
        if not one.too_little_data_:
            out |= flags(method, self.train)
        if self.truth is not None:
            out |= likeness(one, self.truth)
        return out


def likeness(model: pc.DPEM, truth: Truth) -> dict[str, float]:
    """FMS (recall), precision, and the share of the codes shown that are outside the truth."""
    pairs = match(model.factors_, list(truth.factors))
    shown = [s[:, pairs.left] for s in model.shown_]
    real = [f[:, pairs.right] > 0 for f in truth.factors]
    wrong = sum(int((s & ~f).sum()) for s, f in zip(shown, real))
    score = recovery(list(truth.factors), model.factors_)
    figures = {"fms": score.recall, "precision": score.precision}
    return figures | {"ghosts": wrong / max(sum(int(s.sum()) for s in shown), 1)}


def one_split(job: Job) -> tuple[int, dict[str, dict[str, float]]]:
    """Patients that trained, and the measures by row."""
    bench = Bench(loaded(job.name, job.first), job.size, job.seed)
    free = {r: bench.measured(m) for r, m in bench.free.items()}
    found = {f"none, rank {r}": m for r, m in free.items()}
    found["none, rank 20"] = free[20] | bench.flagged
    found["none, best rank"] = {k: max(m[k] for m in free.values()) for k in ("kept", "cells", "codes")}
    found |= {f"{e:g}": bench.private(e, job.rank) for e in job.epsilons}
    return sum(s.patients for s in bench.train), found


def printed(job: Job, patients: int, splits: list[dict[str, dict[str, float]]]) -> list[dict[str, object]]:
    """Rows (data, patients, epsilon, every measure with its mean, half interval and worst), and the same as text."""
    print(
        f"\n{job.name}: {patients:,} patients, rank {job.rank or 'by the rule'}, {len(splits)} splits from {job.first}"
    )
    print(f"{'epsilon':<18}" + "".join(f"{c:>16}" for c in COLUMNS))
    rows: list[dict[str, object]] = []
    for label in splits[0]:
        row: dict[str, object] = {"data": job.name, "patients": patients, "rank": job.rank, "epsilon": label}
        line = f"{label:<18}"
        for c in COLUMNS:
            v = np.array([s[label][c] for s in splits if c in s[label]])
            if not len(v):
                line += f"{'-':>16}"
                continue
            half = float(student.ppf(0.975, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else np.nan
            row |= {c: float(v.mean()), f"{c}_half": half, f"{c}_worst": float(v.min())}
            line += f"{v.mean():>9.3f} ±{half:5.3f}"
        print(line, flush=True)
        rows.append(row)
    return rows


def table(
    names: list[str],
    *,
    sizes: tuple[int, ...] = (0,),
    rank: int | None = 20,
    repeats: int = 5,
    first: int = 0,
    epsilons: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 8.0),
    jobs: int = 1,
) -> list[dict[str, object]]:
    """All rows; ``jobs`` processes share the splits. A size that a set does not have is left out: ``0`` is all of it."""
    whole = {n: round(0.8 * sum(s.patients for s in loaded(n, first))) for n in names}
    kept = [(n, s) for n in names for s in sizes if s < whole[n]]
    todo = [Job(n, s, k, first, rank, epsilons) for k in range(first, first + repeats) for n, s in kept]
    if jobs == 1:
        done = [one_split(j) for j in todo]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            done = list(pool.map(one_split, todo))
    rows = []
    for n, s in kept:
        mine = [(j, d) for j, d in zip(todo, done) if (j.name, j.size) == (n, s)]
        rows += printed(mine[0][0], mine[0][1][0], [d[1] for _, d in mine])
    return rows


def main() -> None:
    """Print the tables."""
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--data", type=Path, default=None, help="folder of the open data (default POLYCLINIC_DATA)")
    ask.add_argument("--sets", nargs="*", default=["claims", "diabetes", "planted", "claims-visits", "claims-product"])
    ask.add_argument("--sizes", type=int, nargs="*", default=[1000, 3000, 8000, 0])
    ask.add_argument("--epsilon", type=float, nargs="*", default=[0.1, 0.5, 1.0, 2.0, 8.0])
    ask.add_argument("--seeds", type=int, default=5)
    ask.add_argument("--first", type=int, default=0, help="seed of the first split")
    ask.add_argument("--rank", type=int, default=20, help="0: the public rule")
    ask.add_argument("--jobs", type=int, default=1, help="processes")
    ask.add_argument("--quick", action="store_true")
    ask.add_argument("--json", type=Path, default=None)
    given = ask.parse_args()
    if given.data is not None:
        os.environ["POLYCLINIC_DATA"] = str(given.data)
    if given.quick:
        given.seeds, given.epsilon, given.sizes = 1, [0.5, 2.0], [3000]
    rows = table(
        given.sets,
        sizes=tuple(given.sizes),
        rank=given.rank or None,
        repeats=given.seeds,
        first=given.first,
        epsilons=tuple(given.epsilon),
        jobs=given.jobs,
    )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
