"""Join sites that are too small to take part alone, leave them out, or stop. The result says which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

Small = Literal["merge", "skip", "refuse"]


@dataclass(frozen=True, eq=False)
class Gathered:
    """The sites that take part, and what became of the small ones.

    Attributes
    ----------
    joined
        New site -> the sites it is made of.
    skipped
        Sites that take no part.
    left_out
        How many patients they have.
    steps
        Source -> which rows were left out on the way here.
    """

    sites: Sites
    minimum: int
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    left_out: int = 0
    steps: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Plain values; a small number of patients is not among them."""
        too_few = 0 < self.left_out < 11
        return {
            "minimum": self.minimum,
            "joined": {k: list(v) for k, v in self.joined.items()},
            "skipped": list(self.skipped),
            "patients_left_out": None if too_few else self.left_out,
        }


def gather(sites: Sequence[Site], minimum: int, how: Small = "merge", *, same_people: bool = False) -> Gathered:
    """Make every site have at least ``minimum`` patients.

    Parameters
    ----------
    sites
        On common codes (``pc.align``).
    minimum
        Fewer patients than this: the site is small.
    how
        ``merge``: small sites are joined, largest first, into "others 1", "others 2", ... until each has the minimum; a last
        remainder joins the one before it (or, where there is none, the smallest of the other sites joins it).
        ``skip``: left out. ``refuse``: an error that lists all of them.
    same_people
        Sites were split from one source: a patient's name means the same person everywhere, who becomes one patient of
        a joined site. Otherwise number 7 of two hospitals are two people.

    Examples
    --------
    >>> sites = [Site(n, features=np.zeros((k, 1))) for n, k in (("a", 30), ("b", 12), ("c", 9), ("d", 5))]
    >>> found = gather(sites, 20)
    >>> [(s.name, s.patients) for s in found.sites], dict(found.joined)
    ([('a', 30), ('others 1', 26)], {'others 1': ('b', 'c', 'd')})
    """
    small = sorted((s for s in sites if s.patients < minimum), key=lambda s: (-s.patients, s.name))
    truth = truth_of(sites)
    if not small:
        return Gathered(Sites(sites, truth), minimum)
    large = [s for s in sites if s.patients >= minimum]
    if how == "refuse":
        raise DataError(
            f"{len(small)} of {len(sites)} sites have fewer than {minimum} patients",
            faults=[f"{s.name!r} has fewer than {minimum} patients" for s in small],
            hint="[sites] small = 'merge' joins them, small = 'skip' leaves them out; or lower min_patients",
        )
    if how == "skip":
        if not large:
            raise DataError(
                f"no site has {minimum} patients: none is left", hint="[sites] small = 'merge', or lower min_patients"
            )
        patients_in_small = sum(s.patients for s in small)
        skipped = tuple(sorted(s.name for s in small))
        return Gathered(Sites(large, truth), minimum, {}, skipped, patients_in_small)
    bins = _bins(small, minimum, same_people)
    if len(bins[-1][1]) < minimum and len(bins) > 1:
        members, people = bins.pop()
        bins[-1] = (bins[-1][0] + members, bins[-1][1] | people)
    elif len(bins[-1][1]) < minimum and large:
        smallest = min(large, key=lambda s: (s.patients, s.name))
        large = [s for s in large if s is not smallest]
        bins[-1] = ([*bins[-1][0], smallest], bins[-1][1])
    names = {s.name for s in large}
    joined: dict[str, tuple[str, ...]] = {}
    groups = []
    for k, (members, _) in enumerate(bins, start=1):
        name = f"others {k}"
        while name in names:
            name += "'"
        joined[name] = tuple(s.name for s in members)
        groups.append(_join(name, members, same_people))
    return Gathered(Sites([*large, *groups], truth), minimum, joined)


def _bins(small: Sequence[Site], minimum: int, same_people: bool) -> list[tuple[list[Site], set[object]]]:
    bins: list[tuple[list[Site], set[object]]] = []
    for s in small:
        if not bins or len(bins[-1][1]) >= minimum:
            bins.append(([], set()))
        bins[-1][0].append(s)
        bins[-1][1].update(_people(s, same_people))
    return bins


def _people(site: Site, same: bool) -> list[str | tuple[object, ...]]:
    """Who the patients are: by their own names without the site's, or different people at every site."""
    labels = site.tensor.axes[0].labels if site.tensor is not None else None
    if labels is None or not same:
        return [(site.name, k) for k in range(site.patients)]
    return [p.removeprefix(f"{site.name}/") for p in labels]


def _join(name: str, members: Sequence[Site], same_people: bool) -> Site:
    """One site of several; a patient of several of them becomes one patient, with all records and the worst outcome."""
    names = [p for s in members for p in _people(s, same_people)]
    index = {p: k for k, p in enumerate(dict.fromkeys(names))}
    patient = np.array([index[p] for p in names], np.int64)
    starts = np.cumsum([0, *(s.patients for s in members)])
    labels = _labels(members, patient, len(index)) if any(s.labels is not None for s in members) else None
    covariates = [s.people for s in members if s.people is not None]
    first = np.unique(patient, return_index=True)[1]  # what is known of a patient is said by the first of the sites
    people = People.stack(covariates).take(first) if len(covariates) == len(members) else None
    several = max(s.several for s in members)
    if any(s.tensor is None for s in members):
        features = np.concatenate([s.matrix() for s in members])
        return Site(name, None, features, labels, members[0].columns, several=several)
    tensors = [s.counts() for s in members]
    coords = [t.coords for t in tensors]
    for c, start in zip(coords, starts):
        c[:, 0] = patient[c[:, 0] + start]
    axis = Axis("patient", tuple(f"{name}/{p if isinstance(p, str) else '/'.join(map(str, p))}" for p in index))
    union = SparseTensor(
        np.concatenate(coords),
        np.concatenate([t.values for t in tensors]),
        (len(index), *tensors[0].shape[1:]),
        (axis, *tensors[0].axes[1:]),
    )
    sources = [s.source or (s.patients, s.patients) for s in members]
    source = (sum(a for a, _ in sources), sum(b for _, b in sources)) if any(s.source for s in members) else None
    return Site(name, union, None, labels, people=people, several=several, source=source)


def _labels(members: Sequence[Site], who: NDArray[np.int64], patients: int) -> NDArray[np.generic]:
    """Outcomes of joined patients: it happened if it happened at one of the sites; unknown if no site knows."""
    arrays = [np.full(s.patients, np.nan) if s.labels is None else np.asarray(s.labels) for s in members]
    if any(g.dtype.kind not in "iufb" for g in arrays):  # classes of a similarity study: nobody is at two sites
        return np.concatenate(arrays)
    out = np.full(patients, np.nan)
    np.fmax.at(out, who, np.concatenate(arrays).astype(np.float64))
    return out if np.isnan(out).any() else out.astype(np.int64)
