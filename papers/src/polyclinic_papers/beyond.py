"""Beyond the papers: patient-level privacy that holds, and what it costs in phenotypes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from polyclinic.datasets import Truth, load_diabetes130, load_mimic3_demo, load_synpuf, planted_counts
from polyclinic.errors import DataError, Divergence
from polyclinic.methods.estimators.phenotypes import DPEM, DPFact, LocalTF
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Sites, pooled
from polyclinic.tensors.matching import factor_match_score, match, recovery
from polyclinic_papers.claims import Claim, judge
from polyclinic_papers.dpfact import LITERAL
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.heldout import CountModel, completion, marginal_model, structure_kept
from polyclinic_papers.interval import Interval, interval, mean_sd
from polyclinic_papers.prediction import predict, random_factors_auc
from polyclinic_papers.prediction import split as by_patient

__all__ = ["epsilon", "real", "sums"]

FORMAL, FREE = "DPEM (formal, patient-level)", "DPEM without noise"
HEURISTIC = ("DPFact (heuristic, entry-level)", "LocalTF (heuristic, entry-level)")


def epsilon(lab: Lab) -> Result:
    """PRIVACY 3.3: FMS, stability, AUC and ghosts against epsilon and cohort size, at equal epsilon for all methods."""
    rows: list[list[Any]] = []
    fms: dict[tuple[int, str, float | None], list[float]] = {}
    apart: dict[str, Interval] = {}  # condition -> share of ghosts with the FDR filter less without it

    def trial(n: int, name: str, eps: float | None, seed: int, more: Any) -> Any:
        twice = n <= lab["heuristic_up_to"]  # stability costs a second fit
        return _planted(n, _model(name, eps, lab["delta"], lab["rank"], seed, **more), seed, twice=twice)

    few = min(lab["patients"])
    tuned = _tuned(lab, lambda name, eps, more: -trial(few, name, eps, 1000, more)["fms"])
    for n in lab["patients"]:
        for name, eps in _trials(lab["epsilons"]):
            if name in HEURISTIC and n > lab["heuristic_up_to"]:
                continue
            found = [
                lab.part(
                    f"{n} {name} {eps} {s}",
                    lambda n=n, name=name, eps=eps, s=s: trial(n, name, eps, s, tuned[name]),
                )
                for s in lab.seeds
            ]
            fms[n, name, eps] = [f["fms"] for f in found]
            if name == FORMAL:
                apart[f"{n:,} patients, epsilon {eps:g}"] = interval([f["ghosts"] - f["ghosts_raw"] for f in found])
            keys = ("fms", "precision", "stability", "auc", "ghosts", "ghosts_raw")
            rows.append([n, name, "none" if eps is None else eps, *(mean_sd([f[k] for f in found]) for k in keys)])
    low, high = min(lab["epsilons"]), max(lab["epsilons"])
    both = [n for n in lab["patients"] if n <= lab["heuristic_up_to"]]
    over = {h: _apart(fms, [((n, FORMAL, e), (n, h, e)) for n in both for e in lab["epsilons"]]) for h in HEURISTIC}
    least = max(apart, key=lambda c: apart[c].mean)
    return Result(
        [
            "patients",
            "method",
            f"epsilon (delta {lab['delta']:g}; adjacency as the method's name says)",
            "FMS to truth (recall)",
            "precision of components",
            "stability: FMS of two runs with fresh noise",
            "outcome AUC (simulation only)",
            "shown codes outside the planted ones",
            "the same without the FDR filter",
        ],
        rows,
        [
            *(c for n in lab["patients"] for c in _rises(fms, n, low, high, lab["delta"])),
            *(c for h, x in over.items() for c in judge("beyond.against", heuristic=h, over=x)),
            *judge("beyond.ghosts", condition=least, fewer=apart[least]),
        ],
        {f"{n:,} patients": [float(np.mean(fms[n, FORMAL, e])) for e in lab["epsilons"]] for n in lab["patients"]}
        | {
            f"{n:,} patients, {h.split()[0]}, heuristic": [float(np.mean(fms[n, h, e])) for e in lab["epsilons"]]
            for n in both[-1:]
            for h in HEURISTIC
        },
        f"epsilon at delta {lab['delta']:g}, patient-level (heuristic methods: entry-level)",
        "FMS to truth",
        at=list(lab["epsilons"]),
        spread={
            f"{n:,} patients": [float(np.std(fms[n, FORMAL, e])) for e in lab["epsilons"]] for n in lab["patients"]
        },
        log="x",
        note=_settings(tuned),
    )


def _rises(fms: Any, n: int, low: float, high: float, delta: float) -> list[Claim]:
    """Whether FMS rises from the smallest epsilon to the largest, at one cohort size."""
    a, b = fms[n, FORMAL, low], fms[n, FORMAL, high]
    return judge(
        "beyond.epsilon",
        patients=n,
        delta=delta,
        low=low,
        high=high,
        at_low=float(np.mean(a)),
        at_high=float(np.mean(b)),
        rise=_apart(fms, [((n, FORMAL, high), (n, FORMAL, low))]),
    )


def _settings(tuned: dict[str, dict[str, Any]]) -> str:
    chosen = "; ".join(f"{n}: {', '.join(f'{k} = {v}' for k, v in s.items())}" for n, s in tuned.items() if s)
    return f"Settings, chosen among equally many for each method on a seed of their own: {chosen}."


def _trials(epsilons: Sequence[float]) -> list[tuple[str, float | None]]:
    return [(FREE, None), *((name, e) for name in (FORMAL, *HEURISTIC) for e in epsilons)]


def _apart(values: dict[Any, list[float]], pairs: Sequence[tuple[Any, Any]]) -> Interval:
    """Paired differences, a seed's mean over all pairs."""
    return interval(np.mean([np.subtract(values[a], values[b]) for a, b in pairs], axis=0).tolist())


