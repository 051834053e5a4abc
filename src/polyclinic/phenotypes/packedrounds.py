"""TRIP's packed rounds: how a round's sums travel after a start that found something, and what they tell about the next one's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.federation.packing import Field, Packing
from polyclinic.phenotypes.rounded import reach
from polyclinic.phenotypes.startpublic import Far
from polyclinic.tensors import ordered

if TYPE_CHECKING:
    from polyclinic.phenotypes.trip import TRIPPublic

__all__ = ["first_spread", "opened_round", "round_packing"]

Array = NDArray[np.float64]
ROUNDING = 5e-3  # of a column's length: what rounding the packed sum of a round may move it
AWAY = 3.0  # windows, in units of the last sum's root mean square distance from sites x A ...
SLACK = 1.0  # ... and so many steps of the grid more (rounding itself has 4.5 standard deviations)
EVERY = 120  # one of so many numbers may lie outside its window
MENDS = 4


def first_spread(factors: Sequence[Array], sites: int) -> tuple[Far, ...]:
    """How far the first round's sums may lie from sites x A: half of the largest one."""
    out = []
    for f in factors:
        most = 0.5 * sites * float(np.abs(f).max(initial=0.0)) + 1e-300
        out.append(Far(np.full((len(f), 1), most), np.ones((1, f.shape[1]))))
    return tuple(out)


def round_packing(public: TRIPPublic, seed: int) -> Packing:
    """Sums around sites x A, rounded so that a column moves by ROUNDING of its length."""
    names, fields, numbers = public.start.sites, {}, 0
    for n, (f, far) in enumerate(zip(public.factors, public.spread), start=1):
        length = max(float(np.sqrt(ordered.inner(f, f) / f.shape[1])), 1e-300)
        grid = ROUNDING * length * float(np.sqrt(12 * len(names) / len(f)))
        likely, room = len(names) * f, far.window() + SLACK * grid
        fields[f"mode{n}"] = Field(f.shape, grid, likely - room, likely + room)
        numbers += f.size
    fields["aside"] = Field((2,), 2.0**-30, 0.0, 8.0)
    most = 4.0 * len(names) * sum(ordered.inner(f, f) + 1.0 for f in public.factors)
    fields["gap"] = Field((1,), most * 2.0**-36, 0.0, most)
    label = f"{public.round} sweep {public.wider}"
    return Packing(fields, names, label, seed, mends=max(MENDS, numbers // EVERY)).widened(public.wider)


def opened_round(
    code: Packing, public: TRIPPublic, opened: dict[str, Array], sites: int
) -> tuple[tuple[Far, ...], tuple[float, ...]]:
    """How far the next round's sums may lie from sites x A, per mode, and the standard deviation of a mean by rounding.

    ``opened`` gets its ``aside`` as the unpacked round has it.
    """
    gaps = opened.pop("gap")
    opened["aside"] = np.array([opened["aside"][0], gaps[0], opened["aside"][1]])
    away, noise = [], []
    for n, f in enumerate(public.factors, start=1):
        grid = code.fields[f"mode{n}"].grid
        away.append(reach(opened[f"mode{n}"] - len(code.sites) * f, AWAY))
        noise.append(grid * float(np.sqrt(sites / 12)) / sites)
    return tuple(away), tuple(noise)
