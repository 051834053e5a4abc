"""Pairs of patients and how badly a similarity explains them: eq. (3.4), its value and its gradient, in tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.methods.similarity.params import Weighting

Array = NDArray[np.float64]
DENSE_PATIENTS = 2048  # limit: of memory: patients up to which a matrix of all pairs is small
TILE = 256  # limit: of memory: 256 x 256 doubles stay in the L2 cache; 2e8 pairs then need a few MB, not 1.6 GB
PURE_CLASSES = 16  # limit: of tiles: up to so many classes tiles are of one pair of classes each


def weights_for(similar: float, different: float, weighting: Weighting) -> tuple[float, float]:
    """Weight of one similar and of one dissimilar pair.

    ``mean`` divides by the number of pairs, so that the penalties mean the same for 50 and for 50,000 patients
    (ERRATA E3.3); ``balanced`` gives both kinds half of the weight; ``sum`` is the paper's (3.4).

    >>> weights_for(1, 3, "mean"), weights_for(1, 4, "balanced"), weights_for(1, 4, "sum")
    ((0.25, 0.25), (0.5, 0.125), (1.0, 1.0))
    """
    if weighting == "sum":
        return 1.0, 1.0
    if weighting == "mean":
        weight = 1.0 / max(similar + different, 1.0)
        return weight, weight
    return 0.5 / max(similar, 1.0), 0.5 / max(different, 1.0)


@dataclass(frozen=True, eq=False)
class LabelPairs:
    """All unordered pairs i < j (ERRATA E3.3) of patients of one group; similar if their labels agree.

    Parameters
    ----------
    codes
        (n,) label of every patient, as whole numbers.
    groups
        Positions of the patients of each group (a hospital); pairs never span two groups.
    same, other
        Weight of a similar and of a dissimilar pair.
    """

    codes: NDArray[np.int64]
    groups: tuple[NDArray[np.int64], ...]
    same: float
    other: float

    @classmethod
    def of(cls, labels: ArrayLike, *, groups: ArrayLike | None = None, weighting: Weighting = "mean") -> LabelPairs:
        """Pairs from labels, within groups if given.

        >>> LabelPairs.of([0, 0, 1]).counts()
        (1, 2)
        """
        codes = np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64).reshape(-1)
        if groups is None:
            parts: tuple[NDArray[np.int64], ...] = (np.arange(len(codes)),)
        else:
            g = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
            parts = tuple(np.flatnonzero(g == k) for k in range(int(g.max()) + 1 if len(g) else 0))
        bare = cls(codes, parts, 1.0, 1.0)
        return cls(codes, parts, *weights_for(*bare.counts(), weighting))

    def counts(self) -> tuple[int, int]:
        """Numbers of similar and of dissimilar pairs."""
        similar = total = 0
        for g in self.groups:
            sizes = np.bincount(self.codes[g])
            similar += int((sizes * (sizes - 1) // 2).sum())
            total += len(g) * (len(g) - 1) // 2
        return similar, total - similar

    def tiles(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], bool, Any]]:
        """Blocks of patients against blocks, each unordered pair of blocks once.

        Also tells whether a block meets itself, and +1 or -1: with few classes patients are sorted by class first, so
        that all pairs of a tile are judged alike; else a matrix of +1 and -1.
        """
        for g in self.groups:
            codes = self.codes[g]
            pure = len(np.unique(codes)) <= PURE_CLASSES
            parts = [g[codes == c] for c in np.unique(codes)] if pure else [g]
            cuts = [part[a : a + TILE] for part in parts for a in range(0, len(part), TILE)]
            for a, left in enumerate(cuts):
                for b in range(a, len(cuts)):
                    right, sign = cuts[b], 1.0
                    if pure:
                        sign = 1.0 if self.codes[left[0]] == self.codes[right[0]] else -1.0
                        yield left, right, a == b, sign
                    else:
                        agree = self.codes[left][:, None] == self.codes[right][None, :]
                        yield left, right, a == b, np.where(agree, 1.0, -1.0)


@dataclass(frozen=True, eq=False)
class ListedPairs:
    """Pairs that somebody judged: positions ``left[k]``, ``right[k]``, +1 similar or -1 not, and a weight each."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    sign: Array
    weight: Array

    @classmethod
    def of(cls, pairs: ArrayLike, y: ArrayLike, *, patients: int, weighting: Weighting = "mean") -> ListedPairs:
        """Check the list; all faults at once.

        >>> ListedPairs.of([[0, 1], [0, 2]], [1, -1], patients=3).counts()
        (1, 1)
        """
        p = np.asarray(pairs)
        try:
            sign = np.asarray(y, np.float64)
        except (TypeError, ValueError):
            sign = np.zeros(np.shape(y))  # text: neither +1 nor -1
        if p.ndim != 2 or p.shape[1] != 2 or not len(p):
            raise DataError(f"pairs have shape {p.shape}, expected (pairs, 2) with at least one pair")
        faults = _position_faults(p, patients)
        if sign.shape != (len(p),):
            faults.append(f"y has shape {sign.shape}, expected ({len(p)},)")
        elif not np.isin(sign, (-1.0, 1.0)).all():
            faults.append("y must be +1 (similar) or -1 (not similar)")
        if faults:
            raise DataError("pairs are not usable", faults=faults)
        similar = int((sign > 0).sum())
        same_weight, other_weight = weights_for(similar, len(sign) - similar, weighting)
        index = p.astype(np.int64)
        return cls(index[:, 0], index[:, 1], sign, np.where(sign > 0, same_weight, other_weight))

    def counts(self) -> tuple[int, int]:
        """Numbers of similar and of dissimilar pairs."""
        similar = int((self.sign > 0).sum())
        return similar, len(self.sign) - similar


