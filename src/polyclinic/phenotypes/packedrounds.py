"""TRIP's packed rounds: how a round's sums travel after a start from the Gram, and what they tell about the next one's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.federation.packing import Field, Packing

if TYPE_CHECKING:
    from polyclinic.phenotypes.trip import TRIPPublic

__all__ = ["opened_round", "round_packing"]

Array = NDArray[np.float64]
ROUNDING = 5e-4  # of a column's length: what rounding the packed sum of a round may move it


def round_packing(public: TRIPPublic, seed: int) -> Packing:
    """Sums around sites x A, rounded so that a column moves by ROUNDING of its length."""
    names, fields = public.start.sites, {}
    for n, (f, far) in enumerate(zip(public.factors, public.spread), start=1):
        length = max(float(np.sqrt(np.square(f).sum() / f.shape[1])), 1e-300)
        grid = ROUNDING * length * float(np.sqrt(12 * len(names) / len(f)))
        likely = len(names) * f
        fields[f"mode{n}"] = Field(f.shape, grid, likely - far, likely + far)
    fields["aside"] = Field((2,), 2.0**-30, 0.0, 8.0)
    most = 4.0 * len(names) * sum(float(np.square(f).sum()) + 1.0 for f in public.factors)
    fields["gap"] = Field((1,), most * 2.0**-36, 0.0, most)
    label = f"{public.round} sweep {public.wider}"
    return Packing(fields, names, label, seed).widened(public.wider)


def opened_round(
    code: Packing, public: TRIPPublic, opened: dict[str, Array], sites: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How far the next round's sums may lie from sites x A, per mode, and the standard deviation of a mean by rounding.

    ``opened`` gets its ``aside`` as the unpacked round has it.
    """
    gaps = opened.pop("gap")
    opened["aside"] = np.array([opened["aside"][0], gaps[0], opened["aside"][1]])
    away, noise = [], []
    for n, f in enumerate(public.factors, start=1):
        grid = code.fields[f"mode{n}"].grid
        far = float(np.abs(opened[f"mode{n}"] - len(code.sites) * f).max(initial=0.0))
        away.append(max(1.5 * far, 8 * grid))
        noise.append(grid * float(np.sqrt(sites / 12)) / sites)
    return tuple(away), tuple(noise)
