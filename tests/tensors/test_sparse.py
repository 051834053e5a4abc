"""pc.SparseTensor: layout, faults, parts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic import Axis, SparseTensor
from polyclinic.errors import DataError


def dense(t: SparseTensor) -> np.ndarray:
    out = np.zeros(t.shape)
    np.add.at(out, tuple(t.coords.T), t.values)
    return out


@given(st.integers(2, 5), st.integers(0, 30), st.integers(0, 2**32 - 1))
def test_layout_holds_the_sum_of_duplicates_in_any_order(modes: int, entries: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(x) for x in rng.integers(1, 5, modes))
    coords = np.column_stack([rng.integers(0, d, entries) for d in shape]) if entries else np.empty((0, modes), int)
    values = rng.integers(-2, 3, entries).astype(float)
    expected = np.zeros(shape)
    np.add.at(expected, tuple(coords.T), values)
    t = SparseTensor(coords, values, shape)
    assert np.array_equal(dense(t), expected)
    assert t.nnz == np.count_nonzero(expected)
    order = rng.permutation(entries)
    assert SparseTensor(coords[order], values[order], shape) == t


def test_three_modes_cost_twelve_bytes_a_nonzero() -> None:
    rng = np.random.default_rng(0)
    coords = np.column_stack([rng.integers(0, 50, 20_000), rng.integers(0, 3000, 20_000), rng.integers(0, 300, 20_000)])
    t = SparseTensor(coords, np.ones(20_000), (50, 3000, 300))
    assert sum(c.nbytes for c in t.codes) + t.values.nbytes == 12 * t.nnz
    assert t.nbytes < 12.1 * t.nnz


def test_wide_modes_fall_back_to_32_bit() -> None:
    t = SparseTensor([[0, 70_000]], [1.0], (1, 70_001))
    assert t.codes[0].dtype == np.int32 and t.coords.tolist() == [[0, 70_000]]


def test_huge_shapes_never_allocate_densely() -> None:
    t = SparseTensor([[10**11, 10**9 - 1, 5]], [2.0], (10**12, 10**9, 10**9))
    assert t.nnz == 1 and t.nbytes < 200


def test_frozen() -> None:
    t = SparseTensor([[0, 0]], [1.0], (1, 1))
    with pytest.raises(AttributeError, match="frozen"):
        t.shape = (2, 2)
    with pytest.raises(ValueError, match="read-only"):
        t.values[0] = 3.0


def test_every_fault_is_named_with_row_and_value() -> None:
    with pytest.raises(DataError) as e:
        SparseTensor([[0, -1, 9], [0, 1, 2]], [np.nan, np.inf], (4, 0, 3), axes=[None, ["a"], ["a"] * 4])
    text = str(e.value)
    for part in (
        "mode 1 has size 0",
        "4 labels, more than its 3",
        "row 0, mode 1: index -1 is negative",
        "row 0, mode 2: index 9",
    ):
        assert part in text
    assert "values: row 0 is nan" in text and "values: row 1 is inf" in text


@pytest.mark.parametrize(
    ("coords", "values", "shape", "words"),
    [
        ([[0, 0]], [1.0], (1, 2**31), "more than a 32-bit index"),
        ([[0, 0]], [1.0], (2**63, 1), "overflow"),
        ([[0, 0]], [1.0], (3,), "1 modes, allowed are 2 to 8"),
        ([[0] * 9], [1.0], (1,) * 9, "9 modes"),
        ([[0, 0.5]], [1.0], (1, 1), "not whole numbers"),
        ([[0, 0], [0]], [1.0, 2.0], (1, 1), "rows of different length"),
        ([[0, 0, 0]], [1.0], (1, 1), "expected (nonzeros, 2)"),
        ([[0, 0]], [1.0, 2.0], (1, 1), "expected (1,)"),
        ([[0, 0]], ["x"], (1, 1), "not numbers"),
        ([[0, 0]], [1.0], (1, "x"), "not a list of whole numbers"),
        ([["a", "b"]], [1.0], (1, 1), "is not integer"),
    ],
)
def test_bad_input_says_what_is_wrong(coords: object, values: object, shape: object, words: str) -> None:
    with pytest.raises(DataError) as e:
        SparseTensor(coords, values, shape)  # type: ignore[arg-type]
    assert words in str(e.value)


def test_no_nonzeros_and_no_patients_are_allowed() -> None:
    assert SparseTensor([], [], (3, 2, 2)).nnz == 0
    assert SparseTensor([], [], (0, 2)).patients == 0
    assert SparseTensor([[0, 0], [0, 0]], [1.0, -1.0], (1, 1)).nnz == 0


def test_duplicate_labels_are_refused_without_quoting_a_patient() -> None:
    with pytest.raises(DataError) as e:
        SparseTensor([[0, 0]], [1.0], (2, 1), axes=[["Jane", "Jane"], ["x"]])
    assert "Jane" not in str(e.value)


def test_take_is_indexing(rng: np.random.Generator) -> None:
    x = rng.poisson(0.3, (12, 4, 5)).astype(float)
    t = SparseTensor(np.argwhere(x), x[x != 0], x.shape, axes=[[f"p{i}" for i in range(12)], None, None])
    chosen = [11, 0, 5, 5 - 1]
    part = t.take(chosen)
    assert np.array_equal(dense(part), x[chosen])
    assert part.axes[0].labels == ("p11", "p0", "p5", "p4")
    assert np.array_equal(dense(t.take(np.arange(12) % 2 == 0)), x[::2])
    with pytest.raises(DataError, match="there are 12"):
        t.take([12])


def test_stack_is_concatenation(rng: np.random.Generator) -> None:
    xs = [rng.poisson(0.4, (n, 3, 4)).astype(float) for n in (5, 0, 7)]
    ts = [SparseTensor(np.argwhere(x), x[x != 0], x.shape) for x in xs]
    assert np.array_equal(dense(SparseTensor.stack(ts)), np.concatenate(xs))
    with pytest.raises(DataError, match="align"):
        SparseTensor.stack([ts[0], SparseTensor([], [], (1, 3, 5))])


def test_recode_moves_and_drops_codes() -> None:
    t = SparseTensor([[0, 0, 0], [0, 1, 0], [1, 2, 0]], [1.0, 2.0, 3.0], (2, 3, 1))
    moved = t.recode(1, [1, 1, -1], Axis("x", ("a", "b")), 2)
    assert moved.coords.tolist() == [[0, 1, 0]] and moved.values.tolist() == [3.0]


def test_pickle_round_trip() -> None:
    t = SparseTensor([[0, 1]], [2.0], (3, 2), axes=[None, ["a", "b"]])
    assert pickle.loads(pickle.dumps(t)) == t
