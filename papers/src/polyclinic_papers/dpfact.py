"""Experiments of the DPFact paper, efficiency: RMSE over epochs, communication, number of sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from polyclinic.errors import PolyclinicError
from polyclinic.methods.phenotypes import TRIP, DPFact, LocalTF, SumALS
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.records.sites.site import Site, Sites, pooled
from polyclinic_papers.claims import judge, verdicts
from polyclinic_papers.cohorts import TITLES, cohort
from polyclinic_papers.controls import RANDOM, ZERO, blank, energies
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import interval, mean_sd
from polyclinic_papers.race import Finish, Pooled, Runner, costs, race, untrained
from polyclinic_papers.reach import trace
from polyclinic_papers.split import split

__all__ = ["LITERAL", "PRINTED", "UNITS", "cost", "literal", "rmse", "sites"]

LITERAL: Final[Mapping[str, Any]] = {"variant": "paper", "zeros": "missing", "elastic": 5.0}
STILL: Final = 0.005  # a run whose RMSE fell by less in its last five rounds has settled
UNITS: Final = {"TSICU": 1.0, "SICU": 1.8, "MICU": 3.2, "CSRU": 1.8, "CCU": 1.5, "NICU": 0.6}
# Section 5.4: eta, mu, epsilon at delta 1e-4, and the epochs that Theorem 4.1 implies (ERRATA E0.9).
PRINTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "icu": {"eta": 1e-2, "mu": UNITS, "epsilon": 1.2, "epochs": 20},
    "mimic3_demo": {"eta": 1e-2, "mu": UNITS, "epsilon": 1.2, "epochs": 20},
    "cms_desynpuf": {"eta": 1e-3, "mu": 2.0, "epsilon": 1.9, "epochs": 49},
    "synthetic": {"eta": 1e-2, "mu": 0.5, "epsilon": 1.7, "epochs": 39},
}
# Tables 2, 3 and 8, in seconds at 15 MB/s.
SECONDS: Final = {
    "icu": {"TRIP": 175.26, "DPFact": 93.62, 1: 18.73, 5: 93.62, 10: 189.83},
    "mimic3_demo": {"TRIP": 175.26, "DPFact": 93.62, 1: 18.73, 5: 93.62, 10: 189.83},
    "cms_desynpuf": {"TRIP": 183.72, "DPFact": 114.42, 1: 22.89, 5: 114.42, 10: 228.83},
    "synthetic": {"TRIP": 9.77, "DPFact": 7.75, 1: 1.55, 5: 7.75, 10: 15.50},
}


def literal(data: str, names: Any = None, **more: Any) -> dict[str, Any]:
    """DPFact as printed, with the section's settings for a data set; ``names`` are the sites that take part."""
    mu = PRINTED[data]["mu"]
    if isinstance(mu, dict) and names is not None:
        mu = {k: v for k, v in mu.items() if k in names}
    return {**LITERAL, "learning_rate": PRINTED[data]["eta"], "sparsity": mu, **more}


