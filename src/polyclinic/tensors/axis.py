"""An axis of a tensor: what its codes are called, and where its vocabulary came from."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from polyclinic.errors import DataError

Vocabulary = Literal["public", "paid", "data"]


@dataclass(frozen=True)
class Axis:
    """Name a mode and list its codes.

    Parameters
    ----------
    name
        What the mode is: ``"patient"``, ``"diagnosis"``, ``"procedure"``, ``"drug"`` ...
    labels
        One text per index (ICD code, drug name, ...), or None where indices are anonymous.
    names
        A human-readable description per index, or None.
    vocabulary
        Where the list of codes came from: a ``public`` dictionary, ``paid`` (chosen by noisy counts that the budget covers), or chosen from
        the ``data``, which itself reveals codes and makes a formal guarantee heuristic.

    Examples
    --------
    >>> a = Axis("diagnosis", ("428.0", "401.9"), ("congestive heart failure", "hypertension"), "public")
    >>> a.describe(0)
    'congestive heart failure'
    >>> Axis("diagnosis").describe(7)
    'diagnosis 7'
    """

    name: str
    labels: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    vocabulary: Vocabulary = "data"

    @classmethod
    def of(cls, given: Axis | Sequence[str] | str | None, position: int) -> Axis:
        """Read what a user gives for an axis: an Axis, a list of labels, a name, or nothing."""
        default = "patient" if position == 0 else f"mode {position}"
        if given is None:
            return cls(default)
        if isinstance(given, Axis):
            return given
        if isinstance(given, str):
            return cls(given)
        return cls(default, tuple(str(x) for x in given))

    def describe(self, index: int) -> str:
        """The best human-readable text for one code."""
        if self.names is not None and self.names[index]:
            return self.names[index]
        return self.label(index)

    def label(self, index: int) -> str:
        """The code itself, or the mode's name and index where codes are anonymous."""
        return self.labels[index] if self.labels is not None else f"{self.name} {index}"

    @classmethod
    def side_by_side(cls, axes: Sequence[Axis]) -> Axis:
        """The codes of several modes under one another, each with the name of its mode in front.

        >>> a = Axis.side_by_side([Axis("drug", ("A10",)), Axis("diagnosis", ("I50", "I10"))])
        >>> a.name, a.labels
        ('drug+diagnosis', ('drug:A10', 'diagnosis:I50', 'diagnosis:I10'))
        >>> [(name, list(rows)) for name, rows in a.modes()]
        [('drug', [0]), ('diagnosis', [1, 2])]
        """
        pairs = [(a, i) for a in axes for i in range(len(a.labels or ()))]
        sources = {a.vocabulary for a in axes}
        source: Vocabulary = "data" if "data" in sources else "paid" if "paid" in sources else "public"
        names = tuple(a.describe(i) for a, i in pairs)
        return cls("+".join(a.name for a in axes), tuple(f"{a.name}:{a.label(i)}" for a, i in pairs), names, source)

    def modes(self, size: int = 0) -> list[tuple[str, Sequence[int]]]:
        """The modes on this axis with the indices of their codes: one, or several side by side."""
        if "+" not in self.name or self.labels is None:
            return [(self.name, range(size if self.labels is None else len(self.labels)))]
        rows: dict[str, list[int]] = {name: [] for name in self.name.split("+")}
        for i, label in enumerate(self.labels):
            rows[label.split(":", 1)[0]].append(i)
        return list(rows.items())

    def code(self, index: int) -> str:
        """The code as its mode calls it."""
        return self.label(index).split(":", 1)[1] if "+" in self.name and self.labels else self.label(index)

    def take(self, indices: Sequence[int]) -> Axis:
        """The axis restricted to some indices, in that order."""
        return replace(
            self,
            labels=None if self.labels is None else tuple(self.labels[i] for i in indices),
            names=None if self.names is None else tuple(self.names[i] for i in indices),
        )

    def digest(self) -> str:
        """Hash of name and codes: two sites with the same digest speak of the same things in the same order."""
        h = hashlib.sha256(self.name.encode())
        for label in self.labels or ():
            h.update(b"\0" + label.encode())
        return h.hexdigest()

    def to_json(self) -> dict[str, object]:
        """Plain values for a file header."""
        return {"name": self.name, "labels": self.labels, "names": self.names, "vocabulary": self.vocabulary}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Axis:
        """Inverse of :meth:`to_json`."""
        vocabulary = value.get("vocabulary", "data")
        if vocabulary not in get_args(Vocabulary):
            raise DataError(
                f"axis {value.get('name')!r}: unknown vocabulary source {vocabulary!r}",
                hint=f"use one of {', '.join(get_args(Vocabulary))}",
            )

        def text(key: str) -> tuple[str, ...] | None:
            items = value.get(key)
            return None if items is None else tuple(str(x) for x in items)

        return cls(str(value["name"]), text("labels"), text("names"), cast(Vocabulary, vocabulary))


def public_axis(mode: str, text: str, where: str = "list of codes") -> Axis:
    """The axis of a public list: CSV with a column ``code`` and, if there is one, ``name``; codes in order of spelling.

    A code without a name is called by its code. A hospital's own description is never taken: it would tell that the
    code occurs there.

    Examples
    --------
    >>> a = public_axis("drug", "code,name\\nN02,paracetamol\\nB01,\\n")
    >>> a.labels, a.names, a.vocabulary
    (('B01', 'N02'), ('B01', 'paracetamol'), 'public')
    """
    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))
    if not rows or "code" not in rows[0]:
        raise DataError(f"{where}: column code is missing", hint="first line: code,name")
    names = {r["code"]: (r.get("name") or "").strip() or r["code"] for r in rows}
    labels = tuple(sorted(names))
    return Axis(mode, labels, tuple(names[x] for x in labels), "public")


def read_public_axis(mode: str, path: Path) -> Axis:
    """The axis of a public list in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such list of codes", hint="CSV with the columns code and name, next to the study"
        ) from None
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot be read as a list of codes", faults=[str(e)]) from None
    return public_axis(mode, text, str(path))
