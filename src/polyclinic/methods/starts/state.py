"""What everybody knows of a start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Far:
    """How far the sums of a mode may lie from what is expected: (codes, 1) times (1, R); empty: as far as energies allow."""

    rows: Array
    columns: Array

    def window(self) -> Array:
        return self.rows * self.columns


@dataclass(frozen=True)
class StartPublic:
    """What everybody knows of the start.

    Parameters
    ----------
    kind
        How the fit starts in the end: from the Gram, at random, or from a given model.
    stage
        The coming sum; ``"over"`` once the method's own sums begin.
    reason
        Why not the Gram, where it was asked for.
    diagonal
        (K,) summed squares of the cells.
    gram
        (K, K) Gram of the cells, until the lift.
    coarse
        Phenotypes over cells, per mode (buckets, Q).
    lifted
        Phenotypes over codes, per mode (codes, Q), and ``patients`` (Q, Q) A'A for them.
    kept
        Share of what the coarse phenotypes explain of the Gram that the lifted ones do, hashed again.
    confirmed
        Directions in which codes occur together that two halves of the patients confirm; -1: not asked.
    patients_summed
        Patients of all sites.
    sites
        Their names, for the dither of packed sums.
    unit
        Public unit of squared counts.
    rows
        (sum of codes,) energy of every code, the other modes hashed: it bounds what a sum can be.
    floors
        Per mode: the energy below which a code is left out for now; empty: none is.
    explained, everything
        Energy that the model so far explains, and all there is (once it was summed; of a wide start).
    wider
        How often the coming sum was repeated because a part of it lay outside its window.
    shown
        Contributions are seen one by one outside their sites (plain sums between hosts).
    apart
        The sites are hosts of their own: each one's door refuses a Gram of few patients that would be seen by itself.
    sweep, mode, far, last
        Of a wide start: the coming sweep and feature mode, per mode how far its sums may lie from what the model predicts, and the
        factors at the end of the last sweep.
    """

    kind: Literal["gram", "random", "model"]
    stage: Literal["energies", "cells", "lift", "rows", "overlap", "wide", "audition", "over"] = "over"
    reason: str = ""
    diagonal: Array | None = None
    gram: Array | None = None
    coarse: tuple[Array, ...] = ()
    lifted: tuple[Array, ...] = ()
    patients: Array | None = None
    kept: float = 1.0
    confirmed: int = -1
    patients_summed: float = 0.0
    shown: bool = False
    apart: bool = False
    sites: tuple[str, ...] = ()
    unit: float = 1.0
    rows: Array | None = None
    floors: tuple[float, ...] = ()
    explained: float = 0.0
    everything: float = 0.0
    wider: int = 0
    sweep: int = 0
    mode: int = 1
    far: tuple[Far, ...] = ()
    last: tuple[Array, ...] = ()

    @property
    def blind(self) -> bool:
        """At random, and no search came first: the method begins with a warm-up."""
        return self.kind == "random" and not self.sweep

    def put_away(self) -> StartPublic:
        """At its end: without what the rounds need no more."""
        return replace(self, lifted=(), diagonal=None, rows=None, floors=(), patients=None)
