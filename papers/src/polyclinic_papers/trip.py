"""Experiments of the TRIP paper: fit and time by size, number of hospitals and skew."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyclinic.alignment.ecdh_ring import ring
from polyclinic.datasets import icu_network
from polyclinic.methods.central.als import CPALS
from polyclinic.methods.phenotypes import TRIP, LocalModel
from polyclinic.records.sites.site import Site, Sites, pooled
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.claims import judge
from polyclinic_papers.clock import RATE, clock
from polyclinic_papers.controls import RANDOM, ZERO, blank, explained
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import Interval, interval, mean_sd
from polyclinic_papers.reach import rmse_of
from polyclinic_papers.skewed_counts import skewed_counts
from polyclinic_papers.split import split

__all__ = ["hospitals", "size", "skew"]

W2 = (38_035, 3_229, 304)
CEILING = 3  # the paper cuts counts off at three
WAYS = ("central", "TRIP", "local")


def size(lab: Lab) -> Result:
    """Figure 4: RMSE, time and convergence against nonzeros, three hospitals; the paper's time model."""
    rows, faster, totals = [], [], []
    energy: dict[str, list[float]] = {w: [] for w in (*WAYS, RANDOM)}
    curves: dict[str, list[float]] = {}
    for n in lab["nonzeros"]:
        f = lab.part(f"{n}", lambda n=n: _measure(_thirds(n), lab["rank"], lab["rounds"], 0, curve=True))
        for way in energy:
            energy[way].append(explained(f[way]["rmse"], f["zero"]))
        faster.append(f["central"]["sweep"] / f["TRIP"]["sweep"])
        totals.append(f["central"]["total"] / f["TRIP"]["total"])
        rows.append(
            [
                f"{n:,}",
                *(f[w]["rmse"] for w in WAYS),
                *(energy[w][-1] for w in (*WAYS, RANDOM)),
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

    def figures(trip: Sequence[float], central: Sequence[float]) -> dict[str, float]:
        """With these models in the place of TRIP, and in the place of the central model beside the local one."""
        share = [t / c for t, c in zip(trip, energy["central"])]
        return {**_ends("share", share), **_ends("local", [a - b for a, b in zip(central, energy["local"])])}

    nothing = [0.0] * len(rows)
    return Result(
        [
            "nonzeros",
            *(f"RMSE, {w}" for w in WAYS),
            *(f"explained energy, {w}" for w in (*WAYS, RANDOM)),
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
            {ZERO: figures(nothing, nothing), RANDOM: figures(energy[RANDOM], energy[RANDOM])},
            small=lab.mode == "quick",
            **figures(energy["TRIP"], energy["central"]),
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
        "zero": (controls := blank(union, rank, seed))[ZERO]["full"],
        RANDOM: {"rmse": controls[RANDOM]["full"]},
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _compare(lab: Lab, key: str, label: str, deal: Any, big: Any) -> Result:
    """RMSE over five planted networks, and the paper's time model on a tensor of its size."""
    rows: list[list[Any]] = []
    found: dict[Any, list[dict[str, float]]] = {}
    seconds: dict[str, list[float]] = {w: [] for w in WAYS}
    for value in lab[key]:
        found[value] = [
            lab.part(f"{value} {s}", lambda value=value, s=s: _three(deal, value, lab, s)) for s in lab.seeds
        ]
        timed = lab.part(
            f"time {value}", lambda value=value: _measure(big(lab["nonzeros"], value), 10, lab["rounds"], 0)
        )
        for w in WAYS:
            seconds[w].append(timed[w]["total"])
        rows.append(
            [
                value if isinstance(value, int) else round(value, 3),
                *(mean_sd([f[k] for f in found[value]]) for k in WAYS),
                *(mean_sd([explained(f[k], f[ZERO]) for f in found[value]]) for k in (*WAYS, RANDOM)),
                *(timed[w]["total"] for w in WAYS),
            ]
        )

    def gap(left: str, right: str) -> Interval:
        """Explained energy of one model less another's over the central one's: a seed's mean over splits into several."""
        return interval(
            [
                float(np.mean([_apart(f[s], left, right) for v, f in found.items() if v != 1]))
                for s in range(len(lab.seeds))
            ]
        )

    def figures(trip: str, central: str) -> dict[str, Any]:
        return {"near": gap(trip, "central"), "away": gap(central, "local"), "edge": gap(trip, "local")}

    several = [k for k, v in enumerate(lab[key]) if v != 1]
    first, last = several[0], several[-1]
    rise = seconds["TRIP"][last] / seconds["TRIP"][first]
    curves = {w: [float(np.mean([f[w] for f in parts])) for parts in found.values()] for w in WAYS}
    spread = {w: [float(np.std([f[w] for f in parts])) for parts in found.values()] for w in WAYS}
    return Result(
        [
            label,
            *(f"RMSE, {w}" for w in WAYS),
            *(f"explained energy, {w}" for w in (*WAYS, RANDOM)),
            *(f"in all, {w}, s ({lab['nonzeros'] / 1e6:g} M nonzeros)" for w in WAYS),
        ],
        rows,
        [
            c
            for where in ("trip.compare", f"trip.time.{key}")
            for c in judge(
                where,
                {ZERO: figures(ZERO, ZERO), RANDOM: figures(RANDOM, RANDOM)},
                **figures("TRIP", "central"),
                rise=rise,
                faster=min(c / t for c, t in zip(seconds["central"], seconds["TRIP"])),
                first=lab[key][first],
                last=lab[key][last],
            )
        ],
        curves,
        label,
        "RMSE over all cells",
        note="RMSE over all cells of planted networks (one a seed), memberships solved anew for the global factors. Seconds: one "
        "run on the W2 shape, the paper's time model, processor seconds on one thread.",
        at=[float(v) for v in lab[key]],
        spread=spread,
    )


def _apart(rmse: dict[str, float], left: str, right: str) -> float:
    energy = {k: explained(v, rmse[ZERO]) for k, v in rmse.items()}
    return (energy[left] - energy[right]) / energy["central"]


def _three(deal: Any, value: Any, lab: Lab, seed: int) -> dict[str, float]:
    """RMSE over all cells of the three models and of the controls."""
    network = icu_network(patients=lab["patients"], seed=seed)
    sites, rank = deal(network, value, seed), network.truth.rank + 2
    trip = TRIP(weighting="none", start="random", tol=0.0, rank=rank, rounds=lab["rounds"], seed=seed)
    models: dict[str, Any] = {
        "central": CPALS(weighting="none", rank=rank, seed=seed),
        "TRIP": trip,
        "local": LocalModel(weighting="none", rank=rank, seed=seed),
    }
    controls = blank(pooled(sites).counts(), rank, seed)
    return {
        **{name: model.fit(sites).quality(sites)["rmse_full"] for name, model in models.items()},
        **{name: c["full"] for name, c in controls.items()},
    }


def hospitals(lab: Lab) -> Result:
    """Figures 5 (a), (c): RMSE and time over the number of hospitals."""
    return _compare(
        lab, "hospitals", "hospitals", lambda net, k, s: split(net, k, seed=s), lambda nonzeros, k: _thirds(nonzeros, k)
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
