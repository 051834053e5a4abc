"""Tensors and records drawn for the kernels, of the processor and of a card."""

from typing import Any

import numpy as np
import pytest

from polyclinic.tensors.sparse import SparseTensor


@pytest.fixture(scope="session")
def draw_tensor() -> Any:
    """Codes by a steep law, so that one of them has most of the entries."""

    def draw(seed: int, shape: Any, nnz: Any, fractions: bool = False) -> SparseTensor:
        rng = np.random.default_rng(seed)
        coords = np.stack([rng.integers(0, shape[0], nnz), *(rng.zipf(1.2, nnz) % d for d in shape[1:])], 1)
        values = rng.random(nnz) if fractions else rng.integers(1, 4, nnz).astype(float)
        return SparseTensor(coords, values, shape)

    return draw


@pytest.fixture(scope="session")
def draw_records() -> Any:
    """Patients with repeated codes, a code that no phenotype knows, a patient without events; factors and prior."""

    def draw(seed: int, rank: int, modes: Any) -> Any:
        rng = np.random.default_rng(seed)
        sizes = [23, 17, 9][:modes]
        lengths = np.minimum(rng.geometric(0.1, 60), 40)
        lengths[7] = 0
        coords = np.stack(
            [np.repeat(np.arange(60), lengths), *(rng.geometric(0.05, lengths.sum()) % d for d in sizes)], 1
        )
        tensor = SparseTensor(coords, rng.integers(1, 9, len(coords)).astype(float), (60, *sizes))
        w = np.concatenate([rng.dirichlet(np.full(d, 0.3), rank).T for d in sizes])
        w[2] = 0.0
        return tensor, w, rng.dirichlet(np.ones(rank)) * 2.0

    return draw


@pytest.fixture(scope="session")
def e_step_of_record() -> dict[int, str]:
    """SHA-256 (first 16 digits) of the E-step's sums of three drawn sets: the same on every processor and card."""
    return {101: "33997f5ac20abe4a", 102: "be9b03cd2b7f5e42", 103: "892630407b3358e4"}