def _model(
    name: str,
    eps: float | None,
    delta: float,
    rank: int,
    seed: int,
    aggregation: str = "masked",
    *,
    rounds: int | None = None,
    learning_rate: float = 0.01,
) -> Any:
    if name.startswith("DPEM"):
        private = None if eps is None else Privacy(eps, delta)
        return DPEM(rank=rank, rounds=rounds or 8, seed=seed, aggregation=aggregation, privacy=private)
    heuristic = {
        **LITERAL,
        "learning_rate": learning_rate,
        "privacy": Privacy(float(eps or 0), delta, level="entry", clip=1.0),
    }
    if name == HEURISTIC[0]:
        return DPFact(weighting="none", rank=rank, rounds=rounds or 20, seed=seed, **heuristic)
    heuristic = {k: v for k, v in heuristic.items() if k not in ("variant", "elastic", "sparsity")}
    return LocalTF(weighting="none", rank=rank, rounds=rounds or 20, seed=seed, **heuristic)


def _tuned(lab: Lab, loss: Any) -> dict[str, dict[str, Any]]:
    """Every private method's best of equally many settings at the middle epsilon, on a seed that no figure uses."""
    eps = sorted(lab["epsilons"])[len(lab["epsilons"]) // 2]
    grids = {FORMAL: lab["dpem_settings"], **dict.fromkeys(HEURISTIC, lab["heuristic_settings"])}
    return {
        name: lab.tune(name, settings, lambda name=name, **more: loss(name, eps, more))
        for name, settings in grids.items()
    } | {FREE: {}}


@lru_cache(maxsize=1)
def _network(patients: int, seed: int) -> Sites:
    return planted_counts(patients=patients, seed=seed, sites=6)


def _planted(patients: int, model: Any, seed: int, *, twice: bool = False) -> dict[str, Any]:
    network = _network(patients, seed)
    try:
        fitted = model.fit(network)
        again = None if model.params.privacy is None or not twice else model.with_params().fit(network)
    except Divergence:
        return dict.fromkeys(("fms", "precision", "stability", "auc", "ghosts", "ghosts_raw"), 0.0) | {"auc": None}
    shown, raw = _ghosts(fitted, network.truth) if isinstance(model, DPEM) else (None, None)
    return {
        "fms": factor_match_score(network.truth.factors, fitted.factors_),
        "precision": recovery(network.truth.factors, fitted.factors_).precision,
        "stability": None if again is None else factor_match_score(fitted.factors_, again.factors_),
        "auc": _outcome(fitted, *by_patient(network, 0.6, seed)),
        "ghosts": shown,
        "ghosts_raw": raw,
    }


def _ghosts(model: Any, truth: Truth) -> tuple[float, float]:
    """Share of codes outside the planted ones: among those shown after the FDR filter, and among all above zero."""
    found = match(model.factors_, truth.factors)
    shown: list[float] = []
    raw: list[float] = []
    supports = dict(zip([a.name for a in truth.axes], truth.supports))
    for ours, theirs in zip(found.left, found.right):
        for axis, factor in zip(model.axes_, model.factors_):
            planted = supports[axis.name][:, theirs]
            listed = set(model.phenotypes_.where(phenotype=int(ours), mode=axis.name)["code"])
            shown += [float(not planted[i]) for i in range(len(factor)) if axis.label(i) in listed]
            raw += [float(not planted[i]) for i in np.flatnonzero(factor[:, ours] > 0)]
    return float(np.mean(shown)) if shown else 0.0, float(np.mean(raw)) if raw else 0.0


def _outcome(model: Any, train: Sites, test: Sites) -> float | None:
    a, b = (np.concatenate([model.transform(s) for s in part]) for part in (train, test))
    y, t = (np.concatenate([np.asarray(s.labels) for s in part]) for part in (train, test))
    try:
        return predict(a, y, b, t).auc
    except DataError:
        return None


def sums(lab: Lab) -> Result:
    """The price of no secure aggregation: every site adds the whole noise (plain) against noise once (masked)."""
    fms: dict[tuple[str, float], list[float]] = {}
    for eps in lab["epsilons"]:
        for how in ("masked", "plain"):
            fms[how, eps] = [
                lab.part(
                    f"{how} {eps} {s}",
                    lambda how=how, eps=eps, s=s: _planted(
                        lab["patients"], _model(FORMAL, eps, lab["delta"], lab["rank"], s, how), s
                    ),
                )["fms"]
                for s in lab.seeds
            ]
    price = {e: _apart(fms, [(("masked", e), ("plain", e))]) for e in lab["epsilons"]}
    overall = _apart(fms, [(("masked", e), ("plain", e)) for e in lab["epsilons"]])
    return Result(
        [
            f"epsilon (patient-level, delta {lab['delta']:g}, formal)",
            "FMS, masked (noise once)",
            "FMS, plain (every site's noise)",
            "price",
        ],
        [[e, mean_sd(fms["masked", e]), mean_sd(fms["plain", e]), str(price[e])] for e in lab["epsilons"]],
        judge("beyond.sums", overall=overall),
        {how: [float(np.mean(fms[how, e])) for e in lab["epsilons"]] for how in ("masked", "plain")},
        f"epsilon at delta {lab['delta']:g}, patient-level, formal",
        "FMS to truth",
        at=list(lab["epsilons"]),
        spread={how: [float(np.std(fms[how, e])) for e in lab["epsilons"]] for how in ("masked", "plain")},
        log="x",
    )


def real(lab: Lab) -> Result:
    """Structure kept, completion, stability and outcome AUC on held-out patients of real open data (80/20 by patient)."""
    rows: list[list[Any]] = []
    kept: dict[tuple[str, str, float | None], list[float]] = {}
    tuned = _tuned(lab, lambda name, eps, more: -_kept(lab["data"][0], name, eps, 1000, more)["kept"])
    for data in lab["data"]:
        for name, eps in _trials(lab["epsilons"]):
            found = [
                lab.part(
                    f"{data} {name} {eps} {s}",
                    lambda data=data, name=name, eps=eps, s=s: _kept(data, name, eps, s, tuned[name]),
                )
                for s in lab.seeds
            ]
            kept[data, name, eps] = [f["kept"] for f in found]
            keys = ("kept", "completion", "stability", "auc", "random")
            rows.append([data, name, "none" if eps is None else eps, *(mean_sd([f[k] for f in found]) for k in keys)])
    large = [d for d in lab["data"] if d != "mimic3_demo"]
    above = interval([min(kept[d, FORMAL, e][s] for d in large for e in lab["epsilons"]) for s in lab.seeds])
    over = {h: _apart(kept, [((d, FORMAL, e), (d, h, e)) for d in large for e in lab["epsilons"]]) for h in HEURISTIC}
    rise = _apart(kept, [((d, FORMAL, max(lab["epsilons"])), (d, FORMAL, min(lab["epsilons"]))) for d in large])
    return Result(
        [
            "data",
            "method",
            "epsilon (delta 1e-6; adjacency as the method's name says)",
            "structure kept",
            "completion, nats an event",
            "stability: FMS of two runs",
            "outcome AUC",
            "AUC of frozen random factors",
        ],
        rows,
        [
            *judge("beyond.real", low=min(lab["epsilons"]), above=above),
            *(c for h, x in over.items() for c in judge("beyond.kept", heuristic=h, over=x)),
            *(judge("beyond.rise", rise=rise) if len(lab["epsilons"]) > 1 else []),
        ],
        {d: [float(np.mean(kept[d, FORMAL, e])) for e in lab["epsilons"]] for d in large},
        "epsilon at delta 1e-6, patient-level",
        "structure kept",
        "The code lists are the most frequent codes of the data, so the card of these runs is not formal (PRIVACY 3.1). Stability of "
        "the model without noise is between two starts. The MIMIC-III demo has 88 patients: it stands here to show that no "
        "patient-level guarantee leaves anything of so few, and the claims leave it out. " + _settings(tuned),
        at=list(lab["epsilons"]),
        spread={d: [float(np.std(kept[d, FORMAL, e])) for e in lab["epsilons"]] for d in large},
        log="x",
    )


LOADERS: dict[str, Any] = {
    "diabetes130": load_diabetes130,
    "cms_desynpuf": load_synpuf,
    "mimic3_demo": load_mimic3_demo,
}
RANK = 20


@lru_cache(maxsize=1)
def _held_out(data: str, seed: int) -> tuple[Sites, Sites, CountModel, CountModel, float | None]:
    """Training and test patients, the model without noise (the reference), the marginals, random factors' AUC."""
    sites = LOADERS[data]()
    train, test = by_patient(sites, 0.8, seed)
    free = DPEM(rank=RANK, rounds=30, seed=seed, background=False, regroup=False, prune=False).fit(train)
    try:
        chance = random_factors_auc(sites, RANK, 0.8, seed)
    except DataError:
        chance = None
    return train, test, CountModel.of(free), marginal_model(pooled(train).counts()), chance


def _kept(data: str, name: str, eps: float | None, seed: int, more: dict[str, Any]) -> dict[str, Any]:
    train, test, reference, marginals, chance = _held_out(data, seed)
    judge = pooled(test).counts()
    model = _model(name, eps, 1e-6, RANK, seed, **more)
    try:
        fitted = model.fit(train)
        again = model.with_params(**({"seed": seed + 500} if eps is None else {})).fit(train)
    except Divergence:
        return {"kept": 0.0, "completion": None, "stability": 0.0, "auc": None, "random": chance}
    ours = CountModel.of(fitted)
    kept = structure_kept(ours, reference, marginals, judge)
    return {
        "kept": None if np.isnan(kept) else kept,
        "completion": completion(ours, marginals, judge, seeds(seed, "halves")),
        "stability": factor_match_score(fitted.factors_, again.factors_),
        "auc": _outcome(fitted, train, test),
        "random": chance,
    }
