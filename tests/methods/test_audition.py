"""Models of fewer phenotypes within a lifted one: the compiled loop is the written equations, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pytest
from numpy.typing import NDArray

from polyclinic.methods.starts import candidates as audition
from polyclinic.tensors import deterministic as ordered

Array = NDArray[np.float64]


def written(lifted: Sequence[Array], patients: Array, start: Sequence[Array]) -> tuple[float, list[Array]]:
    """Alternating least squares of [[A T, C_1, ..]] to [[A, B_1, ..]] as the equations stand, one product at a time."""
    c, rank, wide = [np.array(f) for f in start], start[0].shape[1], len(patients)

    def times(parts: Sequence[Array], rows: int) -> Array:
        return reduce(np.multiply, parts, np.ones((rows, rank)))

    before, error = np.inf, np.inf
    for _ in range(audition.ITERATIONS):
        inner = [ordered.transposed_product(b, f) for b, f in zip(lifted, c)]
        grams = [ordered.transposed_product(f, f) for f in c]
        turn = ordered.solve(times(grams, rank), times(inner, wide))
        aa = ordered.product(ordered.transposed_product(turn, patients), turn)
        left = ordered.product(patients, turn)
        for m, b in enumerate(lifted):
            g = 0.5 * (aa + aa.T) * times([x for q, x in enumerate(grams) if q != m], rank)
            right = ordered.product(b, left * times([x for q, x in enumerate(inner) if q != m], wide))
            new, length = ordered.unit(ordered.hals(c[m], g, right, 3))
            full = new * length
            error = ordered.inner(ordered.transposed_product(full, full), g) - 2.0 * ordered.inner(full, right)
            c[m] = np.where(length > 0, new, c[m])
            length = np.where(length > 0, length, 1.0)
            aa, left = aa * length[:, None] * length[None, :], left * length
            inner[m], grams[m] = ordered.transposed_product(b, c[m]), ordered.transposed_product(c[m], c[m])
        if abs(before - error) <= 1e-7 * abs(error):
            break
        before = error
    return error, c


@pytest.mark.parametrize(("sizes", "wide", "rank"), [((12, 9), 7, 3), ((8, 6, 5), 9, 6), ((20,), 5, 2)])
@pytest.mark.parametrize("empty", [False, True])
def test_a_reduced_model_is_that_of_the_equations(sizes: tuple[int, ...], wide: int, rank: int, empty: bool) -> None:
    rng = np.random.default_rng(len(sizes))
    lifted = [ordered.unit(rng.random((n, wide)) ** 4)[0] for n in sizes]
    loadings = rng.random((50, wide))
    start = [f[:, :rank].copy() for f in lifted]
    if empty:  # a phenotype that nobody has
        loadings[:, 0] = 0.0
        start[0][:, 0] = 0.0
    patients = ordered.transposed_product(loadings, loadings)
    error, model = audition._reduce(lifted, patients, start)
    other, expected = written(lifted, patients, start)
    assert error == other
    assert [f.tobytes() for f in model] == [f.tobytes() for f in expected]
