"""The E-step's arithmetic is written down: an oracle in plain Python follows the words, bit for bit."""

import hashlib
from typing import Any

import numpy as np
import pytest
from tests import reference_kernels as oracle

from polyclinic.tensors.kernels import em as em_kernels


@pytest.mark.parametrize(("rank", "modes"), [(1, 2), (5, 2), (8, 1), (13, 3), (20, 2)])
def test_the_e_step_follows_its_specification_to_the_bit(draw_records: Any, rank: int, modes: int) -> None:
    tensor, w, prior = draw_records(rank, rank, modes)
    sums, _ = em_kernels.unit_statistics(tensor, w, prior, steps=8)
    rows = em_kernels.stacked_rows(tensor)
    expected, placed = oracle.unit_statistics(tensor.indptr, rows, tensor.values, w, prior, 8)  # type: ignore[arg-type]
    assert np.array_equal(sums, expected)
    assert np.array_equal(em_kernels.memberships(tensor, w, prior, steps=8)[tensor.rows], placed)


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_the_sums_of_three_generated_sets_are_known(
    draw_records: Any, e_step_of_record: dict[int, str], seed: int
) -> None:
    tensor, w, prior = draw_records(seed, seed - 90, 2)
    sums, _ = em_kernels.unit_statistics(tensor, w, prior, steps=8)
    assert hashlib.sha256(sums.astype("<i8").tobytes()).hexdigest()[:16] == e_step_of_record[seed]
