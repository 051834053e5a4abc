"""Whether a phenotype is there from other starts, and without any one hospital."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Site
from polyclinic.tensors.matching import match
from polyclinic.util.table import Table

__all__ = ["elsewhere"]

Array = NDArray[np.float64]


def elsewhere(model: Any, method: Any, sites: Sequence[Site], others: Sequence[Sequence[Array]]) -> Table:
    """One row a phenotype: the lowest cosine of its column in the other starts' fits, and in fits without one hospital.

    In one process only. Between hosts the fit with a hospital and the fit without it differ by that hospital's own sums, which
    masks are there to hide.

    Parameters
    ----------
    model
        The published one.
    method
        What is fitted on all hospitals but one.
    others
        Factors of the fits on everybody from the starts that were not kept.
    """
    if len(sites) < 2:
        raise ConfigError("one hospital cannot be left out of one", hint="leave_out=False")
    if method.params.privacy is not None:
        raise ConfigError("a fit without each hospital would have to be paid for", hint="leave_out=False with privacy")
    rank = model.factors_[0].shape[1]
    again = [_alike(model, f, rank) for f in others]
    alone = method.with_params(aggregation="plain")
    without = np.array(
        [_alike(model, alone.with_params().fit([s for s in sites if s is not x]).factors_, rank) for x in sites]
    )
    rows = []
    for r in range(rank):
        worst = int(without[:, r].argmin())
        low = min((float(a[r]) for a in again), default=None)
        rows.append([r, low, float(without[worst, r]), sites[worst].name])
    return Table(["phenotype", "starts", "lowest", "without"], rows)


def _alike(model: Any, factors: Sequence[Array], rank: int) -> Array:
    """(rank,) cosine of every phenotype with its match; 0 where it has none."""
    found, out = match(list(model.factors_), list(factors)), np.zeros(rank)
    out[found.left] = found.likeness
    return out
