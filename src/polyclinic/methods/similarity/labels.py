"""Labels at a hospital: classes, for everybody, of one kind; checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.records.sites.site import Site

__all__ = ["class_texts", "classes_at", "classes_of_all"]


def class_texts(labels: Iterable[Any]) -> list[str]:
    """One canonical text per label: 1, 1.0 and True are the same class, and no label changes how another is written.

    >>> class_texts([1, 1.0, True, "ill", 2.5])
    ['1', '1', '1', 'ill', '2.5']
    """
    made = []
    for v in labels.tolist() if isinstance(labels, np.ndarray) else list(labels):
        number = isinstance(v, bool | int | float | np.generic) and not isinstance(v, str | bytes)
        if number and float(v) == float(v) and abs(float(v)) < 2**53 and float(v) == int(float(v)):
            made.append(str(int(v)))
        else:
            made.append(v.decode(errors="replace") if isinstance(v, bytes) else str(v))
    return made


def classes_at(site: Site) -> NDArray[np.generic]:
    """The labels of a site's patients, numbers or text; an error if there are none, some are missing or they are no classes.

    >>> classes_at(Site("north", features=[[0.0], [1.0]], labels=["ill", "well"])).tolist()
    ['ill', 'well']
    """
    if site.labels is None:
        raise DataError(f"site {site.name!r} has no labels", hint="Site(name, features=..., labels=...)")
    labels = np.asarray(site.labels)
    if labels.dtype.kind == "O":
        missing = sum(v is None or v != v for v in labels.tolist())
        kinds = {"text" if isinstance(v, str) else "numbers" for v in labels.tolist() if v is not None and v == v}
        if len(kinds) > 1:
            raise DataError(f"site {site.name!r}: labels mix text and numbers", hint="write every class in one way")
        labels = labels if missing else np.asarray(labels.tolist())
    else:
        missing = int((~np.isfinite(labels)).sum()) if labels.dtype.kind == "f" else 0
    if missing:
        raise DataError(f"site {site.name!r}: {missing} patient(s) without a label", hint="leave those patients out")
    if labels.dtype.kind == "f" and (labels != np.rint(labels)).any():
        raise DataError(
            f"site {site.name!r}: labels are measurements (such as {labels[labels != np.rint(labels)][0]:g}), not classes",
            hint="classes are whole numbers or text; cut a measurement into classes first",
        )
    if labels.dtype.kind not in "biufUS":
        raise DataError(
            f"site {site.name!r}: labels of type {labels.dtype} are no classes", hint="whole numbers or text"
        )
    return labels


def classes_of_all(sites: Sequence[Site]) -> NDArray[np.generic]:
    """All classes of several hospitals, sorted; an error if some write them as text and some as numbers."""
    found = {s.name: classes_at(s) for s in sites if s.labels is not None}
    text = sorted(n for n, v in found.items() if v.dtype.kind in "US" and len(v))
    numbers = sorted(n for n, v in found.items() if v.dtype.kind not in "US" and len(v))
    if text and numbers:
        raise DataError(
            "hospitals write the classes in different ways",
            faults=[f"text: {', '.join(text)}", f"numbers: {', '.join(numbers)}"],
            hint="agree on one way before the study",
        )
    full = [v for v in found.values() if len(v)]
    return np.unique(np.concatenate(full)) if full else np.empty(0)
