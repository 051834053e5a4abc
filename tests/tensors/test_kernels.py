"""Kernels against their plain-numpy twins, for every number of modes, and for any number of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from tests import reference_kernels as oracle

from polyclinic.tensors import SparseTensor, cp
from polyclinic.tensors.kernels import hals, sgd
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.simd import prefetch as ahead

SHAPES = [(30, 7), (30, 7, 9), (30, 4, 5, 6), (12, 3, 4, 2, 3)]


def random_tensor(shape: tuple[int, ...], entries: int = 300, seed: int = 0) -> SparseTensor:
    rng = np.random.default_rng(seed)
    coords = np.stack([rng.integers(0, d, entries) for d in shape], 1)
    coords = coords[coords[:, 0] % 5 != 3]  # some patients have no entries
    return SparseTensor(coords, rng.poisson(2, len(coords)) + 0.5, shape)


def random_factors(shape: tuple[int, ...], rank: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((d, rank)) for d in shape]


@pytest.mark.parametrize(("shape", "rank"), [(SHAPES[0], 3), (SHAPES[1], 10), (SHAPES[2], 3), (SHAPES[3], 1)])
def test_kernels_equal_oracle(shape: tuple[int, ...], rank: int) -> None:
    t, f = random_tensor(shape), random_factors(shape, rank)
    x, v = t.coords, np.array(t.values)
    for mode in range(len(shape)):
        expected = oracle.mttkrp(x, v, shape, f, mode)
        np.testing.assert_allclose(kernels.mttkrp(t, f, mode), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(kernels.model(t, f), oracle.model(x, f), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(kernels.residuals_at(t, f), v - oracle.model(x, f), rtol=1e-11, atol=1e-11)
    inner = float(t.values @ kernels.model(t, f))
    assert inner == pytest.approx(oracle.inner(x, v, f), rel=1e-11)
    assert kernels.squared_error(t, f) == pytest.approx(float(np.square(v - oracle.model(x, f)).sum()), rel=1e-11)
    full = cp.residual_norm_squared(t.norm_squared(), inner, cp.gram(f))
    assert full == pytest.approx(oracle.squared_error_full(x, v, shape, f), rel=1e-10)


def test_rank_above_the_widest_row_is_worked_off_in_even_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [x[:2] for x in kernels._slabs(97)] == [(0, 52), (52, 97)]
    monkeypatch.setattr(kernels, "LARGEST", 3)
    t, f = random_tensor((30, 7, 9)), random_factors((30, 7, 9), 23)
    for mode in range(3):
        expected = oracle.mttkrp(t.coords, np.array(t.values), t.shape, f, mode)
        np.testing.assert_allclose(kernels.mttkrp(t, f, mode), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(kernels.model(t, f), oracle.model(t.coords, f), rtol=1e-11, atol=1e-11)


def test_rows_asked_for_ahead_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    t, f = random_tensor((30, 7, 9)), random_factors((30, 7, 9), 10)
    plain = [kernels.mttkrp(t, f, mode) for mode in range(3)]
    monkeypatch.setattr(ahead, "LARGE", 0)
    monkeypatch.setattr(ahead, "SHORT", 0)
    assert ahead.distance(f[1:]) == ahead.FAR
    for mode in range(3):
        np.testing.assert_array_equal(kernels.mttkrp(t, f, mode), plain[mode])


def test_batch_of_patients_is_the_tensor_of_those_patients() -> None:
    t, f = random_tensor((30, 7, 9)), random_factors((30, 7, 9), 10)
    rows = np.array([5, 0, 11])
    part = t.take(t.rows[rows])
    own = [f[0][t.rows[rows]], *f[1:]]
    for mode in range(3):
        np.testing.assert_array_equal(kernels.mttkrp(t, own, mode, rows=rows), kernels.mttkrp(part, own, mode))
    assert kernels.mttkrp(t, own, 0, rows=rows[:0]).shape == (0, 10)
    np.testing.assert_array_equal(kernels.model(t, own, rows=rows), kernels.model(part, own))


def test_wide_code_mode_uses_32_bit_columns() -> None:
    shape = (6, 70_000, 3)
    t, f = random_tensor(shape, 200), random_factors(shape, 10)
    assert t.codes[0].dtype == np.int32
    assert t.codes[1].dtype == np.uint16
    for mode in range(3):
        expected = oracle.mttkrp(t.coords, np.array(t.values), shape, f, mode)
        np.testing.assert_allclose(kernels.mttkrp(t, f, mode), expected, rtol=1e-12, atol=1e-12)


def test_same_bits_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CHUNK", 64)  # many chunks even in a small tensor
    t, f = random_tensor((60, 7, 9), 4000), random_factors((60, 7, 9), 10)
    for mode in range(3):
        one = kernels.mttkrp(t, f, mode, threads=1)
        for threads in (2, 3, 8):
            np.testing.assert_array_equal(one, kernels.mttkrp(t, f, mode, threads=threads))
    assert len({kernels.squared_error(t, f, threads=n) for n in (1, 2, 3)}) == 1


def test_empty_tensor_has_empty_products() -> None:
    t = SparseTensor(np.empty((0, 3)), [], (4, 2, 3))
    f = random_factors(t.shape, 10)
    for mode in range(3):
        assert not kernels.mttkrp(t, f, mode).any()
    assert not len(kernels.model(t, f))
    assert kernels.squared_error(t, f) == 0.0


@pytest.mark.parametrize("nonnegative", [True, False])
@pytest.mark.parametrize("l21", [None, 3.0])
def test_hals_equals_oracle(nonnegative: bool, l21: float | None) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((20, 7))
    a, g, m = rng.random((101, 7)), x.T @ x, 5 * rng.standard_normal((101, 7))
    expected = oracle.hals(a, g, m, 2, nonnegative, l21 or 0.0)
    found = hals.hals(a, g, m, sweeps=2, nonnegative=nonnegative, l21=l21)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_hals_converges_to_the_non_negative_least_squares_solution() -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(0)
    x, y = rng.random((20, 5)), rng.standard_normal((3, 20))
    found = hals.hals(np.zeros((3, 5)), x.T @ x, y @ x, sweeps=2000)
    np.testing.assert_allclose(found, [nnls(x, row)[0] for row in y], atol=1e-8)


def test_hals_leaves_a_dead_column_and_large_l21_turns_columns_off() -> None:
    g, m, a = np.diag([1.0, 0.0]), np.array([[2.0, 0.0]]), np.array([[1.0, 7.0]])
    assert hals.hals(a, g, m).tolist() == [[2.0, 7.0]]
    assert hals.hals(a, np.eye(2), np.array([[2.0, 0.5]]), l21=1.0).tolist() == [[1.0, 0.0]]


def test_prox_of_l21_equals_oracle() -> None:
    m = np.random.default_rng(0).standard_normal((9, 4)) * [0.1, 1, 2, 3]
    np.testing.assert_allclose(cp.shrink_columns(m, 1.5), oracle.shrink_columns(m, 1.5), atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "clip", "pulled"),
    [((30, 7, 9), c, p) for c in (None, 0.5) for p in (False, True)]
    + [((30, 7), 0.5, True), ((30, 4, 5, 6), 0.5, True)],
)
def test_sgd_epoch_equals_oracle(shape: tuple[int, ...], clip: float | None, pulled: bool) -> None:
    rng = np.random.default_rng(2)
    t = random_tensor(shape)
    f = [rng.random((d, 3)) for d in shape]
    anchors = [rng.random((d, 3)) for d in shape[1:]] if pulled else None
    pulls = [rng.random(d) for d in shape[1:]] if pulled else None
    entries = sgd.shuffle(t, np.random.default_rng(3))
    found, error = sgd.epoch(entries, f, learning_rate=0.01, clip=clip, anchors=anchors, pulls=pulls)
    expected, total = oracle.sgd_epoch(entries.where, entries.values, f, 0.01, True, clip, anchors, pulls)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    assert error == pytest.approx(total, rel=1e-11)


def test_sgd_elastic_pull_once_a_pass_or_once_an_observation() -> None:
    coords = [[i, 0, 0] for i in range(50)]
    t = SparseTensor(coords, np.ones(50), (50, 1, 1))
    zero, one = [np.zeros((50, 1)), np.ones((1, 1)), np.zeros((1, 1))], [np.zeros((1, 1))] * 2
    rng = np.random.default_rng
    kept, _ = sgd.sgd_epoch(t, zero, learning_rate=0.1, rng=rng(0), anchors=one, elastic=0.5)
    paper, _ = sgd.sgd_epoch(t, zero, learning_rate=0.1, rng=rng(0), anchors=one, elastic=0.5, variant="paper")
    assert kept[1][0, 0] == pytest.approx((1 - 0.05 / 50) ** 50)  # ERRATA E0.6: about one elastic step a pass
    assert paper[1][0, 0] == pytest.approx(0.95**50)  # 7.7 % of the local factor is left


def test_shuffle_keeps_every_entry_and_mixes_evenly() -> None:
    n = 40_000
    t = SparseTensor(np.stack([np.arange(n), np.arange(n) % 7], 1), np.arange(n) + 1.0, (n, 7))
    a = sgd.shuffle(t, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(a.values), t.values)
    np.testing.assert_array_equal(a.where[0], a.values - 1)
    np.testing.assert_array_equal(a.where[1], a.where[0] % 7)
    place = np.empty(n)
    place[a.where[0]] = np.arange(n)
    assert abs(np.corrcoef(place, np.arange(n))[0, 1]) < 4 / np.sqrt(n)
    assert abs(np.corrcoef(place[1:], place[:-1])[0, 1]) < 4 / np.sqrt(n)
    b = sgd.shuffle(t, np.random.default_rng(1))
    assert (a.values == b.values).mean() < 0.01


def test_small_shuffles_are_uniform_over_all_orders() -> None:
    t = SparseTensor([[0, 0], [0, 1], [0, 2]], [1.0, 2.0, 3.0], (1, 3))
    rng = np.random.default_rng(0)
    seen: dict[tuple[float, ...], int] = {}
    for _ in range(6000):
        order = tuple(sgd.shuffle(t, rng).values.tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert max(abs(c - 1000) for c in seen.values()) < 5 * np.sqrt(1000 * 5 / 6)


def test_layout_costs_twelve_bytes_a_nonzero_and_four_a_patient() -> None:
    """Who has entries is kept only where some have none: a bit each, or a list where most have none."""
    some = random_tensor((30, 7, 9), 3000)
    t = some.take(some.rows)
    n = t.patients
    assert t.rows.tolist() == list(range(n))
    assert t.nbytes == 12 * t.nnz + 4 * (n + 1)
    gap = SparseTensor(np.add(t.coords, [1, 0, 0]), t.values, (n + 1, 7, 9))
    assert gap.rows.tolist() == list(range(1, n + 1))
    assert gap.nbytes == t.nbytes + -(-(n + 1) // 8)
    lonely = SparseTensor([[10**9, 1, 1]], [2.0], (10**10, 7, 9))
    assert lonely.rows.tolist() == [10**9]
    assert lonely.nbytes == 12 + 8 + 8
    assert np.array_equal(gap[1:].coords, t.coords)
    assert gap[1:].nbytes == t.nbytes


@pytest.mark.slow
def test_read_only_install_still_compiles() -> None:
    """A package folder and a home that cannot be written: kernels compile and run, cached in a temporary folder."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write anywhere, and there is no setpriv to take that right away")
    base = Path(tempfile.mkdtemp())
    source = Path(kernels.__file__).resolve().parents[2]
    shutil.copytree(source, base / "site" / "polyclinic", ignore=shutil.ignore_patterns("__pycache__"))
    (base / "scratch").mkdir()
    (base / "home").mkdir(mode=0o555)
    for folder, _, files in os.walk(base / "site"):
        for name in files:
            os.chmod(Path(folder) / name, 0o444)
        os.chmod(folder, 0o555)
    os.chmod(base, 0o755)
    os.chmod(base / "scratch", 0o777)
    code = (
        "import polyclinic as pc; t = pc.SparseTensor([[0, 0, 0]], [1.0], (1, 1, 1));"
        "print(pc.__file__, pc.CPALS(rank=1).fit(t).quality(t)['fit'])"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(base / "site"),
        "HOME": str(base / "home"),
        "TMPDIR": str(base / "scratch"),
    }
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code]
    if os.geteuid() == 0:  # root may write anywhere, unless that right is taken away
        command = ["setpriv", "--bounding-set", "-dac_override,-fowner", *command]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, cwd=base)
    written = {p.relative_to(base).parts[0] for p in base.rglob("*.nbi")}
    for folder, _, _ in os.walk(base / "site"):
        os.chmod(folder, 0o755)
    shutil.rmtree(base, ignore_errors=True)
    assert out.returncode == 0, out.stderr
    where, fit = out.stdout.split()
    assert str(base) in where
    assert written == {"scratch"}
    assert float(fit) == pytest.approx(1.0, abs=1e-3)
