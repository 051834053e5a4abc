"""Labels at a hospital: classes, for everybody, of one kind; checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.records.sites.site import Site


def class_texts(labels: Iterable[Any]) -> list[str]:
    """One canonical text per label: 1, 1.0 and True are the same class, and no label changes how another is written.

    >>> class_texts([1, 1.0, True, "ill", 2.5])
    ['1', '1', '1', 'ill', '2.5']
    """
    texts = []
    for v in labels.tolist() if isinstance(labels, np.ndarray) else list(labels):
        number = isinstance(v, bool | int | float | np.generic) and not isinstance(v, str | bytes)
        if number and float(v) == float(v) and abs(float(v)) < 2**53 and float(v) == int(float(v)):
            texts.append(str(int(v)))
        else:
            texts.append(v.decode(errors="replace") if isinstance(v, bytes) else str(v))
    return texts


def classes_at(site: Site) -> NDArray[np.generic]:
    """The labels of a site's patients, numbers or text; an error if there are none, some are missing or they are no classes.

    >>> classes_at(Site("north", features=[[0.0], [1.0]], labels=["ill", "well"])).tolist()
    ['ill', 'well']
    """
    if site.labels is None:
        raise DataError(f"site {site.name!r} has no labels", hint="Site(name, features=..., labels=...)")
    labels = _plain(site)
    measured = labels[labels != np.rint(labels)] if labels.dtype.kind == "f" else labels[:0]
    if len(measured):
        raise DataError(
            f"site {site.name!r}: labels are measurements (such as {measured[0]:g}), not classes",
            hint="classes are whole numbers or text; cut a measurement into classes first",
        )
    if labels.dtype.kind not in "biufUS":
        raise DataError(
            f"site {site.name!r}: labels of type {labels.dtype} are no classes", hint="whole numbers or text"
        )
    return labels


def _plain(site: Site) -> NDArray[np.generic]:
    """The labels as one array of numbers or of text; an error where some are missing or of the other kind."""
    labels = np.asarray(site.labels)
    missing = 0
    if labels.dtype.kind == "O":
        values = [v for v in labels.tolist() if v is not None and v == v]
        missing = len(labels) - len(values)
        if len({isinstance(v, str) for v in values}) > 1:
            raise DataError(f"site {site.name!r}: labels mix text and numbers", hint="write every class in one way")
        labels = labels if missing else np.asarray(values)
    elif labels.dtype.kind == "f":
        missing = int((~np.isfinite(labels)).sum())
    if missing:
        raise DataError(f"site {site.name!r}: {missing} patient(s) without a label", hint="leave those patients out")
    return labels


def classes_of_all(sites: Sequence[Site]) -> NDArray[np.generic]:
    """All classes of several hospitals, sorted; an error if some write them as text and some as numbers."""
    every = {s.name: classes_at(s) for s in sites if s.labels is not None}
    labels = {name: values for name, values in every.items() if len(values)}
    text = sorted(name for name, values in labels.items() if values.dtype.kind in "US")
    numbers = sorted(set(labels) - set(text))
    if text and numbers:
        raise DataError(
            "hospitals write the classes in different ways",
            faults=[f"text: {', '.join(text)}", f"numbers: {', '.join(numbers)}"],
            hint="agree on one way before the study",
        )
    return np.unique(np.concatenate(list(labels.values()))) if labels else np.empty(0)
