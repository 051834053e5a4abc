"""Which charts a report has, from what a run may show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from polyclinic.report.cards import PhenotypeCard
from polyclinic.report.charts.clinical import by_hospital
from polyclinic.report.charts.rows import site_rows
from polyclinic.report.charts.svg import Series, heat_map, line_chart
from polyclinic.report.contents import RunContents
from polyclinic.report.spending import SiteSpending
from polyclinic.report.tables import feature_names

TOP: Final = 3  # codes of a phenotype that enter the heat map of its mode
ROWS: Final = 160
# keys of the history, title, words beside the axis, logarithmic
CURVES: Final = (
    (("objective",), "Objective", "objective", True),
    (("rmse_full",), "Error of reconstruction: all cells", "error", False),
    (("rmse_observed",), "Error of reconstruction: recorded cells", "error", False),
    (("fit",), "Fit", "fit", False),
    (("log_likelihood", "lower_bound", "bound"), "Log-likelihood", "log-likelihood", False),
    (
        ("primal", "dual", "primal_residual", "dual_residual", "residual", "gap"),
        "Disagreement of sites",
        "residual",
        True,
    ),
    (("noise_sd",), "Noise of each released sum", "standard deviation", False),
)


def pictures(run: RunContents, cards: Sequence[PhenotypeCard], spent: Sequence[SiteSpending]) -> dict[str, object]:
    """Every chart by its place in the page; empty where there is nothing to draw."""
    charts: dict[str, object] = {
        "convergence": _convergence(run),
        "spending": _spending(spent),
        "sites": "",
        "codes": [],
        "groups": "",
        "group_sizes": "",
        "metric": "",
        "explanation": "",
    }
    if cards and cards[0].sites and not run.owner:
        charts["sites"] = by_hospital(site_rows(run.presence, [c.name for c in cards]))
    if cards:
        charts["codes"] = [(f"{axis.name} codes", _codes(run, cards, n)) for n, axis in enumerate(run.axes)]
    if run.kind == "mixture":
        charts |= _mixture(run)
    if run.kind == "similarity":
        charts["metric"] = _metric(run)
        charts["explanation"] = _explanation(run)
    return charts


def _convergence(run: RunContents) -> list[tuple[str, Markup]]:
    out = []
    for keys, title, axis, log in CURVES:
        lines = [
            Series(k.replace("_", " "), [(h.get("round", n + 1), h.get(k)) for n, h in enumerate(run.history)])
            for k in keys
            if any(isinstance(h.get(k), int | float) for h in run.history)
        ]
        chart = line_chart(lines, title=f"{title} by round", x="round", y=axis, log=log, whole=True)
        if chart:
            out.append((title, chart))
    return out


def _spending(spent: Sequence[SiteSpending]) -> str:
    most = max((s for s in spent if s.spent), key=lambda s: s.by_round[-1].tight, default=None)
    if most is None:
        return ""
    return line_chart(
        [
            Series("tight", [(a.round, a.tight) for a in most.by_round]),
            Series("Renyi", [(a.round, a.renyi) for a in most.by_round]),
        ],
        title=f"{most.adjacency}-level epsilon after every round",
        x="round",
        y=f"epsilon, {most.adjacency}-level",
        zero=True,
        steps=True,
        whole=True,
    )


def _codes(run: RunContents, cards: Sequence[PhenotypeCard], mode: int) -> str:
    """Heaviest codes of every phenotype against all phenotypes; codes that may not be shown are empty cells."""
    axis, factor, hide = run.axes[mode], np.abs(run.factors[mode]), run.hidden[mode]
    secret = ~run.carried
    visible = np.where(hide | secret[None, :], 0.0, factor)
    visible = visible / np.maximum(visible.max(0, keepdims=True), 1e-300)
    order: list[int] = []
    for r in range(visible.shape[1]):
        order += [
            int(i) for i in np.argsort(-visible[:, r], kind="stable")[:TOP] if visible[i, r] > 0.05 and i not in order
        ]
    order = order[:ROWS]
    if not order:
        return ""
    return heat_map(
        [axis.describe(i) for i in order],
        [f"{c.number} {c.name}" for c in cards],
        [[round(float(v), 3) if v >= 0.02 else 0.0 for v in visible[i]] for i in order],
        title=f"{axis.name} codes and phenotypes",
        cell=18,
    )


def groups_of(run: RunContents) -> list[dict[str, object]]:
    """The groups of a mixture, in words: what sets each apart from everybody."""
    if run.kind != "mixture":
        return []
    z = _standing(run)
    names = feature_names(run, z.shape[1])
    p = run.presence
    centre, share = run.shown_groups
    top = np.argsort(-np.abs(z), axis=1, kind="stable")[:, :6]
    return [
        {
            "number": j + 1,
            "share": float(w) if share[j] else None,
            "features": [{"name": names[k], "z": float(z[j, k])} for k in top[j]] if centre[j] else [],
            "certainty": (p.get("certainty") or [None] * len(z))[j] if centre[j] else None,
            "sites": [(s, p["carriers"][j][k]) for k, s in enumerate(p.get("sites") or ())],
        }
        for j, w in enumerate(run.groups.weights)
    ]


def _standing(run: RunContents) -> NDArray[np.float64]:
    """(k, d) centres in standard deviations from the mixture's own mean."""
    m = run.groups.mixture
    mean, covariance = m.overall()
    return (m.means - mean) / np.sqrt(np.maximum(np.diag(covariance), 1e-300))


def _mixture(run: RunContents) -> dict[str, object]:
    z = _standing(run)
    names = feature_names(run, z.shape[1])
    groups = [f"group {j + 1}" for j in range(len(z))]
    charts: dict[str, object] = {
        "groups": heat_map(
            names[:ROWS],
            groups,
            [
                [float(np.clip(z[j, k] / 3, -1, 1)) if run.shown_groups[0][j] else None for j in range(len(z))]
                for k in range(min(len(names), ROWS))
            ],
            title="Centres of the groups",
            signed=True,
        )
    }
    sites = run.presence.get("sites") or {}
    if sites:
        counts = run.presence["carriers"]
        charts["group_sizes"] = heat_map(
            list(sites),
            groups,
            [
                [None if counts[j][k] is None or not n else counts[j][k] / n for j in range(len(z))]
                for k, n in enumerate(sites.values())
            ],
            title="Share of every site's patients in every group",
        )
    return charts


def _metric(run: RunContents) -> str:
    W = run.similarity.components
    lengths = (W**2).sum(0)
    top = [int(k) for k in np.argsort(-lengths, kind="stable")[:20] if lengths[k] > 0]
    if not top:
        return ""
    M = W[:, top].T @ W[:, top]
    names = feature_names(run, W.shape[1])
    return heat_map(
        [names[k] for k in top],
        [names[k] for k in top],
        (M / np.abs(M).max()).round(3).tolist(),
        title="The metric between the strongest features",
        signed=True,
    )


def _explanation(run: RunContents) -> str:
    """Which features bring patients of one class together, and which keep two classes apart."""
    n = run.neighbours
    if not n:
        return ""
    gap = np.array(n["same"]) - np.array(n["different"])
    top = [int(k) for k in np.argsort(-np.abs(gap), kind="stable")[:15] if gap[k] != 0]
    if not top:
        return ""
    contributions = np.array([n["same"], n["different"]])[:, top]
    names = feature_names(run, len(gap))
    return heat_map(
        [names[k] for k in top],
        ["one class", "two classes"],
        (contributions / np.abs(contributions).max()).T.round(3).tolist(),
        title="Mean part of every feature in the similarity of two patients",
        signed=True,
        cell=26,
    )
