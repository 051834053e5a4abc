"""A small post office between mailboxes, with losses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from polyclinic.protocol.interfaces import Aggregator, Contribution, Exchange, Message, Roster, Step, Total

Lost = Callable[[Message], bool]


class PostOffice:
    """Carries messages between exchanges; keeps a transcript; loses what ``lost`` says."""

    def __init__(self, sides: Mapping[str, Exchange], lost: Lost = lambda m: False) -> None:
        self.sides, self.lost = dict(sides), lost
        self.transcript: list[Message] = []

    def run(self) -> dict[str, Any]:
        queue: deque[Message] = deque(m for s in sorted(self.sides) for m in self.sides[s].start())
        for _ in range(20):
            while queue:
                m = queue.popleft()
                if self.lost(m):
                    continue
                self.transcript.append(m)
                queue.extend(self.sides[m.to].receive(m))
            if all(x.result() != "pending" for x in self.sides.values()):
                break
            for s in sorted(self.sides):
                queue.extend(self.sides[s].deadline())
        return {s: x.result() for s, x in self.sides.items()}


@pytest.fixture
def add() -> Callable[..., PostOffice]:
    """Make every party's side of one sum and a post office between them (not started)."""

    def make(
        adder: Aggregator,
        roster: Roster,
        step: Step,
        parts: Mapping[str, Contribution],
        lost: Lost = lambda m: False,
    ) -> PostOffice:
        sides = {s: adder.exchange(s, roster, step, parts[s]) for s in roster.sites}
        if roster.coordinator is not None:
            sides[roster.coordinator] = adder.exchange(roster.coordinator, roster, step, None)
        return PostOffice(sides, lost)

    return make


@pytest.fixture
def network() -> Callable[..., tuple[Roster, Step, dict[str, Contribution]]]:
    """Sites with random contributions."""

    def make(
        n: int, size: int = 12, *, seed: int = 0, weights: Sequence[float] | None = None, **roster: Any
    ) -> tuple[Roster, Step, dict[str, Contribution]]:
        rng = np.random.default_rng(seed)
        names = tuple(f"site{i:03d}" for i in range(n))
        step = Step(3, "factors", {"B": (size,), "C": (2, 2)}, bound=5.0, weight_bound=10.0)
        parts = {
            s: Contribution(
                {"B": rng.uniform(-5, 5, size), "C": rng.uniform(-5, 5, (2, 2))},
                float(rng.uniform(0, 10)) if weights is None else weights[i],
            )
            for i, s in enumerate(names)
        }
        return Roster(names, **roster), step, parts

    return make


@pytest.fixture
def truth() -> Callable[..., Total]:
    """The sum in the clear over some sites."""

    def make(step: Step, parts: Mapping[str, Contribution], members: Sequence[str] | None = None) -> Total:
        members = sorted(parts if members is None else members)
        arrays = {k: sum(parts[s].weight * parts[s].arrays[k] for s in members) for k in step.shapes}
        return Total(arrays, sum(parts[s].weight for s in members), len(members))  # type: ignore[arg-type]

    return make