def rmse(lab: Lab) -> Result:
    """Figure 2: RMSE over epochs on one data set, as printed and corrected, over nonzeros and over all cells."""
    data = lab["data"]
    names = ["CP-ALS", "TRIP", "TRIP, literal", "DPFact", "DPFact, literal, mu 0", "DPFact, literal"]
    names += ["DPFact, literal, with noise", "DPFact, literal, mu 0, with noise", "SGD, literal", ZERO, RANDOM]
    rows, curves, found = [], {}, {}
    for name in names:
        parts = [lab.part(f"{name} {s}", lambda name=name, s=s: _traced(lab, name, s)) for s in lab.seeds]
        found[name] = parts
        rows.append(
            [name, *(mean_sd([p[k] for p in parts]) for k in ("observed", "full", "energy_observed", "energy"))]
        )
        curves[name] = np.mean([p["curve"] for p in parts], axis=0).tolist()
    epsilon, rounds = PRINTED[data]["epsilon"], lab["rounds"]

    def figures(control: str = "") -> dict[str, Any]:
        """Differences of explained energy, with a control in the place of the method that a claim speaks for."""

        def gap(left: str, right: str, key: str = "energy_observed") -> Any:
            return interval([a[key] - b[key] for a, b in zip(found[control or left], found[right])])

        def share(left: str) -> Any:
            return interval([a["energy"] / b["energy"] for a, b in zip(found[control or left], found["CP-ALS"])])

        return {
            "own": gap("DPFact, literal", "CP-ALS"),
            "without_mu": gap("DPFact, literal, mu 0", "CP-ALS"),
            "private": gap("DPFact, literal, with noise", "TRIP"),
            "quiet": gap("DPFact, literal, mu 0, with noise", "TRIP"),
            "cells": gap("DPFact, literal", "CP-ALS", "energy"),
            "sgd": gap("SGD, literal", "DPFact, literal"),
            "mended": share("DPFact"),
            "trip": share("TRIP"),
        }

    def told(name: str) -> str:
        over = (float(np.mean([p[k] for p in found[name]])) for k in ("observed", "full"))
        return " and ".join(f"{v:.4f}" for v in over)

    claims = judge(
        "dpfact.rmse",
        {name: figures(name) for name in (ZERO, RANDOM)},
        **figures(),
        energy=interval([p["energy"] for p in found["DPFact, literal"]]),
        epsilon=epsilon,
    )
    return Result(
        ["model", "RMSE over nonzeros", "RMSE over all cells", "explained energy over nonzeros", "over all cells"],
        rows,
        claims,
        curves,
        "epoch",
        "RMSE over nonzeros",
        note=f"CP-ALS is run as SumALS and SGD as LocalTF with one site (the same sweeps, measured after each). Literal: zeros missing, "
        f"gamma 5, eta {PRINTED[data]['eta']:g}, threshold mu as printed (E0.3); every site's own factors as trained are judged (section "
        f"5.5.1). {rounds} epochs; the noisy run makes {min(PRINTED[data]['epochs'], rounds)}, as Theorem 4.1 implies, and its noise is drawn afresh "
        "each time.",
        main={
            "figure": "Figure 2 (a): RMSE over nonzeros, and over all cells",
            "paper says": "DPFact below CP-ALS (the thesis: 0.77 and 1.29 over nonzeros)",
            "ours": f"DPFact {told('DPFact')}, CP-ALS {told('CP-ALS')}",
            "literal": f"DPFact {told('DPFact, literal')}",
            "verdict": verdicts(claims[-1], claims[0]),
        }
        if lab.name == "dpfact-rmse"
        else {},
    )


def _traced(lab: Lab, name: str, seed: int) -> dict[str, Any]:
    data, patients = lab["data"], lab["patients"]
    network = cohort(data, seed, patients)
    names = [s.name for s in network]
    common = {"rank": lab["rank"], "rounds": lab["rounds"], "seed": seed, "tol": 0.0}
    epochs = min(PRINTED[data]["epochs"], lab["rounds"])
    privacy = Privacy(PRINTED[data]["epsilon"], 1e-4, level="entry", clip=1.0)
    union: list[Site] = [pooled(network)]
    tensor = union[0].counts()
    if name in (ZERO, RANDOM):
        figures: dict[str, Any] = blank(tensor, lab["rank"], seed)[name]
        return {**figures, "curve": [figures["observed"]] * lab["rounds"]}
    made: dict[str, tuple[Any, Any]] = {
        "CP-ALS": (SumALS(weighting="none", start="random", **common, warmup=20), network),
        "TRIP": (TRIP(weighting="none", start="random", **common), network),
        "TRIP, literal": (TRIP(weighting="none", start="random", **common, variant="paper"), network),
        "DPFact": (DPFact(weighting="none", **common), network),
        "DPFact, literal, mu 0": (DPFact(weighting="none", **common, **literal(data, names, sparsity=0.0)), network),
        "DPFact, literal": (DPFact(weighting="none", **common, **literal(data, names)), network),
        "DPFact, literal, with noise": (
            DPFact(weighting="none", **{**common, "rounds": epochs}, **literal(data, names), privacy=privacy),
            network,
        ),
        "DPFact, literal, mu 0, with noise": (
            DPFact(
                weighting="none", **{**common, "rounds": epochs}, **literal(data, names, sparsity=0.0), privacy=privacy
            ),
            network,
        ),
        "SGD, literal": (
            LocalTF(weighting="none", **common, zeros="missing", learning_rate=PRINTED[data]["eta"], variant="paper"),
            union,
        ),
    }
    found = trace(*made[name])
    curve = found.observed + [found.observed[-1]] * (lab["rounds"] - len(found.observed))
    return {**energies(tensor, found.full[-1], found.observed[-1]), "curve": curve}


