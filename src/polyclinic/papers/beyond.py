"""Beyond the papers: patient-level privacy that holds, and what it costs in phenotypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyclinic.datasets import load_diabetes130, load_synpuf, planted_counts
from polyclinic.evaluation.heldout import CountModel, completion, marginal_model, structure_kept
from polyclinic.evaluation.prediction import outcome_auc
from polyclinic.evaluation.prediction import split as by_patient
from polyclinic.federation.protocol import seeds
from polyclinic.papers.experiment import Claim, Lab, Result, mean_sd
from polyclinic.phenotypes.dpem import DPEM
from polyclinic.privacy.budget import Privacy
from polyclinic.tensors.matching import factor_match_score, match
from polyclinic.tensors.site import Site, pooled

__all__ = ["epsilon", "real", "sums"]


def epsilon(lab: Lab) -> Result:
    """PRIVACY 3.3: FMS, AUC and ghosts of DPEM against epsilon and cohort size (formal, patient-level, masked)."""
    rows, rising = [], []
    for n in lab["patients"]:
        curve = []
        for eps in [*lab["epsilons"], None]:
            found = [
                lab.part(
                    f"{n} {eps} {s}", lambda n=n, eps=eps, s=s: _dpem(n, eps, lab["delta"], lab["rank"], s, "masked")
                )
                for s in lab.seeds
            ]
            curve.append(float(np.mean([f["fms"] for f in found])))
            rows.append(
                [
                    n,
                    "none" if eps is None else eps,
                    *(mean_sd([f[k] for f in found]) for k in ("fms", "auc", "ghosts", "ghosts_raw")),
                ]
            )
        rising.append(curve[len(lab["epsilons"]) - 1] - curve[0])
    return Result(
        [
            "patients",
            f"epsilon (patient-level, delta {lab['delta']:g}, formal)",
            "FMS to truth",
            "outcome AUC (simulation only)",
            "shown codes outside the planted ones",
            "the same without the FDR filter",
        ],
        rows,
        [
            Claim(
                "FMS rises with epsilon",
                "-",
                f"by {min(rising):.3f} or more over the range",
                bool(min(rising) > -0.005),
                asserted=True,
            )
        ],
    )


def _dpem(patients: int, eps: float | None, delta: float, rank: int, seed: int, aggregation: str) -> dict[str, Any]:
    network = planted_counts(patients=patients, seed=seed, sites=6)
    privacy = None if eps is None else Privacy(eps, delta)
    model = DPEM(rank=rank, rounds=8, seed=seed, aggregation=aggregation, privacy=privacy).fit(network)
    truth = network.truth
    found = match(model.factors_, truth.factors)
    shown: list[float] = []
    raw: list[float] = []
    supports = dict(zip([a.name for a in truth.axes], truth.supports))
    for ours, theirs in zip(found.left, found.right):
        for axis, factor in zip(model.axes_, model.factors_):
            planted = supports[axis.name][:, theirs]
            listed = set(model.phenotypes_.where(phenotype=int(ours), mode=axis.name)["code"])
            at = [i for i in range(len(factor)) if axis.label(i) in listed]
            shown += [float(not planted[i]) for i in at]
            raw += [float(not planted[i]) for i in np.flatnonzero(factor[:, ours] > 0)]
    return {
        "fms": factor_match_score(model.factors_, truth.factors),
        "auc": outcome_auc(model, network, 0.6, seed, fit=False).auc,
        "ghosts": float(np.mean(shown)) if shown else 0.0,
        "ghosts_raw": float(np.mean(raw)) if raw else 0.0,
    }


def sums(lab: Lab) -> Result:
    """The price of no secure aggregation: every site adds the whole noise (plain) against noise once (masked)."""
    rows, worse = [], []
    for eps in lab["epsilons"]:
        means = {}
        for how in ("masked", "plain"):
            found = [
                lab.part(
                    f"{how} {eps} {s}",
                    lambda how=how, eps=eps, s=s: _dpem(lab["patients"], eps, lab["delta"], lab["rank"], s, how),
                )
                for s in lab.seeds
            ]
            means[how] = [f["fms"] for f in found]
        worse.append(float(np.mean(means["masked"]) - np.mean(means["plain"])))
        rows.append([eps, mean_sd(means["masked"]), mean_sd(means["plain"]), worse[-1]])
    return Result(
        [
            f"epsilon (patient-level, delta {lab['delta']:g}, formal)",
            "FMS, masked (noise once)",
            "FMS, plain (every site's noise)",
            "price",
        ],
        rows,
        [
            Claim(
                "secure aggregation is worth sqrt(sites) in noise",
                "-",
                f"FMS {np.mean(worse):+.3f} on average",
                bool(np.mean(worse) >= 0),
            )
        ],
    )


def real(lab: Lab) -> Result:
    """Structure kept and completion on held-out patients of real open data (80/20 by patient)."""
    rows, above = [], []
    for name in lab["data"]:
        sites = load_diabetes130() if name == "diabetes130" else load_synpuf()
        for eps in lab["epsilons"]:
            found = [
                lab.part(f"{name} {eps} {s}", lambda eps=eps, s=s, sites=sites: _kept(sites, eps, s)) for s in lab.seeds
            ]
            above.append(min(f[0] for f in found))
            rows.append([name, eps, mean_sd([f[0] for f in found]), mean_sd([f[1] for f in found])])
    return Result(
        ["data", "epsilon (patient-level, delta 1e-6)", "structure kept", "completion, nats an event"],
        rows,
        [
            Claim(
                "private models never fall below the marginals",
                "-",
                f"structure kept at least {min(above):.2f}",
                bool(min(above) > 0),
            )
        ],
        note="The code lists are the most frequent codes of the data, so the card of these runs is not formal (PRIVACY 3.1).",
    )


def _kept(sites: Sequence[Site], eps: float, seed: int) -> list[float]:
    train, test = by_patient(sites, 0.8, seed)
    judge, marginals = pooled(test).counts(), marginal_model(pooled(train).counts())
    free = DPEM(rank=20, rounds=30, seed=seed, background=False, regroup=False, prune=False).fit(train)
    private = DPEM(rank=20, rounds=8, seed=seed, aggregation="masked", privacy=Privacy(eps, 1e-6)).fit(train)
    reference, model = CountModel.of(free), CountModel.of(private)
    return [
        structure_kept(model, reference, marginals, judge),
        completion(model, marginals, judge, seeds(seed, "halves")),
    ]
