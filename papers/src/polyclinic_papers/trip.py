"""Experiments of the TRIP paper: fit and time by size, number of hospitals and skew."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyclinic.alignment.ecdh_ring import ring
from polyclinic.datasets import icu_network, split
from polyclinic.methods.central.als import CPALS
from polyclinic.methods.estimators.phenotypes import TRIP, LocalModel
from polyclinic.records.sites.site import Site, Sites, pooled
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.claims import judge
from polyclinic_papers.clock import RATE, clock
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import interval, mean_sd
from polyclinic_papers.reach import rmse_of
from polyclinic_papers.skewed_counts import skewed_counts

__all__ = ["hospitals", "size", "skew"]

W2 = (38_035, 3_229, 304)
CEILING = 3  # the paper cuts counts off at three
WAYS = ("central", "TRIP", "local")


def size(lab: Lab) -> Result:
    """Figure 4: RMSE, time and convergence against nonzeros, three hospitals; the paper's time model."""
    rows, ratios, faster, totals = [], [], [], []
    curves: dict[str, list[float]] = {}
    for n in lab["nonzeros"]:
        f = lab.part(f"{n}", lambda n=n: _measure(_thirds(n), lab["rank"], lab["rounds"], 0, curve=True))
        ratios.append(f["TRIP"]["rmse"] / f["central"]["rmse"])
        faster.append(f["central"]["sweep"] / f["TRIP"]["sweep"])
        totals.append(f["central"]["total"] / f["TRIP"]["total"])
        rows.append(
            [
                f"{n:,}",
                *(f[w]["rmse"] for w in WAYS),
                f["central"]["sweep"],
                f["TRIP"]["round"],
                f["TRIP"]["sweep"],
                faster[-1],
                *(f[w]["total"] for w in WAYS),
                f["peak_gb"],
            ]
        )
        if n in (min(lab["nonzeros"]), max(lab["nonzeros"])):
            curves |= {f"{way}, {n / 1e6:g} M": f[way]["curve"] for way in ("central", "TRIP")}
    return Result(
        [
            "nonzeros",
            *(f"RMSE, {w}" for w in WAYS),
            "pooled sweep, CPU s",
            "TRIP round, the sites one after the other, CPU s",
            "slowest site's sweep with duals, server, serialising, CPU s",
            "times faster than the pooled sweep",
            *(f"in all, {w}, s" for w in WAYS),
            "peak memory, GB",
        ],
        rows,
        judge(
            "trip.size",
            small=lab.mode == "quick",
            **_ends("ratio", ratios),
            **_ends("local", [r[3] / r[1] for r in rows]),
            **_ends("faster", faster),
            **_ends("total", totals),
        ),
        curves,
        "iteration",
        "RMSE over all cells",
        note="RMSE over all cells of the W2 shape with counts up to three. Time model of the paper: slowest hospital + bytes / "
        "15 MB/s + alignment by the ring; the central model pays the transfer of the data (8 bytes a nonzero). Processor "
        "seconds on one thread, one repetition.",
    )


