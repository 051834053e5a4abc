"""What is possible in a table and yet most often a slip: remarks for people, about codes, ages and names of sites."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
# Codes that start with E or V are of both versions.
ICD = (re.compile(r"\d{3,5}"), re.compile(r"[A-DF-UW-Z]\d[0-9A-Z]{1,5}"))
OLDEST = 120  # years
FEWEST = 3  # patients of a site: of two, each could subtract the own part and see the other's
TRIAL = 20  # patients: a smaller table is somebody's trial, of which sizes say nothing


def remarks(sites: Sequence[Site]) -> list[str]:
    """Return what to look at before a fit, a sentence each.

    >>> from polyclinic.tensors.sparse import SparseTensor
    >>> axes = [Axis("patient", ("1",)), Axis("diagnosis", ("038", "38"))]
    >>> remarks([Site("a", SparseTensor([[0, 0], [0, 1]], [1.0, 1.0], (1, 2), axes))])
    ["diagnosis: '038' and '38' are two codes; one may have lost its zeros: read the column as text"]
    """
    tensors = [s.tensor for s in sites if s.tensor is not None]
    out = [x for axis in (tensors[0].axes[1:] if tensors else ()) for x in _of_codes(axis)]
    out += _of_overlap([s for s in sites if s.tensor is not None])
    out += _of_sizes(sites, tensors)
    for site in sites:
        ages = site.people.columns.get("age") if site.people is not None else None
        if ages is not None and ages.dtype.kind == "f" and (n := int((ages.astype(float) > OLDEST).sum())):
            out.append(
                f"site {site.name!r}: {n} ages are above {OLDEST}, the highest {np.nanmax(ages.astype(float)):g}: is it a code for unknown?"
            )
    return out + alike([s.name for s in sites])


def _of_sizes(sites: Sequence[Site], tensors: Sequence[SparseTensor]) -> Iterable[str]:
    if (patients := sum(s.patients for s in sites)) < TRIAL:
        return
    if sum(t.nnz for t in tensors) == patients == sum(t.values.sum() for t in tensors):
        yield f"{patients:,} patients have {patients:,} rows: is the column of patients a row number?"
    small = [repr(s.name) for s in sites if s.patients < FEWEST]
    if small and len(sites) > 1:
        yield f"fewer than {FEWEST} patients at {', '.join(small)}: join small sites, or leave them out"


def _of_codes(axis: Axis) -> Iterable[str]:
    codes = axis.labels or ()
    if not codes or axis.vocabulary == "public":
        return
    by_number = defaultdict(list)
    for code in codes:
        if code.isdigit():
            by_number[code.lstrip("0")].append(code)
    twins = next((c for c in by_number.values() if len(c) > 1), None)
    if twins:
        texts = " and ".join(map(repr, twins))
        yield f"{axis.name}: {texts} are two codes; one may have lost its zeros: read the column as text"
    if 2 * sum(DATE.fullmatch(c) is not None for c in codes) > len(codes):
        yield f"{axis.name}: most codes are dates, e.g. {codes[0]!r}: is this the column of codes?"
    plain = [c.replace(".", "").upper() for c in codes]
    shares = [sum(shape.fullmatch(c) is not None for c in plain) / len(plain) for shape in ICD]
    if min(shares) >= 0.1:
        yield (
            f"{axis.name}: {shares[0]:.0%} of the codes look like ICD-9 and {shares[1]:.0%} like ICD-10: one disease is two codes; "
            f"group them, e.g. [codes.{axis.name}] to = 'ccs'"
        )


def _of_overlap(sites: Sequence[Site]) -> list[str]:
    """Modes in which two sites share fewer than a tenth of the codes that either uses."""
    out = []
    tensors = [s.counts() for s in sites]
    for m in range(1, tensors[0].ndim if tensors else 1):
        used = [
            {(t.axes[m].labels or ())[i] for i in np.flatnonzero(np.bincount(t.coords[:, m]))}
            if t.axes[m].labels
            else set()
            for t in tensors
        ]
        for k, codes in enumerate(used):
            others = set().union(*(c for j, c in enumerate(used) if j != k))
            if len(sites) > 1 and codes and others and len(codes & others) < 0.1 * min(len(codes), len(others)):
                out.append(
                    f"{tensors[0].axes[m].name}: site {sites[k].name!r} shares {len(codes & others)} of its {len(codes)} codes with "
                    "the others: are they written in the same code system?"
                )
    return out


def alike(names: Sequence[str]) -> list[str]:
    """Return a remark for every group of names of sites that are one name to a person."""
    words = defaultdict(list)
    for name in names:
        words[" ".join(name.lower().split())].append(name)
    return [
        f"sites {' and '.join(map(repr, same))} differ by case or blanks only: each is a site of its own"
        for same in words.values()
        if len(same) > 1
    ]
