"""Agree on the codes of every mode: a public list of codes, or the union of what the sites have, in one process.

The default is a public list, versioned and hashed: nothing has to be hidden, there is no protocol, and nothing leaks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from polyclinic.errors import DataError, ProtocolMismatch
from polyclinic.records.sites.from_data import given_sites
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.axis import Axis


def align(sites: Sequence[Site]) -> Sites:
    """Give every site the same codes in the same order.

    A feature mode in which sites differ becomes the sorted union of their codes. Between hospitals a union in the clear would show
    all parties who has which code. Use a public dictionary there, or private vocabulary alignment (``polyclinic.alignment.ecdh_ring``).

    Parameters
    ----------
    sites
        The hospitals.

    Examples
    --------
    >>> from polyclinic import Site, SparseTensor
    >>> a = Site("a", SparseTensor([[0, 0, 0]], [1.0], (1, 1, 1), axes=[["x"], ["p"]]))
    >>> b = Site("b", SparseTensor([[0, 1, 0]], [2.0], (1, 2, 1), axes=[["y", "x"], ["q"]]))
    >>> [(s.tensor.shape, s.tensor.coords.tolist()) for s in align([a, b])]
    [((1, 2, 2), [[0, 0, 0]]), ((1, 2, 2), [[0, 0, 1]])]
    """
    sites = given_sites(sites)
    holders = [s for s in sites if s.tensor is not None]
    _check(sites, holders)
    if not holders:
        return Sites(sites, truth_of(sites))
    faults: list[str] = []
    axes = [_common(n, holders, faults) for n in range(1, holders[0].counts().ndim)]
    if faults:
        raise ProtocolMismatch(
            "codes without labels cannot be aligned", faults=faults, hint="label the axes of every site"
        )
    return Sites([to_axes(s, axes) for s in sites], truth_of(sites))


def _check(sites: Sequence[Site], holders: Sequence[Site]) -> None:
    """Refuse sites with one name, and tensors with different numbers of modes."""
    doubles = sorted(name for name, count in Counter(s.name for s in sites).items() if count > 1)
    if doubles:
        raise DataError(
            "two sites have one name", faults=[repr(n) for n in doubles], hint="give every site its own name"
        )
    modes = {s.name: s.counts().ndim for s in holders}
    if len(set(modes.values())) > 1:
        raise ProtocolMismatch(
            "sites have different numbers of modes", faults=[f"{k!r}: {v}" for k, v in modes.items()]
        )


def _common(mode: int, sites: Sequence[Site], faults: list[str]) -> Axis | None:
    """The axis of one mode for all sites; None where they agree already, or where it has no labels."""
    axes = [s.counts().axes[mode] for s in sites]
    if all(a.labels is not None for a in axes):
        return union(axes) if len({a.labels for a in axes}) > 1 else None
    if len({(a.labels, s.counts().shape[mode]) for s, a in zip(sites, axes)}) > 1:
        faults += [
            f"mode {mode}: site {s.name!r} has no labels ({s.counts().shape[mode]} codes)"
            for s, a in zip(sites, axes)
            if a.labels is None
        ]
    return None


def union(axes: Sequence[Axis]) -> Axis:
    """One mode's codes of all sites, sorted; public only if every site has exactly these from a public list.

    >>> union([Axis("drug", ("b", "a")), Axis("drug", ("b", "c"), ("", "third"))]).labels
    ('a', 'b', 'c')
    """
    names: dict[str, str] = {}
    for a in axes:
        for label, text in zip_longest(a.labels or (), a.names or (), fillvalue=""):
            names[label] = names.get(label) or text
    labels = tuple(sorted(names))
    listed = {(a.vocabulary, tuple(sorted(a.labels or ()))) for a in axes}
    vocabulary = axes[0].vocabulary if listed == {(axes[0].vocabulary, labels)} else "data"
    return Axis(
        axes[0].name, labels, tuple(map(names.__getitem__, labels)) if any(names.values()) else None, vocabulary
    )


def to_axes(site: Site, axes: Sequence[Axis | None]) -> Site:
    """A site on given feature axes (None = leave the mode as it is); a code that the axis lacks is refused by name."""
    if site.tensor is None:
        return site
    tensor = site.tensor
    for n, axis in enumerate(axes, start=1):
        if axis is not None and tensor.axes[n] != axis:
            tensor = tensor.recode(n, _positions(site.name, tensor.axes[n], axis), axis, len(axis.labels or ()))
    return replace(site, tensor=tensor)


def _positions(site: str, old: Axis, new: Axis) -> list[int]:
    """Where the codes of one axis are on another."""
    position = {label: i for i, label in enumerate(new.labels or ())}
    labels = old.labels or ()
    missing = [label for label in labels if label not in position]
    if missing:
        raise ProtocolMismatch(
            f"site {site!r}: {len(missing)} {old.name} codes are not in the common vocabulary",
            faults=[repr(x) for x in missing[:5]],
            hint="extend the dictionary, or drop the codes before",
        )
    return [position[label] for label in labels]


def align_to(sites: Sequence[Site], lists: Mapping[str, Axis]) -> Sites:
    """Put every site on public lists of codes. A code that its list lacks is refused by name.

    Parameters
    ----------
    sites
        The hospitals.
    lists
        Name of a feature mode -> its public list, which every mode must have.
    """
    faults = [f"site {s.name!r}: {a.name}" for s in sites for a in _feature_axes(s) if a.name not in lists]
    if faults:
        raise ProtocolMismatch(
            "modes without a public list", faults=faults, hint=f"given: {', '.join(lists) or 'none'}"
        )
    return Sites([to_axes(s, [lists[a.name] for a in _feature_axes(s)]) for s in sites], truth_of(sites))


def _feature_axes(site: Site) -> tuple[Axis, ...]:
    return () if site.tensor is None else site.tensor.axes[1:]
