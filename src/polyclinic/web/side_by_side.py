"""Two runs side by side: figures with their guarantees, parameters that differ, and how alike the models are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.report.contents import RunContents
from polyclinic.report.words import badge
from polyclinic.tensors.matching import factor_match_score

FIGURES = ("fit", "rmse_full", "rmse_observed", "auc", "fms_to_truth", "precision_to_truth", "log_likelihood", "bic")
COSTS = ("rounds", "bytes_up", "bytes_down")


def side_by_side(a: Path, b: Path) -> dict[str, Any]:
    """Compare two finished runs; an error says which one is not finished."""
    runs = [RunContents.read(p) for p in (a, b)]
    rows = [
        {"what": k, "values": [r.metrics.get(k) for r in runs], "merit": k in FIGURES}
        for k in (*FIGURES, *COSTS)
        if any(k in r.metrics for r in runs)
    ]
    parameters = [dict(r.outcome["parameters"]) for r in runs]
    differ = sorted({k for p in parameters for k in p if parameters[0].get(k) != parameters[1].get(k)})
    return {
        "names": [r.name for r in runs],
        "methods": [r.outcome["class"] for r in runs],
        "privacy": [{"guarantee": r.card.guarantee, "text": badge(r.card), "headline": r.card.headline} for r in runs],
        "rows": rows,
        "differ": [{"what": k, "values": [str(p.get(k, "")) for p in parameters]} for k in differ],
        "match": _match(*runs),
        "histories": [[{"round": h.get("round"), "rmse_full": h.get("rmse_full")} for h in r.history] for r in runs],
    }


def _match(a: RunContents, b: RunContents) -> float | None:
    """Factor match score of two phenotype models on the same codes, from what was released."""
    if a.kind != "phenotypes" or b.kind != "phenotypes":
        return None
    if [x.digest() for x in a.axes] != [x.digest() for x in b.axes]:
        return None
    return float(factor_match_score(a.factors, b.factors))