def cost(lab: Lab) -> Result:
    """Table 3: bytes until converged, DPFact against TRIP, literal and corrected, all with equal tuning."""
    rows, claims = [], []
    curves: dict[str, list[float]] = {}
    for data in lab["data"]:
        settings, names = lab["settings"], [s.name for s in cohort(data, 0, lab["patients"])]

        def printed(*, data: str = data, names: Any = tuple(names), **more: Any) -> Any:
            return DPFact(weighting="none", **{**literal(data, names), **more})

        runners = [
            Runner("TRIP", lambda **k: TRIP(weighting="none", start="random", **k), settings["trip"]),
            Runner(
                "TRIP, A_k and H_k up",
                lambda **k: TRIP(weighting="none", start="random", variant="paper", **k),
                settings["trip_literal"],
            ),
            Runner("DPFact", lambda **k: DPFact(weighting="none", sparsity=0.0, **k), settings["dpfact"]),
            Runner(
                "TRIP, literal",
                lambda **k: TRIP(weighting="none", start="random", variant="paper", **k),
                settings["trip_literal"],
                "nonzeros",
            ),
            Runner("DPFact, literal", printed, settings["dpfact_literal"], "nonzeros"),
        ]
        found = race(lab, data, runners)
        for name, f in found.items():
            says = SECONDS[data].get(name.split(",")[0]) if name != "TRIP" and name != "DPFact" else None
            mb = f.median("bytes")
            rows.append(
                [
                    TITLES[data],
                    name,
                    "; ".join(f"{k} {v:g}" for k, v in f.setting.items()),
                    f.arrived,
                    f.median("rounds"),
                    None if mb is None else mb / 1e6,
                    None if mb is None else mb / 15e6,
                    says,
                ]
            )
            curves.setdefault(name, []).append(0.0 if mb is None else mb / 1e6)
        known = [Pooled.of(lab, data, s) for s in lab.seeds]
        published = 1 - SECONDS[data]["DPFact"] / SECONDS[data]["TRIP"]
        words = {"data": TITLES[data], "published": 100 * published, "goal": lab["share"]}
        for name, left, right in (
            ("literal", "DPFact, literal", "TRIP, literal"),
            ("mixed", "DPFact", "TRIP, A_k and H_k up"),
            ("corrected", "DPFact", "TRIP"),
        ):
            claims += judge(
                f"dpfact.cost.{name}",
                untrained(lab, data, found[left]),
                **words,
                **_cost(found[left], found[right], known),
            )
    return Result(
        [
            "data",
            "method",
            "setting (best of equally many)",
            "arrived",
            "rounds (median)",
            "MB, both ways, all sites",
            "seconds at 15 MB/s",
            "paper: seconds",
        ],
        rows,
        claims,
        curves,
        "data",
        "MB until arrived (0: never)",
        note="Literal: the printed updates over nonzeros with settings chosen like every other method's; mu 0 is among them and was chosen "
        "(the printed mu removes the columns), so the verdict on the literal methods speaks for mu 0. "
        "Published seconds are no target: they imply about 17 messages of all three factors (E0.14). Where TRIP never arrives it counts "
        "with what it had spent; DPFact must arrive on every seed to count as cheaper.",
        at=[TITLES[d] for d in lab["data"]],
    )


