"""Take the E-step of a mixture on a graphics card: matrix products in float64, the sums of ``statistics.py`` to 1e-12."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from polyclinic.models.mixtures.gaussian import Array, Mixture
from polyclinic.tensors.device import rows_on_card
from polyclinic.tensors.kernels.cuda import products

if TYPE_CHECKING:
    from polyclinic.methods.mixtures.statistics import Statistics

BLOCK = 1 << 22  # limit: records at a time in the card's memory; fixed, so that sums have one order


def expect(X: Array, mixture: Mixture, *, hard: bool = False) -> Statistics:
    """Compute :func:`polyclinic.methods.mixtures.statistics.expect` with records on the card; only its sums come back."""
    import cupy
    from cupyx.scipy.special import logsumexp

    from polyclinic.methods.mixtures.statistics import GroupSums

    k, d, kind = mixture.k, mixture.d, mixture.kind
    factors = mixture.precisions_cholesky()
    with np.errstate(divide="ignore"):
        constants = cupy.asarray(mixture.log_constants(factors))
    means, white = cupy.asarray(mixture.means), cupy.asarray(factors)
    sums, rows = GroupSums(mixture), cast("Any", rows_on_card(X))
    for start in range(0, len(X), BLOCK):
        x = rows[start : start + BLOCK]
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
        sums.loglik += float(top.sum())
        if hard:
            r = (cupy.argmax(r, axis=0) == cupy.arange(k)[:, None]).astype("float64")
        else:
            r = cupy.exp(r - top)
        padded = cupy.ones((len(x), d + 1))  # with a last column of ones, one product gives all three sums
        for j in range(k):
            padded[:, :d] = x - means[j]
            total = products(padded * r[j][:, None], padded, d + 1).get().reshape(d + 1, d + 1)
            sums.a[j] += total[d, d]
            sums.b[j] += total[:d, d]
            sums.C[j % len(sums.C)] += total[:d, :d] if kind in ("full", "tied") else np.diagonal(total)[:d]
    return sums.statistics()
