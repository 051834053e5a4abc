"""What is public about the sites of a study before its first round."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from polyclinic.errors import ConfigError, DataError, PolyclinicError, ProtocolMismatch
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.interfaces import Method, Schema, ordered
from polyclinic.records.sites.site import Site, one_order
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.json_types import JsonMap

if TYPE_CHECKING:
    from polyclinic.node.signed_study import StudyOrder


def schema_of(method: Method, sites: Sequence[Site]) -> Schema:
    """What is public about the sites; refuses, by name, sites that do not speak of the same things."""
    strangers: list[object] = (
        [sites] if not isinstance(sites, Sequence) else [s for s in sites if not isinstance(s, Site)]
    )
    if strangers:
        raise DataError(
            f"sites must be a list of pc.Site; this is a {type(strangers[0]).__name__}",
            hint='[pc.Site("north", tensor), ...]',
        )
    if not sites:
        raise DataError("no sites given", hint="make a list of pc.Site, for example with pc.from_frame")
    names = [s.name for s in sites]
    duplicates = sorted({n for n in names if names.count(n) > 1})
    if duplicates:
        raise ConfigError(
            "site names must be unique", faults=[f"{n!r} appears {names.count(n)} times" for n in duplicates]
        )
    sites = ordered(sites)
    names = [s.name for s in sites]
    overlap = _overlap(method.params.privacy, sites)
    if method.needs == "features":
        width, columns = _one_matrix(sites)
        return Schema((width,), (), tuple(names), columns, together=True, overlap=overlap)
    reference = _one_tensor({s.name: s.counts() for s in sites})
    return Schema(reference.shape[1:], reference.axes[1:], tuple(names), together=True, overlap=overlap)


def _overlap(asked: Privacy | None, sites: Sequence[Site]) -> str:
    """How it is known at how many sites one patient is. Refuse a guarantee that the patients of one table contradict."""
    if not noisy(asked) or asked.level != "patient":
        return ""
    most = max(s.several for s in sites)
    if most > asked.max_sites_per_patient:
        raise DataError(
            f"one patient is at up to {most} sites, and the study accounts for {asked.max_sites_per_patient}",
            faults=[f"site {s.name!r} has patients of {most} sites" for s in sites if s.several == most],
            hint=f"max_sites_per_patient = {most} adds the noise for it; or keep every patient at one site",
        )
    if shared := _shared_names(sites, asked.max_sites_per_patient):
        doubt = f"assumed, although {shared:,} patient names occur at more sites"  # of different tables: other people?
        warnings.warn(f"one patient is at no more than {asked.max_sites_per_patient} site(s): {doubt}", stacklevel=4)
        return doubt
    return (
        "stated by the owners, or by names within one table; assumed between tables"
        if all(s.several for s in sites)
        else ""
    )


def _shared_names(sites: Sequence[Site], most: int) -> int:
    """How many patient names occur at more than ``most`` sites."""
    names = Counter(p for s in sites if s.tensor is not None for p in set(s.tensor.axes[0].labels or ()))
    return sum(n > most for n in names.values())


def _one_matrix(sites: Sequence[Site]) -> tuple[int, tuple[str, ...] | None]:
    """Number and names of the features that all sites have."""
    widths = {s.name: s.matrix().shape[1] for s in sites}
    if len(set(widths.values())) > 1 and any(s.columns is None for s in sites):
        raise ProtocolMismatch(
            "sites do not fit together",
            faults=[f"{n!r} has {w} features" for n, w in widths.items()],
            hint="give every site the same columns in the same order; data frames say which one is missing",
        )
    columns = next((s.columns for s in one_order(sites) if s.columns is not None), None)
    return max(set(widths.values()), key=list(widths.values()).count), columns


def _one_tensor(tensors: Mapping[str, SparseTensor]) -> SparseTensor:
    """A tensor with the feature modes that all sites have; one that differs from most is a fault."""
    keys = {n: (t.shape[1:], tuple(a.digest() for a in t.axes[1:])) for n, t in tensors.items()}
    common = max(set(keys.values()), key=lambda k: (list(keys.values()).count(k), k))
    faults = []
    for n, (size, digests) in keys.items():
        if len(size) != len(common[0]):
            faults.append(f"{n!r} has {len(size)} feature modes, the others {len(common[0])}")
        elif size != common[0]:
            faults.append(f"{n!r} has feature modes of sizes {size}, the others {common[0]}")
        elif digests != common[1]:
            modes = [a.name for a, x, y in zip(tensors[n].axes[1:], digests, common[1]) if x != y]
            faults.append(f"{n!r} has another vocabulary (or order of codes) in {', '.join(modes)}")
    if faults:
        hint = "call sites = pc.align(sites) first"
        raise ProtocolMismatch("sites do not fit together", faults=faults, hint=hint)
    return next(t for n, t in tensors.items() if keys[n] == common)


def schema_from(tree: JsonMap) -> Schema:
    """The setting as it travels."""
    axes = tuple(Axis.from_json(a) for a in tree["axes"])
    columns = tuple(str(c) for c in tree.get("columns") or ()) or None
    return Schema(tuple(int(x) for x in tree["shape"]), axes, tuple(str(s) for s in tree["sites"]), columns)


# ---- between hosts


def shown(tree: JsonMap) -> bool:
    """Whether what a site says of itself can be read at all."""
    try:
        schema_from({**tree, "sites": ()})
        shape, digests, alignment = tree["shape"], tree["digests"], tree.get("alignment")
        plain = isinstance(shape, list) and all(type(x) is int and x >= 0 for x in shape)
        texts = isinstance(digests, list) and all(isinstance(d, str) for d in digests)
        return plain and texts and isinstance(alignment, str | int | None)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, PolyclinicError):
        return False


def common(order: StudyOrder, known: Mapping[str, JsonMap]) -> dict[str, object]:
    """One setting, from what each site said of itself: that of most sites, if they are enough; the others take no part."""
    groups: dict[str, list[str]] = {}
    for site, tree in known.items():
        if _axes(order, tree) is not None:
            key = json.dumps([tree["shape"], tree["digests"], tree.get("alignment")])
            groups.setdefault(key, []).append(site)
    most = max(groups.values(), key=len, default=[])
    reference = most[0] if most else next(iter(known))
    first, excluded = known[reference], [s for s in known if s not in most]
    if excluded and len(most) < order.least:
        raise ProtocolMismatch(
            f"study {order.id!r}: sites do not fit together",
            faults=[f"{s!r} has another vocabulary, shape or other columns than {reference!r}" for s in excluded],
            hint=""
            if first["axes"]
            else "list what all sites have in [features] columns: a site that lacks one says so",
        )
    shared = {k: first[k] for k in ("shape", "alignment") if k in first}
    axes = _axes(order, first) or []
    return {**shared, "axes": [a.to_json() for a in axes], "sites": sorted(most)}


def _axes(order: StudyOrder, tree: JsonMap) -> list[Axis] | None:
    """The axes that a site speaks of, public ones from the order; None where they are not those of its digests."""
    try:
        axes = [order.axis(a["name"]) if a["vocabulary"] == "public" else Axis.from_json(a) for a in tree["axes"]]
    except (KeyError, TypeError, ValueError, PolyclinicError):
        return None
    return axes if [a.digest() for a in axes] == tree["digests"] else None


def fits(ours: JsonMap, theirs: JsonMap) -> bool:
    """Whether a site, perhaps one that came later, speaks of the same things."""
    equal = theirs.get("alignment") == ours.get("alignment") and list(theirs["shape"]) == list(ours["shape"])
    return equal and theirs["digests"] == [Axis.from_json(a).digest() for a in ours["axes"]]
