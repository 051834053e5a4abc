"""Experiments of the DPFact paper, settings: privacy budget against phenotypes, mu against column norms, the grids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyclinic.errors import PolyclinicError
from polyclinic.methods.phenotypes import DPFact
from polyclinic.methods.rounds.local_pass import open_factors
from polyclinic.methods.starts.random import start
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.tensors import cp
from polyclinic.tensors.matching import factor_match_score, match
from polyclinic_papers.claims import judge
from polyclinic_papers.cohorts import cohort
from polyclinic_papers.controls import RANDOM, ZERO
from polyclinic_papers.dpfact import LITERAL, literal
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import Interval, interval, mean_sd

__all__ = ["fms", "grid", "mu"]

Point = tuple[str, float, float, float]  # variant, gamma, mu, eta


def fms(lab: Lab) -> Result:
    """Figure 3 (b): factor match score against the budget; to the own non-private model AND to the truth."""
    rows, curves, spread = [], {}, {}
    found: dict[str, list[list[dict[str, float]]]] = {}
    for name in ("mu as printed", "mu 0"):
        found[name] = [
            [lab.part(f"{name} {e} {s}", lambda name=name, e=e, s=s: _fms(lab, name, e, s)) for s in lab.seeds]
            for e in lab["epsilons"]
        ]
        for e, parts in zip(lab["epsilons"], found[name]):
            rows.append([name, e, *(mean_sd([p[k] for p in parts]) for k in ("own", "truth", "clear", "start"))])
        for key, label in (("own", "to the own non-private model"), ("truth", "to the truth")):
            curves[f"{label}, {name}"] = [float(np.mean([p[key] for p in parts])) for parts in found[name]]
            spread[f"{label}, {name}"] = [
                float(np.std([p[key] for p in parts], ddof=1)) if len(parts) > 1 else 0.0 for parts in found[name]
            ]

    def rise(name: str, key: str) -> Interval:
        return interval([b[key] - a[key] for a, b in zip(found[name][0], found[name][-1])])

    ends = {"first": lab["epsilons"][0], "top": lab["epsilons"][-1]}
    return Result(
        [
            "threshold",
            f"epsilon (entry-level adjacency, delta {lab['delta']:g}, heuristic)",
            "FMS to the own non-private model",
            "FMS to the truth",
            "FMS of the non-private model to the truth",
            "FMS of the common start to the non-private model",
        ],
        rows,
        [
            *(
                c
                for n in found
                for c in judge(
                    "dpfact.fms.rises", {RANDOM: {"rise": rise(n, "start")}}, threshold=n, rise=rise(n, "own"), **ends
                )
            ),
            *(
                c
                for n, f in found.items()
                for c in judge(
                    "dpfact.fms.near_one",
                    {RANDOM: {"last": interval([p["start"] for p in f[-1]])}},
                    threshold=n,
                    last=interval([p["own"] for p in f[-1]]),
                    **ends,
                )
            ),
            *judge(
                "dpfact.true",
                {RANDOM: {"truth": interval([p["blank"] for p in found["mu 0"][-1]])}},
                truth=interval([p["truth"] for p in found["mu 0"][-1]]),
                clear=interval([p["clear"] for p in found["mu 0"][-1]]),
                begun=interval([p["start"] for p in found["mu 0"][-1]]),
            ),
        ],
        curves,
        f"epsilon (entry-level adjacency, delta {lab['delta']:g}, heuristic)",
        "factor match score, feature modes",
        note="DPFact as printed (zeros missing, gamma 5, eta 0.01), noise of the right variance (E0.1) with clip 1; the mechanism is heuristic "
        "(E0.8). FMS over the feature modes with matched columns (E0.15). Both runs begin at the same start, so that some likeness is theirs "
        "for nothing: last column.",
        at=lab["epsilons"],
        spread=spread,
        log="x",
    )


def _fms(lab: Lab, name: str, epsilon: float, seed: int) -> dict[str, float]:
    network = cohort("icu", seed, lab["patients"])
    common = literal("icu", [s.name for s in network], rank=lab["rank"], rounds=lab["rounds"], seed=seed)
    if name == "mu 0":
        common["sparsity"] = 0.0

    def plain() -> list[Any]:
        return [f.tolist() for f in DPFact(weighting="none", **common).fit(network).factors_]

    clear = [np.array(f) for f in lab.part(f"clear {name} {seed}", plain)]
    noisy = DPFact(weighting="none", **common, privacy=Privacy(epsilon, lab["delta"], level="entry", clip=1.0)).fit(
        network
    )
    begun = open_factors(start(network[0].counts().shape[1:], lab["rank"], seed), zeros="missing")
    return {
        "own": factor_match_score(noisy.factors_, clear),
        "truth": factor_match_score(network.truth.factors, noisy.factors_),
        "clear": factor_match_score(network.truth.factors, clear),
        "start": factor_match_score(begun, clear),
        "blank": factor_match_score(network.truth.factors, begun),
    }


def mu(lab: Lab) -> Result:
    """Figure 4: column norms of every unit's patients against mu; the truth says which columns should be off."""
    rows, off, right = [], [], []
    norms: dict[float, dict[str, list[float]]] = {}
    for value in lab["mus"]:
        found = [lab.part(f"{value} {s}", lambda value=value, s=s: _norms(lab, value, s)) for s in lab.seeds]
        norms[value] = found[0]["norms"]
        off.append([f["off"] for f in found])
        right.append(found)
        units = found[0]["norms"]
        rows.append(
            [
                value,
                mean_sd([f["off"] for f in found]),
                *(sum(x <= 0.01 for x in units[u]) for u in units),
                *(mean_sd([f[k] for f in found]) for k in ("recall", "precision", "fms")),
            ]
        )
    at = lab["mus"].index(lab["chosen"])
    shown = [v for v in lab["mus"] if v in lab["shown"]]
    return Result(
        [
            "mu (noise units)",
            "columns off, all units",
            *(f"off at {u}" for u in norms[lab["mus"][0]]),
            "planted absences found",
            "of those found, planted",
            "FMS to truth",
        ],
        rows,
        judge(
            "dpfact.mu",
            {name: _still([f[name] for f in right[0]], 6 * lab["rank"]) for name in (ZERO, RANDOM)},
            smallest=lab["mus"][0],
            chosen=lab["chosen"],
            none=interval(off[0]),
            planted=interval([f["absent"] for f in right[0]]),
            large=interval([b - a for a, b in zip(off[0], off[-1])]),
            most=interval([x / (6 * lab["rank"]) for x in off[-1]]),
            middle=interval([min(f["recall"], f["precision"]) for f in right[at]]),
        ),
        {f"{u}, mu {v:g}": norms[v][u] for u in lab["units"] for v in shown},
        "column, by falling norm",
        "norm, over the largest unit's",
        note="mu in units of the noise of the unit (E0.3), not the paper's absolute numbers. Off: norm at most 1 % of the largest unit's. "
        "Norms and the counts by unit are of the first seed.",
    )


