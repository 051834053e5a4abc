"""A vocabulary that is paid for: one patient moves the counts by one at most, and frequent codes are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import ConfigError
from polyclinic.privacy.door import Door
from polyclinic.privacy.mechanism import SimulatedNoise
from polyclinic.privacy.vocabulary import GRID, counts, paid_vocabulary
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

AXES = (Axis("patient"), Axis("drug", vocabulary="public"), Axis("diagnosis", vocabulary="public"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 400))
def test_one_patient_moves_the_counts_by_one_at_most(seed, entries):
    rng = np.random.default_rng(seed)
    coords = np.column_stack([np.zeros(entries, int), rng.integers(0, 50, entries), rng.integers(0, 90, entries)])
    one = counts(SparseTensor(coords, rng.integers(1, 10**9, entries), (1, 50, 90)))
    units = np.concatenate(list(one.arrays.values())) / GRID
    assert np.array_equal(units, np.rint(units))
    whole = [int(u) for u in units]
    assert sum(u * u for u in whole) <= 2**32


def network(patients: int = 3000) -> dict[str, SparseTensor]:
    rng = np.random.default_rng(1)
    made = {}
    for name in ("a", "b"):
        i = np.repeat(np.arange(patients), 4)
        common = rng.integers(0, 5, len(i))
        rare = rng.integers(5, 40, len(i))
        j = np.where(rng.random(len(i)) < 0.9, common, rare)
        made[name] = SparseTensor(
            np.column_stack([i, j, rng.integers(0, 6, len(i))]), np.ones(len(i)), (patients, 40, 6), AXES
        )
    return made


def test_frequent_codes_are_found_and_the_axis_says_paid():
    doors = {n: Door(n, noise=SimulatedNoise(np.random.default_rng(3))) for n in "ab"}
    out = paid_vocabulary(network(), top={1: 5}, epsilon=1.0, patients=10_000, doors=doors)
    assert out["a"].shape == (3000, 5, 6)
    assert out["a"].axes[1].vocabulary == "paid"
    assert out["a"].axes[2].vocabulary == "public"
    whole = network()["a"]
    assert out["a"].nnz == int((whole.coords[:, 1] < 5).sum())
    for door in doors.values():
        assert door.ledger.epsilon(1e-6) == pytest.approx(1.0, abs=1e-6)


def test_codes_within_the_noise_are_left_out():
    few = network(5)
    doors = {n: Door(n, noise=SimulatedNoise(np.random.default_rng(3))) for n in "ab"}
    assert paid_vocabulary(few, top={1: 40}, epsilon=0.1, patients=10, doors=doors)["a"].shape[1] < 8


def test_a_list_already_taken_from_the_data_cannot_be_paid_for_afterwards():
    tensors = {"a": SparseTensor([[0, 0, 0]], [1.0], (1, 2, 2), ("patient", "drug", "diagnosis"))}
    with pytest.raises(ConfigError, match="paid") as e:
        paid_vocabulary(tensors, top={3: 1}, epsilon=1.0, patients=10)
    assert len(e.value.faults) == 3
