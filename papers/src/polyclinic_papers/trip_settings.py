"""Experiments of the TRIP paper besides size: iterations, distinctness, phenotype discovery, alignment."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from polyclinic.alignment.ecdh_ring import ring
from polyclinic.datasets import icu_network
from polyclinic.methods.central.als import CPALS
from polyclinic.methods.estimators.phenotypes import TRIP
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Site, Sites
from polyclinic.tensors.matching import cosines
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.claims import judge
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import interval, mean_sd
from polyclinic_papers.polynomial import legacy_insecure
from polyclinic_papers.reach import rmse_curve

__all__ = ["alignment", "discovery", "distinct", "iterations", "rare_network"]


def iterations(lab: Lab) -> Result:
    """Figures 4 (c), (d): RMSE over iterations; corrected and literal."""
    network = icu_network(patients=lab["patients"], seed=0)
    rank = network.truth.rank + 2
    makers = {
        "TRIP": lambda s: TRIP(weighting="none", start="random", tol=0.0, rank=rank, rounds=lab["rounds"], seed=s),
        "TRIP without warm-up": lambda s: TRIP(
            weighting="none", start="random", tol=0.0, rank=rank, rounds=lab["rounds"], seed=s, warmup=0
        ),
        "TRIP, literal": lambda s: TRIP(
            weighting="none",
            start="random",
            tol=0.0,
            rank=rank,
            rounds=lab["rounds"],
            seed=s,
            variant="paper",
            distinct=0.01,
        ),
        "central": lambda s: CPALS(weighting="none", rank=rank, rounds=lab["rounds"], tol=0, seed=s),
    }
    rows: list[list[Any]] = []
    curves, steady = {}, {}
    for name, make in makers.items():
        found = [lab.part(f"{name} {s}", lambda make=make, s=s: rmse_curve(make(s), network)) for s in lab.seeds]
        curves[name] = np.mean([c[: min(map(len, found))] for c in found], axis=0).tolist()
        steady[name] = interval([next((k + 1 for k, v in enumerate(c) if v <= 1.005 * c[-1]), len(c)) for c in found])
        rows.append([name, mean_sd([c[-1] for c in found]), str(steady[name])])
    return Result(
        ["model", "final RMSE", "iterations until within 0.5 % of it"],
        rows,
        [c for name in ("TRIP", "TRIP, literal") for c in judge("trip.iterations", model=name, steady=steady[name])],
        curves,
        "iteration",
        "RMSE over all cells",
        note="Means over the seeds.",
    )


def distinct(lab: Lab) -> Result:
    """The grid over lambda: distinctness against fit."""
    network = icu_network(patients=lab["patients"], seed=0)
    rank = network.truth.rank + 2
    rows, overlaps = [], []
    for lam in lab["distinct"]:
        found = [
            lab.part(
                f"{lam} {s}",
                lambda lam=lam, s=s: _overlap(
                    TRIP(weighting="none", start="random", tol=0.0, rank=rank, seed=s, distinct=lam).fit(network),
                    network,
                ),
            )
            for s in lab.seeds
        ]
        rows.append([lam, mean_sd([f[0] for f in found]), mean_sd([f[1] for f in found])])
        overlaps.append([f[0] for f in found])
    less = interval([b - a for a, b in zip(overlaps[0], overlaps[-1])])
    return Result(
        ["lambda (in tr(Gram)/R)", "overlap of phenotypes", "RMSE over all cells"],
        rows,
        judge("trip.distinct", less=less),
        {"overlap of phenotypes": [float(np.mean(o)) for o in overlaps]},
        "lambda",
        "mean cosine of two phenotypes",
        at=[str(v) for v in lab["distinct"]],
        spread={"overlap of phenotypes": [float(np.std(o)) for o in overlaps]},
    )


def _overlap(model: Any, network: Sites) -> list[float]:
    away = [
        float((np.abs(f.T @ f) - np.eye(f.shape[1])).sum() / (f.shape[1] * (f.shape[1] - 1))) for f in model.factors_
    ]
    return [float(np.mean(away)), model.quality(network)["rmse_full"]]


def discovery(lab: Lab) -> Result:
    """Section 5.2: a phenotype that two hospitals find together and neither finds alone.

    Two hospitals share four strong phenotypes, each has one of its own, and a hidden one is in both, weaker than the own ones
    at each hospital. A model of rank 5 of one hospital spends its last column on its own phenotype; in the sum of both
    hospitals the hidden one is the fifth strongest.
    """
    rows, joint, alone = [], [], []
    for s in lab.seeds:
        found = lab.part(f"{s}", lambda s=s: _discover(lab["patients"], s))
        rows.append([s, found["a"], found["b"], found["joint"], found["pooled"]])
        joint.append(found["joint"])
        alone.append(max(found["a"], found["b"]))
    return Result(
        ["seed", "hospital A alone", "hospital B alone", "TRIP, jointly", "pooled"],
        rows,
        judge("trip.discovery", joint=min(joint), alone=max(alone)),
        dict(zip(["A alone", "B alone", "TRIP, jointly", "pooled"], np.transpose([r[1:] for r in rows]).tolist())),
        "seed",
        "likeness to the hidden phenotype",
        note="Likeness of the best column to the rare phenotype (product of cosines over both feature modes).",
        at=[str(s) for s in lab.seeds],
    )


def _discover(patients: int, seed: int) -> dict[str, float]:
    rare, sites = rare_network(patients, seed)
    rank = 5
    likeness = {}
    for name, model in (
        ("a", CPALS(weighting="none", rank=rank, seed=seed, n_starts=8).fit(sites[0])),
        ("b", CPALS(weighting="none", rank=rank, seed=seed, n_starts=8).fit(sites[1])),
        # the paper's TRIP: at a rank below the truth our warm-up favours the hospitals' own phenotypes and misses this one
        (
            "joint",
            TRIP(weighting="none", start="random", tol=0.0, rank=rank, seed=seed, n_starts=8, warmup=0).fit(sites),
        ),
        ("pooled", CPALS(weighting="none", rank=rank, seed=seed, n_starts=8).fit(sites)),
    ):
        likeness[name] = float(cosines(model.factors_, rare).max())
    return likeness


def rare_network(patients: int, seed: int) -> tuple[list[Any], list[Site]]:
    """Two hospitals: five strong phenotypes each (four shared and one of its own), and a hidden, weaker one in both."""
    codes, groups = (70, 84), 7  # phenotypes 0-3 shared, 4 at A, 5 at B, 6 hidden in both
    width = [c // groups for c in codes]
    sites = []
    for name, own in (("A", 4), ("B", 5)):
        rng = seeds(seed, "rare", name)
        who, a, b = [], [], []
        n = patients // 2
        for g, share, events in (
            (0, 0.5, 30),
            (1, 0.4, 30),
            (2, 0.4, 25),
            (3, 0.45, 25),
            (own, 0.35, 30),
            (6, 0.35, 24),
        ):
            carriers = np.flatnonzero(rng.random(n) < share)
            w = np.repeat(carriers, rng.poisson(events, len(carriers)))
            who.append(w)
            a.append(g * width[0] + rng.integers(0, width[0], len(w)))
            b.append(g * width[1] + rng.integers(0, width[1], len(w)))
        noise = rng.integers(0, n, 6 * n)
        who.append(noise)
        a.append(rng.integers(0, codes[0], len(noise)))
        b.append(rng.integers(0, codes[1], len(noise)))
        coords = np.column_stack([np.concatenate(x) for x in (who, a, b)])
        sites.append(Site(name, SparseTensor(coords, np.ones(len(coords)), (n, *codes))))
    rare = [np.zeros((c, 1)) for c in codes]
    for f, size_ in zip(rare, width):
        f[6 * size_ : 7 * size_] = 1 / np.sqrt(size_)
    return rare, sites


def alignment(lab: Lab) -> Result:
    """Alignment time by number of hospitals: TRIP's polynomials (insecure) and the ring."""
    rows = []
    for k in lab["sites"]:
        codes = {
            f"h{i}": list(range(1 + i * lab["codes"] // 4, 1 + i * lab["codes"] // 4 + lab["codes"])) for i in range(k)
        }
        begun = time.process_time()
        _, size_a, _ = legacy_insecure(codes, rng=seeds(0, "alignment"), allow_insecure=True)
        polynomials = (time.process_time() - begun) / k
        begun = time.process_time()
        _, size_b = ring({h: [str(c) for c in own] for h, own in codes.items()}, "diagnosis", pad=0)
        rows.append([k, lab["codes"], polynomials, (time.process_time() - begun) / k, size_a == size_b])
    return Result(
        ["hospitals", "codes each", "polynomials, CPU s a site (insecure)", "ring, CPU s a site", "same union"],
        rows,
        judge("trip.alignment", seconds=rows[-1][3]),
        {"polynomials (insecure)": [r[2] for r in rows], "ring": [r[3] for r in rows]},
        "hospitals",
        "CPU seconds a site",
        at=list(lab["sites"]),
        log="y",
    )