def _norms(lab: Lab, value: float, seed: int) -> dict[str, Any]:
    network = cohort("icu", seed, lab["patients"])
    model = DPFact(weighting="none", rank=lab["rank"], seed=seed, sparsity=value).fit(network)
    units = list(network.truth.memberships)
    norms = np.array([np.linalg.norm(model.memberships_[u], axis=0) for u in units])
    random, tensors = start(network[0].counts().shape[1:], lab["rank"], seed), {s.name: s.counts() for s in network}
    on_random = np.array([np.linalg.norm(cp.solve_memberships(tensors[u], random), axis=0) for u in units])
    ratio = _ratio(norms)
    return {
        "norms": {u: np.sort(r)[::-1].tolist() for u, r in zip(units, ratio)},
        **_absences(ratio, model.factors_, network.truth),
        "fms": factor_match_score(network.truth.factors, model.factors_),
        ZERO: _absences(0 * ratio, model.factors_, network.truth),
        RANDOM: _absences(_ratio(on_random), random, network.truth),
    }


def _ratio(norms: Any) -> Any:
    """Norms of (units, columns) over the largest unit's; 0 where no unit has the column."""
    ratio = norms / np.maximum(norms.max(0), 1e-300)
    ratio[:, norms.max(0) <= 1e-9] = 0.0
    return ratio


def _absences(ratio: Any, factors: Any, truth: Any) -> dict[str, float]:
    """How many columns are off, and how well that agrees with the planted absences."""
    found = match(factors, truth.factors)
    is_off = ratio[:, found.left] <= 0.01
    absent = ~truth.prevalence[:, found.right]
    return {
        "off": float((ratio <= 0.01).sum()),
        "absent": float(absent.sum()),
        "recall": float((is_off & absent).sum() / max(absent.sum(), 1)),
        "precision": float((is_off & absent).sum() / max(is_off.sum(), 1)),
    }


def _still(parts: Sequence[Mapping[str, float]], columns: int) -> dict[str, Interval]:
    """Figures of a control, which does not depend on mu."""
    return {
        "none": interval([p["off"] for p in parts]),
        "large": interval([0.0 for _ in parts]),
        "most": interval([p["off"] / columns for p in parts]),
        "middle": interval([min(p["recall"], p["precision"]) for p in parts]),
    }


