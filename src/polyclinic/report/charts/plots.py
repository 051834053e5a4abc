"""Charts for notebooks, as Altair objects that a researcher can change, combine and save (extra ``plots``).

They are drawn as pictures, without a network; ``altair.renderers.enable("html")`` gives the interactive ones, which load scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError, MissingExtra
from polyclinic.models.base import Value
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.protocol.estimator import Configured

if TYPE_CHECKING:
    from altair import Chart, Data, Title

    from polyclinic.methods.estimators.factorization import Factorization
    from polyclinic.methods.factorization import FactorParams
    from polyclinic.models.file import Learned

__all__ = ["codes", "convergence", "phenotype", "sites"]

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
        raise DataError(f"no round of this model tells {key!r}", hint=f"figure = one of {', '.join(names) or 'none'}")
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
    name = value.axes[mode].name
    rows = [dict(r) for r in value.table() if r["mode"] == name]
    heavy = {r["code"] for p in {x["phenotype"] for x in rows} for r in [x for x in rows if x["phenotype"] == p][:top]}
    return (
        alt.Chart(
            _values([r | {"phenotype": r["phenotype"] + 1} for r in rows if r["code"] in heavy]),
            title=_title(name, value),
        )
        .mark_rect()
        .encode(
            x=alt.X("phenotype", type="ordinal"),
            y=alt.Y("name", type="nominal", sort=None, title=None),
            color=alt.Color("share", type="quantitative", scale=alt.Scale(scheme="teals")),
            tooltip=[alt.Tooltip("name", type="nominal"), alt.Tooltip("share", type="quantitative")],
        )
    )


def sites(model: Factorization[FactorParams]) -> Chart:
    """Heat map of every phenotype's strength at every site (root mean squared membership, strongest site = 1).

    It reads memberships, so it is for a simulation or for a site's own eyes.
    """
    alt = _altair()
    memberships: Mapping[str, NDArray[np.float64]] = model.memberships_
    names = list(memberships)
    size = np.array([np.sqrt(np.mean(np.square(memberships[s]), axis=0)) for s in names])
    relative = size / np.maximum(size.max(0, keepdims=True), 1e-300)
    rows = [
        {"site": s, "phenotype": r + 1, "strength": round(float(relative[k, r]), 4)}
        for k, s in enumerate(names)
        for r in range(relative.shape[1])
    ]
    return (
        alt.Chart(_values(rows), title=_title("strength at every site", _value(model)))
        .mark_rect()
        .encode(
            x=alt.X("phenotype", type="ordinal"),
            y=alt.Y("site", type="nominal", title=None),
            color=alt.Color("strength", type="quantitative", scale=alt.Scale(scheme="teals")),
            tooltip=[alt.Tooltip("site", type="nominal"), alt.Tooltip("strength", type="quantitative")],
        )
    )


def _title(text: str, value: Learned) -> Title:
    return _altair().Title(text, subtitle=f"privacy: {value.card.headline}")
