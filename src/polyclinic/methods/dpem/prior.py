"""A model that is already public or paid for, as the prior of a private fit: what it says, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.models.base import frozen
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.models.phenotypes.projection import Events
from polyclinic.privacy.card.card import Card
from polyclinic.protocol.params import Parameterized
from polyclinic.tensors.axis import Axis

Array = NDArray[np.float64]
KNOWN: Final = 0.5  # limit: least share of the prior's events that must lie on codes of the study


@dataclass(frozen=True, eq=False)
class Prior:
    """Phenotypes of another study on the simplex, with the card of that study.

    Parameters
    ----------
    factors
        (I_n, P) per feature mode, columns sum to 1.
    mixture
        (P,) share of the phenotypes' events that each explains.
    marginals
        (I_n,) per mode: how often each code is expected.
    axes
        The codes; found again by their labels.
    card
        What the prior's own patients were promised.
    digest
        SHA-256 of the model's file.
    background
        Share of all events that belong to its background; None: it has none.
    pieces
        (P,) the phenotype that every column is a piece of, -1: of none that it shows. None: every column is one. A model of
        DPEM speaks by the columns that place its patients: those it shows say less.
    shown
        (I_n, phenotypes) per mode, the codes that it shows of each; empty: all that a phenotype has.

    Examples
    --------
    >>> import polyclinic as pc
    >>> m = pc.CPALS(rank=3, seed=0).fit(pc.datasets.planted_counts(300, 20, 30, 3, codes=(4, 5), seed=0))
    >>> p = Prior.of(m); p.rank, p.card.guarantee, [f.sum(0).round(6).tolist() for f in p.factors][0]
    (3, 'none', [1.0, 1.0, 1.0])
    """

    factors: tuple[Array, ...]
    mixture: Array
    marginals: tuple[Array, ...]
    axes: tuple[Axis, ...]
    card: Card
    digest: str
    background: float | None = None
    pieces: NDArray[np.int64] | None = None
    shown: tuple[NDArray[np.bool_], ...] = ()

    def __post_init__(self) -> None:
        for name in ("factors", "marginals"):
            object.__setattr__(self, name, tuple(frozen(f) for f in getattr(self, name)))
        object.__setattr__(self, "mixture", frozen(self.mixture))
        if self.pieces is not None:
            object.__setattr__(self, "pieces", frozen(self.pieces, np.int64))
        object.__setattr__(self, "shown", tuple(frozen(s, np.bool_) for s in self.shown))

    def __repr__(self) -> str:
        return f"Prior(rank={self.rank}, sha256={self.digest})"

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Prior) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def rank(self) -> int:
        """Number of columns."""
        return len(self.mixture)

    @classmethod
    def of(cls, model: object) -> Self:
        """From a fitted model, or from what ``pc.load`` gave; anything else is a ValueError."""
        fitted = _phenotypes(model)
        sums = [f.sum(0) for f in fitted.factors]
        share = fitted.weights * np.prod(sums, axis=0)
        share = share / share.sum() if share.sum() > 0 else np.full(fitted.rank, 1.0 / fitted.rank)
        factors = tuple(f / s for f, s in zip(fitted.factors, sums))
        if isinstance(fitted.placing, Events):
            return cls._of_events(fitted, fitted.placing)
        marginals = tuple(f @ share for f in factors)
        return cls(factors, share, marginals, fitted.axes, fitted.card, fitted.digest())

    @classmethod
    def _of_events(cls, fitted: Phenotypes, place: Events) -> Self:
        """From a model of DPEM: the columns that place its patients."""
        columns = np.split(place.stacked, np.cumsum([len(f) for f in fitted.factors])[:-1])
        mixture = place.prior / place.prior.sum()
        count = len(mixture) - bool(place.apart[-1])
        # The background is how often everything occurs; what the columns add up to may miss it where they fit badly.
        marginals = tuple(w @ mixture if count == len(mixture) else w[:, -1] for w in columns)
        background = None if count == len(mixture) else float(mixture[-1])
        factors = tuple(w[:, :count] / w[:, :count].sum(0) for w in columns)
        pieces = None if place.parts is None else place.parts[:count]
        share = mixture[:count] / mixture[:count].sum()
        visible = tuple(s[:, np.argsort(place.order)] for s in fitted.shown)
        return cls(factors, share, marginals, fitted.axes, fitted.card, fitted.digest(), background, pieces, visible)

    def on(self, axes: Sequence[Axis], shape: Sequence[int]) -> Prior:
        """The same on the codes of a study: found by label; a code the prior never saw has probability 0 here."""
        if len(self.axes) != len(shape):
            raise ConfigError(
                f"the prior has {len(self.axes)} feature modes ({', '.join(a.name for a in self.axes)}), the study "
                f"{len(shape)} ({', '.join(a.name for a in axes)})",
                hint="a prior is a model of the same kinds of codes",
            )
        factors, marginals, visible = [], [], []
        for n, (mine, theirs, size, f, m) in enumerate(zip(self.axes, axes, shape, self.factors, self.marginals)):
            position = _positions(mine, theirs, len(f), size)
            present = position >= 0
            f, m = (np.where(present.reshape(-1, *[1] * (x.ndim - 1)), x[np.maximum(position, 0)], 0.0) for x in (f, m))
            if m.sum() < KNOWN:
                raise ConfigError(
                    f"{theirs.name!r}: only {m.sum():.0%} of the prior's events have a code of this study",
                    hint="a prior is a model of the same code system",
                )
            factors.append(f)
            marginals.append(m / m.sum())
            visible += [self.shown[n][np.maximum(position, 0)] & present[:, None]] if self.shown else []
        # A phenotype of which a mode has nothing here says nothing here.
        usable = np.min([f.sum(0) for f in factors], axis=0) > 0.1
        factors = [f[:, usable] / f[:, usable].sum(0) for f in factors]
        return replace(
            self,
            factors=tuple(factors),
            mixture=self.mixture[usable] / max(self.mixture[usable].sum(), 1e-300),
            marginals=tuple(marginals),
            axes=tuple(axes),
            pieces=np.flatnonzero(usable) if self.pieces is None else self.pieces[usable],
            shown=tuple(visible),
        )

    # ---- what it costs

    def hindrance(self, public: bool) -> str:
        """Why a private fit may not build on it; empty if it may."""
        if public or self.card.guarantee == "formal":
            return ""
        return (
            f"the prior's own card is no formal guarantee ({self.card.headline}), so a private fit would spread what it "
            "shows; a model of public data: prior_is_public=True"
        )

    def joined(self, card: Card, *, public: bool) -> Card:
        """The card of a result that depends on the prior.

        Basic composition: a patient of both studies is covered by the sum of the two epsilons, at the sum of the deltas.
        """
        name = f"the prior ({self.card.method}, sha256 {self.digest[:16]})"
        if public:
            note = f"{name} was learned from public data, as the analyst says: its patients are not part of this bound"
            return replace(card, assumptions=(*card.assumptions, note))
        if card.epsilon is None or self.card.epsilon is None:
            reason = f"{name} is part of the result; its own card says: {self.card.headline}"
            return replace(card, reasons=(*card.reasons, reason))
        note = (
            f"{name}: {self.card.headline}; this study alone: epsilon {card.epsilon:.4g} at delta {card.delta:g}; a "
            "patient of both has the sum, which stands above"
        )
        return replace(
            card,
            epsilon=card.epsilon + self.card.epsilon,
            delta=(card.delta or 0.0) + (self.card.delta or 0.0),
            assumptions=(*card.assumptions, note),
        )


def _phenotypes(model: object) -> Phenotypes:
    """The phenotypes of a fitted model, or the reason why they are no probabilities of codes."""
    fitted = vars(model).get("result_") if isinstance(model, Parameterized) else model
    if not isinstance(fitted, Phenotypes):
        description = f"the text {model!r}" if isinstance(model, str) else f"a {type(model).__name__}"
        raise ValueError(
            f"a prior is a fitted phenotype model or pc.load(file), not {description}; a study file cannot name one: between "
            "hospitals an order holds no path, so a fit with a prior runs in one process (Python) in this version"
        )
    if any((f < 0).any() for f in fitted.factors):
        raise ValueError("a prior's phenotypes are probabilities of codes: this model has negative weights")
    if any((f.sum(0) <= 0).any() for f in fitted.factors):
        raise ValueError("a phenotype of the prior has no code at all")
    return fitted


def _positions(mine: Axis, theirs: Axis, codes: int, size: int) -> NDArray[np.int64]:
    """(size,) where the prior has each code of a study, found by label; -1: nowhere."""
    if mine.labels is not None and theirs.labels is not None:
        place = {code: k for k, code in enumerate(mine.labels)}
        return np.array([place.get(code, -1) for code in theirs.labels])
    if codes != size:
        raise ConfigError(
            f"{theirs.name!r}: the prior has {codes} codes, the study {size}, and they have no labels to be found by",
            hint="give both the labels of their codes",
        )
    return np.arange(size)
