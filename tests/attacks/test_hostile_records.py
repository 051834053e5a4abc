"""ATTACKS 12: one patient's record, whatever its numbers, neither stops a study nor weighs more than it may."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.methods.moments.moments import in_ball
from polyclinic.tensors.kernels import em as em_kernels
from polyclinic.tensors.kernels import em_loops
from polyclinic.tensors.sparse import SparseTensor

HOSTILE = (5e-324, 1e-310, 1e-305, 1e-160, 0.1, 1.0, 3.0, 1e15, 1e16, 1e300, 1.7e308)


def _length(sums: np.ndarray) -> int:
    return sum(int(x) ** 2 for x in sums.ravel())


@pytest.mark.attack
@pytest.mark.parametrize("count", [5e-324, 1e-305, 1e308])
def test_one_record_with_an_extreme_count_does_not_stop_a_study(count: float) -> None:
    sites = pc.datasets.planted_counts(300, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    t = sites[0].counts()
    more = SparseTensor(
        np.vstack([t.coords, [[t.patients, 0, 0]]]), np.append(t.values, count), (t.patients + 1, *t.shape[1:]), t.axes
    )
    fit = pc.DPEM(rank=3, rounds=2, privacy=pc.Privacy(1.0)).fit([pc.Site(sites[0].name, more), *sites[1:]])
    assert all(np.isfinite(f).all() for f in fit.factors_)


@pytest.mark.attack
def test_no_hostile_patient_is_longer_than_the_sensitivity_and_each_is_counted() -> None:
    rng = np.random.default_rng(3)
    for _ in range(400):
        rows, columns, rank = rng.integers(1, 30), rng.integers(1, 30), rng.integers(1, 9)
        k = int(rng.integers(1, 40))
        cells = np.unique(
            np.column_stack([np.zeros(k, int), rng.integers(0, rows, k), rng.integers(0, columns, k)]), axis=0
        )
        t = SparseTensor(cells, rng.choice(HOSTILE, len(cells)), (1, rows, columns))  # type: ignore[arg-type]
        w = rng.gamma(0.5, size=(rows + columns, rank)) + 1e-6
        broken = bool(rng.integers(2))  # a model that no honest round makes: products underflow, NaN may come out
        w *= rng.choice([1.0, 1e-200, 0.0], size=w.shape) if broken else 1.0
        sums, _ = em_kernels.unit_statistics(t, w, rng.gamma(0.2, size=rank) + 1e-9)
        assert sums.min() >= 0
        assert _length(sums) <= em_kernels.UNIT**2
        # Truncation costs each coordinate less than one step, so the record is there with nearly its whole length.
        assert broken or _length(sums) >= (em_kernels.UNIT - 2 * np.sqrt(sums.size)) ** 2


@pytest.mark.attack
def test_what_breaks_floats_becomes_no_grid_step() -> None:
    """An infinity or NaN is never converted: saturating processors would make 2^63 - 1 of it, whose square wraps to 1."""
    whole = em_loops._whole.py_func
    assert [whole(x, 10.0) for x in (np.nan, -np.inf, -1.0, 0.0, 0.9, 2.7)] == [0, 0, 0, 0, 0, 2]
    assert whole(np.inf, em_kernels.UNIT) == whole(1e300, em_kernels.UNIT) == em_kernels.UNIT


@pytest.mark.attack
def test_every_finite_record_has_a_place_in_the_public_ball() -> None:
    X = np.array([[1e308, 1.0], [-1.7e308, 1.7e308], [5e-324, 0.0], [0.3, 0.4]])
    Z = in_ball(X, 0.0, 0.5)
    assert np.isfinite(Z).all()
    assert (np.linalg.norm(Z, axis=1) <= 1 + 1e-12).all()
    np.testing.assert_allclose(Z, [[1, 0], [-(0.5**0.5), 0.5**0.5], [0, 0], [0.6, 0.8]], atol=1e-12)
