"""The default alignment: a public list of codes, versioned and hashed. Nothing to hide, no protocol, nothing leaks."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from polyclinic.alignment.union import to_axes
from polyclinic.errors import DataError, ProtocolMismatch
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.axis import Axis

__all__ = ["Dictionary", "align_to"]


@dataclass(frozen=True)
class Dictionary:
    """A public vocabulary.

    Examples
    --------
    >>> d = Dictionary("diagnosis", "2024", ("401.9", "428.0"), ("hypertension", "heart failure"))
    >>> d.axis().vocabulary, d.digest()[:8] == Dictionary("diagnosis", "2025", d.codes, d.names).digest()[:8]
    ('public', False)
    """

    mode: str
    version: str
    codes: tuple[str, ...]
    names: tuple[str, ...] | None = None

    @classmethod
    def read(cls, path: str | Path, mode: str, version: str | None = None) -> Dictionary:
        """A CSV file with a column ``code`` and, if there is one, ``name``; the version is the file's name by default."""
        file = Path(path)
        try:
            with open(file, newline="", encoding="utf-8") as f:
                rows = list(csv.DictReader(f))
        except (OSError, UnicodeDecodeError, csv.Error) as e:
            raise DataError(f"{file}: cannot be read as a list of codes", faults=[str(e)]) from None
        if not rows or "code" not in rows[0]:
            raise DataError(f"{file}: no column 'code'", hint="first line: code,name")
        codes = tuple(r["code"].strip() for r in rows)
        twice = sorted({c for c in codes if codes.count(c) > 1}) if len(set(codes)) < len(codes) else []
        if twice:
            raise DataError(f"{file}: codes are listed twice", faults=[repr(c) for c in twice[:5]])
        names = tuple((r.get("name") or "").strip() for r in rows) if "name" in rows[0] else None
        return cls(mode, version or file.stem, codes, names)

    def axis(self) -> Axis:
        """The axis of this mode."""
        return Axis(self.mode, self.codes, self.names, "public")

    def digest(self) -> str:
        """Hash of mode, version, and codes in order: sites compare it before round 1."""
        return Axis(f"{self.mode}@{self.version}", self.codes).digest()


def align_to(sites: Sequence[Site], dictionaries: Mapping[str, Dictionary]) -> Sites:
    """Put every site on the public dictionaries; a code that a dictionary lacks is refused by name.

    Parameters
    ----------
    sites
        The hospitals.
    dictionaries
        Name of a feature mode -> its dictionary; every mode must have one.
    """
    out = []
    for s in sites:
        if s.tensor is None:
            out.append(s)
            continue
        modes = [a.name for a in s.tensor.axes[1:]]
        missing = [m for m in modes if m not in dictionaries]
        if missing:
            raise ProtocolMismatch(
                f"site {s.name!r}: no dictionary for {', '.join(missing)}", faults=[f"given: {', '.join(dictionaries)}"]
            )
        out.append(to_axes(s, [dictionaries[m].axis() for m in modes]))
    return Sites(out, truth_of(sites))
