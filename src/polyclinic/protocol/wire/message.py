"""One message of an exchange, and the parties that may write one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

COORDINATOR: Final = "coordinator"  # its name among the parties


@dataclass(frozen=True)
class Roster:
    """Who takes part in one attempt at one sum; signed and pinned between hospitals.

    Attributes
    ----------
    sites
        Sorted by name.
    coordinator
        None among peers.
    edges
        Who may write to whom among peers: each pair once, sorted.
    threshold
        Survivors needed, of the ORDER's sites; secure sums: at least :func:`least_threshold`.
    colluders
        Sites assumed to pool what they know; the curious insider is one, so never 0 in a secure sum.
    attempt
        Counts from 0 for every sum; a letter of another attempt is refused.
    keys
        Long-term verification keys (Ed25519, raw) of everybody, pinned.
    chain
        The order and every sum before this one, as the party that makes the roster folded them.
    """

    sites: tuple[str, ...]
    coordinator: str | None = "coordinator"
    edges: frozenset[tuple[str, str]] = frozenset()
    threshold: int = 1
    colluders: int = 1
    attempt: int = 0
    keys: Mapping[str, bytes] = field(default_factory=dict)
    chain: bytes = b""


@dataclass(frozen=True)
class Message:
    """One message of an exchange. ``body`` holds arrays, bytes, texts, numbers, lists and maps of them."""

    sender: str
    to: str
    kind: str
    round: int
    step: str
    attempt: int
    body: Mapping[str, Any]
