"""New patients on a model's codes: by label, whatever the order; and how much of what was recorded the model can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError, ProtocolMismatch
from polyclinic.models.base import Array, Unseen
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.table import Table

NAMED = 5  # unseen codes of a mode that an error names
NDIndex = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Coverage:
    """How much of a hospital's records a model can read.

    Parameters
    ----------
    read, total
        Events (sums of counts) on codes that the model knows, and all of them.
    codes
        Mode -> (codes known, codes that occur here).
    unseen
        Mode -> codes that occur here and that the model does not know, the most frequent first.
    weight
        (R,) part of every phenotype's mass that lies on codes that occur here (product over the modes).
    patients, without
        Patients, and those of them left without an event although they had some.
    """

    read: float
    total: float
    codes: Mapping[str, tuple[int, int]]
    unseen: Mapping[str, tuple[str, ...]]
    weight: Array
    patients: int
    without: int

    @property
    def events(self) -> float:
        """Share of the hospital's events that were read; 1 where there are none."""
        return self.read / self.total if self.total else 1.0

    def table(self) -> Table:
        """What was read, for people."""
        rows: list[list[object]] = [["events read", self.events, f"{self.read:g} of {self.total:g}"]]
        for mode, (known, here) in self.codes.items():
            missing = self.unseen[mode]
            rest_note = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
            rows.append(
                [f"{mode} codes known", known / here if here else 1.0, ", ".join(missing[:NAMED]) + rest_note or "all"]
            )
        if len(self.weight):
            weakest = int(np.argmin(self.weight))
            rows.append(["weakest phenotype's weight seen", float(self.weight[weakest]), f"phenotype {weakest + 1}"])
        rows.append(["patients left without an event", self.without / max(self.patients, 1), str(self.without)])
        return Table(["what", "share", "detail"], rows)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def patients_of(data: object) -> SparseTensor:
    """The tensor of one hospital's patients, or an error that says what to give."""
    if isinstance(data, Sequence) and data and all(isinstance(d, Site) for d in data):
        if len(data) > 1:
            raise DataError(
                f"{len(data)} hospitals are given, expected one at a time",
                hint="[model.transform(site) for site in sites]",
            )
        data = data[0]
    tensor = data.counts() if isinstance(data, Site) else data
    if not isinstance(tensor, SparseTensor):
        from polyclinic.records.sites.frames import which_door

        raise DataError(
            f"patients are a pc.SparseTensor or a pc.Site, not a {type(data).__name__}", hint=which_door(data)
        )
    return tensor


def on_codes(
    tensor: SparseTensor,
    axes: Sequence[Axis],
    factors: Sequence[Array],
    *,
    unseen: Unseen = "error",
    least: float = 0.5,
) -> tuple[SparseTensor, Coverage]:
    """The same patients over the model's codes, found by label; and what was left out.

    Parameters
    ----------
    tensor
        New patients, codes in any order.
    axes, factors
        Of the model.
    unseen
        What to do with codes that the model does not know: refuse (naming them), or leave their events out.
    least
        Share of events below which nothing is placed.
    """
    if unseen not in ("error", "drop"):
        raise ConfigError(f"unseen = {unseen!r} is neither 'error' nor 'drop'")
    tensor = modes_in_order(tensor, axes)
    sizes = tuple(len(f) for f in factors)
    if len(tensor.shape) != len(sizes) + 1:
        raise ProtocolMismatch(
            f"new patients have {len(tensor.shape) - 1} feature modes "
            f"({', '.join(a.name for a in tensor.axes[1:])}), the model {len(sizes)} ({', '.join(a.name for a in axes)})",
            hint="count the same modes as the model: model.axes",
        )
    _refuse_nameless(tensor, axes, sizes)
    maps: list[NDIndex] = []
    codes: dict[str, tuple[int, int]] = {}
    strange: dict[str, tuple[str, ...]] = {}
    for n, (own, axis, size) in enumerate(zip(tensor.axes[1:], axes, sizes), start=1):
        maps.append(_places(own, axis, tensor.shape[n], size))
        codes[axis.name], strange[axis.name] = _found(tensor, n, maps[-1])
    unknown = [_named(mode, s, codes[mode][1]) for mode, s in strange.items() if s]
    if unknown and unseen == "error":
        raise ProtocolMismatch(
            "new patients have codes that the model does not know",
            faults=unknown,
            hint='map them to the model\'s codes (model.axes), or leave their events out: unseen="drop"',
        )
    total, patients_before = float(tensor.values.sum()), len(tensor.rows)
    recoded = _recoded(tensor, maps, axes, sizes)
    cover = Coverage(
        float(recoded.values.sum()),
        total,
        codes,
        strange,
        _weight_seen(recoded, factors),
        tensor.patients,
        patients_before - len(recoded.rows),
    )
    if tensor.nnz and cover.events < least:
        raise ProtocolMismatch(
            f"only {cover.events:.1%} of the new patients' events are on codes that the model knows",
            faults=unknown,
            hint="is this the same vocabulary (ICD-9 or 10, ATC or RxNorm)? map the codes, or lower min_coverage knowingly",
        )
    return recoded, cover


