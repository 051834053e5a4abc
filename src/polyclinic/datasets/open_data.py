"""Where the open data lie: nothing is inside the package, everything is found by path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from polyclinic.errors import DataError

__all__ = ["OPEN_DATA", "find", "open_data"]

OPEN_DATA: Final = (
    "aminoacid",
    "cms_desynpuf",
    "colon_alon1999",
    "diabetes130",
    "leukemia_golub1999",
    "mimic3_demo",
    "parkinsons",
    "synthea27nj_omop",
)


def open_data(name: str) -> Path:
    """The folder of one open data set, under the folder that the variable ``POLYCLINIC_DATA`` names.

    Without the variable, ``shared/data`` beside the working directory or beside one of its parents is taken.

    Examples
    --------
    >>> open_data("no such data")
    Traceback (most recent call last):
    ...
    polyclinic.errors.DataError: [PC300] open data set 'no such data' is not known ...
    """
    given = os.environ.get("POLYCLINIC_DATA")
    here = Path.cwd()
    bases = [Path(given)] if given else [p / "shared" / "data" for p in (here, *here.parents)]
    if name not in OPEN_DATA:
        raise DataError(f"open data set {name!r} is not known", hint=f"known: {', '.join(OPEN_DATA)}")
    for base in bases:
        if (base / name).is_dir():
            return base / name
    raise DataError(
        f"open data set {name!r} was not found",
        faults=[f"not in {bases[0]}"],
        hint="set POLYCLINIC_DATA to the folder that holds it, or give the path",
    )


def find(name: str, path: str | Path | None, file: str) -> Path:
    """A file of a data set: from its folder, from the path of the file itself, or by name."""
    place = open_data(name) if path is None else Path(path)
    found = place / file if place.is_dir() else place
    if not found.exists():
        raise DataError(f"{name}: file {file!r} was not found", faults=[f"looked at {found}"])
    return found
