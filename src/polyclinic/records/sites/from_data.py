"""Make hospitals of tables and matrices that people already have."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.records.sites.cells import Cells, SitePatients
from polyclinic.records.sites.frames import (
    COUNT,
    FrameColumn,
    FrameRows,
    KeyColumns,
    columns_of,
    is_annotated,
    outcomes_of,
    unrolled,
    visit_positions,
    which_door,
)
from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site, Sites, with_overlap
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

Index = NDArray[np.int64]
Data: TypeAlias = SparseTensor | Site | Sequence[Site]
Axes = Sequence[Axis | Sequence[str] | str | None]


def from_frame(
    frame: object,
    *,
    patient: str,
    modes: Sequence[str] | Mapping[str, str],
    count: str | None = None,
    visit: str | None = None,
    site: str | None = None,
    outcome: str | None = None,
    covariates: str | Sequence[str] = (),
    names: Mapping[str, Mapping[str, str]] | None = None,
    time: str | None = None,
    side_by_side: bool = False,
    without_site: Literal["refuse", "leave out"] = "refuse",
) -> Sites:
    """Make hospitals from a table. One row says that a patient had these codes together.

    Parameters
    ----------
    frame
        A data frame of any library (pandas, polars, Arrow ...), a mapping of columns, or an AnnData of counts. The
        columns of an AnnData are those of ``obs``. ``patient`` and the one mode then name its observations and variables.
    patient
        Column with the patient's identifier; it stays in the tensor's axis and never leaves.
    modes
        Columns with codes, one per mode, e.g. ``["procedure", "diagnosis"]``. A long table has one code in each row:
        ``{"kind": "code"}`` names the column that says the mode, and the column with the code.
    count
        Column with how often (whole numbers, not negative); default: every row counts once.
    visit
        Column that says which rows belong together: a cell is then the number of visits in which all its codes occur,
        and rows may leave modes empty. Without it, one row is one visit.
    site
        Column with the hospital; default: one hospital, called ``"hospital"``.
    outcome
        Column with 0, 1 (or False, True), the same in all rows of a patient; empty where unknown.
    covariates
        Column or columns with age, sex, ... the same in all rows of a patient; ``pc.evaluate`` adjusts for them.
    names
        What codes mean, for people: mode -> code -> words. A code without words is called by itself.
    time
        Column with dates, times or numbers: the first mode is then ``"visit"``, a patient's visits in order of time (rows of
        one ``visit``, else of one time), and a cell is how often a code occurs in a visit (``pc.PARAFAC2``).
    side_by_side
        One mode of all codes, and a cell counts one code (``pc.DPEM``, ``pc.SumALS``). Rows may leave modes empty.
    without_site
        Whether rows with an empty ``site`` are an error, or are left out with a warning that counts them.

    Examples
    --------
    >>> rows = {"pid": [1, 1, 2], "drug": ["a", "b", "a"], "dx": ["x", "x", "y"], "died": [0, 0, 1]}
    >>> sites = from_frame(rows, patient="pid", modes=["drug", "dx"], outcome="died")
    >>> sites[0].tensor.coords.tolist(), sites[0].labels.tolist()
    ([[0, 0, 0], [0, 1, 0], [1, 0, 1]], [0, 1])
    """
    if is_annotated(frame):
        frame, count = unrolled(frame, patient, modes, count), COUNT
    covariates = (covariates,) if isinstance(covariates, str) else covariates
    columns = [*(c for c in (patient, count, visit, site, outcome, time) if c is not None), *covariates]
    _named(frame, columns, modes)
    _can_go_together(count, visit, time, side_by_side)
    table = FrameRows(frame) if site is None else FrameRows(frame).with_site(site, without_site)
    patients, hospitals, counts = _who(table, patient, site, count)
    codes = _codes(table, modes, visit if time is None else None, side_by_side)
    _tell_missing(codes, visit is not None or side_by_side)

    axes = _axes(codes, _words(names or {}, [c.name for c in codes]))
    visits = _visits(table, visit)
    if time is not None:
        visit_mode = _in_order(patients, table.column(time), visits)
        axes = [Axis("visit", visit_mode.labels, vocabulary="public"), *axes]
        codes, visits = [visit_mode, *codes], None
    cells = Cells(codes, axes, visits, counts, side_by_side)
    sites = _sites(table, patients, hospitals, cells, outcome, covariates)
    from polyclinic.records.sites.remarks import remarks

    for remark in remarks(sites):
        warnings.warn(remark, UserWarning, stacklevel=2)
    return Sites(with_overlap(sites, [s.counts().axes[0].labels or () for s in sites]))


def _codes(
    table: FrameRows, modes: Sequence[str] | Mapping[str, str], visit: str | None, side_by_side: bool
) -> list[KeyColumns]:
    codes = table.codes(modes)
    if isinstance(modes, Mapping) and len(codes) > 1 and visit is None and not side_by_side:
        raise DataError(
            "each row of a long table has one code: which rows belong together?",
            hint='visit="..." names the column that says it; side_by_side=True counts every code alone',
        )
    return codes


def _can_go_together(count: str | None, visit: str | None, time: str | None, side_by_side: bool) -> None:
    """Refuse arguments that contradict one another."""
    if count is not None and visit is not None and time is None:
        raise DataError(
            "count and visit are both given",
            hint="count says how often a row happened; with visit, a cell is the number of visits: leave one out",
        )
    if side_by_side and time is not None:
        raise DataError("side_by_side and time are both given", hint="leave one out: visits in order need their mode")


def _visits(table: FrameRows, visit: str | None) -> KeyColumns | None:
    visits = None if visit is None else table.column(visit).keys()
    if visits is not None and (missing := int(visits.missing.sum())):
        raise DataError(f"{visits.name}: {missing} rows have no visit", hint="give every row its visit")
    return visits


def _sites(
    table: FrameRows,
    patients: KeyColumns,
    hospitals: KeyColumns,
    cells: Cells,
    outcome: str | None,
    covariates: Sequence[str],
) -> list[Site]:
    """Return one site for every hospital. A patient with several outcomes or covariates is refused."""
    outcomes = None if outcome is None else outcomes_of(table.column(outcome))
    sites: list[Site] = []
    conflicts: list[str] = []
    for k, name in enumerate(hospitals.labels):
        rows = np.flatnonzero(hospitals.index == k)
        people, index = np.unique(patients.index[rows], return_inverse=True)
        members = SitePatients(name, rows, index, len(people), conflicts)
        tensor = cells.tensor(members, Axis("patient", tuple(patients.labels[i] for i in people)))
        labels = None if outcomes is None else members.labels(outcomes, str(outcome))
        covariate_values = {c: members.covariate(table.column(c)) for c in covariates}
        sites.append(Site(name, tensor, labels=labels, people=People(covariate_values) if covariate_values else None))
    if conflicts:
        raise DataError(
            "patients with several outcomes or covariates", faults=conflicts[:10], hint="one value a patient"
        )
    return sites


def _who(
    table: FrameRows, patient: str, site: str | None, count: str | None
) -> tuple[KeyColumns, KeyColumns, NDArray[np.float64]]:
    """Patient, hospital and count of every row. All faults are told at once."""
    patients = table.column(patient).keys()
    rows = len(patients.index)
    if not rows:
        raise DataError("the table has no rows", hint="look for a filter, a join or a file without lines")
    one_site = KeyColumns("site", np.zeros(rows, np.int64), ("hospital",))
    hospitals = one_site if site is None else table.column(site).keys()
    faults = [
        f"{c.name}: {int(c.missing.sum())} of {rows} rows are empty" for c in (patients, hospitals) if c.missing.any()
    ]
    hint = "every row needs its patient, site and count"
    if hospitals.missing.any():
        hint += '; without_site="leave out" uses the rows that have a site'
    counts = np.ones(rows) if count is None else _counts(table.column(count), faults)
    if faults:
        raise DataError("the table is not usable", faults=faults, hint=hint)
    return patients, hospitals, counts


def _in_order(patients: KeyColumns, time: FrameColumn, visits: KeyColumns | None) -> KeyColumns:
    """Return the mode of visits in order of time."""
    position = visit_positions(patients.index, time, None if visits is None else visits.index)
    longest = int(position.max(initial=0)) + 1
    return KeyColumns("visit", position, tuple(f"{t + 1:0{len(str(longest))}d}" for t in range(longest)))


def from_scipy(
    matrix: object, columns: Sequence[str] | None = None, *, mode: str = "code", patients: Sequence[str] | None = None
) -> SparseTensor:
    """Make a tensor of patients x codes from a sparse matrix of SciPy; fit it directly, or as ``Site(name, tensor)``.

    Parameters
    ----------
    matrix
        A sparse matrix of SciPy, patients x codes.
    columns, patients
        The codes, and the identifiers of the patients.
    mode
        Name of the mode of codes.

    Examples
    --------
    >>> from scipy.sparse import csr_matrix
    >>> from_scipy(csr_matrix([[0, 2], [1, 0]]), ["a", "b"]).coords.tolist()
    [[0, 1], [1, 0]]
    """
    coo = getattr(matrix, "tocoo", None)
    if not callable(coo):
        raise DataError(f"this is a {type(matrix).__name__}, not a sparse matrix of scipy", hint=which_door(matrix))
    entries = coo()
    if len(entries.shape) != 2:
        raise DataError(f"the matrix has shape {entries.shape}, expected (patients, codes)")
    return SparseTensor(
        np.column_stack([entries.row, entries.col]).astype(np.int64),
        np.asarray(entries.data, np.float64),
        entries.shape,
        [_axis("patient", patients), _axis(mode, columns)],
    )


def from_numpy(array: ArrayLike, axes: Axes | None = None) -> SparseTensor:
    """Make a tensor of patients x codes x ... from a dense array. Zeros are left out.

    Parameters
    ----------
    array
        (patients, codes, ...) counts.
    axes
        Per mode of codes an :class:`Axis`, a list of codes, or a name.

    Examples
    --------
    >>> from_numpy([[[0, 2]], [[1, 0]]], axes=["drug", "diagnosis"]).shape
    (2, 1, 2)
    """
    try:
        dense = np.asarray(array, np.float64)
    except (TypeError, ValueError):
        raise DataError("the array does not hold numbers", hint=which_door(array)) from None
    if not 2 <= dense.ndim <= 8:
        raise DataError(f"the array has shape {dense.shape}", hint="patients first, then one axis per mode of codes")
    nonzeros = np.nonzero(dense)
    return SparseTensor(np.column_stack(nonzeros), dense[nonzeros], dense.shape, axes)


def given_sites(data: object) -> Sequence[Site]:
    """A sequence of hospitals as it was given (with its truth, where it has one); anything else is told what it is."""
    if isinstance(data, Sequence) and not isinstance(data, str) and data and all(isinstance(s, Site) for s in data):
        return data
    return as_sites(data)


def as_sites(data: object, needs: Literal["tensor", "features"] = "tensor") -> list[Site]:
    """What ``fit`` was given, as a list of hospitals: they themselves, or one hospital's patients.

    >>> as_sites(from_numpy([[1, 0], [0, 2]]))
    [<Site local: 2 patients, 2 nonzeros>]
    """
    if isinstance(data, Site):
        return [data]
    if isinstance(data, SparseTensor):
        return [Site("local", data)]
    items = list(data) if isinstance(data, list | tuple) else None
    if items is not None and all(isinstance(s, Site) for s in items):
        return items
    if (
        needs == "features"
        and not isinstance(data, str | bytes | Path | None)
        and not (items and any(isinstance(s, Site | SparseTensor) for s in items))
    ):
        return [Site("local", features=cast(ArrayLike, data))]
    stranger = next((s for s in items or [data] if not isinstance(s, Site)), data)
    raise DataError(
        f"sites must be a list of pc.Site, or one hospital's patients; this is a {type(stranger).__name__}",
        hint='[pc.Site("north", tensor), ...]' if isinstance(stranger, SparseTensor) else which_door(stranger),
    )


def warn_of_odd_counts(tensors: Sequence[SparseTensor], way_out: str = "nonnegative=False explains any number") -> None:
    """A non-negative model explains counts. Other numbers are taken, with a warning."""
    cells = sum(t.nnz for t in tensors)
    negative = sum(int((t.values < 0).sum()) for t in tensors)
    broken = sum(int((t.values != np.rint(t.values)).sum()) for t in tensors)
    remarks = [
        f"{n} of {cells} cells are {what}" for n, what in ((negative, "negative"), (broken, "not whole numbers")) if n
    ]
    if remarks:
        warnings.warn(
            f"{', '.join(remarks)}: a non-negative model cannot explain what is below zero, and reads the rest as amounts. "
            f"{way_out}",
            UserWarning,
            stacklevel=4,
        )


def _axis(name: str, labels: Sequence[str] | None) -> Axis:
    return Axis(name, None if labels is None else tuple(str(x) for x in labels))


def _named(frame: object, others: Sequence[str], modes: Sequence[str] | Mapping[str, str]) -> None:
    present = columns_of(frame)
    if present is None:
        raise DataError(f"a {type(frame).__name__} is not a table with named columns", hint=which_door(frame))
    if isinstance(modes, str) or not modes or (isinstance(modes, Mapping) and len(modes) > 1):
        raise DataError(
            f"modes = {modes!r}",
            hint='a list of columns with codes: modes=["procedure", "diagnosis"]; of a long table: modes={"kind": "code"}',
        )
    mode_columns = [c for pair in modes.items() for c in pair] if isinstance(modes, Mapping) else list(modes)
    wanted = [*others, *mode_columns]
    from difflib import get_close_matches

    faults = [
        f"no column {c!r}" + "".join(f"; did you mean {x!r}?" for x in get_close_matches(str(c), present, 1))
        for c in wanted
        if c not in present
    ]
    faults += [f"column {c!r} is used twice" for c in dict.fromkeys(wanted) if wanted.count(c) > 1]
    if faults:
        raise DataError(
            "the table does not have what was asked for", faults=faults, hint=f"it has {', '.join(present)}"
        )


def _words(names: Mapping[str, Mapping[str, str]], modes: Sequence[str]) -> dict[str, dict[str, str]]:
    """The words for codes, codes as texts; a mode that is none is refused."""
    strange = [repr(m) for m in names if m not in modes]
    strange += [f"{m!r}: {type(v).__name__}" for m, v in names.items() if m in modes and not isinstance(v, Mapping)]
    if strange:
        raise DataError(
            "names are given for what is no mode",
            faults=strange,
            hint=f'names={{"{modes[0]}": {{"code": "its words"}}}}',
        )
    return {m: {str(k).strip(): str(v) for k, v in given.items()} for m, given in names.items()}


def _counts(column: FrameColumn, faults: list[str]) -> NDArray[np.float64]:
    numbers = column.numbers()
    if numbers is None:
        faults.append(f"{column.name}: not numbers")
        return np.zeros(len(column.values))
    for what, bad in (
        ("are empty", np.isnan(numbers)),
        ("are negative", numbers < 0),
        ("are not whole numbers", np.isfinite(numbers) & (numbers != np.rint(numbers))),
        ("are infinite", np.isinf(numbers)),
    ):
        if bad.any():
            first = int(np.argmax(bad))
            faults.append(f"{column.name}: {int(bad.sum())} {what}, e.g. row {first}: {numbers[first]:g}")
    return numbers


def _tell_missing(codes: Sequence[KeyColumns], together: bool) -> None:
    missing = {c.name: int(c.missing.sum()) for c in codes if c.missing.any()}
    if missing and not together:
        rows = int(np.any([c.missing for c in codes], axis=0).sum())
        words = ", ".join(f"{n} {k}" for n, k in missing.items())
        warnings.warn(
            f"{rows} of {len(codes[0].index)} rows lack a code ({words}) and say nothing about codes together: left out. "
            "If rows of one visit belong together, name the column: visit=...",
            UserWarning,
            stacklevel=3,
        )


def _axes(codes: Sequence[KeyColumns], words: Mapping[str, Mapping[str, str]]) -> list[Axis]:
    """Make the axis of every mode, with the words for its codes where there are any."""
    return [
        Axis(c.name, c.labels, tuple(words[c.name].get(x, x) for x in c.labels) if c.name in words else None)
        for c in codes
    ]
