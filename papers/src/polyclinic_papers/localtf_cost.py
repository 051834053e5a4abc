"""Experiments of the LocalTF thesis, communication: rounds and bytes until arrived, and the grid over b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyclinic.methods.phenotypes import TRIP, DistributedSGD, DPFact, LocalTF, SumALS
from polyclinic.records.sites.site import pooled
from polyclinic.tensors.matching import factor_match_score
from polyclinic_papers.claims import Claim, judge
from polyclinic_papers.cohorts import TITLES, cohort
from polyclinic_papers.controls import RANDOM, ZERO, blank
from polyclinic_papers.dpfact import UNITS, literal
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import Interval, interval, mean_sd
from polyclinic_papers.localtf import PRINTED
from polyclinic_papers.race import Pooled, Runner, cheaper, costs, race, untrained
from polyclinic_papers.reach import trace

__all__ = ["cost", "passes"]


def cost(lab: Lab) -> Result:
    """Section 4.5.2: rounds and bytes until arrived, every method tuned alike; one worker's upload beside the thesis'."""
    settings, names = lab["settings"], list(UNITS)
    runners = [
        Runner("DPFact", lambda **k: DPFact(weighting="none", sparsity=0.0, **k), settings["dpfact"]),
        Runner("LocalTF", lambda **k: LocalTF(weighting="none", **k), settings["localtf"]),
        Runner("distributed SGD", lambda **k: DistributedSGD(weighting="none", **k), settings["distributed"]),
        Runner("TRIP", lambda **k: TRIP(weighting="none", start="random", **k), settings["trip"]),
        Runner(
            "TRIP, A_k and H_k up",
            lambda **k: TRIP(weighting="none", start="random", variant="paper", **k),
            settings["trip_literal"],
        ),
        Runner("SumALS", lambda **k: SumALS(weighting="none", start="random", **k), settings["sumals"]),
        Runner(
            "DPFact, literal",
            lambda **k: DPFact(weighting="none", **{**literal("icu", names, sparsity=0.0), **k}),
            settings["dpfact_literal"],
            "nonzeros",
        ),
        Runner(
            "LocalTF, literal",
            lambda **k: LocalTF(weighting="none", **{**PRINTED, **k}),
            settings["localtf_literal"],
            "nonzeros",
        ),
        Runner(
            "distributed SGD, literal",
            lambda **k: DistributedSGD(weighting="none", **{**PRINTED, "local_passes": 1, **k}),
            settings["distributed_literal"],
            "nonzeros",
        ),
    ]
    says = {"DPFact, literal": 25, "LocalTF, literal": 21, "distributed SGD, literal": 35}
    found = race(lab, "icu", runners)
    rows = []
    for name, f in found.items():
        mb = f.median("bytes")
        rows.append(
            [
                name,
                "; ".join(f"{k} {v:g}" for k, v in f.setting.items()),
                says.get(name),
                f.arrived,
                f.median("rounds"),
                None if mb is None else mb / 1e6,
                None if name not in says else f"{207_200 * says[name]:,}",
            ]
        )
    wide = LocalTF(weighting="none", rank=50, rounds=1, seed=0).fit(_papers_shape())
    each = wide.traffic_.payload_bytes_up // 3
    claims: list[Claim] = []
    for left, right, paper in (
        ("LocalTF", "DPFact", "21 rounds against 25: 16 % less"),
        ("LocalTF", "distributed SGD", "21 rounds against 35: 40 % less"),
        ("DPFact", "TRIP, A_k and H_k up", "TRIP dearer"),
        ("LocalTF", "TRIP", "TRIP dearer"),
        ("LocalTF, literal", "DPFact, literal", "21 rounds against 25: 16 % less"),
        ("LocalTF, literal", "distributed SGD, literal", "21 rounds against 35: 40 % less"),
    ):
        goal = "equal RMSE over nonzeros" if "literal" in left else f"{lab['share']:.0%} of what pooled explains"
        words = {"left": left, "right": right, "goal": goal, "published": paper}
        claims += judge("localtf.cost", untrained(lab, "icu", found[left]), **words, **costs(found[left], found[right]))
    own, _ = cheaper(found["LocalTF, literal"].by_own_end, found["DPFact, literal"].by_own_end)
    return Result(
        [
            "method",
            "setting (best of equally many)",
            "rounds in the thesis",
            "arrived",
            "our rounds (median)",
            "MB, both ways, all sites",
            "thesis: bytes, one worker, one way",
        ],
        rows,
        claims,
        {"MB until arrived (0: never)": [(f.median("bytes") or 0.0) / 1e6 for f in found.values()]},
        "method",
        "MB, both ways, all sites",
        note=f"{TITLES['icu']}, rank {lab['rank']}. Bytes are of serialised messages in both directions (E1.5: the thesis counts one direction of one worker). "
        f"One upload of B and C at the thesis' shape and rank 50 has {each:,} bytes, in the thesis 207,200. "
        "Literal: the printed updates over nonzeros with mu 0, settings chosen like every other method's. The verdict between literal "
        "methods depends on the goal: with each judged by its own last RMSE, LocalTF / DPFact is " + str(own) + ".",
        at=list(found),
    )


def _papers_shape() -> Any:
    from polyclinic.records.sites.site import Site
    from polyclinic.tensors.sparse import SparseTensor

    rng = np.random.default_rng(0)
    shape = (30, 202, 316)
    return [
        Site(f"s{k}", SparseTensor(np.column_stack([rng.integers(0, d, 400) for d in shape]), np.ones(400), shape))
        for k in range(3)
    ]


def passes(lab: Lab) -> Result:
    """The grid over b: passes between communications, what they cost and where they end."""
    found = {b: [lab.part(f"{b} {s}", lambda b=b, s=s: _passes(lab, b, s)) for s in lab.seeds] for b in lab["passes"]}
    rows = []
    for b, parts in found.items():
        got = [p for p in parts if p["rounds"] is not None]
        rows.append(
            [
                b,
                f"{len(got)} of {len(parts)}",
                float(np.median([p["rounds"] for p in got])) if got else None,
                float(np.median([p["bytes"] for p in got])) / 1e6 if got else None,
                *(mean_sd([p[k] for p in parts]) for k in ("ratio", "fms")),
            ]
        )
    base = lab["passes"][0]

    never = lab["rounds"] + 1

    def gap(left: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]], key: str) -> Interval:
        values = [[never if p[key] is None else p[key] for p in parts] for parts in (left, right)]
        return interval([x - y for x, y in zip(*values)])

    def figures(control: str = "") -> dict[str, Interval]:
        """With a control in the place of the b that a claim speaks for: the chosen one, and the base in the other."""
        parts = {b: [p[control] for p in f] if control else f for b, f in found.items()}
        return {
            "fewer": gap(parts[lab["chosen"]], found[base], "rounds"),
            "worse": gap(found[lab["passes"][-1]], parts[base], "ratio"),
        }

    chosen = lab["chosen"]
    return Result(
        [
            "local passes (b)",
            "arrived",
            f"rounds to {lab['share']:.0%} of what pooled explains (median)",
            "MB, both ways (median)",
            f"RMSE over pooled CP-ALS's after {lab['rounds']} rounds",
            "FMS to truth",
        ],
        rows,
        judge(
            "localtf.passes",
            {name: figures(name) for name in (ZERO, RANDOM)},
            chosen=chosen,
            base=base,
            largest=lab["passes"][-1],
            **figures(),
        ),
        {"rounds": [float(np.median([p["rounds"] or lab["rounds"] for p in parts])) for parts in found.values()]},
        "local passes (b)",
        f"rounds to {lab['share']:.0%} of what pooled explains",
        note=f"{TITLES['icu']}, corrected LocalTF without l2,1; b = 1 is distributed SGD.",
        at=list(found),
    )


def _passes(lab: Lab, b: int, seed: int) -> dict[str, Any]:
    patients, rank = lab["patients"], lab["rank"]
    network = cohort("icu", seed, patients)
    known = Pooled.of(lab, "icu", seed)
    goal = known.goal(lab["share"])
    found = trace(
        LocalTF(weighting="none", rank=rank, rounds=lab["rounds"], seed=seed, local_passes=b, tol=0.0),
        network,
        nonzeros=False,
    )
    at = next((k for k, v in enumerate(found.full) if v <= goal), None)
    return {
        "rounds": None if at is None else at + 1,
        "bytes": None if at is None else found.bytes[at],
        "ratio": found.full[-1] / known.full,
        **{
            name: {"rounds": 1 if c["full"] <= goal else None, "ratio": c["full"] / known.full}
            for name, c in blank(pooled(network).counts(), rank, seed).items()
        },
        "fms": factor_match_score(network.truth.factors, found.model.factors_),
    }
