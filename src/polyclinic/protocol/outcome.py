"""What a run tells while it goes, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyclinic.privacy.card.release_history import Certified
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.privacy.ledger.entries import Entry
from polyclinic.privacy.ledger.signed_head import SignedHead
from polyclinic.protocol.interfaces import Arrays, Release, Schema
from polyclinic.protocol.wire.traffic import Traffic

Figures = Mapping[str, object]
History = list[dict[str, Any]]  # a mapping per round: its number, seconds, and the method's figures


@dataclass(frozen=True)
class Progress:
    """A progress event: data that a command line, a page or a notebook renders."""

    kind: str  # "begin" | "round" | "analysis" (a sum after the fit) | "end"
    method: str
    round: int
    rounds: int
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    public: Any
    privates: Mapping[str, object]
    closed: Mapping[str, Arrays]  # stays at the sites
    history: History
    traffic: Traffic
    setting: Schema
    releases: tuple[Release, ...]  # every sum that was taken
    seconds: float
    noise: str = ""  # label of the source of privacy noise
    # of the sites' books, for this run and what it builds on; between hosts they stay there
    lines: tuple[Entry, ...] = ()
    # of the sites' books when it had ended; between hosts
    heads: Mapping[str, SignedHead] = field(default_factory=dict)
    books: tuple[StudyExtract, ...] = ()  # between hosts: what each site signed of its book
    certified: Certified | None = None  # between hosts: who signed the end of the run
