"""A dossier: parts of labelled sentences, each known to be there or missing, with the digests that tie it to its sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Stage = Literal["before", "after"]


@dataclass(frozen=True)
class DossierLine:
    """One labelled statement.

    Attributes
    ----------
    key
        Its name in the JSON.
    label
        What it is called on paper.
    text
        Sentences, each a paragraph or an item.
    by_hand
        Nobody but the institution can know it: a place to write is left where it is empty.
    """

    key: str
    label: str
    text: tuple[str, ...]
    by_hand: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing is said."""
        return not any(t.strip() for t in self.text)


@dataclass(frozen=True)
class Rows:
    """A table."""

    key: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class DossierPart:
    """One chapter."""

    key: str
    title: str
    lines: tuple[DossierLine, ...]
    tables: tuple[Rows, ...] = ()
    note: str = ""

    def __getitem__(self, key: str) -> DossierLine:
        return next(line for line in self.lines if line.key == key)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        value: dict[str, object] = {
            line.key: {"label": line.label, "text": list(line.text), "by_hand": line.by_hand} for line in self.lines
        }
        for t in self.tables:
            value[t.key] = {"label": t.label, "columns": list(t.columns), "rows": [list(r) for r in t.rows]}
        return {"title": self.title, **({"note": self.note} if self.note else {}), **value}


@dataclass(frozen=True)
class Dossier:
    """Everything that is put before a board, before or after a study.

    Examples
    --------
    >>> d = Dossier("icu", "before", (DossierPart("protocol", "Protocol", (DossierLine("question", "Question", ("",)),)),), {})
    >>> d.missing
    ('protocol.question',)
    """

    study: str
    stage: Stage
    parts: tuple[DossierPart, ...]
    digests: Mapping[str, str]
    signers: tuple[str, ...] = ()
    software: str = ""
    made: str = ""
    guarantee: str = ""
    sources: tuple[str, ...] = field(default=())

    def __getitem__(self, key: str) -> DossierPart:
        return next(p for p in self.parts if p.key == key)

    def fields(self) -> Iterator[tuple[str, DossierLine]]:
        """Every statement under its full name."""
        for p in self.parts:
            for line in p.lines:
                yield f"{p.key}.{line.key}", line

    @property
    def missing(self) -> tuple[str, ...]:
        """Statements that the software should have made and could not; what is left to write by hand is not among them."""
        return tuple(name for name, line in self.fields() if line.empty and not line.by_hand)

    @property
    def by_hand(self) -> tuple[str, ...]:
        """What the institution still has to write."""
        return tuple(name for name, line in self.fields() if line.empty and line.by_hand)

    @property
    def by_hand_labels(self) -> tuple[str, ...]:
        """The same, as it is printed beside the lines to write on."""
        return tuple(line.label for _, line in self.fields() if line.empty and line.by_hand)

    def body(self) -> dict[str, object]:
        """Plain values, without the digest of itself."""
        return {
            "dossier": 1,
            "study": self.study,
            "stage": self.stage,
            "made": self.made,
            "software": self.software,
            "guarantee": self.guarantee,
            "sources": list(self.sources),
            "digests": dict(self.digests),
            "missing": list(self.missing),
            "to_be_written_by_hand": list(self.by_hand),
            "parts": {p.key: p.to_json() for p in self.parts},
            "to_be_signed_by": list(self.signers),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of :meth:`body`; printed on every page."""
        return hashlib.sha256(json.dumps(self.body(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """Plain values with the digest."""
        return {**self.body(), "sha256": self.digest}
