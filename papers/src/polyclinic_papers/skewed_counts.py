"""Count tensors of the shape and skew of hospital data, with known phenotypes inside, at any size.

The law: a patient's activity is lognormal(0, 1.2); codes are Zipf(1.05); each of ten phenotypes raises 3 % of the
codes of every mode forty-fold; a patient mixes three phenotypes with Dirichlet weights; events are drawn until the
wanted number of distinct cells is met, and a cell's value is how often it was drawn. Patients are drawn in blocks, so
that fifty million nonzeros need little memory.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.tensors.sparse import SparseTensor

PHENOTYPES = 10
PER_PATIENT = 3
BLOCK = 4_000_000  # events drawn at a time


def popularity(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """(phenotypes, size) cumulative probability of every code in every phenotype."""
    base = rng.permutation(np.arange(1, size + 1) ** -1.05)
    table = np.repeat(base[None, :], PHENOTYPES, axis=0)
    raised = max(3, int(0.03 * size))
    for row in table:
        row[rng.choice(size, raised, replace=False)] *= 40.0
    return np.cumsum(table / table.sum(1, keepdims=True), axis=1)


class Law:
    """The random parts that all patients share, and a way to draw the events of some of them."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.shape = shape
        rng = np.random.default_rng([seed, *shape])
        activity = rng.lognormal(0.0, 1.2, shape[0])
        self.activity = activity / activity.sum()
        self.mixes = np.argsort(rng.random((shape[0], PHENOTYPES)), axis=1)[:, :PER_PATIENT]
        self.shares = np.cumsum(rng.dirichlet(np.ones(PER_PATIENT), shape[0]), axis=1)
        self.codes = [popularity(rng, d) for d in shape[1:]]

    def draw(self, rng: np.random.Generator, first: int, last: int, events: float) -> tuple[NDArray[np.int64], ...]:
        """Sorted keys of the distinct cells of patients first..last-1, and how often each was drawn."""
        patient = np.repeat(np.arange(first, last), rng.poisson(events * self.activity[first:last]))
        pick = (rng.random(len(patient))[:, None] > self.shares[patient]).sum(1)
        phenotype = self.mixes[patient, np.minimum(pick, PER_PATIENT - 1)]
        key = patient - first
        columns = [np.empty(len(patient), np.int64) for _ in self.codes]
        for q in range(PHENOTYPES):
            patients_of = np.flatnonzero(phenotype == q)
            for column, table in zip(columns, self.codes):
                column[patients_of] = np.minimum(
                    np.searchsorted(table[q], rng.random(len(patients_of))), table.shape[1] - 1
                )
        for column, size in zip(columns, self.shape[1:]):
            key = key * size + column
        return np.unique(key, return_counts=True)


def skewed_counts(shape: tuple[int, ...], nonzeros: int, seed: int = 7) -> SparseTensor:
    """A tensor of exactly ``nonzeros`` distinct cells."""
    law = Law(shape, seed)
    events = 1.3 * nonzeros
    for _ in range(20):  # how many events give a little more than the wanted number of distinct cells
        sample = np.random.default_rng(0)
        heavy = min(shape[0], 2000)
        cells = len(law.draw(sample, 0, heavy, events)[0])
        expected = cells / max(float(law.activity[:heavy].sum()), 1e-12)
        if expected >= 1.02 * nonzeros:
            break
        events *= 1.1 if expected > 0.9 * nonzeros else min(2.0, nonzeros / expected)
    for attempt in range(10):
        parts = _all_patients(law, np.random.default_rng([seed, attempt]), events)
        total = sum(len(p[0]) for p in parts)
        if total >= nonzeros:
            return _assemble(law, parts, total, nonzeros, np.random.default_rng([seed, 99]))
        events *= 1.05 * nonzeros / total
    raise ConfigError(f"{nonzeros:,} distinct cells do not fit into {shape}", hint="ask for fewer")


def _all_patients(law: Law, rng: np.random.Generator, events: float) -> list[tuple[NDArray[np.generic], ...]]:
    edges = [0]
    mass = np.cumsum(law.activity) * events
    while edges[-1] < law.shape[0]:
        start = mass[edges[-1] - 1] if edges[-1] else 0.0
        edges.append(max(edges[-1] + 1, int(np.searchsorted(mass, start + BLOCK))))
    edges[-1] = law.shape[0]
    out: list[tuple[NDArray[np.generic], ...]] = []
    for first, last in pairwise(edges):
        keys, counts = law.draw(rng, first, last, events)
        size = int(np.prod(law.shape[1:]))
        rows = keys // size + first
        remainder = keys % size
        codes = []
        for d in reversed(law.shape[1:]):
            codes.append((remainder % d).astype(np.uint16))
            remainder //= d
        out.append((rows.astype(np.int32), counts.astype(np.uint16), *reversed(codes)))
    return out


def _assemble(
    law: Law, parts: list[tuple[NDArray[np.generic], ...]], total: int, nonzeros: int, rng: np.random.Generator
) -> SparseTensor:
    keep = np.ones(total, bool)
    keep[rng.choice(total, total - nonzeros, replace=False)] = False
    columns = []
    for n in range(len(parts[0])):
        columns.append(np.concatenate([p[n] for p in parts])[keep])
    patient, counts, *codes = columns
    first = np.flatnonzero(np.diff(patient, prepend=-1))
    return SparseTensor.from_layout(
        patient[first].astype(np.int64), np.append(first, len(patient)), codes, counts.astype(np.float64), law.shape
    )