def _found(tensor: SparseTensor, mode: int, target: NDIndex) -> tuple[tuple[int, int], tuple[str, ...]]:
    """(codes known, codes that occur), and the labels of the unknown ones, the most frequent first."""
    count = np.bincount(tensor.codes[mode - 1], tensor.values, tensor.shape[mode])
    occurs = np.bincount(tensor.codes[mode - 1], minlength=tensor.shape[mode]) > 0
    unknown = np.flatnonzero(occurs & (target < 0))
    unknown = unknown[np.argsort(-count[unknown], kind="stable")]
    numbers = int((occurs & (target >= 0)).sum()), int(occurs.sum())
    return numbers, tuple(tensor.axes[mode].label(int(i)) for i in unknown)


def _named(mode: str, strange: Sequence[str], codes: int) -> str:
    return f"{mode}: {len(strange)} of {codes} codes, e.g. {', '.join(map(repr, strange[:NAMED]))}"


def _refuse_nameless(tensor: SparseTensor, axes: Sequence[Axis], sizes: Sequence[int]) -> None:
    """Codes without names are found by their position, so there must be as many as the model has."""
    nameless = [
        f"{axis.name}: {codes} codes without names, the model has {size}"
        for own, axis, codes, size in zip(tensor.axes[1:], axes, tensor.shape[1:], sizes)
        if codes != size and (own.labels is None or axis.labels is None)
    ]
    if nameless:
        raise ProtocolMismatch(
            "new patients cannot be matched to the model's codes",
            faults=nameless,
            hint="give the tensor labels (axes=...), or the model's codes in the model's order",
        )


def _places(own: Axis, axis: Axis, codes: int, size: int) -> NDIndex:
    """(codes,) where each of a hospital's codes stands among the model's ``size``: by label, else by position; -1: nowhere."""
    if own.labels is None or axis.labels is None:
        return np.where(np.arange(codes) < size, np.arange(codes), -1)
    if own.labels == axis.labels:
        return np.arange(size)
    place = {label: i for i, label in enumerate(axis.labels)}
    return np.array([place.get(label, -1) for label in own.labels], np.int64)


def modes_in_order(tensor: SparseTensor, axes: Sequence[Axis]) -> SparseTensor:
    """Modes by name, where both sides have the same names in another order."""
    names, model_names = [a.name for a in tensor.axes[1:]], [a.name for a in axes]
    if names == model_names or sorted(names) != sorted(model_names) or len(set(names)) < len(names):
        return tensor
    order = [0, *(1 + names.index(name) for name in model_names)]
    return SparseTensor(
        tensor.coords[:, order],
        tensor.values,
        [tensor.shape[n] for n in order],
        [tensor.axes[n] for n in order],
    )


def _recoded(tensor: SparseTensor, maps: Sequence[NDIndex], axes: Sequence[Axis], sizes: Sequence[int]) -> SparseTensor:
    unchanged = all(len(m) == size and np.array_equal(m, np.arange(size)) for m, size in zip(maps, sizes))
    if unchanged:
        return tensor
    coords = tensor.coords
    for n, to in enumerate(maps, start=1):
        coords[:, n] = to[coords[:, n]]
    keep = (coords[:, 1:] >= 0).all(1)
    spoken = [
        axis if axis.labels is not None else replace(own, labels=None, names=None)
        for axis, own in zip(axes, tensor.axes[1:])
    ]
    return SparseTensor(coords[keep], tensor.values[keep], (tensor.patients, *sizes), [tensor.axes[0], *spoken])


def _weight_seen(tensor: SparseTensor, factors: Sequence[Array]) -> Array:
    """(R,) mass of a phenotype's cells on codes that occur: the product over modes of the masses of its columns."""
    out = np.ones(factors[0].shape[1])
    for codes, f in zip(tensor.codes, factors):
        present = np.zeros(len(f), bool)
        present[np.unique(codes)] = True
        mass = np.abs(f)
        total = mass.sum(0)
        out *= np.where(total > 0, mass[present].sum(0) / np.where(total > 0, total, 1.0), 1.0)
    return out
