"""Publish a fitted study as a run folder: one set of files, figures and small-cell rules for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from polyclinic.analysis.findings import Findings
from polyclinic.analysis.pipelines.evaluate import evaluate
from polyclinic.analysis.simulated.neighbours import neighbours
from polyclinic.analysis.simulated.presence import CARRIES, MINIMUM, presence
from polyclinic.analysis.simulated.shown_codes import NAMED, kept_shares
from polyclinic.analysis.simulated.summary import simulated_figures
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.models.similarity import Similarity
from polyclinic.protocol.estimator import Configured
from polyclinic.records.databases.attrition import Attrition, shared
from polyclinic.records.sites.site import Site
from polyclinic.studies.run_folder import Run, RunFolder
from polyclinic.tensors.weighting import heaviest_share, weighted

FIT: Final = ("rmse_observed", "rmse_full", "fit")
BOXES: Final = {
    "source": "in the sources",
    "has_codes": "have codes",
    "takes_part": "take part",
    "outcome_known": "outcome and covariates known",
    "outcome": "had the outcome",
}


def publish(
    folder: RunFolder, model: Any, head: Mapping[str, Any], *, minimum: int = MINIMUM, local: Sequence[Site] = ()
) -> dict[str, object]:
    """Write the files of a finished study, and return what ``metrics.json`` holds.

    Parameters
    ----------
    model
        The fitted estimator, with its findings where it was evaluated.
    head
        What ``study.json`` says of the study, its sites and its versions.
    minimum
        Smallest count that is shown: the strictest owner's.
    local
        The hospitals, where they are in this process. A simulation adds what it knows of them: the planted truth, counts by
        hospital, and memberships in folders for their owners.
    """
    findings: Findings | None = vars(model).get("findings_")
    private = dict(head["study"]).get("privacy") is not None
    figures = _figures(model, findings, local, private)
    counts = () if private else _counts(findings, local)
    flow = _flow(findings, counts, minimum)
    folder.write_json(folder.study, {**head, "flow": flow})
    if counts:
        hidden = flow[0]["patients"] is None  # few left: the number of those who take part is shown
        figures["patients_left_out"] = None if hidden else max(counts[0] - counts[2], 0)
    if findings is not None:
        folder.write_json(folder.path / "findings.json", findings.to_json())
    value = vars(model).get("result_")
    if isinstance(value, Phenotypes) and not private:  # `adapt` compares a new hospital with these
        quality = {k: float(v) for k in ("fit", "rmse_full") if isinstance(v := figures.get(k), float)}
        model.result_ = value.with_origin(figures=quality)
    Run.write(folder, model, local)
    if not private:
        figures |= _write_counts(folder, model, findings, minimum, local)
    folder.write_json(folder.metrics, figures)
    return figures


def _figures(model: Configured, findings: Findings | None, local: Sequence[Site], private: bool) -> dict[str, object]:
    """Everything that ``metrics.json`` holds: fit, findings, rounds and bytes, guarantee.

    With ``[privacy]`` exact figures of the records, which only a simulation knows, stand apart, whatever the guarantee.
    """
    formal = model.privacy_.guarantee == "formal"
    history = vars(model).get("history_") or ()
    last = history[-1] if history else {}
    summed = {} if findings is None else findings.fit
    out: dict[str, object] = {k: None if formal else summed.get(k, last.get(k)) for k in FIT}
    if local:
        known = simulated_figures(model, local)
        out |= {"simulation_only": known} if private else {k: v for k, v in known.items() if out.get(k) is None}
    if findings is not None:
        out |= _findings_figures(findings)
    traffic, card = model.traffic_, model.privacy_
    rounds, most = traffic.rounds or len(history), dict(model.params).get("rounds")
    return out | {
        "method": model.name,
        "rounds": rounds,
        "rounds_most": most,
        "converged": isinstance(most, int) and rounds < most,
        **{k: getattr(traffic, k) for k in ("bytes_up", "bytes_down", "payload_bytes_up")},
        "seconds_at_15_MB_per_s": traffic.seconds(),
        **{k: getattr(card, k) for k in ("epsilon", "delta", "adjacency", "guarantee")},
    }


def _counts(findings: Findings | None, local: Sequence[Site]) -> tuple[int, ...]:
    """Patients in the sources, with codes, and taking part: summed over the sites, or counted where all are in this process."""
    if findings is not None and findings.flow:
        return findings.flow
    sources = [s.source or (s.patients, s.patients) for s in local]
    return (sum(a for a, _ in sources), sum(b for _, b in sources), sum(s.patients for s in local)) if local else ()


def _flow(findings: Findings | None, counted: Sequence[int], minimum: int) -> list[dict[str, object]]:
    """Who is left after each step, in boxes; a count that few patients separate from a later one is not shown.

    With ``[privacy]`` only numbers that the budget covers are given, with their noise.
    """
    if findings is None and not counted:
        return []
    o = None if findings is None else findings.outcome
    noisy = findings is not None and findings.forecast is not None
    steps = [Attrition(k, n, 0) for k, n in zip(BOXES, counted)]
    shown = {str(s["step"]): s["patients"] for s in shared(steps, minimum)}
    if findings is not None and noisy:
        shown = {"takes_part": findings.patients}
    if o is not None:
        shown |= {"outcome_known": o.patients, "outcome": None if o.note else o.events}
    boxes = [b for b in BOXES if o is not None or not b.startswith("outcome")]
    return [
        {"box": b, "words": BOXES[b], "patients": shown.get(b), "noisy": noisy, "released": b in shown} for b in boxes
    ]


def _findings_figures(findings: Findings) -> dict[str, object]:
    """One AUC, and the best comparison, whichever it is."""
    out: dict[str, object] = {"predicts_unseen_codes": findings.predicts_unseen_codes}
    if findings.replicability is not None:
        out["phenotypes_replicable"] = findings.replicable
    o = findings.outcome
    if o is not None:
        area, best = o.auc, o.best_baseline
        out["auc"] = None if area is None else area.value
        out["auc_interval"] = None if area is None else [area.low, area.high]
        out["auc_best_baseline"] = None if best is None else {k: best[k] for k in ("model", "auc", "gain")}
    return out


def _write_counts(
    folder: RunFolder, model: Any, findings: Findings | None, minimum: int, local: Sequence[Site]
) -> dict[str, object]:
    """Write who has which phenotype and which codes may be shown, from the sums; in a simulation also by hospital."""
    value = vars(model).get("result_")
    if isinstance(value, Similarity) and local:
        similar = neighbours(model, local, minimum=minimum)
        if similar is not None:
            folder.write_json(folder.path / "neighbours.json", similar.to_json())
    if not isinstance(value, Phenotypes):
        if local and vars(model).get("memberships_"):
            folder.write_json(folder.path / "presence.json", presence(model, local, minimum=minimum).to_json())
        return {}
    # where no count left the sites, the rule is applied in this process
    if local and (findings is None or findings.prevalence is None):
        findings = evaluate(model, local, what=("carriers",), minimum=minimum)
    if findings is None or findings.prevalence is None:
        return {}
    counts: dict[str, object] = {
        "minimum": minimum,
        "carries": CARRIES,
        "totals": findings.prevalence["patients"],
        "contributors": findings.prevalence["effective"],
        "carried": list(findings.carried),
        "sites": {},
        "carriers": [],
        "certainty": [],
    }
    figures: dict[str, object] = {}
    if findings.shown:
        masks = {f"few{n}": ~s for n, s in enumerate(findings.shown, start=1)}
        masks |= {f"held{n}": h for n, h in enumerate(findings.held, start=1)}
        folder.write_arrays(folder.path / "presence.npz", masks)
        # codes that known noise explains are not shown, either
        visible = value.shown or [f != 0 for f in value.factors]
        kept = kept_shares(value.factors, [~(s & np.asarray(v, bool)) for s, v in zip(findings.shown, visible)])
        counts["kept"] = [list(k) for k in kept]
        figures["phenotypes_named"] = sum(min(k) >= NAMED for k in kept)
    if findings.by_hospital is not None:  # hospitals whose owners show their counts
        rows = list(findings.by_hospital)
        counts["sites"] = {r["hospital"]: r["of"] for r in rows}
        counts["carriers"] = [[r["patients"] for r in rows if r["phenotype"] == k] for k in range(value.rank)]
    if local:
        by_site = presence(model, local, minimum=minimum).to_json()
        tensors = [s.counts() for s in local]
        fitted = [weighted(t, value.saturation) for t in tensors]
        counts |= {k: by_site[k] for k in ("sites", "carriers")}
        counts |= {"top1": round(heaviest_share(*tensors), 4), "top1_fitted": round(heaviest_share(*fitted), 4)}
    folder.write_json(folder.path / "presence.json", counts)
    return figures
