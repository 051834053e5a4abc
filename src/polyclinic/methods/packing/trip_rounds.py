"""TRIP's rounds in a few bits a number: how the sums of a round travel, and what they tell about the next one's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.packing.packed_sums import Field, Packing
from polyclinic.methods.packing.rounding import reach
from polyclinic.methods.starts.state import Far
from polyclinic.protocol.interfaces import Contribution, Step, Total
from polyclinic.tensors import deterministic as ordered

__all__ = ["PackedRound", "first_spread"]

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


class PackedRound:
    """Sums around sites x A, rounded so that a column moves by ROUNDING of its length."""

    def __init__(self, public: Any, seed: int) -> None:
        self.factors, self.sites = public.factors, public.start.sites
        fields, numbers = {}, 0
        for n, (f, far) in enumerate(zip(public.factors, public.spread), start=1):
            length = max(float(np.sqrt(ordered.inner(f, f) / f.shape[1])), 1e-300)
            grid = ROUNDING * length * float(np.sqrt(12 * len(self.sites) / len(f)))
            likely, room = len(self.sites) * f, far.window() + SLACK * grid
            fields[f"mode{n}"] = Field(f.shape, grid, likely - room, likely + room)
            numbers += f.size
        fields["aside"] = Field((2,), 2.0**-30, 0.0, 8.0)
        most = 4.0 * len(self.sites) * sum(ordered.inner(f, f) + 1.0 for f in public.factors)
        fields["gap"] = Field((1,), most * 2.0**-36, 0.0, most)
        label = f"{public.round} sweep {public.wider}"
        mends = max(MENDS, numbers // EVERY)
        self.code = Packing(fields, self.sites, label, seed, mends=mends).widened(public.wider)

    def step(self, round_: int, name: str) -> Step:
        return self.code.step(round_, name)

    def contribution(self, arrays: Mapping[str, Array], site: str) -> Contribution:
        """The gap between a hospital's factors and the shared ones has a scale of its own."""
        aside = arrays["aside"]
        return self.code.contribution({**arrays, "aside": aside[[0, 2]], "gap": aside[1:2]}, site)

    def opened(self, total: Total) -> dict[str, Array] | None:
        sums = self.code.opened(total)
        if sums is not None:
            (sse, everything), gap = sums["aside"], sums.pop("gap")
            sums["aside"] = np.array([sse, gap[0], everything])
        return sums

    def noise(self, name: str, members: int) -> float:
        return self.code.fields[name].grid * float(np.sqrt(members / 12)) / members

    def learned(self, public: Any, sums: Mapping[str, Array]) -> Any:
        """How far the next round's sums may lie from sites x A, by how far these lay."""
        expected = enumerate(self.factors, start=1)
        away = tuple(reach(sums[f"mode{n}"] - len(self.sites) * f, AWAY) for n, f in expected)
        return replace(public, spread=away, wider=0)
