"""Attacks that must succeed where a card says so, and fail where it promises privacy: all that are plugged in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyclinic.errors import ConfigError
from polyclinic.plugins import PAPERS, plugged


@dataclass(frozen=True)
class Attack:
    """How an attack went.

    Parameters
    ----------
    name, against
        Which attack, against which variant.
    succeeded, expected
        Did it get what it wanted, and does the theory say that it should?
    detail
        What was recovered, in one sentence.
    """

    name: str
    against: str
    succeeded: bool
    expected: bool
    detail: str

    @property
    def as_expected(self) -> bool:
        """The claim about this variant stands."""
        return self.succeeded == self.expected


def every_attack(seed: int = 0) -> Iterator[Attack]:
    """All attacks of the entry points ``polyclinic.attacks`` (``polyclinic audit --attacks``); the published ones are the papers'."""
    entries = plugged("polyclinic.attacks").values()
    if not entries:
        raise ConfigError("no attack is installed", hint=f"pip install {PAPERS}")
    for entry in entries:
        run = entry.load()
        if not callable(run):
            raise ConfigError(f"attack {entry.name!r} of {entry.package} is no function: {entry.value}")
        yield from run(seed)
