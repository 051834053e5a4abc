"""The card against plain numpy: MTTKRP, HALS, Grams, whole fits, and DPEM's whole numbers bit for bit."""

import hashlib
from typing import Any

import numpy as np
import pytest
from tests import reference_kernels as oracle

from polyclinic.tensors.als_sweep import Processor, sweep
from polyclinic.tensors.kernels import cuda
from polyclinic.tensors.kernels.em import UNIT, stacked_rows
from polyclinic.tensors.sparse import SparseTensor


@pytest.fixture(scope="module", autouse=True)
def card() -> Any:
    """Where there is no card the tests skip with CuPy's own reason."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: pip install polyclinic[cuda13]")
    try:
        return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except cupy.cuda.runtime.CUDARuntimeError as e:
        pytest.skip(f"no CUDA device: {e}")


SHAPES = [
    ((300, 40, 30), 20_000, False),
    ((140_000, 12, 5), 60_000, False),
    ((50, 3, 2), 90_000, True),
    ((200, 9), 900, False),
    ((60, 5, 7, 4), 3_000, False),
    ((9, 70_000, 3), 500, False),
    ((1, 6, 6), 20, False),
    ((40, 6, 6), 0, False),
]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("rank", [1, 7, 21, 50, 65, 130])
@pytest.mark.parametrize(("shape", "nnz", "fractions"), SHAPES)
def test_mttkrp_of_every_mode(
    draw_tensor: Any, shape: Any, nnz: Any, fractions: Any, rank: int, precision: str
) -> None:
    tensor = draw_tensor(nnz + rank, shape, nnz, fractions)
    rng = np.random.default_rng(rank)
    factors = [rng.random((d, rank)) for d in shape]
    work = cuda.GraphicsCard(cuda.DeviceTensor(tensor), rank, precision)  # type: ignore[arg-type]
    there = [work.put(f) for f in factors]
    for mode in range(len(shape)):
        found = work.mttkrp(there, mode).copy()
        again = cuda.GraphicsCard(cuda.DeviceTensor(tensor), rank, precision).mttkrp(there, mode)  # type: ignore[arg-type]
        assert (found == again).all()  # the same bits
        assert not found[:, rank:].any()
        expected = oracle.mttkrp(tensor.coords, tensor.values, shape, factors, mode)
        top = max(np.abs(expected).max(initial=0.0), 1e-300)
        assert np.abs(work.get(found) - expected).max(initial=0.0) <= TOLERANCE[precision] * top


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(("rows", "rank"), [(1, 1), (3, 7), (5_000, 21), (300_000, 10), (1_025, 65), (700, 128)])
def test_grams_and_least_squares(draw_tensor: Any, rows: int, rank: int, precision: str) -> None:
    rng = np.random.default_rng(rows + rank)
    a, m = rng.random((rows, rank)), rng.random((rows, rank)) * rank
    other = rng.random((rank + 5, rank))
    gram = other.T @ other
    if rank > 5:
        gram[3] = gram[:, 3] = 0.0  # a dead column stays as it is
    work = cuda.GraphicsCard(cuda.DeviceTensor(draw_tensor(1, (4, 3, rows), 9)), rank, precision)  # type: ignore[arg-type]
    tolerance = TOLERANCE[precision]
    np.testing.assert_allclose(work.gram(work.put(a)), a.T @ a, rtol=tolerance)
    scale = rng.random(rank) + 0.5
    inside, length = work.put(a), np.linalg.norm(a, axis=0)
    three = [work.put(rng.random((4, rank))), work.put(rng.random((3, rank))), inside]
    gram_of, inner, _ = work.close(three, 2, inside, work.put(m), scale)
    np.testing.assert_allclose(gram_of, a.T @ a, rtol=tolerance)
    assert inner == pytest.approx(float((a * m * scale).sum()), rel=tolerance)
    np.testing.assert_allclose(work.get(inside), a / length, rtol=tolerance)
    found = work.get(work.hals(work.put(a), gram, work.put(m), scale, sweeps=3, ridge=0.0))
    np.testing.assert_allclose(found, oracle.hals(a, gram, m * scale, 3), rtol=100 * tolerance, atol=100 * tolerance)
    steepest = float(np.linalg.norm(gram, 2))
    found = work.get(work.descend(work.put(a), gram, work.put(m), scale, steepest))
    np.testing.assert_allclose(found, np.maximum(a - (a @ gram - m * scale) / steepest, 0), atol=100 * tolerance)


class Numpy(Processor):
    """A workplace in plain numpy."""

    def mttkrp(self, factors: Any, mode: Any) -> Any:
        return oracle.mttkrp(self.tensor.coords, self.tensor.values, self.tensor.shape, factors, mode)

    def hals(self, factor: Any, gram: Any, m: Any, scale: Any, *, sweeps: Any, ridge: Any) -> Any:
        return oracle.hals(factor, gram + ridge * np.eye(len(gram)), m * scale, sweeps)


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_twenty_sweeps_end_where_numpy_ends_and_twice_in_the_same_bits(
    draw_tensor: Any, precision: str, tolerance: float
) -> None:
    tensor = draw_tensor(5, (3_000, 40, 30), 60_000)
    rng = np.random.default_rng(2)
    start = [np.zeros((3_000, 10)), rng.random((40, 10)), rng.random((30, 10))]

    def run(work: Any, factors: Any) -> Any:
        errors, swept = [], None
        for k in range(20):

            def update(n: int, factor: Any, g: Any, m: Any, scale: Any, first: bool = not k) -> Any:
                ridge = 1e-10 * float(np.trace(g)) / 10
                return work.hals(factor, g, m, scale, sweeps=10 if first and n == 0 else 3, ridge=ridge)

            swept = sweep(work, factors, tensor.norm_squared(), update, before=swept)
            errors.append(swept.sse)
        return errors

    work = cuda.GraphicsCard(cuda.DeviceTensor(tensor), 10, precision)  # type: ignore[arg-type]
    first, second = ([work.put(f) for f in start] for _ in range(2))
    errors = run(work, first)
    assert errors == run(work, second)
    assert all((a == b).all() for a, b in zip(first, second))
    plain = [f.copy() for f in start]
    np.testing.assert_allclose(errors, run(Numpy(tensor, 10), plain), rtol=tolerance)
    for a, b in zip(first, plain):
        np.testing.assert_allclose(work.get(a), b, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize(("rank", "modes"), [(1, 2), (5, 2), (8, 1), (13, 3), (20, 2), (65, 2)])
def test_the_e_step_is_the_specification_to_the_bit(draw_records: Any, rank: int, modes: int) -> None:
    tensor, w, prior = draw_records(rank, rank, modes)
    there = cuda.DeviceTensor(tensor)
    sums, _ = cuda.unit_statistics(there, w, prior, steps=8)
    expected, placed = oracle.unit_statistics(tensor.indptr, stacked_rows(tensor), tensor.values, w, prior, 8)  # type: ignore[arg-type]
    assert np.array_equal(sums, expected)
    assert np.array_equal(cuda.memberships(there, w, prior, steps=8)[tensor.rows], placed)


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_the_sums_of_the_generated_sets_are_the_processors(
    draw_records: Any, e_step_of_record: dict[int, str], seed: int
) -> None:
    tensor, w, prior = draw_records(seed, seed - 90, 2)
    sums, _ = cuda.unit_statistics(cuda.DeviceTensor(tensor), w, prior, steps=8)
    assert hashlib.sha256(sums.astype("<i8").tobytes()).hexdigest()[:16] == e_step_of_record[seed]


def test_no_hostile_patient_is_longer_than_the_sensitivity() -> None:
    rng = np.random.default_rng(7)
    odd = [5e-324, 1e-320, 1e-305, 1e-150, 1e-9, 1.0, 3.0, 1e15, 1e38, 1e300, 1.7e308]
    for case in range(200):
        rank, n = int(rng.integers(1, 30)), int(rng.integers(1, 60))
        coords = np.unique(np.stack([np.zeros(n, int), rng.integers(0, 9, n), rng.integers(0, 7, n)], 1), axis=0)
        tensor = SparseTensor(coords, rng.choice(odd, len(coords)), (1, 9, 7))
        w = rng.dirichlet(np.ones(16), rank).T.copy()
        if case % 3 == 1:
            w[rng.integers(0, 16), :] = rng.choice([np.inf, np.nan, 0.0, 1e300, 5e-324])
        sums, _ = cuda.unit_statistics(cuda.DeviceTensor(tensor), w, rng.gamma(0.2, size=rank) + 1e-9, steps=8)
        assert sums.min() >= 0
        assert sum(int(k) ** 2 for k in sums.ravel()) <= UNIT**2