def grid(lab: Lab) -> Result:
    """Section 5.4: gamma, mu and eta, as printed and corrected."""
    points: list[Point] = []
    for g in lab["gamma"]:
        points += [("corrected", g, m, 1.0) for m in lab["mu"]]
    points += [("corrected", 1.0, 1.0, e) for e in lab["eta"] if e != 1.0]
    for g in lab["gamma_literal"]:
        points += [("literal", g, m, e) for m in lab["mu_literal"] for e in lab["eta_literal"]]
    rows, found = [], {}
    for p in points:
        parts = [lab.part(f"{p} {s}", lambda p=p, s=s: _point(lab, p, s)) for s in lab.seeds]
        found[p] = parts
        known = [x for x in parts if x is not None]
        rows.append(
            [
                *p,
                f"{len(known)} of {len(parts)}",
                *(mean_sd([x[k] for x in known]) if known else "-" for k in ("fms", "observed", "full")),
            ]
        )

    def best(variant: str, key: str, lowest: bool) -> Point:
        usable = {p: np.mean([x[key] for x in f]) for p, f in found.items() if p[0] == variant and all(f)}
        return min(usable, key=lambda p: float(usable[p] if lowest else -usable[p]))

    printed, mended = best("literal", "observed", True), best("corrected", "fms", False)
    choice = ("literal", 5.0, printed[2], 0.01)
    above = interval([a["observed"] / b["observed"] - 1 for a, b in zip(found[choice], found[printed]) if a and b])
    usable = [f for p, f in found.items() if p[0] == "literal" and all(f)]
    errors = [[f[k]["observed"] for f in usable] for k in range(len(lab.seeds))]
    chance = interval([_blank_match(lab, s) for s in lab.seeds])
    refused = [p for p, f in found.items() if p[0] == "literal" and not any(f)]
    default = ("corrected", 1.0, 1.0, 1.0)
    lag = (
        interval([a["fms"] - b["fms"] for a, b in zip(found[mended], found[default]) if a and b])
        if default in found
        else None
    )
    return Result(
        [
            "variant",
            "gamma (corrected: in tr(Gram)/R)",
            "mu (corrected: noise units; literal: threshold)",
            "eta (corrected: in 1/||Gram||)",
            "converged",
            "FMS to truth",
            "RMSE over nonzeros",
            "RMSE over all cells",
        ],
        rows,
        judge(
            "dpfact.grid",
            {RANDOM: {"above": 0.0, "range": 0.0, "refused": 0, "lag": 0.0, "default": chance}},
            range=interval([max(e) / min(e) - 1 for e in errors]),
            default=interval([x["fms"] for x in found.get(default, ()) if x]),
            printed=printed,
            mended=mended,
            above=above,
            likeness=float(np.mean([x["fms"] for x in found[printed] if x])),
            refused=len(refused),
            tried=len([p for p in points if p[0] == "literal"]),
            lag=lag,
        ),
        *_figure(found, lab),
    )


def _blank_match(lab: Lab, seed: int) -> float:
    network = cohort("icu", seed, lab["patients"])
    return factor_match_score(network.truth.factors, start(network[0].counts().shape[1:], lab["rank"], seed))


def _figure(found: Mapping[Any, Sequence[Any]], lab: Lab) -> tuple[dict[str, list[float]], str, str]:
    """FMS against gamma, one curve per mu (corrected), in the order of the grid."""
    curves = {
        f"mu {m:g}": [
            float(np.mean([x["fms"] for x in found["corrected", g, m, 1.0] if x] or [0.0])) for g in lab["gamma"]
        ]
        for m in lab["mu"]
    }
    return curves, f"gamma, place in {lab['gamma']}", "FMS to truth (corrected)"


def _point(lab: Lab, point: Point, seed: int) -> dict[str, float] | None:
    variant, gamma, kappa, eta = point
    network = cohort("icu", seed, lab["patients"])
    common = {"rank": lab["rank"], "seed": seed, "elastic": gamma, "sparsity": kappa, "learning_rate": eta}
    try:
        if variant == "literal":
            model = DPFact(weighting="none", **{**LITERAL, **common, "rounds": lab["epochs"]}).fit(network)
        else:
            model = DPFact(weighting="none", **common).fit(network)
        score = model.quality(network)
    except PolyclinicError:
        return None
    return {
        "fms": factor_match_score(network.truth.factors, model.factors_),
        "observed": score["rmse_observed"],
        "full": score["rmse_full"],
    }
