"""What a synthetic network was made from, so that a method can be held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError
from polyclinic.tensors.axis import Axis

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Truth:
    """The planted phenotypes, who carries them, and how the outcome was drawn.

    Parameters
    ----------
    names
        One name per phenotype.
    axes
        The full vocabulary of each feature mode, also where a site lists only its own codes.
    factors
        Per feature mode the (codes, phenotypes) weights, columns of length 1.
    memberships
        Per site the (patients, phenotypes) memberships, in the unit that the outcome model takes: expected number of
        events of each phenotype (``icu_network``) or its share of the patient's planted events (``planted_counts``).
    prevalence
        (sites, phenotypes), True where the site has the phenotype at all; sites as in ``memberships``.
    coefficients, intercept
        Log odds of the outcome = ``intercept + memberships @ coefficients``.
    bayes_auc
        What a model that knows the true risks would reach, in expectation over the draw of the outcome.
    background
        Share of the events that belong to no phenotype.
    """

    names: tuple[str, ...]
    axes: tuple[Axis, ...]
    factors: tuple[Matrix, ...]
    memberships: Mapping[str, Matrix]
    prevalence: NDArray[np.bool_]
    coefficients: Matrix
    intercept: float
    bayes_auc: float
    background: float

    @property
    def rank(self) -> int:
        """Number of planted phenotypes."""
        return len(self.names)

    @property
    def shared(self) -> NDArray[np.bool_]:
        """Phenotypes that more than one site has."""
        return np.asarray(self.prevalence.sum(0) > 1)

    def risks(self, site: str) -> Matrix:
        """True probability of the outcome for every patient of one site."""
        return np.asarray(1 / (1 + np.exp(-(self.intercept + self.memberships[site] @ self.coefficients))))


def expected_auc(risk: ArrayLike) -> float:
    """AUC of the true risks themselves, averaged over all outcomes they could have produced.

    The share, among pairs weighted by the probability that the first has the outcome and the second has not, in which
    the first has the higher risk (ties count half).

    Examples
    --------
    >>> expected_auc([0.0, 1.0])
    1.0
    >>> round(expected_auc([0.3, 0.3, 0.3]), 6)
    0.5
    """
    value, group = np.unique(np.asarray(risk, np.float64), return_inverse=True)
    size = np.bincount(group)
    positive, negative = value * size, (1 - value) * size
    rank_below = np.cumsum(negative) - negative
    with_itself = float(np.sum(size * value * (1 - value)))  # a patient is no pair with itself
    wins = float(positive @ (rank_below + negative / 2)) - with_itself / 2
    pairs = float(positive.sum() * negative.sum()) - with_itself
    return wins / pairs if pairs > 0 else float("nan")


def refuse_impossible(
    what: str, faults: Sequence[str] = (), *, events: float, background: float, **rates: float
) -> None:
    """One error that names every number from which no network can be made."""
    rules = [("events", events, "above 0", events > 0), ("background", background, "in [0, 1)", 0 <= background < 1)]
    rules += [(name, rate, "in (0, 1)", 0 < rate < 1) for name, rate in rates.items()]
    broken = [*faults, *(f"{name} {value} is not {rule}" for name, value, rule, holds in rules if not holds)]
    if broken:
        raise ConfigError(what, faults=broken)
