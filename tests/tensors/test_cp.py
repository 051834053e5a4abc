"""R x R algebra, matching and memberships."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.errors import DataError
from polyclinic.tensors import SparseTensor, cp, matching
from polyclinic.tensors import observed_only as completion
from polyclinic.tensors.kernels import mttkrp as kernels


def small(seed: int = 0, shape: tuple[int, ...] = (20, 6, 5), entries: int = 150) -> SparseTensor:
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, d, entries) for d in shape], 1)
    return SparseTensor(coords, rng.poisson(2, entries) + 1.0, shape)


def test_least_squares_with_a_dead_column_is_finite_and_zero_there() -> None:
    g = np.diag([2.0, 0.0])
    found = cp.least_squares(g, np.array([[4.0, 0.0]]))
    assert found.tolist() == [[2.0, 0.0]]


def test_memberships_are_the_exact_non_negative_solution_patient_by_patient() -> None:
    from scipy.optimize import nnls

    t = small()
    rng = np.random.default_rng(1)
    b, c = rng.random((6, 3)), rng.random((5, 3))
    design = np.einsum("jr,kr->jkr", b, c).reshape(-1, 3)
    dense = np.zeros(t.shape)
    dense[tuple(t.coords.T)] = t.values
    expected = [nnls(design, row.ravel())[0] for row in dense]
    np.testing.assert_allclose(cp.solve_memberships(t, [b, c], sweeps=500), expected, atol=1e-7)
    free = np.linalg.lstsq(design, dense.reshape(20, -1).T, rcond=None)[0].T
    np.testing.assert_allclose(cp.solve_memberships(t, [b, c], nonnegative=False), free, atol=1e-10)


def test_memberships_over_nonzeros_only_ignore_absent_cells() -> None:
    from scipy.optimize import nnls

    t = small(entries=400)
    rng = np.random.default_rng(1)
    b, c = rng.random((6, 3)), rng.random((5, 3))
    found = completion.memberships(t, [b, c], nonnegative=True, zeros="missing", sweeps=5000)
    coords = t.coords
    for i in (0, 7, 19):
        mine = coords[:, 0] == i
        design = b[coords[mine, 1]] * c[coords[mine, 2]]
        norm = nnls(design, t.values[mine])[1]
        residual = t.values[mine] - design @ found[i]
        assert np.linalg.norm(residual) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_completion_step_never_raises_the_error_and_blocks_do_not_matter(
    mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = small(entries=300)
    rng = np.random.default_rng(1)
    f = [rng.random((d, 3)) for d in t.shape]
    m = kernels.mttkrp(t, f, mode)
    new = completion.solve_mode(t, f, mode, m)
    after = [new if n == mode else x for n, x in enumerate(f)]
    assert kernels.squared_error(t, after) < kernels.squared_error(t, f)
    monkeypatch.setattr(completion, "BLOCK", 2 * 9)
    np.testing.assert_array_equal(completion.solve_mode(t, f, mode, m), new)


def test_match_finds_a_permutation_and_is_optimal_not_greedy() -> None:
    rng = np.random.default_rng(0)
    a = [rng.random((9, 4)), rng.random((7, 4))]
    order = [2, 0, 3, 1]
    found = matching.match(a, [x[:, order] for x in a])
    assert [order[j] for j in found.right] == found.left.tolist()
    np.testing.assert_allclose(found.likeness, 1.0)
    table = np.array([[0.9, 0.8], [0.85, 0.0]])  # greedy takes 0.9 + 0.0
    assert matching.match([np.eye(2)], [np.eye(2)], table).likeness.sum() == pytest.approx(1.65)


def test_match_refuses_models_over_different_codes() -> None:
    with pytest.raises(DataError, match="different modes"):
        matching.match([np.eye(3)], [np.eye(4)])


def test_completion_takes_code_columns_of_mixed_width() -> None:
    t = small(shape=(6, 70_000, 4), entries=60)
    f = [np.ones((d, 1)) for d in t.shape]
    solved = completion.solve_mode(t, f, 0, kernels.mttkrp(t, f, 0))
    means = [t.values[t.coords[:, 0] == i].mean() for i in t.rows]
    np.testing.assert_allclose(solved[t.rows, 0], means)
