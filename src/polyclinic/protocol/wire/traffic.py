"""The traffic ledger: every byte that crossed a site's wall, counted on serialised messages; nothing is estimated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

PAPER_RATE: Final = 15e6  # bytes a second: the papers' "seconds at 15 MB/s"


@dataclass
class Traffic:
    """Bytes up and down, per site and round.

    ``bytes_up`` and ``bytes_down`` count everything, serialised. ``payload_bytes_up`` counts only the float64 arrays of
    model steps (no weights, headers, set-up, scores), which is what the papers count. ``rounds`` are sweeps of the method.

    Examples
    --------
    >>> t = Traffic()
    >>> t.sent("north", 1, 120); t.received("north", 1, 80); t.payload("north", 100)
    >>> t.bytes_up, t.bytes_down, t.payload_bytes_up
    (120, 80, 100)
    """

    rounds: int = 0
    up: dict[tuple[str, int], int] = field(default_factory=Counter)
    down: dict[tuple[str, int], int] = field(default_factory=Counter)
    payloads: dict[str, int] = field(default_factory=Counter)
    _rounds: dict[int, list[int]] = field(default_factory=dict, repr=False)  # no lambda anywhere: a model is pickled

    def sent(self, site: str, round_: int, size: int) -> None:
        """A site sent ``size`` bytes."""
        self.up[site, round_] += size
        self._rounds.setdefault(round_, [0, 0])[0] += size

    def received(self, site: str, round_: int, size: int) -> None:
        """A site received ``size`` bytes."""
        self.down[site, round_] += size
        self._rounds.setdefault(round_, [0, 0])[1] += size

    def payload(self, site: str, size: int) -> None:
        """Of what a site sent, ``size`` bytes were arrays of a model step."""
        self.payloads[site] += size

    def add(self, other: Traffic) -> None:
        """Count what another party counted."""
        for (site, round_), size in other.up.items():
            self.sent(site, round_, size)
        for (site, round_), size in other.down.items():
            self.received(site, round_, size)
        for site, size in other.payloads.items():
            self.payload(site, size)

    @property
    def bytes_up(self) -> int:
        """All bytes that left sites."""
        return sum(self.up.values())

    @property
    def bytes_down(self) -> int:
        """All bytes that reached sites."""
        return sum(self.down.values())

    @property
    def payload_bytes_up(self) -> int:
        """Arrays of model steps that left sites, in bytes."""
        return sum(self.payloads.values())

    @property
    def by_site(self) -> dict[str, dict[str, int]]:
        """The same figures for each site."""
        names = sorted({s for s, _ in (*self.up, *self.down)} | set(self.payloads))
        return {
            s: {
                "bytes_up": sum(v for (x, _), v in self.up.items() if x == s),
                "bytes_down": sum(v for (x, _), v in self.down.items() if x == s),
                "payload_bytes_up": self.payloads.get(s, 0),
            }
            for s in names
        }

    def in_round(self, round_: int) -> tuple[int, int]:
        """Bytes up and down of one round, all sites."""
        bytes_up, bytes_down = self._rounds.get(round_, (0, 0))
        return bytes_up, bytes_down

    def seconds(self, rate: float = PAPER_RATE) -> float:
        """The papers' communication cost: all bytes at ``rate`` bytes a second."""
        return (self.bytes_up + self.bytes_down) / rate

    def state(self) -> dict[str, object]:
        """Plain values for a checkpoint."""
        return {
            "rounds": self.rounds,
            "up": [[s, r, v] for (s, r), v in self.up.items()],
            "down": [[s, r, v] for (s, r), v in self.down.items()],
            "payloads": dict(self.payloads),
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Traffic:
        """Inverse of :meth:`state`."""
        t = cls(rounds=state["rounds"])
        for s, r, v in state["up"]:
            t.sent(s, r, v)
        for s, r, v in state["down"]:
            t.received(s, r, v)
        for s, v in state["payloads"].items():
            t.payload(s, v)
        return t

    def __repr__(self) -> str:
        return f"<Traffic {self.rounds} rounds, {self.bytes_up:,} bytes up, {self.bytes_down:,} bytes down>"
