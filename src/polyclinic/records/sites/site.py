"""A site: one hospital's data, which stays there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError, ProtocolMismatch
from polyclinic.records.sites.people import People
from polyclinic.tensors.sparse import SparseTensor

if TYPE_CHECKING:
    from polyclinic.privacy.ledger.entries import Entry
    from polyclinic.records.databases.attrition import Attrition


@dataclass(frozen=True, eq=False)
class Site:
    """Keep the data of one hospital: its tensor or features, outcome and covariates.

    Parameters
    ----------
    name
        Unique in the federation; seeds and order of summation follow it.
    tensor
        Patients x codes x codes counts (phenotyping).
    features
        (patients, d) matrix or data frame (similarity, mixtures).
    labels
        (patients,) outcome: 0 or 1, NaN where it is unknown. For similarity any class.
    columns
        Names of the d features; default those of a data frame, else None: then features are known by position only.
    builds_on
        Lines of the site's ledger for releases that shaped these data (codes chosen from noisy counts, features scaled by
        means over all sites). A model of these data costs that, too.
    people
        Covariates and times of the patients, for the findings that follow a fit.
    several
        At how many sites of one table the patients of this site occur at most. 0: not known.
    source
        How many patients the source has, and how many of them have codes, before rare codes are left out; None: all of these.
    counted
        Smallest count of this hospital alone that may leave in an exact study, where its owner allows any. 0: none may.

    Examples
    --------
    >>> Site("north", features=[[0.0, 1.0], [2.0, 3.0]], labels=[0, 1]).patients
    2
    """

    name: str
    tensor: SparseTensor | None = None
    features: NDArray[np.float64] | None = None
    labels: NDArray[np.generic] | None = None
    columns: tuple[str, ...] | None = None
    builds_on: tuple[Entry, ...] = ()
    people: People | None = None
    several: int = 0
    source: tuple[int, int] | None = None
    counted: int = 0

    def __init__(
        self,
        name: str,
        tensor: SparseTensor | None = None,
        features: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        columns: Sequence[str] | None = None,
        builds_on: Sequence[Entry] = (),
        people: People | None = None,
        several: int = 0,
        source: tuple[int, int] | None = None,
        counted: int = 0,
    ) -> None:
        faults = _name_faults(name)
        if tensor is None and features is None:
            faults.append("neither tensor nor features given")
        if tensor is not None and not isinstance(tensor, SparseTensor):
            what = "make one with pc.from_frame, pc.from_scipy or pc.from_numpy"
            faults.append(f"tensor is a {type(tensor).__name__}, not a SparseTensor: {what}")
        xs = None if features is None else _numbers(features, faults)
        titles = _names(features) if columns is None else tuple(str(c) for c in columns)
        faults += _column_faults(titles, xs)
        ys = None if labels is None else np.asarray(labels)
        faults += _size_faults(tensor=tensor, features=xs, labels=ys, people=people)
        if ys is not None and ys.ndim != 1:
            faults.append(f"labels have shape {ys.shape}, expected (patients,)")
        elif ys is not None and ys.dtype.kind == "f" and np.isinf(ys).any():
            faults.append(f"labels: {int(np.isinf(ys).sum())} are infinite; unknown is NaN")
        if faults:
            raise DataError(f"site {name!r} is not usable", faults=faults)
        titles = titles if xs is not None else None
        keys = (
            "name",
            "tensor",
            "features",
            "labels",
            "columns",
            "builds_on",
            "people",
            "several",
            "source",
            "counted",
        )
        values = (name, tensor, xs, ys, titles, tuple(builds_on), people, several, source, counted)
        for key, value in zip(keys, values):
            object.__setattr__(self, key, value)

    @property
    def patients(self) -> int:
        """Number of patients."""
        if self.tensor is not None:
            return self.tensor.patients
        assert self.features is not None
        return len(self.features)

    def counts(self) -> SparseTensor:
        """The tensor, or an error that says that this method needs one."""
        if self.tensor is None:
            raise DataError(f"site {self.name!r} has no tensor", hint="phenotyping needs Site(name, tensor=...)")
        return self.tensor

    def matrix(self) -> NDArray[np.float64]:
        """The feature matrix, or an error that says that this method needs one."""
        if self.features is None:
            raise DataError(
                f"site {self.name!r} has no feature matrix",
                hint='this method needs Site(name, features=...); one that reads features says so: needs = "features"',
            )
        return self.features

    def take(self, patients: ArrayLike) -> Site:
        """Some of the patients, renumbered; tensor, features and labels together."""
        index = np.asarray(patients)
        if index.dtype == bool:
            index = np.flatnonzero(index)
        if not index.size:
            index = index.astype(np.int64)  # an empty list is an array of floats to numpy
        return Site(
            self.name,
            None if self.tensor is None else self.tensor.take(index),
            None if self.features is None else self.features[index],
            None if self.labels is None else self.labels[index],
            self.columns,
            self.builds_on,
            None if self.people is None else self.people.take(index),
            self.several,
            self.source,
            self.counted,
        )

    def arranged(self, columns: Sequence[str] | None) -> Site:
        """The same site with its features in the order of these names; known by position only, it stays as it is.

        >>> Site("a", features=[[1.0, 2.0]], columns=["age", "sbp"]).arranged(["sbp", "age"]).features.tolist()
        [[2.0, 1.0]]
        """
        if columns is None or self.columns is None or tuple(columns) == self.columns:
            return self
        faults = _differences(self.columns, columns)
        if faults:
            raise ProtocolMismatch(
                f"site {self.name!r} has other columns than were asked for", faults=faults, hint=OTHER_COLUMNS
            )
        order = [self.columns.index(c) for c in columns]
        return replace(self, features=np.ascontiguousarray(self.matrix()[:, order]), columns=tuple(columns))

    def __repr__(self) -> str:
        parts = [f"{self.patients:,} patients"]
        if self.tensor is not None:
            parts.append(f"{self.tensor.nnz:,} nonzeros")
        if self.features is not None:
            parts.append(f"{self.features.shape[1]} features")
        if self.labels is not None:
            parts.append("labels")
        return f"<Site {self.name}: {', '.join(parts)}>"


OTHER_COLUMNS = "rename columns where they mean the same, or list those that all sites have ([features] columns)"


def _name_faults(name: object) -> list[str]:
    if not isinstance(name, str) or not name.strip():
        return [f"name {name!r} is not a text"]
    if len(name) > 100 or name.strip(".") == "" or not name.isprintable() or any(c in name for c in "/\\"):
        return [f"name {name!r}: folders are named after sites; at most 100 printable characters, no slashes"]
    return []


def _numbers(features: ArrayLike, faults: list[str]) -> NDArray[np.float64] | None:
    """Return the features as a matrix of numbers, and None where they are not numbers."""
    try:
        xs = np.asarray(features, np.float64)
    except (TypeError, ValueError):
        faults.append("features are not numbers")
        return None
    if xs.ndim != 2:
        faults.append(f"features have shape {xs.shape}, expected (patients, d)")
    return xs


def _column_faults(names: tuple[str, ...] | None, xs: NDArray[np.float64] | None) -> list[str]:
    if names is None:
        return []
    faults = [f"column {c!r} occurs {names.count(c)} times" for c in sorted({c for c in names if names.count(c) > 1})]
    if xs is not None and xs.ndim == 2 and len(names) != xs.shape[1]:
        faults.append(f"{len(names)} names of columns for {xs.shape[1]} features")
    return faults


def _size_faults(
    tensor: object, features: NDArray[np.float64] | None, labels: NDArray[np.generic] | None, people: People | None
) -> list[str]:
    sizes = {
        "tensor": tensor.patients if isinstance(tensor, SparseTensor) else None,
        "features": None if features is None or features.ndim != 2 else len(features),
        "labels": None if labels is None else len(labels),
        "people": None if people is None else len(people),
    }
    patients = {k: v for k, v in sizes.items() if v is not None}
    if len(set(patients.values())) < 2:
        return []
    return ["numbers of patients differ: " + ", ".join(f"{k} {v}" for k, v in patients.items())]


def _names(features: object) -> tuple[str, ...] | None:
    """Column names of a data frame; None for a plain matrix, and for a frame that only numbers its columns."""
    columns = getattr(features, "columns", None)
    names = None if columns is None or callable(columns) else tuple(columns)
    return names if names and all(isinstance(c, str) for c in names) else None


def _differences(mine: Sequence[str], wanted: Sequence[str]) -> list[str]:
    lacks, extra = [c for c in wanted if c not in mine], [c for c in mine if c not in wanted]
    return [
        f"{verb} {', '.join(map(repr, some[:10]))}{f' and {len(some) - 10} more' if len(some) > 10 else ''}"
        for verb, some in (("lacks", lacks), ("has besides", extra))
        if some
    ]


def one_order(sites: Sequence[Site]) -> list[Site]:
    """Sites by name, their features in one order: that of the first one that names its columns.

    Sites without names are taken by position. Different names are an error that says what is where: a sum over columns
    that mean different things would be wrong, and nothing in it would show.

    >>> a = Site("a", features=[[1.0, 2.0]], columns=["age", "sbp"])
    >>> b = Site("b", features=[[120.0, 60.0]], columns=["sbp", "age"])
    >>> one_order([b, a])[1].features.tolist()
    [[60.0, 120.0]]
    """
    ordered = sorted(sites, key=lambda s: s.name)
    with_names = [s for s in ordered if s.features is not None and s.columns is not None]
    if not with_names:
        return ordered
    first, columns = with_names[0], with_names[0].columns or ()
    faults = []
    for s in with_names[1:]:
        differences = _differences(s.columns or (), columns)
        faults += [f"{s.name!r} {'; '.join(differences)} (compared with {first.name!r})"] if differences else []
    hint = OTHER_COLUMNS
    nameless = [s.name for s in ordered if s.features is not None and s.columns is None]
    if not faults and nameless and any(s.columns != columns for s in with_names):
        faults = [f"{n!r} does not name its columns" for n in nameless]
        faults.append(f"the others have them in different orders, {first.name!r}: {', '.join(columns[:10])}")
        hint = "give every site a data frame, or Site(..., columns=[...])"
    if faults:
        raise ProtocolMismatch("sites have different feature columns", faults=faults, hint=hint)
    return [s.arranged(columns) for s in ordered]


def with_overlap(sites: Sequence[Site], patients: Sequence[Iterable[str]]) -> list[Site]:
    """Tell sites of ONE table at how many of them their patients occur at most; ``patients``: those of each site.

    >>> a, b = Site("a", features=[[1.0]]), Site("b", features=[[1.0]])
    >>> [s.several for s in with_overlap([a, b], [["p1"], ["p1"]])]
    [2, 2]
    """
    if len(sites) < 2:  # one site says nothing about others
        return list(sites)
    unique = [set(names) for names in patients]
    times = Counter(p for names in unique for p in names)
    return [replace(s, several=max((times[p] for p in names), default=1)) for s, names in zip(sites, unique)]


class Sites(list[Site]):
    """A list of sites that knows the truth it was generated from, where it was generated (``truth``), and which rows
    were left out on the way, where it was read from records (``steps``: source -> its row accounting).

    ``attrition``: patients left after each step of the protocol, over all sites, where records were read (else empty).
    ``periods``: patient -> first day (the index date, where the study has one) and last day; for their owners only.
    """

    truth: Any
    steps: Mapping[str, Sequence[Mapping[str, Any]]]
    attrition: tuple[Attrition, ...]
    periods: Mapping[str, tuple[str, str]]

    def __init__(
        self,
        sites: Iterable[Site] = (),
        truth: Any = None,
        steps: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        attrition: Sequence[Attrition] = (),
    ) -> None:
        super().__init__(sites)
        self.truth = truth
        self.steps = steps or {}
        self.attrition = tuple(attrition)
        self.periods = {}

    def period_of(self, site: Site) -> list[tuple[str, str]]:
        """First and last day of a site's patients, in their order; empty texts where nobody wrote them down."""
        labels = site.tensor.axes[0].labels if site.tensor is not None else None
        return [
            self.periods.get(p) or self.periods.get(p.removeprefix(f"{site.name}/")) or ("", "") for p in labels or ()
        ]


