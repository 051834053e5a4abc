"""Asynchronous sums: closed by the first contributions, each of which may be some sums old."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from polyclinic.aggregation.plain import Plain, contribution_of
from polyclinic.protocol.interfaces import Contribution, Message, Step, Total

__all__ = ["AsyncRound"]


class AsyncRound:
    """Asynchronous: the coordinator's side of a sum that is closed by the first ``least`` contributions.

    Each may be ``bound`` sums old; what comes later is dropped and its site asked anew. The order of arrival decides, so the
    model is not the same twice.
    """

    def __init__(self, adder: Plain, steps: Mapping[int, Step], number: int, least: int, bound: int) -> None:
        self.adder, self.steps, self.number, self.least, self.bound = adder, steps, number, least, bound
        self.parts: dict[str, Contribution] = {}
        self.entered: dict[str, tuple[int, int]] = {}

    def start(self) -> list[Message]:
        return []

    def put(self, letter: Message, asked: int) -> bool:
        """A contribution to sum ``asked``; False if it is too old."""
        if self.number - asked > self.bound:
            return False
        self.parts[letter.sender] = contribution_of(letter, self.steps[asked])
        self.entered[letter.sender] = (asked, 0)
        return True

    def receive(self, message: Message) -> list[Message]:
        self.put(message, self.number)
        return []

    def deadline(self) -> list[Message]:
        return []

    def result(self) -> Total | Literal["pending"]:
        if len(self.parts) < self.least:
            return "pending"
        step = self.steps[self.number]
        values, weight = self.adder.add(step, self.parts)
        return Total(values, weight, len(self.parts), step.noise_sd * math.sqrt(len(self.parts)))
