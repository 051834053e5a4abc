"""A vocabulary that is paid for: one patient moves the counts by one at most, and frequent codes are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.vocabulary import GRID, counts, paid_vocabulary
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

AXES = (Axis("patient"), Axis("drug", vocabulary="public"), Axis("diagnosis", vocabulary="public"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400))
def test_one_patient_moves_the_counts_by_one_at_most(seed: int, entries: Any) -> None:
    rng = np.random.default_rng(seed)
    coords = np.column_stack([np.zeros(entries, int), rng.integers(0, 50, entries), rng.integers(0, 90, entries)])
    one = counts(SparseTensor(coords, rng.integers(1, 10**9, entries), (1, 50, 90)))
    units = np.concatenate(list(one.arrays.values())) / GRID
    assert np.array_equal(units, np.rint(units))
    whole = [int(u) for u in units]
    assert sum(u * u for u in whole) <= 2**32


def network(patients: int = 3000) -> list[Site]:
    rng = np.random.default_rng(1)
    made = []
    for name in ("a", "b"):
        i = np.repeat(np.arange(patients), 4)
        common = rng.integers(0, 5, len(i))
        rare = rng.integers(5, 40, len(i))
        j = np.where(rng.random(len(i)) < 0.9, common, rare)
        coords = np.column_stack([i, j, rng.integers(0, 6, len(i))])
        made.append(
            Site(name, SparseTensor(coords, np.ones(len(i)), (patients, 40, 6), AXES), labels=np.zeros(patients))
        )
    return made


def test_frequent_codes_are_found_and_the_axis_says_paid() -> None:
    doors = {n: ReleaseGate(n, noise=SimulatedNoise(np.random.default_rng(3))) for n in "ab"}
    out = paid_vocabulary(network(), top={1: 5}, epsilon=1.0, patients=10_000, doors=doors)
    kept = out[0].counts()
    assert kept.shape == (3000, 5, 6)
    assert [a.vocabulary for a in kept.axes[1:]] == ["paid", "public"]
    whole = network()[0].counts()
    assert kept.nnz == int((whole.coords[:, 1] < 5).sum())
    assert len(out[0].labels) == 3000  # type: ignore[arg-type]
    for door in doors.values():
        assert door.ledger.epsilon(1e-6) == pytest.approx(1.0, abs=1e-6)


def test_codes_within_the_noise_are_left_out() -> None:
    few = network(5)
    doors = {n: ReleaseGate(n, noise=SimulatedNoise(np.random.default_rng(3))) for n in "ab"}
    assert paid_vocabulary(few, top={1: 40}, epsilon=0.1, patients=10, doors=doors)[0].counts().shape[1] < 8


def test_a_list_already_taken_from_the_data_cannot_be_paid_for_afterwards() -> None:
    sites = [Site("a", SparseTensor([[0, 0, 0]], [1.0], (1, 2, 2), ("patient", "drug", "diagnosis")))]
    with pytest.raises(ConfigError, match="paid") as e:
        paid_vocabulary(sites, top={3: 1}, epsilon=1.0, patients=10)
    assert len(e.value.faults) == 3
