"""Which column of one half is which of the other, and the model that both halves and the fit on everybody tell together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.statistics.intervals import Z
from polyclinic.methods.topics.state import TopicsPublic
from polyclinic.tensors.matching import cosines, match

if TYPE_CHECKING:
    from polyclinic.methods.rounds.factorization import FactorPublic

Array = NDArray[np.float64]
# docs/dev/decisions/0012-split-half-replication.md judges pairs of halves by it
BACK: Final = 0.8  # cosine between halves from which a phenotype comes back
PARTLY: Final = 0.5  # cosine below which a column is another phenotype
# docs/dev/decisions/0012-split-half-replication.md: below it a component often is background whose codes go together
USUAL: Final = 0.5  # of the median correlation of a fit
# docs/howto/findings.md
HELD_OUT: Final = 0.1  # correlation on patients that the fit did not see, from which a phenotype is more than chance
COLUMNS: Final = (
    "phenotype",
    "halves",
    "low",
    "high",
    "comes_back",
    "link",
    "rho",
    "holds_together",
    "carried",
    "sites",
    "grade",
    "replicable",
)
# docs/dev/decisions/0012-split-half-replication.md has the table that chose both
SCATTER: Final = 1.1  # of logit(cosine) from one halving to the next
# docs/dev/decisions/0012-split-half-replication.md
KEPT: Final = 0.5  # least part of a phenotype's own difference from the others that is believed


def graded(cosine: float, low: float, r: float | None, linked: bool | None, usual: float = 0.0) -> str:
    """Return "replicated", "uncertain" or "not replicated", from the agreement of halves and the held-out correlation.

    Replicated: cosine of the halves at least 0.8, its lower limit at least 0.5, correlation in the other half's patients at least 0.1
    and three standard errors, and at least half of what is usual in this fit (``usual``, the median of those that pass these gates: how
    large a correlation can be depends on how long records are). Uncertain: only the lower limit or the last of these is missing, or
    the correlation was not tested. docs/dev/decisions/0012-split-half-replication.md has the tables.

    >>> graded(0.95, 0.6, 0.2, True), graded(0.85, 0.1, 0.2, True), graded(0.95, 0.6, 0.03, True)
    ('replicated', 'uncertain', 'not replicated')
    >>> graded(0.95, 0.6, 0.2, True, usual=0.5)
    'uncertain'
    """
    if cosine < BACK or linked is False or (r is not None and r < HELD_OUT):
        return "not replicated"
    strong = r is not None and r >= USUAL * usual
    return "replicated" if linked and strong and low >= PARTLY else "uncertain"


@dataclass(frozen=True, eq=False)
class Matched:
    """The halves' columns matched to each other and to the published phenotypes, and the consensus."""

    public: FactorPublic  # the reference's state with the consensus' factors
    halves: tuple[FactorPublic, ...]  # states of all half fits, two a halving
    columns: NDArray[np.int64]  # (half fits, R) column of each that belongs to r; -1 where it has none
    alike: Array  # (halvings, R) cosine of the two halves' columns

    def intervals(self) -> Array:
        """(R, 2) 95 % limits of every phenotype's cosine between halves, as further halvings would give it on average.

        On the scale of logits, which ends at cosines of 0 and 1, one halving scatters by ``SCATTER`` around a phenotype's mean. The
        phenotypes that both halves found are alike, so each mean is drawn to that of all by the part of their spread that the scatter
        explains (empirical Bayes). A limit that would not contain the cosine that was measured is open.

        >>> Matched(None, (), np.zeros((2, 3), np.int64), np.array([[0.95, 0.97, 0.82]])).intervals().round(2).tolist()
        [[0.74, 0.99], [0.79, 0.99], [0.58, 0.98]]
        """
        cosine = np.median(self.alike, axis=0)
        measured = np.log(1.0 / np.clip(1.0 - self.alike, 0.001, 0.99) - 1.0).mean(0)
        peers = measured[cosine >= PARTLY]  # a phenotype that one half lacks says nothing of the others
        number, within = max(len(peers), 1), SCATTER**2 / len(self.alike)
        spread = float(peers.var()) * number / (number - 1) if number > 1 else math.inf
        weight = max(1.0 - within / max(spread, 1e-12), KEPT)
        centre = weight * measured + ((1.0 - weight) * peers.mean() if len(peers) else 0.0)
        reach = Z * math.sqrt(within * (weight + (1.0 - weight) / number))
        low, high = (1.0 / (1.0 + np.exp(-centre - side * reach)) for side in (-1.0, 1.0))
        return np.column_stack([np.where(low < cosine, low, 0.0), np.where(high > cosine, high, 1.0)])

    def half(self, number: int) -> FactorPublic:
        """A half's own model of the published phenotypes: its column of each; one that it lacks has one of its other columns.

        Patients of the other half are judged by it: nothing in it has seen them, as long as the half has columns enough.
        """
        fitted, columns = self.halves[number], np.array(self.columns[number])
        width = np.asarray(fitted.factors[0]).shape[1]
        unmatched = [c for c in np.argsort(-_weights(fitted), kind="stable") if c not in columns]
        gaps = np.flatnonzero(columns < 0)
        columns[gaps[: len(unmatched)]] = unmatched[: len(gaps)]
        pairs = zip(fitted.factors, self.public.factors)
        # a half with too few columns takes the consensus' for the rest
        factors = tuple(np.where(columns >= 0, np.asarray(f)[:, np.clip(columns, 0, width - 1)], c) for f, c in pairs)
        energy = (
            None
            if fitted.energy is None
            else np.where(columns >= 0, np.asarray(fitted.energy)[np.clip(columns, 0, width - 1)], 0.0)
        )
        return _with_factors(fitted, factors, energy, columns)