def truth_of(sites: object) -> object:
    """What a list of sites was generated from; None where it was not, or nobody kept it."""
    return sites.truth if isinstance(sites, Sites) else None


def pooled(sites: Sequence[Site], name: str = "pooled") -> Site:
    """All patients under one roof, sites in order of name: what a central method would see.

    Examples
    --------
    >>> pooled([Site("b", features=[[1.0]]), Site("a", features=[[2.0]])]).features.tolist()
    [[2.0], [1.0]]
    """
    ordered = one_order(sites)
    common = {
        "tensor": all(s.tensor is not None for s in ordered),
        "features": all(s.features is not None for s in ordered),
        "labels": all(s.labels is not None for s in ordered),
    }
    return Site(
        name,
        SparseTensor.stack([s.counts() for s in ordered]) if common["tensor"] else None,
        np.concatenate([s.matrix() for s in ordered]) if common["features"] else None,
        np.concatenate([np.asarray(s.labels) for s in ordered]) if common["labels"] else None,
        next((s.columns for s in ordered if s.columns is not None), None) if common["features"] else None,
        [line for s in ordered for line in s.builds_on],
        People.stack([s.people for s in ordered if s.people is not None])
        if all(s.people is not None for s in ordered)
        else None,
        max((s.several for s in ordered), default=0),
    )