def _cost(left: Finish, right: Finish, known: Sequence[Pooled]) -> dict[str, Any]:
    """Figures of two methods' bytes, and of what may explain them."""
    missed = [k for k, hit in enumerate(left.hits) if hit is None]
    return {
        **costs(left, right),
        "likeness": float(np.mean([k.truth for k in known if k.truth is not None] or [1.0])),
        "explained": float(np.mean([k.explained for k in known])),
        "settled": bool(missed) and max(left.drift[k] for k in missed) < STILL,
        "share": float(np.mean([known[k].share(left.last[k]) for k in missed])) if missed else 1.0,
    }


def sites(lab: Lab) -> Result:
    """Tables 2 and 8: bytes by number of sites, for a fixed number of epochs and until the same quality."""
    rows, claims = [], []
    curves: dict[str, list[float]] = {}
    for data in lab["data"]:
        shares: dict[str, list[float]] = {"DPFact": [], ZERO: [], RANDOM: []}
        for k in lab["sites"]:
            found = [
                lab.part(f"{data} {k} {s}", lambda data=data, k=k, s=s: _sites(lab, data, k, s)) for s in lab.seeds
            ]
            one = found[0]
            to = [f["bytes_to"] for f in found if f["bytes_to"] is not None]
            rows.append(
                [
                    TITLES[data],
                    k,
                    SECONDS[data].get(k),
                    one["bytes"] / 15e6,
                    one["bytes"] / 1e6,
                    one["up"] / k,
                    mean_sd([f["ratio"] for f in found]),
                    float(np.median(to)) / 1e6 if to else None,
                    f"{len(to)} of {len(found)}",
                ]
            )
            curves.setdefault(TITLES[data], []).append(one["bytes"] / 1e6)
            for name, values in shares.items():
                values += [f["shares"][name] for f in found]
        ups = [r[5] for r in rows[-len(lab["sites"]) :]]
        spread = max(ups) / min(ups) - 1
        claims += judge(
            "dpfact.sites",
            {name: {"share": min(shares[name])} for name in (ZERO, RANDOM)},
            share=min(shares["DPFact"]),
            data=TITLES[data],
            seconds=", ".join(f"{SECONDS[data].get(k, float('nan')):g} s" for k in lab["sites"]),
            numbers=", ".join(map(str, lab["sites"])),
            spread=spread,
            percent=100 * spread,
            asserted=bool(lab.parameters.get("asserted", False)),
        )
    return Result(
        [
            "data",
            "sites",
            "paper: seconds",
            "seconds at 15 MB/s",
            "MB, both ways",
            "bytes up a site, epochs",
            "RMSE over pooled CP-ALS's (all cells)",
            f"MB to {lab['share']:.0%} of what pooled explains (median)",
            "arrived",
        ],
        rows,
        claims,
        curves,
        "sites",
        "MB, both ways",
        note=f"Rank {lab['rank']}, {lab['rounds']} epochs. The published seconds differ because they count other things (E0.14).",
        at=lab["sites"],
    )


def _sites(lab: Lab, data: str, number: int, seed: int) -> dict[str, Any]:
    patients, rank = lab["patients"], lab["rank"]
    network: Sites = split(cohort(data, seed, patients), number, seed=seed)
    known = Pooled.of(lab, data, seed)
    goal = known.goal(lab["share"])
    try:
        found = trace(
            DPFact(weighting="none", rank=rank, rounds=lab["rounds"], seed=seed, tol=0.0), network, nonzeros=False
        )
    except PolyclinicError as error:
        raise ValueError(f"{data}: {number} sites") from error
    traffic = found.model.traffic_
    at = next((k for k, v in enumerate(found.full) if v <= goal), None)
    return {
        "bytes": traffic.bytes_up + traffic.bytes_down,
        "up": sum(size for (_, epoch), size in traffic.up.items() if epoch > 0),
        "ratio": found.full[-1] / known.full,
        "shares": {
            "DPFact": known.share(found.full[-1]),
            **{name: known.share(c["full"]) for name, c in blank(pooled(network).counts(), rank, seed).items()},
        },
        "bytes_to": None if at is None else found.bytes[at],
    }