def matched(publics: Sequence[FactorPublic], private: bool) -> Matched:
    """Match the two halves of every halving to each other, and their pairs to the fit on everybody (with privacy: the first half).

    The halves are matched directly, because the question is whether one half's phenotype is in the other: a fit on everybody that
    rests in another optimum would hide what both halves found (DE-SynPUF, three keys: 5, 5, 4 of 10 agree by way of it, 7, 7, 6
    directly). Consensus: the mean of the length-1 columns of the reference and of the halves that tell the same (cosine >= .5);
    where two halves agree (>= .8) and the reference does not, they are believed. A mean, not a medoid: it is a sum.
    """
    reference, halves = publics[0], (publics if private else publics[1:])
    target, length = _unit(reference.factors)
    weight = _weights(reference)
    rank = target[0].shape[1]
    columns = np.full((len(halves), rank), -1, np.int64)
    alike = np.zeros((len(halves) // 2, rank))
    targets = [np.array(t) for t in target]  # sums of the columns that make each phenotype
    for k in range(len(halves) // 2):
        a, b = halves[2 * k], halves[2 * k + 1]
        pair = match(list(a.factors), list(b.factors))
        sides = [[c[:, at] for c in _unit(p.factors)[0]] for p, at in ((a, pair.left), (b, pair.right))]
        middle = [_added(x, y) for x, y in zip(*sides)]
        # what both halves found has a place before what only resembles the reference
        pairs = match(target, middle, cosines(target, middle) + (pair.likeness >= BACK))
        r, p = pairs.left, pairs.right
        columns[2 * k, r], columns[2 * k + 1, r], alike[k, r] = pair.left[p], pair.right[p], pair.likeness[p]
        sure = pair.likeness[p] >= BACK
        masses = [_weights(a)[pair.left[p]], _weights(b)[pair.right[p]]]
        new = sure & (pairs.likeness - sure < PARTLY)
        if not (private and k == 0):  # there the reference is the first half itself
            weight[r[new]] = np.hypot(masses[0], masses[1])[new]
        for n in range(len(targets)):
            targets[n][:, r[new]] = 0.0
        for side in sides:
            half_columns = [c[:, p] for c in side]
            if private and k == 0 and side is sides[0]:
                continue
            with_it = cosines(target, half_columns)[r, np.arange(len(r))] >= PARTLY if len(r) else np.zeros(0, bool)
            for n, c in enumerate(half_columns):
                add = np.where(sure | with_it, c, 0.0)
                targets[n][:, r] = _added(targets[n][:, r], add)
        target = [_unit([h])[0][0] for h in targets]
    factors = tuple(
        np.where(np.linalg.norm(t, axis=0) > 0, t, f) * n
        for t, f, n in zip(target, _unit(reference.factors)[0], length)
    )
    size = np.prod([np.linalg.norm(f, axis=0) for f in factors], axis=0)
    energy = None if reference.energy is None else np.square(weight / np.where(size > 0, size, 1.0))
    return Matched(_with_factors(reference, factors, energy, np.arange(rank)), tuple(halves), columns, alike)


def _with_factors(
    public: FactorPublic, factors: tuple[Array, ...], energy: Array | None, columns: NDArray[np.int64]
) -> FactorPublic:
    """A state with other factors; ``columns`` says which of its own each stands for, for what a method keeps per column."""
    if isinstance(public, TopicsPublic):
        return public.with_factors(factors, energy, columns)
    return replace(public, factors=factors, energy=energy)


def _unit(factors: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Columns of length 1 per mode, and their lengths."""
    lengths = [np.linalg.norm(np.asarray(f, np.float64), axis=0) for f in factors]
    return [np.asarray(f) / np.maximum(n, 1e-300) for f, n in zip(factors, lengths)], lengths


def _added(a: Array, b: Array) -> Array:
    """Columns summed, the second turned to the side of the first."""
    return np.asarray(a + b * np.where((a * b).sum(0) < 0, -1.0, 1.0))


def _weights(public: FactorPublic) -> Array:
    """(R,) root of the energy of every column, its length taken in."""
    size = np.prod([np.linalg.norm(np.asarray(f), axis=0) for f in public.factors], axis=0)
    return size if public.energy is None else np.asarray(size * np.sqrt(np.maximum(np.asarray(public.energy), 0.0)))
