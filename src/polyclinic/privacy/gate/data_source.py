"""Which data a book pays for. A source has one book: two node files over the same records are not two budgets.

The program cannot see the patients of a database from outside, only where they are kept. A place is a file or folder (symbolic
links followed) or a database's host, name, schema and table of people; never a user or a password. Which book pays for which
places is written down once for each user of this machine (``sources.json``), because nothing may be written beside a hospital's
records. What this cannot see: a copy of the records, another user or another machine, and what a book without any limit spent
before the first one with a limit was used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from polyclinic.config import Node, secret
from polyclinic.util.atomic_files import locked, write_whole

_log: Final = logging.getLogger(__name__)
PEOPLE: Final = ("person", "patients", "patient")  # standard names of the table that has one row a patient
PORT: Final = 5432


def state_folder() -> Path | None:
    """Where the user's own state is kept: ``POLYCLINIC_STATE``, else ``polyclinic`` in the XDG state folder; None: no home."""
    if variable := os.environ.get("POLYCLINIC_STATE"):
        return Path(variable)
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "polyclinic"
    try:
        return Path.home() / ".local" / "state" / "polyclinic"
    except RuntimeError:
        return None


def places_of(node: Node) -> tuple[str, ...]:
    """Where the records of a node are.

    >>> node = Node.parse({"site": {"name": "n"}, "source": {"kind": "omop", "url": "postgresql://me:pw@DB.local/ehr", "schema": "cdm"}})
    >>> places_of(node)
    ('postgresql://db.local:5432/ehr cdm.person',)
    """
    s, places = node.source, set()
    for name in (s.events, s.features, s.folder, s.database, *(t.file for t in s.parts)):
        if name is None:
            continue
        path = node.path(name)
        pattern = any(c in path.name for c in "*?[")
        places |= {str(p.resolve()) for p in (path.parent.glob(path.name) if pattern else (path,))}
    people = next((s.table_names[t] for t in PEOPLE if t in s.table_names), "person")
    if s.url is not None:
        places.add(f"{_database(secret(s.url, node.folder))} {s.db_schema or 'public'}.{people}".lower())
    if s.options:  # of a plugged-in source: what is in them is not known, it may be a secret
        words = json.dumps(s.options, sort_keys=True, default=str)
        places.add(f"{s.kind}:{hashlib.sha256(words.encode()).hexdigest()}")
    return tuple(sorted(places))


def _database(url: str) -> str:
    """Host, port and name of a database; who asks, and how, is left out."""
    parts = urlsplit(url)
    if parts.scheme == "odbc":
        return _odbc(url)
    if parts.scheme == "databricks":  # the path is who computes, not where the records are
        return f"{parts.scheme}://{parts.hostname} {dict(parse_qsl(parts.query)).get('catalog', '')}"
    if not parts.scheme or not parts.hostname:
        return f"database:{hashlib.sha256(url.encode()).hexdigest()}"
    scheme = "postgresql" if parts.scheme.startswith("postgres") else parts.scheme
    return f"{scheme}://{parts.hostname}:{parts.port or PORT}{unquote(parts.path)}"


def _odbc(words: str) -> str:
    """The words of a connection without those of who asks."""
    places = {w.strip().lower() for w in words.partition(":")[2].split(";")}
    return "odbc:" + ";".join(sorted(w for w in places if w and not w.startswith(("uid", "pwd", "user", "password"))))


@dataclass(frozen=True)
class Claim:
    """A book with a limit pays for these places.

    Attributes
    ----------
    book
        The file of the book.
    site
        Whose it is.
    places
        Where the records are.
    cohort
        Which of the patients; empty where the owner does not say that cohorts have nobody in common.
    """

    book: str
    site: str
    places: tuple[str, ...]
    cohort: str = ""

    def shares(self, other: Claim) -> list[str]:
        """Places of both, a folder with what is in it; none where the owner says that the patients are others."""
        if self.book == other.book or (self.cohort and other.cohort and self.cohort != other.cohort):
            return []
        return [a for a in self.places if any(_within(a, b) or _within(b, a) for b in other.places)]


def _within(a: str, b: str) -> bool:
    return a == b or a.startswith(b.rstrip("/") + "/")


class Register:
    """Which book pays for which records, for one user of this machine.

    Parameters
    ----------
    file
        The JSON file; None: there is no place for one, and nothing is found.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file

    @classmethod
    def of_user(cls) -> Register:
        """The one of whoever runs this."""
        folder = state_folder()
        return cls(None if folder is None else folder / "sources.json")

    def faults(self, mine: Claim) -> list[str]:
        """Why this book may not pay for its places: another one does."""
        return self._compared(mine, write=False)

    def claim(self, mine: Claim) -> list[str]:
        """The same, and where nothing stands against it, write down that this book pays; both under one lock."""
        return self._compared(mine, write=True)

    def _compared(self, mine: Claim, *, write: bool) -> list[str]:
        if self.file is None:
            if write:
                _log.warning("no home folder: which book pays for which records is not written down")
            return []
        try:
            with locked(self.file.with_name(self.file.name + ".lock")) if write else nullcontext():
                claims = self._read()
                faults = self._against(mine, claims)
                if write and not faults and mine not in claims:
                    self._write([*(c for c in claims if c.book != mine.book), mine])
                return faults
        except (ValueError, KeyError, TypeError):
            return [
                f"{self.file} is not readable: it says which book pays for which records; restore it, or remove it to begin anew"
            ]
        except OSError as e:  # a container without a writable home has one book, and nothing to compare it with
            failed = "is not written down" if write else "cannot be read"
            _log.warning("%s: which book pays for which records %s (%s)", self.file, failed, e.strerror)
            return self.faults(mine) if write else []

    def _against(self, mine: Claim, claims: list[Claim]) -> list[str]:
        faults = []
        for other in claims:
            if shared := mine.shares(other):
                missing_file = "" if Path(other.book).exists() else ", which is gone: put it back from a backup"
                faults.append(
                    f"{shared[0]} is paid for by the book {other.book} of site {other.site!r}{missing_file}; a second book would be a second "
                    f"budget for the same patients. Name that book in [ledger] path; or, if no patient is in both, give each node "
                    f"file a [ledger] cohort of its own and [policy] cohorts_disjoint = true (found in {self.file})"
                )
        return faults

    def _read(self) -> list[Claim]:
        if self.file is None or not self.file.exists():
            return []
        value = json.loads(self.file.read_text(encoding="utf-8"))
        return [Claim(str(c["book"]), str(c["site"]), tuple(c["places"]), str(c["cohort"])) for c in value["books"]]

    def _write(self, claims: list[Claim]) -> None:
        assert self.file is not None
        write_whole(self.file, json.dumps({"version": 1, "books": [asdict(c) for c in claims]}, indent=1))
