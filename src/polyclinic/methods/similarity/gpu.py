"""The loss of all pairs by matrix products of whole panels: what a graphics card is quick at (cuBLAS, float64).

Array code only, of numpy or CuPy (``xp``), so that it is tested without a card. Panels follow from the number of patients alone and
no sum is left to chance: the same bits twice. The processor's tiles (:func:`~polyclinic.methods.similarity.pairs.pair_loss`) use the
symmetry of pairs and stay in its cache; here every pair is met twice, once from each side, and nothing is scattered.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from polyclinic.methods.similarity.pairs import Array, LabelPairs

PANEL_PAIRS: Final = 1 << 26  # limit: of memory: pairs in one panel: half a gigabyte a matrix
LEAST_PANEL: Final = 256  # limit: of time: patients in one panel at least


def loss_and_gradient(
    X: Any, W: Array, pairs: LabelPairs, bias: float, *, literal: bool, distance: bool, xp: Any = np
) -> tuple[float, Array]:
    """Loss of the pairs and its gradient for W (eq. 3.16), the patients X being on the card; W comes and goes.

    With A = X W (X W' where ``literal``) the gradient is X'(C + C')A.
    """
    V = xp.asarray(W)
    value, G = panel_loss(X @ (V.T if literal else V), pairs, bias, distance=distance, xp=xp)
    gradient = G.T @ X if literal else X.T @ G
    return value, np.asarray(gradient if xp is np else gradient.get())


def panel_loss(A: Any, pairs: LabelPairs, bias: float, *, distance: bool = False, xp: Any = np) -> tuple[float, Any]:
    """As :func:`~polyclinic.methods.similarity.pairs.pair_loss` of labels, to rounding; the gradient stays where A is.

    >>> from polyclinic.methods.similarity.pairs import pair_loss
    >>> A, pairs = np.array([[1.0], [0.5], [-1.0]]), LabelPairs.of([0, 0, 1])
    >>> value, gradient = panel_loss(A, pairs, 0.3)
    >>> bool(abs(value - pair_loss(A, pairs, 0.3)[0]) < 1e-15)
    True
    """
    codes, G, value = xp.asarray(pairs.codes), xp.zeros_like(A), 0.0
    for group in pairs.groups:
        where = xp.asarray(group)
        a, own = A[where], codes[where]
        half = 0.5 * (a * a).sum(1) if distance else None
        out = xp.empty_like(a)
        step = max(PANEL_PAIRS // max(len(group), 1), LEAST_PANEL)
        for lo in range(0, len(group), step):
            hi = min(lo + step, len(group))
            t = a[lo:hi] @ a.T
            if half is None:
                t -= bias
            else:
                t -= half[lo:hi, None] - bias
                t -= half[None, :]
            alike = own[lo:hi, None] == own[None, :]
            sign = xp.where(alike, 1.0, -1.0)
            t *= sign
            weight = xp.where(alike, pairs.same, pairs.other)
            weight[xp.arange(hi - lo), xp.arange(lo, hi)] = 0.0  # nobody is a pair with itself
            e = xp.exp(-xp.abs(t))
            value += 0.5 * float((weight * (xp.log1p(e) - xp.minimum(t, 0.0))).sum())
            c = xp.where(t >= 0, e, 1.0) / (1.0 + e)
            c *= -sign * weight
            out[lo:hi] = c @ a
            if distance:
                out[lo:hi] -= c.sum(1)[:, None] * a[lo:hi]
        G[where] = out
    return value, G
