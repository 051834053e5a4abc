"""Experiment of the DPFact paper: representative phenotypes, their risk, weight and prevalence (Tables 5 to 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from polyclinic.methods.phenotypes import DPFact
from polyclinic.methods.starts.random import start
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.matching import match
from polyclinic_papers.claims import judge
from polyclinic_papers.cohorts import cohort
from polyclinic_papers.controls import PERMUTED, RANDOM, permuted
from polyclinic_papers.dpfact import literal
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import interval
from polyclinic_papers.prediction import logistic

__all__ = ["phenotypes"]

OWN: Final = 0.01  # a phenotype is a site's when its norm there is above 1 % of the largest site's


def phenotypes(lab: Lab) -> Result:
    """Tables 5 to 7: phenotypes with coefficient, p-value, weight and prevalence, of NICU and of all; own and shared codes."""
    found = [lab.part(f"{s}", lambda s=s: _table(lab["patients"], lab["rank"], s)) for s in lab.seeds]
    first = found[0]
    wrong = {n: [f["wrong"][n] for f in found] for n in found[0]["wrong"]}

    def added(clear: str) -> Any:
        return interval([a - b for a, b in zip(wrong["with noise"], wrong[clear])])

    return Result(
        ["table", "phenotype", "planted as", "top codes", "coefficient", "p-value", "lambda", "prevalence %", "sites"],
        first["rows"],
        judge(
            "dpfact.phenotypes",
            {
                RANDOM: {
                    "own": interval([f["random"] for f in found]),
                    "coverage": interval([f["random"] / f["planted"] for f in found]),
                },
                "random factors without noise": {"added": added(RANDOM)},
                PERMUTED: {"sign": interval([f["permuted_signs"] for f in found])},
            },
            own=interval([f["own"] for f in found]),
            sign=interval([f["signs"] for f in found]),
            coverage=interval([f["matched"] for f in found]),
            added=added("without noise"),
            noisy=interval(wrong["with noise"]),
        ),
        {"log odds of death per standard deviation": [r[4] or 0.0 for r in first["rows"] if r[0] == "7"]},
        "phenotype",
        "coefficient",
        note="Table 5: NICU, the five of highest lambda there; Table 6: an own phenotype of the NICU as it knows it (B_t) and as all share it; "
        "Table 7: all patients. Corrected DPFact without noise, first seed; intervals over all seeds. lambda is the product of the three norms "
        "of section 5.6; prevalence is the share of patients with a membership above 0.",
        at=[f"{r[1]}: {r[2]}" for r in first["rows"] if r[0] == "7"],
    )


def _table(patients: int, rank: int, seed: int) -> dict[str, Any]:
    network = cohort("icu", seed, patients)
    truth = network.truth
    model = DPFact(weighting="none", rank=rank, seed=seed)
    fold = Simulation(model, network)
    model.publish(fold.run())
    sites = sorted(network, key=lambda s: s.name)
    found = match(model.factors_, truth.factors)
    pairs = {int(i): int(j) for i, j, c in zip(found.left, found.right, found.likeness) if c > 0.8}
    norms = {n: np.linalg.norm(a, axis=0) for n, a in model.memberships_.items()}
    top = np.max(list(norms.values()), axis=0)
    on = {r: [n for n in norms if norms[n][r] > OWN * top[r]] for r in range(rank)}
    everyone = _effects(model, sites)
    newborn = _effects(model, [s for s in sites if s.name == "NICU"])
    rows: list[list[Any]] = []

    def row(table: str, r: int, effects: dict[int, Any], a: Any, weight: float, codes: str) -> list[Any]:
        e = effects.get(r)
        where = "all" if len(on[r]) == len(norms) else ", ".join(on[r])
        name = truth.names[pairs[r]] if r in pairs else "-"
        share = 100 * float((a[:, r] > 0).mean())
        return [table, r, name, codes, e and e.coefficient, e and e.p_value, weight, share, where]

    here = model.memberships_["NICU"]
    for r in [k for k in np.argsort(-norms["NICU"])[:5].tolist() if norms["NICU"][k] > 0]:
        rows.append(row("5 (NICU)", r, newborn, here, float(norms["NICU"][r]), _codes(model.factors_, model, r)))
    own = [r for r in range(rank) if on[r] == ["NICU"] and r in pairs]
    unit = [cp.normalise([f])[0][0][:, model.order_] for f in fold.parties["NICU"].private.factors]
    for r in own[:1]:
        rows.append(row("6a (NICU's own)", r, newborn, here, float(norms["NICU"][r]), _codes(unit, model, r)))
    for r in [x for x in range(rank) if len(on[x]) > 1][:1]:
        a = np.concatenate([model.memberships_[s.name] for s in sites])
        rows.append(row("6b (shared)", r, everyone, a, float(model.weights_[r]), _codes(model.factors_, model, r)))
    a = np.concatenate([model.memberships_[s.name] for s in sites])
    for r in range(rank):
        rows.append(row("7", r, everyone, a, float(model.weights_[r]), _codes(model.factors_, model, r)))

    def signs(effects: dict[int, Any]) -> float | None:
        """Of the significant coefficients, the share with the planted sign."""
        known = [(effects[r], truth.coefficients[j]) for r, j in pairs.items() if r in effects]
        right = [float(np.sign(e.coefficient) == np.sign(y)) for e, y in known if y and e.p_value < 0.05]
        return float(np.mean(right)) if right else None

    blank = match(start([len(f) for f in truth.factors], rank, seed), truth.factors)
    return {
        "rows": rows,
        "own": float(len({pairs[r] for r in own} & set(np.flatnonzero(~truth.shared).tolist()))),
        "signs": signs(everyone),
        "permuted_signs": signs(_effects(model, sites, seed)),
        "random": float((blank.likeness > 0.8).sum()),
        "planted": truth.rank,
        "wrong": _wrong_codes(rank, seed, network),
        "matched": len(pairs) / truth.rank,
    }


def _wrong_codes(rank: int, seed: int, network: Any) -> dict[str, float]:
    """Table 6 (b) against (c): of the ten heaviest codes of a mode, the share outside the planted ones, as printed with mu 0."""
    settings = literal("icu", sparsity=0.0, rank=rank, seed=seed, rounds=20)
    noise = Privacy(1.2, 1e-4, level="entry", clip=1.0)
    fitted = {
        "without noise": DPFact(weighting="none", **settings).fit(network).factors_,
        "with noise": DPFact(weighting="none", **settings, privacy=noise).fit(network).factors_,
        RANDOM: start([len(f) for f in network.truth.factors], rank, seed),
    }
    out = {}
    for name, factors in fitted.items():
        found = match(factors, network.truth.factors)
        out[name] = float(
            np.mean(
                [
                    np.mean(t[np.argsort(-np.abs(f[:, i]))[:10], j] <= 0)
                    for i, j in zip(found.left, found.right)
                    for f, t in zip(factors, network.truth.factors)
                ]
            )
        )
    return out


def _effects(model: Any, sites: Sequence[Site], shuffle: int | None = None) -> dict[int, Any]:
    a = np.concatenate([model.memberships_[s.name] for s in sites])
    labels = np.concatenate([np.asarray(s.labels) for s in sites])
    labels = labels if shuffle is None else permuted(labels, shuffle)
    return {e.phenotype: e for e in logistic(a, labels)} if 0 < labels.mean() < 1 else {}


def _codes(factors: Sequence[Any], model: Any, r: int) -> str:
    """The two heaviest codes of every mode."""
    return "; ".join(
        axis.describe(i) for axis, f in zip(model.axes_, factors) for i in np.argsort(-f[:, r])[:2] if f[i, r] > 0
    )
