"""Choosing the codes of a mode privately: noisy counts, and the most frequent ones. The paid way to a vocabulary.

A list of codes taken from the data tells who has a rare code. A public dictionary costs nothing; where only a part of
it can be used, each site counts its patients per code, the counts are added with noise, and the largest are kept.
What is kept is a function of the noisy counts only, so the axis may be called ``paid``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.entries import Entry
from polyclinic.privacy.release import Array, Contribution, Step
from polyclinic.records.sites.site import Site
from polyclinic.tensors.sparse import SparseTensor

GRID = 2.0**-16


@dataclass(frozen=True)
class Chosen:
    """The codes of one mode that were kept, with their noisy counts."""

    mode: int
    codes: NDArray[np.int64]
    noisy: Array
    sd: float


def count_step(
    shape: tuple[int, ...], *, epsilon: float, delta: float, patients: int, sites_per_patient: int = 1
) -> Step:
    """The one release: patients per code, all feature modes together.

    Parameters
    ----------
    shape
        Sizes of the feature modes (of the public dictionaries).
    epsilon, delta
        What is spent on the vocabulary.
    patients
        A public upper bound on the patients of a site.
    """
    return Step(
        0,
        "vocabulary",
        {f"mode{n}": (size,) for n, size in enumerate(shape, start=1)},
        bound=float(patients),
        sensitivity=1.0,
        multiplier=calibrate(epsilon, delta)[0],
        grid=GRID,
        counts=False,
        sites_per_patient=sites_per_patient,
    )


def counts(tensor: SparseTensor) -> Contribution:
    """Each patient's presence vector over all codes, scaled to length 1 at most, summed on the grid.

    A patient with c codes in all modes together counts 1/sqrt(c) for each, truncated toward zero, so that one patient
    moves the whole release by 1 at most, whatever is in the record.
    """
    row = np.repeat(np.arange(len(tensor.rows)), np.diff(tensor.indptr))
    parts = [_pairs(row, column) for column in tensor.codes]  # who has which code, once
    held = sum((np.bincount(p[:, 0], minlength=len(tensor.rows)) for p in parts), np.zeros(len(tensor.rows), np.int64))
    units = np.floor(1 / (np.sqrt(np.maximum(held, 1)) * GRID)).astype(np.int64)
    # the root is rounded: make sure in exact integers that c u^2 <= 2^32
    units -= (held * units * units > int(1 / GRID) ** 2).astype(np.int64)
    arrays: dict[str, Array] = {}
    for n, (p, size) in enumerate(zip(parts, tensor.shape[1:]), start=1):
        total = np.zeros(size, np.int64)
        np.add.at(total, p[:, 1], units[p[:, 0]])
        arrays[f"mode{n}"] = total.astype(np.float64) * GRID
    return Contribution(arrays)


def _pairs(row: NDArray[np.int64], column: NDArray[np.int64]) -> NDArray[np.int64]:
    pairs: NDArray[np.int64] = np.unique(np.column_stack([row, column.astype(np.int64)]), axis=0)
    return pairs


def choose(noisy: Mapping[str, Array], *, top: Mapping[int, int], sd: float, z: float = 2.0) -> list[Chosen]:
    """The largest noisy counts of each mode; those within ``z`` standard deviations of zero are left out."""
    chosen = []
    for mode, k in sorted(top.items()):
        values = noisy[f"mode{mode}"]
        best = np.argsort(-values, kind="stable")[:k]
        best = np.sort(best[values[best] > z * sd])
        chosen.append(Chosen(mode, best.astype(np.int64), values[best], sd))
    return chosen


def paid_vocabulary(
    sites: Sequence[Site],
    *,
    top: Mapping[int, int],
    epsilon: float,
    delta: float = 1e-6,
    patients: int,
    doors: Mapping[str, ReleaseGate] | None = None,
    sites_per_patient: int = 1,
) -> list[Site]:
    """Keep the most frequent codes of each mode, chosen from noisy counts that pass every site's door.

    Each site adds the full noise, so this costs no secure sum.

    Parameters
    ----------
    sites
        Sites whose tensors are over the same public dictionaries.
    top
        Feature mode (1, 2, ...) -> how many codes to keep at most; other modes stay whole.
    epsilon, delta
        Spent on this, on top of the study's own budget.
    patients
        A public upper bound on the patients of a site.
    doors
        The sites' doors; default: new ones in memory, with simulated noise.
    sites_per_patient
        At how many sites one patient may appear.

    Returns
    -------
    list of Site
        The same sites over the kept codes; their axes say ``paid``.
    """
    tensors = {s.name: s.counts() for s in sites}
    shape = _shape(tensors, top)
    step = count_step(shape, epsilon=epsilon, delta=delta, patients=patients, sites_per_patient=sites_per_patient)
    total = {name: np.zeros(size) for name, size in step.shapes.items()}
    lines: dict[str, tuple[Entry, ...]] = {}
    for name in sorted(tensors):
        gate = (doors or {}).get(name) or ReleaseGate(name)
        first = gate.ledger.count
        gate.begin()
        out = gate.release(step, counts(tensors[name]), share=1.0)
        lines[name] = tuple(e for e in gate.ledger.entries[first:] if e.charge is not None and gate.wrote(e.charge))
        total = {k: v + out.arrays[k] for k, v in total.items()}
    kept = choose(total, top=top, sd=step.noise_sd * math.sqrt(len(tensors)))
    return [replace(s, tensor=_restricted(s.counts(), kept), builds_on=(*s.builds_on, *lines[s.name])) for s in sites]


def _shape(tensors: Mapping[str, SparseTensor], top: Mapping[int, int]) -> tuple[int, ...]:
    """Sizes of the feature modes, refused where sites differ in them or codes were taken from the data."""
    shapes = {t.shape[1:] for t in tensors.values()}
    if len(shapes) != 1:
        raise ConfigError(
            "the sites' tensors are not over the same dictionaries",
            faults=[f"{n!r}: feature modes {t.shape[1:]}" for n, t in sorted(tensors.items())],
        )
    shape = shapes.pop()
    from_data = sorted({a.name for t in tensors.values() for a in t.axes[1:] if a.vocabulary == "data"})
    faults = [f"mode {m}: there are {len(shape)} feature modes" for m in top if not 1 <= m <= len(shape)]
    faults += [f"{n!r}: its list of codes was taken from the data already" for n in from_data]
    if faults:
        raise ConfigError("the vocabulary cannot be paid for", faults=faults, hint="start from public dictionaries")
    return shape


def _restricted(tensor: SparseTensor, kept: list[Chosen]) -> SparseTensor:
    coords, values = tensor.coords, tensor.values
    shape, axes = list(tensor.shape), list(tensor.axes)
    use = np.ones(len(values), bool)
    coords = coords.copy()
    for c in kept:
        place = np.full(shape[c.mode], -1, np.int64)
        place[c.codes] = np.arange(len(c.codes))
        coords[:, c.mode] = place[coords[:, c.mode]]
        use &= coords[:, c.mode] >= 0
        shape[c.mode] = len(c.codes)
        old = axes[c.mode]
        axes[c.mode] = replace(
            old,
            labels=None if old.labels is None else tuple(old.labels[i] for i in c.codes),
            names=None if old.names is None else tuple(old.names[i] for i in c.codes),
            vocabulary="paid",
        )
    return SparseTensor(coords[use], values[use], shape, axes)
