"""A public list of codes as an axis: its order, its names and nothing of any hospital's data."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from polyclinic.errors import DataError
from polyclinic.tensors.axis import Axis


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
            f"{path}: no such list of codes", hint="CSV with the columns code and name, beside the study"
        ) from None
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot be read as a list of codes", faults=[str(e)]) from None
    return public_axis(mode, text, str(path))