def _position_faults(p: NDArray[Any], patients: int) -> list[str]:
    if not np.issubdtype(p.dtype, np.integer):
        return [f"pairs are {p.dtype}, expected whole numbers: positions of rows"]
    if p.min() < 0 or p.max() >= patients:
        return [f"pairs name rows {p.min()}..{p.max()}, there are rows 0..{patients - 1}"]
    reflexive = int((p[:, 0] == p[:, 1]).sum())
    return [f"{reflexive} pair(s) of a patient with itself"] if reflexive else []


Pairs = LabelPairs | ListedPairs


def near_pairs(Z: Array, labels: ArrayLike, *, weighting: Weighting = "mean") -> ListedPairs:
    """Every patient with the nearest of its own class and with the nearest of the others: a fifth of all, at most 50 each.

    Classes that fall apart into several groups are not pulled together by pairs of neighbours.

    Parameters
    ----------
    Z
        (n, d) standardised patients; near is by Euclidean distance.
    labels
        (n,) classes.

    Examples
    --------
    >>> p = near_pairs(np.array([[0.0], [1.0], [9.0], [10.0]]), [0, 0, 1, 1])
    >>> [(int(i), int(j), int(s)) for i, j, s in zip(p.left, p.right, p.sign)]
    [(0, 1, 1), (0, 2, -1), (1, 2, -1), (1, 3, -1), (2, 3, 1)]
    """
    codes = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
    n = len(codes)
    count = max(1, min(n // 5, 50))
    norms = np.einsum("nd,nd->n", Z, Z)
    keys: list[NDArray[np.int64]] = []
    for a in range(0, n, 1024):
        rows = np.arange(a, min(a + 1024, n))
        gap = norms[None, :] - 2 * Z[rows] @ Z.T
        gap[np.arange(len(rows)), rows] = np.inf
        agree = codes[rows][:, None] == codes[None, :]
        for kind in (agree, ~agree):
            masked = np.where(kind, gap, np.inf)
            nearest = np.argsort(masked, axis=1, kind="stable")[:, :count]
            real = np.isfinite(np.take_along_axis(masked, nearest, axis=1))
            pair = np.stack([np.broadcast_to(rows[:, None], nearest.shape)[real], nearest[real]])
            keys.append(pair.min(0) * n + pair.max(0))
    left, right = np.divmod(np.unique(np.concatenate(keys)), n)
    sign = np.where(codes[left] == codes[right], 1.0, -1.0)
    same_weight, other_weight = weights_for(float((sign > 0).sum()), float((sign < 0).sum()), weighting)
    return ListedPairs(left, right, sign, np.where(sign > 0, same_weight, other_weight))


def _logistic(t: Array) -> tuple[Array, Array]:
    """log(1 + exp(-t)) and its negative derivative 1 / (1 + exp(t)), both without overflow."""
    e = np.exp(-np.abs(t))
    loss = np.log(1.0 + e)  # e <= 1: no accuracy is lost that a sum of losses could feel
    loss -= np.minimum(t, 0.0)
    np.divide(np.where(t >= 0, e, 1.0), 1.0 + e, out=e)
    return loss, e


def _summed(t: Array) -> tuple[float, Array]:
    """The same for a whole tile with the losses summed: a product of up to 512 factors in [1, 2] needs one logarithm."""
    size = np.abs(t)
    e = np.exp(-size)
    p = 1.0 + e
    value = float(np.log(p.prod(axis=1)).sum()) + 0.5 * (float(size.sum()) - float(t.sum()))
    np.copyto(e, 1.0, where=t < 0)
    e /= p
    return value, e


def pair_loss(A: Array, pairs: Pairs, bias: float, *, distance: bool = False) -> tuple[float, Array]:
    """Loss of the pairs under s_ij = <a_i, a_j>, and its gradient (C + C') A with respect to the embedding A.

    With A = X W the gradient for W is X'(C + C')(X W): no loop over pairs, no d x d object (eq. 3.16, ERRATA E3.10).

    Parameters
    ----------
    A
        (n, r) embedded patients.
    pairs
        Which pairs, how they are judged and weighted.
    bias
        The threshold b of (3.2).
    distance
        Judge s_ij against how similar the two patients are to themselves: the margin is b - |a_i - a_j|^2 / 2
        = s_ij - s_ii / 2 - s_jj / 2 + b in place of s_ij - b. This is what nearest neighbours go by. The gradient is then
        (C + C') A less its row sums times A.

    Examples
    --------
    >>> value, gradient = pair_loss(np.array([[1.0], [1.0]]), LabelPairs.of([0, 0]), 1.0)
    >>> round(value, 4), gradient.ravel().tolist()
    (0.6931, [-0.5, -0.5])
    """
    own_half = 0.5 * np.einsum("nr,nr->n", A, A) if distance else None
    if isinstance(pairs, ListedPairs):
        return _listed(A, pairs, bias, own_half)
    value, gradient = 0.0, np.zeros_like(A)
    for left, right, diagonal, sign in pairs.tiles():
        a, b = A[left], A[right]
        t = a @ b.T
        if own_half is None:
            t -= bias
        else:
            t -= own_half[left][:, None] - bias
            t -= own_half[right][None, :]
        t *= sign
        loss, c = _tile_loss(t, sign, pairs, diagonal)
        value += loss
        if diagonal:
            np.fill_diagonal(c, 0.0)
            gradient[left] += c @ a
        else:
            gradient[left] += c @ b
            gradient[right] += c.T @ a
        if distance:
            gradient[left] -= c.sum(1)[:, None] * a
            if not diagonal:
                gradient[right] -= c.sum(0)[:, None] * b
    return value, gradient


def _tile_loss(t: Array, sign: Any, pairs: LabelPairs, diagonal: bool) -> tuple[float, Array]:
    """Weighted loss of a tile with margins t, and its derivative for every pair.

    On the diagonal every pair is there twice, and the patient with itself: that is taken off, and the remainder halved.
    """
    if isinstance(sign, float):
        itself = float(np.logaddexp(0.0, -np.diagonal(t)).sum()) if diagonal else 0.0
        loss, c = _summed(t)
        weight = pairs.same if sign > 0 else pairs.other
        c *= -sign * weight
        return weight * (0.5 * (loss - itself) if diagonal else loss), c
    losses, c = _logistic(t)
    weights = np.where(sign > 0, pairs.same, pairs.other)
    c *= -sign * weights
    losses *= weights
    if diagonal:
        np.fill_diagonal(losses, 0.0)
        losses *= 0.5
    return float(losses.sum()), c


def _listed(A: Array, pairs: ListedPairs, bias: float, own_half: Array | None) -> tuple[float, Array]:
    n, m = len(A), len(pairs.left)
    level = np.full(m, bias) if own_half is None else own_half[pairs.left] + own_half[pairs.right] - bias
    if n <= DENSE_PATIENTS and 8 * m >= n * n:  # most pairs are judged: whole matrices are faster than a list
        s = (A @ A.T)[pairs.left, pairs.right]
        loss, c = _logistic(pairs.sign * (s - level))
        C = np.bincount(pairs.left * n + pairs.right, -pairs.sign * pairs.weight * c, n * n).reshape(n, n)
        C += C.T
        G = C @ A
        return float(pairs.weight @ loss), np.asarray(G if own_half is None else G - C.sum(1)[:, None] * A)
    from scipy.sparse import coo_matrix

    chunk = 1 << 16
    s = np.empty(m)
    for k in range(0, m, chunk):
        i, j = pairs.left[k : k + chunk], pairs.right[k : k + chunk]
        s[k : k + chunk] = np.einsum("pr,pr->p", A[i], A[j])
    loss, c = _logistic(pairs.sign * (s - level))
    S = coo_matrix((-pairs.sign * pairs.weight * c, (pairs.left, pairs.right)), shape=(n, n)).tocsr()
    G = np.asarray(S @ A + S.T @ A)
    if own_half is not None:
        G -= (np.asarray(S.sum(1)).ravel() + np.asarray(S.sum(0)).ravel())[:, None] * A
    return float(pairs.weight @ loss), G