def _ends(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_least": min(values), f"{name}_most": max(values)}


def _thirds(nonzeros: int, number: int = 3, skew: float | None = None, seed: int = 0) -> Sites:
    union = skewed_counts(W2 if nonzeros >= 1_000_000 else (3_000, 400, 100), nonzeros, seed=seed)
    capped = np.minimum(union.values, CEILING)
    cut = SparseTensor.from_layout(union.rows, union.indptr, union.codes, capped, union.shape, union.axes)
    return split(Site("all", cut), number, skew=skew, seed=seed)


def _measure(sites: Sites, rank: int, rounds: int, seed: int, *, curve: bool = False) -> dict[str, Any]:
    """RMSE and seconds of the central, the federated and the local model on one split."""
    union = pooled(sites).counts()
    align = _alignment_seconds(len(sites), union.shape[1:]) if len(sites) > 1 else 0.0
    fits, spent = {}, {}
    for n in (1, 1, rounds):  # the first loads the kernels; the second is what all but the other sweeps cost
        begun = time.process_time()
        fits[n] = CPALS(weighting="none", rank=rank, rounds=n, tol=0, seed=seed).fit(union)
        spent[n] = time.process_time() - begun
    central = fits[rounds]
    kept: list[float] = []
    trip = clock(
        TRIP(weighting="none", start="random", tol=0.0, rank=rank, rounds=rounds, seed=seed),
        sites,
        main="sweep",
        curve=kept,
    )
    local = clock(LocalModel(weighting="none", rank=rank, rounds=rounds, tol=0, seed=seed), sites, main="factors")
    return {
        "central": {
            "rmse": rmse_of(union, central.factors_),
            "sweep": (spent[rounds] - spent[1]) / (rounds - 1),
            "total": spent[rounds] + (8 * union.nnz / RATE if len(sites) > 1 else 0.0),
            "curve": [h["rmse_full"] for h in central.history_] if curve else [],
        },
        "TRIP": {
            "rmse": rmse_of(union, trip.factors),
            "sweep": trip.sweep,
            "round": trip.round,
            "total": trip.total + align,
            "curve": kept if curve else [],
        },
        "local": {"rmse": rmse_of(union, local.factors), "total": local.total + align},
        "alignment": align,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _compare(lab: Lab, key: str, label: str, deal: Any, big: Any) -> Result:
    """RMSE over five planted networks, and the paper's time model on a tensor of its size."""
    rows: list[list[Any]] = []
    all_: dict[Any, list[list[float]]] = {}
    for value in lab[key]:
        all_[value] = [
            lab.part(f"{value} {s}", lambda value=value, s=s: _three(deal, value, lab, s)) for s in lab.seeds
        ]
        timed = lab.part(
            f"time {value}", lambda value=value: _measure(big(lab["nonzeros"], value), 10, lab["rounds"], 0)
        )
        rows.append(
            [
                value if isinstance(value, int) else round(value, 3),
                *(mean_sd([f[k] for f in all_[value]]) for k in range(3)),
                *(float(np.mean([f[k] / f[0] for f in all_[value]])) for k in (1, 2)),
                *(timed[w]["total"] for w in WAYS),
            ]
        )
    curves = {w: [float(np.mean([f[k] for f in found])) for found in all_.values()] for k, w in enumerate(WAYS)}
    spread = {w: [float(np.std([f[k] for f in found])) for found in all_.values()] for k, w in enumerate(WAYS)}
    near, away = (  # a seed's mean over all splits into several hospitals
        interval([float(np.mean([f[s][k] / f[s][0] - 1 for v, f in all_.items() if v != 1])) for s in lab.seeds])
        for k in (1, 2)
    )
    return Result(
        [
            label,
            *(f"RMSE, {w}" for w in WAYS),
            "TRIP / central",
            "local / central",
            *(f"in all, {w}, s ({lab['nonzeros'] / 1e6:g} M nonzeros)" for w in WAYS),
        ],
        rows,
        judge("trip.compare", near=near, away=away),
        curves,
        label,
        "RMSE over all cells",
        note="RMSE over all cells of planted networks (one a seed), memberships solved anew for the global factors. Seconds: one "
        "run on the W2 shape, the paper's time model, processor seconds on one thread.",
        at=[float(v) for v in lab[key]],
        spread=spread,
    )


def _three(deal: Any, value: Any, lab: Lab, seed: int) -> list[float]:
    network = icu_network(patients=lab["patients"], seed=seed)
    sites, rank = deal(network, value, seed), network.truth.rank + 2
    return [
        CPALS(weighting="none", rank=rank, seed=seed).fit(sites).quality(sites)["rmse_full"],
        TRIP(weighting="none", start="random", tol=0.0, rank=rank, rounds=lab["rounds"], seed=seed)
        .fit(sites)
        .quality(sites)["rmse_full"],
        LocalModel(weighting="none", rank=rank, seed=seed).fit(sites).quality(sites)["rmse_full"],
    ]


def hospitals(lab: Lab) -> Result:
    """Figures 5 (a), (c): RMSE and time over the number of hospitals."""
    return _compare(
        lab,
        "hospitals",
        "hospitals",
        lambda net, k, s: split(net, k, seed=s),
        lambda nonzeros, k: _thirds(nonzeros, k),
    )


def skew(lab: Lab) -> Result:
    """Figures 5 (b), (d): RMSE and time over skewness, three hospitals."""
    return _compare(
        lab,
        "skews",
        "share of the largest hospital",
        lambda net, x, s: split(net, 3, skew=x, seed=s),
        lambda nonzeros, x: _thirds(nonzeros, 3, skew=x),
    )


def _alignment_seconds(hospitals: int, codes: Sequence[int]) -> float:
    """Processor seconds a hospital spends in the ring, all holding so many codes a mode."""
    begun = time.process_time()
    for number in codes:
        ring({f"h{i}": [str(c) for c in range(number)] for i in range(hospitals)}, "code", pad=0)
    return (time.process_time() - begun) / hospitals
