"""What a graphics card is given, checked without one: the tables by a twin in numpy, the kernels by NVIDIA's compiler."""

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.tensors.kernels import cuda
from polyclinic.tensors.kernels import cuda_layout as layout
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.kernels.em import stacked_rows


def emulated(copy: Any, factors: Any, size: Any) -> Any:
    """chunk -> partial row -> row, as the kernels do it; outputs start poisoned where something must be written."""
    rank = factors[0].shape[1]
    if copy.entries is not None:
        codes = np.stack([copy.entries[:, 0] & 0xFFFF, copy.entries[:, 0] >> 16]).astype(np.int64)
        values = copy.entries[:, 1].copy().view(np.float32).astype(float)
    else:
        codes, values = copy.codes.astype(np.int64), copy.values
    out = np.zeros((size, rank))
    partial, more = np.full((copy.sums.partials, rank), np.nan), np.full((copy.sums.more, rank), np.nan)
    seen = np.zeros(len(values), int)
    for begin, count, to, base in copy.chunks:
        part = slice(int(np.uint32(begin)), int(np.uint32(begin)) + count)
        seen[part] += 1
        assert 1 <= count <= layout.CHUNK
        product = values[part, None] * np.ones(rank)
        for n, c in zip(copy.others, codes):
            product = product * factors[n][c[part] + (base if n == 0 else 0)]
        (out if to >= 0 else partial)[to if to >= 0 else ~to] = product.sum(0)
    for first, last, to, _ in copy.sums.spans:
        assert last - first <= layout.FAN
        (out if to >= 0 else more)[to if to >= 0 else ~to] = partial[first:last].sum(0)
    for first, last, to, _ in copy.sums.then if copy.sums.then is not None else ():
        out[to] = more[first:last].sum(0)
    assert (seen == 1).all()
    return out


@pytest.mark.parametrize(
    ("shape", "nnz", "fractions"),
    [
        ((300, 40, 30), 20_000, False),
        ((140_000, 12, 5), 60_000, False),  # three tiles
        ((50, 3, 2), 90_000, True),  # float64 values; more partial rows than one go adds
        ((200, 9), 900, False),
        ((60, 5, 7, 4), 3_000, False),
        ((9, 70_000, 3), 500, False),  # codes of 32 bits
        ((40, 6, 6), 0, False),
    ],
)
def test_every_entry_is_in_one_chunk_and_every_partial_row_in_one_sum(
    draw_tensor: Any, shape: tuple[int, ...], nnz: int, fractions: bool
) -> None:
    tensor = draw_tensor(nnz + len(shape), shape, nnz, fractions)
    rng = np.random.default_rng(1)
    factors = [rng.random((d, 3)) for d in shape]
    for mode in range(len(shape)):
        copy = layout.arrange(tensor, mode)
        assert (copy.entries is None) == (len(shape) != 3 or fractions or max(shape[1:]) > 65_536)
        np.testing.assert_allclose(
            emulated(copy, factors, shape[mode]), kernels.mttkrp(tensor, factors, mode), rtol=1e-12
        )


def test_more_partial_rows_than_two_goes_of_one_add_in_order() -> None:
    sums = layout.in_blocks(np.array([3, 300, 1, 20_000]), np.array([7, 1, 2, 0]), np)
    rows = np.arange(20_304.0)
    more = np.zeros(sums.more)
    out = np.zeros(8)
    for first, last, to, _ in sums.spans:
        (out if to >= 0 else more)[to if to >= 0 else ~to] = rows[first:last].sum()
    assert sums.then is not None
    for first, last, to, _ in sums.then:
        out[to] = more[first:last].sum()
    assert out[[7, 1, 2, 0]].tolist() == [rows[:3].sum(), rows[3:303].sum(), rows[303], rows[304:].sum()]


def test_turns_visit_every_entry_once_and_end_every_row(draw_tensor: Any) -> None:
    tensor = draw_tensor(3, (50, 11, 6), 900)
    rows = stacked_rows(tensor)
    tables = layout.turns(tensor, rows)
    assert sorted(np.concatenate([w for _, w in tables.bins])) == list(range(len(tensor.rows)))
    for longest, who in tables.bins:
        assert np.diff(tensor.indptr)[who].max() == longest
    for m in range(2):
        for lo, hi in zip(tensor.indptr, tensor.indptr[1:]):
            word = tables.turns[m, lo:hi]
            entry, last = (word & 0x7FFFFFFF).astype(int), word >> 31
            assert sorted(entry) == list(range(hi - lo))
            home = rows[lo:hi][entry, m]
            assert (np.diff(home) >= 0).all()
            assert last.tolist() == [*(np.diff(home) != 0).astype(int), 1]
            assert all((np.diff(entry[home == h]) > 0).all() for h in set(home))  # stored order within a row


def _nvrtc() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc") if importlib.util.find_spec("nvidia") else None
    found = [] if spec is None else sorted(Path(next(iter(spec.submodule_search_locations))).glob("lib/libnvrtc.so.*"))  # type: ignore[arg-type]
    if not found:
        pytest.skip("NVIDIA's compiler is not installed: pip install nvidia-cuda-nvrtc-cu12")
    return ctypes.CDLL(str(found[0]))


@pytest.mark.parametrize("target", ["compute_80", pytest.param("sm_90", marks=pytest.mark.slow)])
def test_the_kernels_compile_without_a_card(target: str) -> None:
    """Every kernel for ranks 10 and 65 in both precisions, by the compiler that CuPy uses."""
    compiler = _nvrtc()
    names = sorted({n for r in (10, 65) for p in ("float32", "float64") for n in cuda.instances(r, p).values()})
    program = ctypes.c_void_p()
    assert compiler.nvrtcCreateProgram(ctypes.byref(program), cuda.source().encode(), b"kernels.cu", 0, None, None) == 0
    for name in names:
        assert compiler.nvrtcAddNameExpression(program, name.encode()) == 0
    options = [b"-std=c++17", f"--gpu-architecture={target}".encode()]
    code = compiler.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    lowered = ctypes.c_char_p()
    for name in names:
        assert compiler.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)) == 0
