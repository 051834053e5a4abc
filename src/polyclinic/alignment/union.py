"""Agree on the codes of every mode, in one process: the union of what the sites have, in one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyclinic.errors import DataError, ProtocolMismatch
from polyclinic.records.sites.from_data import given_sites
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.axis import Axis

__all__ = ["align", "to_axes", "union"]


def align(sites: Sequence[Site]) -> Sites:
    """Give every site the same codes in the same order.

    A feature mode in which sites differ becomes the sorted union of their codes. Between hospitals a union in the clear would tell
    everybody who has which code; use a public dictionary there, or the ring (see ``polyclinic.alignment.ecdh_ring``).

    Examples
    --------
    >>> from polyclinic import Site, SparseTensor
    >>> a = Site("a", SparseTensor([[0, 0, 0]], [1.0], (1, 1, 1), axes=[["x"], ["p"]]))
    >>> b = Site("b", SparseTensor([[0, 1, 0]], [2.0], (1, 2, 1), axes=[["y", "x"], ["q"]]))
    >>> [(s.tensor.shape, s.tensor.coords.tolist()) for s in align([a, b])]
    [((1, 2, 2), [[0, 0, 0]]), ((1, 2, 2), [[0, 0, 1]])]
    """
    sites = given_sites(sites)
    twice = sorted({s.name for s in sites if sum(t.name == s.name for t in sites) > 1})
    if twice:
        raise DataError("two sites have one name", faults=[repr(n) for n in twice], hint="give every site its own name")
    holders = [s for s in sites if s.tensor is not None]
    if not holders:
        return Sites(sites, truth_of(sites))
    modes = {s.name: s.counts().ndim for s in holders}
    if len(set(modes.values())) > 1:
        raise ProtocolMismatch(
            "sites have different numbers of modes", faults=[f"{k!r}: {v}" for k, v in modes.items()]
        )
    faults = []
    axes: list[Axis | None] = []
    for n in range(1, holders[0].counts().ndim):
        mine = {s.name: s.counts().axes[n] for s in holders}
        unlabelled = [k for k, a in mine.items() if a.labels is None]
        if unlabelled:
            sizes = {s.name: s.counts().shape[n] for s in holders}
            if len(unlabelled) < len(mine) or len(set(sizes.values())) > 1:
                faults += [f"mode {n}: site {k!r} has no labels ({sizes[k]} codes)" for k in unlabelled]
            axes.append(None)
            continue
        if len({a.labels for a in mine.values()}) == 1:
            axes.append(None)  # the same codes in the same order already
            continue
        axes.append(union(list(mine.values())))
    if faults:
        raise ProtocolMismatch(
            "codes without labels cannot be aligned", faults=faults, hint="label the axes of every site"
        )
    return Sites([to_axes(s, axes) for s in sites], truth_of(sites))


def union(axes: Sequence[Axis]) -> Axis:
    """One mode's codes of all sites, sorted; public only if every site has exactly these from a public list.

    >>> union([Axis("drug", ("b", "a")), Axis("drug", ("b", "c"), ("", "third"))]).labels
    ('a', 'b', 'c')
    """
    names: dict[str, str] = {}
    for a in axes:
        for i, label in enumerate(a.labels or ()):
            if a.names is not None and not names.get(label):
                names[label] = a.names[i]
            names.setdefault(label, "")
    labels = tuple(sorted(names))
    sources = {a.vocabulary for a in axes}
    same = all(a.labels is not None and set(a.labels) == set(labels) for a in axes)
    texts = tuple(names[x] for x in labels) if any(names.values()) else None
    return Axis(axes[0].name, labels, texts, sources.pop() if len(sources) == 1 and same else "data")


def to_axes(site: Site, axes: Sequence[Axis | None]) -> Site:
    """A site on given feature axes (None = leave the mode as it is); a code that the axis lacks is refused by name."""
    if site.tensor is None:
        return site
    tensor = site.tensor
    for n, axis in enumerate(axes, start=1):
        own = tensor.axes[n]
        if axis is None or own == axis:
            continue
        where = {label: i for i, label in enumerate(axis.labels or ())}
        missing = [label for label in own.labels or () if label not in where]
        if missing:
            raise ProtocolMismatch(
                f"site {site.name!r}: {len(missing)} {own.name} codes are not in the common vocabulary",
                faults=[repr(x) for x in missing[:5]],
                hint="extend the dictionary, or drop the codes before",
            )
        tensor = tensor.recode(n, [where[label] for label in own.labels or ()], axis, len(axis.labels or ()))
    return replace(site, tensor=tensor)
