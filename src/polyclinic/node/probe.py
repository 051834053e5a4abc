"""One thing that was looked at: how it stands, in one sentence, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True)
class Probe:
    """What one probe found.

    Parameters
    ----------
    name
        Of what was looked at; stable, for scripts.
    state
        ``fault``: a study cannot run; ``warning``: it can, but not for long, or something could not be known.
    sentence
        What was found, with the value.
    todo
        What to do; empty if nothing.
    outside
        Whether the cause may lie outside this node and go away by itself (a coordinator that is being restarted).
    exit
        Exit code of the command if this is a fault (2 configuration, 3 data, 4 budget, 5 the coordinator).

    Examples
    --------
    >>> print(Probe("clock", "fault", "this clock is 400 s ahead", "set it (NTP)", exit=5))
    FAULT    clock: this clock is 400 s ahead
             what to do: set it (NTP)
    """

    name: str
    state: State
    sentence: str
    todo: str = ""
    exit: int = 2
    outside: bool = False

    def __str__(self) -> str:
        mark = {"ok": "ok", "warning": "warning", "fault": "FAULT"}[self.state]
        more = f"\n         what to do: {self.todo}" if self.todo else ""
        return f"{mark:<8} {self.name}: {self.sentence}{more}"

    def to_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {"name": self.name, "state": self.state, "sentence": self.sentence, "what_to_do": self.todo}


def first_fault(probes: Iterable[Probe]) -> Probe | None:
    """The first fault; None if there is none.

    >>> first_fault([Probe("disk", "ok", "12 GB free")]) is None
    True
    """
    return next((p for p in probes if p.state == "fault"), None)
