"""Plain sum: the coordinator adds what it receives. It sees every contribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from polyclinic.aggregation.promise import Promises
from polyclinic.errors import MessageRefused
from polyclinic.privacy.facts import PLAIN
from polyclinic.protocol.interfaces import Aggregator, AggregatorFacts, Contribution, Message, Roster, Step, Total
from polyclinic.protocol.wire.integer_width import narrow, widen, width


class Plain(Aggregator):
    """The coordinator adds contributions in order of the sites' names, so the result does not depend on arrival."""

    facts: ClassVar[AggregatorFacts] = PLAIN

    def noise_share(self, roster: Roster) -> float:
        """Every site adds the full noise: the coordinator sees each contribution alone."""
        return 1.0

    def exchange(
        self,
        me: str,
        roster: Roster,
        step: Step,
        mine: Contribution | None,
        *,
        promises: Promises | None = None,
    ) -> Sender | Collector:
        """A site's sender, or the coordinator's collector."""
        return Collector(me, roster, step, self.add) if mine is None else Sender(me, roster, step, mine)

    def add(self, step: Step, parts: Mapping[str, Contribution]) -> tuple[dict[str, Any], float]:
        """Sum of weight times value, and of weights, in order of name."""
        total = {name: np.zeros(shape) for name, shape in step.shapes.items()}
        weight = 0.0
        for site in sorted(parts):
            c = parts[site]
            weight += c.weight
            for name, a in c.arrays.items():
                total[name] += a if c.weight == 1.0 else c.weight * a
        return total, weight


class Sender:
    """A site under a sum that shows contributions: one message, then done."""

    def __init__(self, me: str, roster: Roster, step: Step, mine: Contribution) -> None:
        self.message = Message(
            me,
            roster.coordinator or "",
            "contribution",
            step.round,
            step.name,
            roster.attempt,
            {"arrays": _sent(step, mine.arrays), "weight": float(mine.weight)},
        )

    def start(self) -> list[Message]:
        return [self.message]

    def receive(self, message: Message) -> list[Message]:
        raise MessageRefused(f"{self.message.sender!r} expects no message {message.kind!r} from {message.sender!r}")

    def deadline(self) -> list[Message]:
        return []

    def result(self) -> Literal["done"]:
        return "done"


class Collector:
    """The coordinator: waits for every site, or for the threshold when the deadline passes."""

    def __init__(self, me: str, roster: Roster, step: Step, add: Any) -> None:
        self.me, self.roster, self.step, self.add = me, roster, step, add
        self.parts: dict[str, Contribution] = {}
        self.over = False

    def start(self) -> list[Message]:
        return []

    def receive(self, message: Message) -> list[Message]:
        slot = (self.step.round, self.step.name, self.roster.attempt)
        if (message.round, message.step, message.attempt) != slot or message.kind != "contribution":
            raise MessageRefused(
                f"{message.kind!r} of {message.sender!r} for round {message.round}, step {message.step!r}, attempt "
                f"{message.attempt}, but this is {slot}: late, early or replayed"
            )
        if message.sender not in self.roster.sites:
            raise MessageRefused(f"{message.sender!r} is not on the roster {list(self.roster.sites)}")
        if message.sender in self.parts:
            raise MessageRefused(
                f"{message.sender!r} contributed twice to round {message.round}, step {message.step!r}"
            )
        self.parts[message.sender] = contribution_of(message, self.step)
        return []

    def deadline(self) -> list[Message]:
        self.over = True
        return []

    @property
    def members(self) -> tuple[str, ...]:
        """Sites that took part."""
        return tuple(sorted(self.parts))

    def result(self) -> Total | Literal["pending", "aborted"]:
        if len(self.parts) < len(self.roster.sites) and not self.over:
            return "pending"
        if len(self.parts) < max(1, self.roster.threshold):
            return "aborted"
        arrays, weight = self.add(self.step, self.parts)
        return Total(
            arrays,
            weight,
            len(self.parts),
            self.step.noise_sd * float(np.sqrt(len(self.parts))),
            dict(self.parts) if self.step.how == "gather" else {},
        )


def _sent(step: Step, arrays: Mapping[str, Any]) -> dict[str, object]:
    """Whole multiples of a grid as so many bytes as they need; anything else, and what is off its grid, as it is."""
    size = width(step)
    if size == 8 or step.grid is None:
        return dict(arrays)
    out = {}
    for name, a in arrays.items():
        steps = np.rint(np.asarray(a, np.float64) / step.grid)
        small = np.isfinite(steps).all() and np.abs(steps).max(initial=0.0) < 2.0 ** (8 * size - 1)
        exact = small and np.array_equal(steps * step.grid, a)
        out[name] = narrow(steps.ravel().astype(np.int64), size) if exact else a
    return out


def _read(step: Step, arrays: Mapping[str, Any]) -> dict[str, object]:
    size, out = width(step), dict(arrays)
    for name, a in arrays.items():
        shape = step.shapes.get(name, ())
        if isinstance(a, np.ndarray) and a.dtype == np.uint8 and a.shape == (size * int(np.prod(shape)),) and size < 8:
            out[name] = widen(a, size).view(np.int64).reshape(shape) * float(step.grid or 1.0)
    return out


def contribution_of(message: Message, step: Step) -> Contribution:
    """Read a contribution from a message and check it against what the step announced."""
    arrays, weight = message.body.get("arrays"), message.body.get("weight")
    if isinstance(arrays, dict):
        arrays = _read(step, arrays)
    if (
        not isinstance(arrays, dict)
        or not isinstance(weight, float)
        or not all(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in arrays.values())
    ):
        raise MessageRefused(f"contribution of {message.sender!r} is malformed")
    c = Contribution(arrays, weight)
    c.check(replace(step, bound=step.reach), message.sender)
    return c
