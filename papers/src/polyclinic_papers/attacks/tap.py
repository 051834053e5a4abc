"""What a curious party has in hand: every message that crossed a wall, and the public states around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.protocol.interfaces import Message, Method, Step, Total
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site


@dataclass
class Tapped:
    """One sum as the coordinator sees it: the step, the public state before it, all messages, and the total."""

    step: Step
    before: Any
    messages: list[Message] = field(default_factory=list)
    total: Total | None = None

    def contribution(self, site: str) -> dict[str, NDArray[np.float64]]:
        """A site's arrays if they travelled in the clear; else the best guess that a sum allows: its mean."""
        for m in self.messages:
            if m.sender == site and m.kind == "contribution":
                return dict(m.body["arrays"])
        assert self.total is not None
        return {k: a / self.total.members for k, a in self.total.arrays.items()}


def listen(method: Method, sites: Sequence[Site], quorum: int | None = None) -> list[Tapped]:
    """Run a method and keep what its coordinator could have kept."""
    heard: list[Tapped] = []
    fold = Simulation(method, sites, tap=lambda m: heard[-1].messages.append(m), quorum=quorum)
    combine = method.update_public

    def witness(step: Step, public: object, total: Total) -> object:
        heard[-1].total = total
        return combine(step, public, total)

    vars(method)["update_public"] = witness
    fold.begin()
    while (step := method.next_step(fold.public)) is not None:
        heard.append(Tapped(step, fold.public))
        fold.advance()
    return heard
