"""What fitted latent classes can do: take frames, place patients, score them, compare numbers of classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, Unpack

import numpy as np

from polyclinic.errors import DataError
from polyclinic.models.mixtures.classes import Classes
from polyclinic.models.mixtures.columns import Array, Layout, encoded
from polyclinic.models.origin import Origin
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.loop import SimulationOptions
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.records.sites.frames import FrameColumn, column_of, columns_of
from polyclinic.records.sites.from_data import as_sites
from polyclinic.records.sites.site import Site


class FittedClasses(Estimator):
    """Attributes and methods after ``fit``.

    Attributes
    ----------
    weights_, profiles_, layout_
        Shares (k,), largest class first, profiles (k, parameters) and the columns they belong to.
    shares_
        Site -> (k,) its own shares of the classes. They stay at the site.
    memberships_
        Site -> (patients, k) probabilities. They stay at the site.
    log_likelihood_, bic_, aic_
        From summed log-likelihoods over all sites. None where the privacy budget does not cover them.
    result_
        The classes as a value (:class:`polyclinic.Classes`).
    privacy_, traffic_, history_
        The privacy card, the bytes sent, and figures of every round.
    """

    params: Any
    weights_: Array
    profiles_: Array
    layout_: Layout
    shares_: dict[str, Array]
    memberships_: dict[str, Array]
    result_: Classes
    log_likelihood_: Any
    bic_: Any
    aic_: Any

    def fit(
        self,
        sites: object,
        y: object = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        **options: Unpack[SimulationOptions],
    ) -> Self:
        """Learn from sites, from one matrix or frame, or from a mapping of a site's name to its frame.

        Parameters
        ----------
        sites
            Sites with features (NaN: unknown), a frame of any library, or ``{"north": frame, ...}``.
        y
            Ignored; pipelines pass it.
        progress
            Called with every progress event.
        """
        frames = _frames(sites)
        if frames is None:
            return super().fit(as_sites(sites, "features"), progress=progress, **options)
        params = self.params
        several_sites, kinds = _read(frames, params.kinds)
        try:
            self.params = params.model_copy(update={"kinds": kinds})
            return super().fit(several_sites, progress=progress, **options)
        finally:
            self.params = params

    def _publish(self, outcome: Outcome) -> None:
        public = outcome.public
        order = np.argsort(-public.weights, kind="stable")
        self.weights_, self.profiles_, self.layout_ = public.weights[order], public.profiles[order], public.layout
        self.converged_, self.n_iter_ = bool(public.converged), int(public.round)
        self.log_likelihood_ = public.loglik
        n, free = max(public.moments.n, 1.0), public.layout.free(len(order))
        has_likelihood = public.loglik is not None
        self.bic_ = free * float(np.log(n)) - 2 * public.loglik if has_likelihood else None
        self.aic_ = 2 * free - 2 * public.loglik if has_likelihood else None
        self.memberships_ = {s: a["responsibilities"][:, order] for s, a in outcome.closed.items()}
        self.shares_ = {s: a["shares"][order] for s, a in outcome.closed.items()}

    def learned(self, origin: Origin) -> Classes:
        return Classes.of(origin, self.weights_, self.profiles_, self.layout_)

    def transform(self, X: object) -> Any:
        """(patients, k) probability of each class; for sites one array each."""
        value: Classes = self._fitted("result_")
        if isinstance(X, list | tuple) and X and all(isinstance(s, Site) for s in X):
            return {s.name: value.transform(s) for s in X}
        return self._framed(value.transform(X))

    predict_proba = transform

    def predict(self, X: object) -> Any:
        """(patients,) most probable class."""
        probabilities = self.transform(X)
        return (
            {n: a.argmax(1) for n, a in probabilities.items()}
            if isinstance(probabilities, dict)
            else np.asarray(probabilities).argmax(1)
        )

    def score(self, X: object, y: object = None) -> float:
        """Mean log-likelihood of the known values, over all sites."""
        value: Classes = self._fitted("result_")
        sites = list(X) if isinstance(X, list | tuple) and all(isinstance(s, Site) for s in X) else [X]
        parts = [(value.score(s), len(value.records(s))) for s in sites]
        return sum(v * n for v, n in parts) / max(sum(n for _, n in parts), 1)

    def quality(self, X: object) -> dict[str, float]:
        """``log_likelihood`` per patient."""
        return {"log_likelihood": self.score(X)}


def _frames(data: object) -> dict[str, object] | None:
    """Return frames by site, where frames were given."""
    if isinstance(data, Site | np.ndarray | list | tuple):
        return None
    if isinstance(data, Mapping) and data and all(columns_of(v) is not None for v in data.values()):
        return {str(k): v for k, v in data.items()}
    return {"local": data} if columns_of(data) is not None else None


def _read(frames: Mapping[str, object], given: Mapping[str, object]) -> tuple[list[Site], dict[str, object]]:
    """Return the sites of the frames, and the kinds and levels that all of them have together."""
    names = columns_of(next(iter(frames.values()))) or ()
    levels = {name: x for name in names if (x := _levels(frames, name, given.get(name))) is not None}
    sites, kinds, faults = [], dict[str, object](), []
    for site, frame in frames.items():
        try:
            X, frame_kinds = encoded(frame, names, levels)
        except DataError as e:
            faults += [f"site {site!r}: {f}" for f in e.faults]
            continue
        for n, k in frame_kinds.items():  # a column that is whole at one site and broken at another is continuous
            kinds[n] = k if kinds.get(n, k) == k else "continuous"
        sites.append(Site(site, features=X, columns=names))
    if faults:
        raise DataError("the frames are not usable", faults=faults)
    kinds |= {n: list(v) for n, v in levels.items()}
    return sites, kinds | {n: k for n, k in given.items() if k != "categorical"}


def _levels(frames: Mapping[str, object], name: str, kind: object) -> tuple[str, ...] | None:
    """Return the levels of a column that is categorical: named, or those that any frame has. None for numbers."""
    if isinstance(kind, list | tuple):
        return tuple(str(x) for x in kind)
    columns = [column_of(f, name) for f in frames.values() if name in (columns_of(f) or ())]
    if kind != "categorical" and not any(_is_text(c) for c in columns):
        return None
    return _categories(frames, name) or tuple(sorted({x for c in columns for x in c.keys().labels}))


def _is_text(column: FrameColumn) -> bool:
    """Tell texts and truth values from numbers."""
    kind = column.values.dtype.kind
    return kind == "b" or (kind in "UO" and column.numbers() is None)


def _categories(frames: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the order of a pandas categorical, where all frames have the same one."""
    orders: set[tuple[str, ...]] = set()
    for frame in frames.values():
        categories = getattr(getattr(frame[name], "dtype", None), "categories", None)
        orders.add(() if categories is None or callable(categories) else tuple(str(x) for x in categories))
    return orders.pop() if len(orders) == 1 else ()
