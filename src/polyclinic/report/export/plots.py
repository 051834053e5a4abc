"""Draw charts for notebooks, as Altair objects that a researcher can change, combine and save (extra ``plots``).

They are drawn as pictures, without a network; ``altair.renderers.enable("html")`` gives the interactive ones, which load scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.errors import DataError, MissingExtra
from polyclinic.models.base import Value
from polyclinic.models.phenotypes.cohort import CARRIES, shares
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.protocol.estimator import Configured
from polyclinic.report.charts.rows import (
    SiteRow,
    calibration_rows,
    effect_rows,
    natural,
    replication_rows,
    survival_groups,
)
from polyclinic.report.names import names_of

if TYPE_CHECKING:
    from altair import Chart, Data, Title

    from polyclinic.analysis.findings import Findings
    from polyclinic.methods.estimators.factorization import Factorization
    from polyclinic.methods.rounds.factorization import FactorParams
    from polyclinic.models.file import Learned

COLOURS = ["#0b6b68", "#c2571a", "#4a5bb5", "#8a6d00", "#8d3c86", "#55616b"]


def _altair() -> ModuleType:
    try:
        import altair
    except ImportError:
        raise MissingExtra("altair", "plots", "a chart") from None
    if altair.renderers.active == "default" and find_spec("vl_convert") is not None:
        altair.renderers.enable(
            "svg"
        )  # the default loads its scripts from a network, which a hospital's notebook may not have
    module: ModuleType = altair
    return module


def _values(rows: Sequence[dict[str, object]]) -> Data:
    """Rows as inline data: no data-frame library is needed."""
    return _altair().Data(values=list(rows))


def _value(model: Configured | Learned) -> Learned:
    """What was learned: of a fitted estimator, or as ``pc.load`` gives it."""
    return model if isinstance(model, Value) else model._whole()


def _phenotypes(model: Configured | Learned) -> Phenotypes:
    value = _value(model)
    if not isinstance(value, Phenotypes):
        raise DataError(f"{value.kind} have no phenotypes to draw", hint="pc.plots.convergence draws any model")
    return value


def convergence(model: Configured | Learned, figure: str | None = None) -> Chart:
    """A figure of merit by round, with the model's privacy in the title.

    Parameters
    ----------
    model
        Fitted, or loaded.
    figure
        A key of its history; default: the first that is there of rmse_full, objective, log_likelihood, fit.
    """
    alt, value = _altair(), _value(model)
    figures = [
        k
        for k in ("rmse_full", "objective", "log_likelihood", "fit")
        if any(h.get(k) is not None for h in value.history)
    ]
    key = figure or (figures[0] if figures else "seconds")
    rows = [{"round": h["round"], key: h[key]} for h in value.history if h.get(key) is not None]
    if not rows:
        names = sorted({k for h in value.history for k, v in h.items() if k != "round" and isinstance(v, int | float)})
        raise DataError(f"no round of this model has {key!r}", hint=f"figure = one of {', '.join(names) or 'none'}")
    return (
        alt.Chart(_values(rows), title=_title(value.method, value))
        .mark_line(point=True, color=COLOURS[0])
        .encode(
            x=alt.X("round", type="quantitative"),
            y=alt.Y(key, type="quantitative", scale=alt.Scale(zero=False)),
            tooltip=[alt.Tooltip("round", type="quantitative"), alt.Tooltip(key, type="quantitative")],
        )
    )


def phenotype(model: Configured | Learned, number: int, *, top: int = 8) -> Chart:
    """The heaviest codes of one phenotype (``number`` counts from 0, as in ``phenotypes_``; the title from 1)."""
    alt, value = _altair(), _phenotypes(model)
    rows = [dict(r) for r in value.table().where(phenotype=number)]
    top_rows = [
        r for mode in dict.fromkeys(r["mode"] for r in rows) for r in [x for x in rows if x["mode"] == mode][:top]
    ]
    return (
        alt.Chart(_values(top_rows), title=_title(f"phenotype {number + 1}", value))
        .mark_bar()
        .encode(
            x=alt.X("share", type="quantitative", axis=alt.Axis(format="%"), title="share of the mode"),
            y=alt.Y("name", type="nominal", sort=None, title=None),
            color=alt.Color("mode", type="nominal", scale=alt.Scale(range=COLOURS), legend=None),
            row=alt.Row("mode", type="nominal", title=None),
            tooltip=[
                alt.Tooltip(k, type=t) for k, t in (("code", "nominal"), ("name", "nominal"), ("share", "quantitative"))
            ],
        )
        .resolve_scale(y="independent")
    )


def codes(model: Configured | Learned, mode: int = 0, *, top: int = 3) -> Chart:
    """Heat map of the heaviest codes of one feature mode against all phenotypes."""
    alt, value = _altair(), _phenotypes(model)
    name, names = value.axes[mode].name, names_of(value)
    rows = [dict(r) for r in value.table() if r["mode"] == name]
    heavy = {r["code"] for p in {x["phenotype"] for x in rows} for r in [x for x in rows if x["phenotype"] == p][:top]}
    return (
        alt.Chart(
            _values(
                [r | {"phenotype": f"{r['phenotype'] + 1} {names[r['phenotype']]}"} for r in rows if r["code"] in heavy]
            ),
            title=_title(name, value),
        )
        .mark_rect()
        .encode(
            x=alt.X("phenotype", type="nominal", sort=None, axis=alt.Axis(labelAngle=-60, labelLimit=220)),
            y=alt.Y("name", type="nominal", sort=None, title=None),
            color=alt.Color("share", type="quantitative", scale=alt.Scale(scheme="teals")),
            tooltip=[alt.Tooltip("name", type="nominal"), alt.Tooltip("share", type="quantitative")],
        )
    )


def sites(model: Factorization[FactorParams]) -> Chart:
    """Prevalence of every phenotype at every hospital, with Wilson's interval.

    It reads memberships, so it is for a simulation or for a hospital's own eyes.
    """
    alt, value = _altair(), _phenotypes(model)
    counts = {s: (len(m), (shares(value, np.abs(m)) >= CARRIES).sum(0)) for s, m in model.memberships_.items()}
    rows = [
        SiteRow(r + 1, name, site, int(counts[site][1][r]), counts[site][0])
        for site in sorted(counts, key=natural)
        for r, name in enumerate(names_of(value))
    ]
    values = [asdict(r) | _limits(r.prevalence, "prevalence") for r in rows]
    facet = alt.Facet("name", type="nominal", title=None)
    chart = _intervals(values, "prevalence", "site").facet(facet=facet, columns=3, data=_values(values))
    return chart.properties(title=_title("prevalence by hospital", value))


def forest(model: Configured | Learned, findings: Findings) -> Chart:
    """Adjusted odds ratio of every phenotype on a logarithmic axis; colour by adjusted p-value (q)."""
    alt, value = _altair(), _phenotypes(model)
    rows = [
        asdict(r) | _limits(r.ratio, "odds ratio") | {"significant": r.sure}
        for r in effect_rows(findings.to_json(), names_of(value))
        if r.ratio
    ]
    colour = alt.Color(
        "significant",
        type="nominal",
        title="q < 0.05",
        scale=alt.Scale(domain=[True, False], range=[COLOURS[1], COLOURS[5]]),
    )
    chart = _intervals(rows, "odds ratio", "name", log=True).encode(color=colour)
    return chart.properties(data=_values(rows), title=_title("odds ratios", value))


def replication(model: Configured | Learned, findings: Findings) -> Chart:
    """Cosine between halves with its interval against the held-out correlation of every phenotype."""
    value = _phenotypes(model)
    rows = [
        asdict(r) | {"low": r.low or r.cosine, "high": r.high or r.cosine}
        for r in replication_rows(findings.to_json(), names_of(value))
        if r.r is not None
    ]
    chart = _intervals(rows, "cosine", "r").encode(color="grade:N", tooltip="name:N")
    return chart.properties(data=_values(rows), title=_title("replication", value))


def survival(model: Configured | Learned, findings: Findings, number: int | None = None) -> Chart:
    """Survival of patients with and without one phenotype (``number`` from 0; None: everybody), with 95 % bands."""
    alt, value = _altair(), _phenotypes(model)
    found: Any = findings.to_json()
    one = next((s for s in found["survival"] if s["phenotype"] == number), None)
    if one is None:
        raise DataError(f"the findings have no survival of {number}", hint="evaluate with [people] survival")
    groups, unit = survival_groups(one)
    rows = [
        {"group": g.name, unit: t, "survival": s, "low": low, "high": high}
        for g in groups
        for t, s, low, high in g.points
    ]
    name = "everybody" if number is None else names_of(value)[number]
    base = alt.Chart(_values(rows)).encode(
        x=alt.X(unit, type="quantitative"), color=alt.Color("group", type="nominal", scale=alt.Scale(range=COLOURS))
    )
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low", type="quantitative", title="survival"), y2="high")
    line = base.mark_line().encode(y=alt.Y("survival", type="quantitative"))
    return (band + line).properties(title=_title(name, value))


def calibration(model: Configured | Learned, findings: Findings) -> Chart:
    """Observed share against predicted risk, in groups of patients, with 95 % intervals."""
    rows = [asdict(r) for r in calibration_rows(findings.to_json())]
    chart = _intervals(rows, "observed", "predicted", upright=True)
    return chart.properties(data=_values(rows), title=_title("calibration", _value(model)))


def _limits(interval: tuple[float, float, float] | None, name: str) -> dict[str, object]:
    return dict(zip((name, "low", "high"), interval or (None, None, None)))


def _intervals(rows: list[dict[str, object]], key: str, by: str, *, log: bool = False, upright: bool = False) -> Chart:
    """Points with their intervals along one axis; ``upright``: along y."""
    alt = _altair()
    kind = "nominal" if rows and isinstance(rows[0][by], str) else "quantitative"
    scale = alt.Scale(type="log" if log else "linear", zero=False)
    along, across = (alt.Y, alt.X) if upright else (alt.X, alt.Y)
    value, place = ("y", "x") if upright else ("x", "y")
    base = alt.Chart().encode(**{place: across(by, type=kind, sort=None)})
    low = along("low", type="quantitative", scale=scale, title=f"{key} (95 % CI)")
    rule = base.mark_rule().encode(**{value: low, f"{value}2": "high"})
    return rule + base.mark_point(filled=True, size=60).encode(**{value: along(key, type="quantitative", scale=scale)})


def _title(text: str, value: Learned) -> Title:
    return _altair().Title(text, subtitle=f"privacy: {value.card.headline}")
