"""Match the codes of two tables by the codes that they occur with.

    M      (Q - g g' / sum g) / sqrt(g g'), g = row sums of Q: what two codes have together beyond their frequencies
    v_i    row i of the SIZE leading eigenvectors of M times the roots of their eigenvalues
    p_i    v_i v_a' over the anchors a, codes that both tables know, centred and of length 1
    s_ij   p_i p_j' - WEIGHT |log(g_i / median g) - log(g_j / median g)|

The Hungarian method assigns codes. The surest pairs become anchors of the next round. Without anchors the first round compares sorted
rows of V V'. docs/dev/decisions/0019-codes-by-co-occurrence.md has the figures and how the constants were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]
Places = NDArray[np.int64]
# docs/dev/decisions/0019-codes-by-co-occurrence.md
SIZE, WEIGHT, ROUNDS, LACKING = 20, 0.3, 10, 0.4
NULLS = 19  # limit: tables under the null, so that one that is above all has p = 0.05
FEW = 10  # limit: anchors below which the first round compares sorted rows
LEAST = 5.0  # limit: row sums below it count as this, so that noise near zero is not divided by
SHOWN = 40  # limit: sorted entries that are compared


@dataclass(frozen=True)
class Directions:
    """A table in its leading directions."""

    vectors: Array  # (codes, SIZE)
    frequency: Array  # (codes,) log, the median code at 0

    @classmethod
    def of(cls, matrix: Array) -> Directions:
        """Return the leading directions of a symmetric table with an empty diagonal."""
        margin = np.maximum(matrix.sum(1), LEAST)
        scaled = (matrix - np.outer(margin, margin) / margin.sum()) / np.sqrt(np.outer(margin, margin))
        np.fill_diagonal(scaled, 0.0)
        values, vectors = np.linalg.eigh(scaled)
        log = np.log(margin)
        return cls(vectors[:, ::-1][:, :SIZE] * np.sqrt(np.maximum(values[::-1][:SIZE], 0.0)), log - np.median(log))

    def profiles(self, rows: Places, anchors: Places, *, own: bool = True) -> Array:
        """(rows, anchors) how codes occur with anchors, with or without what an anchor has with itself."""
        raw = self.vectors[rows] @ self.vectors[anchors].T
        raw = raw - raw.mean(0)
        raw[(rows[:, None] == anchors) & (not own)] = 0.0
        out: Array = raw / (np.linalg.norm(raw, axis=1, keepdims=True) + 1e-12)
        return out

    def sorted_rows(self, width: int) -> Array:
        """(codes, width) the largest entries of every row, whatever codes they belong to."""
        together = self.vectors @ self.vectors.T
        np.fill_diagonal(together, 0.0)
        return np.sort(together, 1)[:, ::-1][:, :width]


@dataclass(frozen=True)
class Matching:
    """Scores of unknown codes against each other, and the assignment."""

    scores: Array  # (unknown codes of one table, unknown codes of the other)
    rows: Places
    columns: Places

    @property
    def assigned(self) -> Array:
        """(pairs,) the scores of the assignment."""
        return self.scores[self.rows, self.columns]

    @property
    def margins(self) -> Array:
        """(pairs,) how far a pair is above the best other pair of its row or column."""
        scores = self.scores.copy()
        scores[self.rows, self.columns] = -np.inf
        best: Array = np.maximum(scores[self.rows].max(1), scores[:, self.columns].max(0))
        return self.assigned - best

    @classmethod
    def of(cls, scores: Array, allowed: NDArray[np.bool_]) -> Matching:
        """Return the assignment of the largest total score among allowed pairs."""
        rows, columns = linear_sum_assignment(np.where(allowed, -scores, 1e3))
        valid = allowed[rows, columns]
        return cls(np.where(allowed, scores, -np.inf), rows[valid], columns[valid])


def compared(
    first: Directions,
    second: Directions,
    places: tuple[Places, Places],
    anchors: tuple[Places, Places],
    *,
    own: bool = True,
) -> Array:
    """s_ij of codes of both tables."""
    rows, columns = places
    profiles = first.profiles(rows, anchors[0], own=own) @ second.profiles(columns, anchors[1], own=own).T
    out: Array = profiles - WEIGHT * np.abs(first.frequency[rows, None] - second.frequency[None, columns])
    return out


def match(
    first: Directions, second: Directions, known: tuple[Places, Places], allowed: NDArray[np.bool_]
) -> tuple[Places, Places, Matching]:
    """Return the unknown codes of both tables and their matching.

    Parameters
    ----------
    known
        Places of the anchors in both tables.
    allowed
        (codes, codes) whether two codes are of one mode.
    """
    rows = np.setdiff1d(np.arange(len(first.vectors)), known[0])
    columns = np.setdiff1d(np.arange(len(second.vectors)), known[1])
    open_pairs = allowed[np.ix_(rows, columns)]
    if len(known[0]) >= FEW:
        scores = compared(first, second, (rows, columns), known)
    else:
        frequency = -np.abs(first.frequency[rows, None] - second.frequency[None, columns])
        width = min(SHOWN, len(first.vectors), len(second.vectors))
        x, y = first.sorted_rows(width), second.sorted_rows(width)
        distance = np.square(x[rows, None] - y[None, columns]).sum(2)
        scores = 2 * frequency - distance / max(float(x.var()), 1e-12) / width
    for k in range(ROUNDS):
        matching = Matching.of(scores, open_pairs)
        sure = matching.margins >= np.quantile(matching.margins, 1 - (k + 1) / ROUNDS)
        new = rows[matching.rows[sure]], columns[matching.columns[sure]]
        anchors = (np.concatenate([known[0], new[0]]), np.concatenate([known[1], new[1]]))
        scores = compared(first, second, (rows, columns), anchors)
    return rows, columns, Matching.of(scores, open_pairs)


def chance(
    first: Directions, matrix: Array, known: tuple[Places, Places], allowed: NDArray[np.bool_], rng: np.random.Generator
) -> list[Array]:
    """Return scores of assignments under the null: permuted anchors or, with few anchors, a table of permuted entries."""
    out, second = [], Directions.of(matrix)
    for _ in range(NULLS):
        if len(known[0]) >= FEW:
            out.append(match(first, second, (known[0], rng.permutation(known[1])), allowed)[2].assigned)
        else:
            out.append(match(first, Directions.of(permuted(matrix, rng)), known, allowed)[2].assigned)
    return out


def without_counterpart(
    first: Directions,
    second: Directions,
    known: tuple[Places, Places],
    allowed: NDArray[np.bool_],
    one_mode: NDArray[np.bool_],
) -> Array:
    """Return the best score of every anchor among unknown codes of the other table, none of which is its counterpart.

    Parameters
    ----------
    allowed
        (codes, codes) whether two codes may be a pair.
    one_mode
        (codes, codes) whether two codes are of one mode.
    """
    if len(known[0]) < FEW:
        return np.zeros(0)
    best = []
    for places, axis in (
        ((np.flatnonzero(allowed.any(1)), known[1]), 0),
        ((known[0], np.flatnonzero(allowed.any(0))), 1),
    ):
        scores = compared(first, second, places, known, own=False)
        best.append(np.where(one_mode[np.ix_(*places)], scores, -np.inf).max(axis))
    out: Array = np.concatenate(best)
    return out[np.isfinite(out)]


def chances(scores: Array, references: Sequence[Array]) -> Array:
    """Return of each score the share of reference scores that are at least as large: the largest share of all references.

    >>> chances(np.array([0.5, 2.0]), [np.array([1.0, 0.0]), np.zeros(0)]).tolist()
    [0.5, 0.0]
    """
    shares = [1.0 - np.searchsorted(np.sort(x), scores) / len(x) for x in references if len(x)]
    out: Array = np.max(shares, axis=0)
    return out


def largest_chance(found: Array) -> float:
    """Return the largest chance of a proposal, so that at most ``LACKING`` of the proposals are expected to lack a counterpart.

    Codes without a counterpart have any chance equally often. Twice the share of chances above 0.5 is therefore the share of
    such codes (Storey 2002).

    >>> largest_chance(np.array([0.0, 0.01, 0.3, 0.1])), largest_chance(np.array([0.2, 0.9, 0.7, 0.6]))
    (0.3, -1.0)
    """
    share = min(1.0, 2.0 * (float((found > 0.5).sum()) + 1.0) / len(found))
    ranked = np.sort(found)
    within = share * len(found) * ranked <= LACKING * np.searchsorted(ranked, ranked, "right")
    return float(ranked[within].max(initial=-1.0))


def permuted(matrix: Array, rng: np.random.Generator) -> Array:
    """A table with about the same row sums in which no two codes belong together."""
    margin = np.maximum(matrix.sum(1), LEAST)
    expected, upper = np.outer(margin, margin) / margin.sum(), np.triu_indices(len(matrix), 1)
    out = np.zeros_like(matrix)
    out[upper] = rng.permutation((matrix / expected)[upper])
    null: Array = (out + out.T) * expected
    return null
