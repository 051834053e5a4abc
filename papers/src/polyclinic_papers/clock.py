"""A clock on every hospital: processor seconds of each site's half, of the coordinator's, and the bytes between them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyclinic.protocol.interfaces import Method
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.site_party import SiteParty
from polyclinic.records.sites.site import Site

__all__ = ["RATE", "Clock", "clock"]

RATE = 15e6  # bytes a second in the time model of the TRIP and DPFact papers


@dataclass(frozen=True)
class Clock:
    """What a federated fit took, by the papers' model: hospitals work at the same time, so the slowest counts.

    ``sweep`` and ``round`` are medians over the method's main rounds: of the slowest site with the coordinator's half and
    the serialising, and of all sites one after the other.
    """

    factors: tuple[Any, ...]
    sweep: float
    round: float
    compute: float
    bytes: int

    @property
    def total(self) -> float:
        """Slowest site's seconds and the bytes at 15 MB/s."""
        return self.compute + self.bytes / RATE


def clock(
    method: Method[Any, Any, Any], sites: Sequence[Site], *, main: str, curve: list[float] | None = None
) -> Clock:
    """Run a method in process with a clock on each half; ``main`` names the step that counts as a round.

    Processor time, so that other programs on the machine do not count; every half runs on one thread.
    """
    spent: dict[str, float] = defaultdict(float)
    now = time.process_time

    def each(work: Callable[[SiteParty], Any], parties: Iterable[SiteParty]) -> list[Any]:
        out = []
        for party in parties:
            begun = now()
            out.append(work(party))
            spent[party.site.name] += now() - begun
        return out

    fold = Simulation(method, sites, each=each)
    fold.begin()
    compute = 0.0
    slowest: list[float] = []
    whole: list[float] = []
    while (step := method.next_step(fold.public)) is not None:
        spent.clear()
        begun = now()
        fold.advance()
        alone = now() - begun - sum(spent.values())
        compute += max(spent.values()) + alone
        if step.name == main:
            slowest.append(max(spent.values()) + alone)
            whole.append(sum(spent.values()) + alone)
            if curve is not None:
                curve.append(float(fold.history[-1]["rmse_full"]))
    size = fold.traffic.bytes_up + fold.traffic.bytes_down
    return Clock(tuple(fold.public.factors), float(np.median(slowest)), float(np.median(whole)), compute, size)
