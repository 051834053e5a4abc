"""The E-step of a mixture on a graphics card: matrix products in float64, the same sums as :mod:`polyclinic.methods.mixtures.statistics` to 1e-12."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.models.mixtures.gaussian import Array, Mixture
from polyclinic.tensors.device import rows_on_card
from polyclinic.tensors.kernels.cuda import products

if TYPE_CHECKING:
    from polyclinic.methods.mixtures.statistics import Statistics

__all__ = ["expect"]

BLOCK = 1 << 22  # records at a time: fixed, so that sums have one order


def expect(X: Array, mixture: Mixture, *, hard: bool = False) -> Statistics:
    """As :func:`polyclinic.methods.mixtures.statistics.expect`, records on the card; what comes back are its sums alone."""
    import cupy
    from cupyx.scipy.special import logsumexp

    from polyclinic.methods.mixtures.statistics import Statistics, second_moments

    k, d, kind = mixture.k, mixture.d, mixture.kind
    factors = mixture.precisions_cholesky()
    with np.errstate(divide="ignore"):
        constants = cupy.asarray(mixture.log_constants(factors))
    means, white = cupy.asarray(mixture.means), cupy.asarray(factors)
    a, b, loglik = np.zeros(k), np.zeros((k, d)), 0.0
    C = np.zeros({"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k, d)}[kind])
    there: Any = rows_on_card(X)
    for start in range(0, len(X), BLOCK):
        x = there[start : start + BLOCK]
        r = cupy.empty((k, len(x)))
        for j in range(k):
            difference = x - means[j]
            y = (
                difference @ (white[j] if kind == "full" else white)
                if kind in ("full", "tied")
                else difference * white[j]
            )
            r[j] = cupy.square(y, out=y).sum(1)
        r *= -0.5
        r += constants[:, None]
        top = logsumexp(r, axis=0)
        loglik += float(top.sum())
        if hard:
            r = (cupy.argmax(r, axis=0) == cupy.arange(k)[:, None]).astype("float64")
        else:
            r = cupy.exp(r - top)
        one = cupy.ones((len(x), d + 1))  # with a last column of ones, one product gives all three sums
        for j in range(k):
            one[:, :d] = x - means[j]
            total = products(one * r[j][:, None], one, d + 1).get().reshape(d + 1, d + 1)
            a[j] += total[d, d]
            b[j] += total[:d, d]
            if kind == "full":
                C[j] += total[:d, :d]
            elif kind == "tied":
                C += total[:d, :d]
            else:
                C[j] += np.diagonal(total)[:d]
    return Statistics(a, b, second_moments(kind, C), loglik)
