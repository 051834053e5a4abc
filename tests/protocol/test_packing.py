"""Packed sums: exact words, public windows, and a wrap that does not pass for a sum."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.errors import ProtocolMismatch
from polyclinic.methods.packing.packed_sums import Field, Packing
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Roster, Total


def case(seed: int) -> tuple[Packing, dict[str, np.ndarray], list[dict[str, np.ndarray]]]:
    """Random windows, parts of any size and sign, sums inside."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 41)), int(rng.integers(1, 300))
    low = -10 * rng.random(m)
    high = low + 100 * rng.random(m) * (rng.random(m) < 0.8)
    grid = 10 ** rng.uniform(-3, 1)
    names = tuple(f"s{k:02d}" for k in range(n))
    code = Packing({"a": Field((m,), grid, low, high), "b": Field((2, 3), grid / 7, -1.0, 5.0)}, names, "t", seed)
    total = {"a": np.where(high > low, (low + high) / 2, 0.0), "b": 6 * rng.random((2, 3)) - 1}
    parts = []
    left = {k: v.copy() for k, v in total.items()}
    for _ in range(n - 1):
        own = {k: 50 * rng.standard_normal(v.shape) * ((high > low) if k == "a" else 1.0) for k, v in total.items()}
        parts.append(own)
        left = {k: left[k] - own[k] for k in left}
    return code, total, [*parts, left]


@pytest.mark.parametrize("seed", range(60))
def test_sums_come_back_within_the_rounding(seed: int) -> None:
    code, total, parts = case(seed)
    words = [code.pack(p, s)["packed"] for p, s in zip(parts, code.sites)]
    assert all(w.max() < 2.0**code.word and (w == np.rint(w)).all() and len(w) == code.size for w in words)
    found = code.unpack(sum(words))  # type: ignore[arg-type]
    assert found is not None
    for name, field in code.fields.items():
        error = (found[name] - total[name]) / field.grid
        assert np.abs(error).max() < 6 * np.sqrt(len(parts) / 12)


def test_the_error_has_the_promised_size_and_no_bias() -> None:
    names = tuple("abcdef")
    code = Packing({"x": Field((20_000,), 0.1, -5.0, 5.0)}, names, "t")
    x = np.random.default_rng(0).normal(size=20_000) / 6
    x[:10_000] = 0.0  # equal parts: their errors are independent nevertheless
    found = code.unpack(sum(code.pack({"x": x}, s)["packed"] for s in names))  # type: ignore[arg-type]
    assert found is not None
    for error in (found["x"][:10_000], found["x"][10_000:] - 6 * x[10_000:]):
        assert abs(error.mean()) < 0.005 and error.std() == pytest.approx(0.1 * np.sqrt(6 / 12), rel=0.03)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("grid", [0.0, 1e-300, float("nan")])
def test_a_grid_of_nothing_is_as_fine_as_a_word(grid: float) -> None:
    """A dead column asks for rounding to nothing; every cast stays defined, the sum exact to the word."""
    code = Packing({"x": Field((3,), grid, -1.0, 2.0), "dead": Field((2,), grid, 0.0, 0.0)}, ("a", "b"), "t")
    part = {"x": np.array([0.3, -0.2, 1.0]), "dead": np.zeros(2)}
    found = code.unpack(sum(code.pack(part, s)["packed"] for s in code.sites))  # type: ignore[arg-type]
    assert found is not None
    np.testing.assert_allclose(found["x"], 2 * part["x"], atol=1e-12)
    far = {"x": np.array([1e300, 1e300, 0.0]), "dead": np.zeros(2)}
    assert code.unpack(code.pack(far, "a")["packed"] + code.pack(part, "b")["packed"]) is None
    with pytest.raises(ProtocolMismatch, match="NaN"):
        code.pack({"x": np.array([np.nan, 0.0, 0.0]), "dead": np.zeros(2)}, "a")
    with pytest.raises(ProtocolMismatch, match="finite"):
        _ = Packing({"x": Field((3,), 0.1, -1.0, float("inf"))}, ("a", "b"), "t").size


def test_sums_outside_their_windows_are_put_right_or_noticed() -> None:
    """As many as are paid for, wherever they stand in their words, neighbours among them; one more, and nothing is read."""
    for mends, sites in ((2, 3), (7, 6), (24, 100)):
        names = tuple(f"s{k:03d}" for k in range(sites))
        code = Packing({"x": Field((500,), 0.01, 0.0, 1.0)}, names, "t", mends=mends)
        for seed in range(5):
            rng = np.random.default_rng(seed)
            x = np.full(500, 0.5)
            far = rng.permutation(500)[: mends - 2]
            far = np.unique(np.append(far, [7, 8]))
            x[far] += rng.choice([-3, -1, 1, 2], len(far)) * 1.3
            found = code.unpack(sum(code.pack({"x": x / sites}, s)["packed"] for s in names))  # type: ignore[arg-type]
            assert found is not None and np.abs(found["x"] - x).max() < 0.06 * np.sqrt(sites / 12)
        x = np.full(500, 0.5)
        x[: mends + 1] = 2.0
        assert code.unpack(sum(code.pack({"x": x / sites}, s)["packed"] for s in names)) is None  # type: ignore[arg-type]
        wide = code.widened(1)
        found = wide.unpack(sum(wide.pack({"x": x / sites}, s)["packed"] for s in names))  # type: ignore[arg-type]
        assert found is not None and np.abs(found["x"] - x).max() < 0.06 * np.sqrt(sites / 12) and wide.size > code.size


def test_many_numbers_are_put_right_in_blocks() -> None:
    code = Packing({"x": Field((30_000,), 0.01, 0.0, 1.0)}, ("a", "b", "c"), "t", mends=40)
    x, rng = np.full(30_000, 0.5), np.random.default_rng(0)
    x[rng.permutation(30_000)[:12]] = 2.1
    found = code.unpack(np.sum([code.pack({"x": x / 3}, s)["packed"] for s in code.sites], axis=0))
    assert found is not None and np.abs(found["x"] - x).max() < 0.04 and len(code._codes) == 4


def test_masked_and_plain_give_the_same_bits_in_any_order() -> None:
    from polyclinic.protocol.loop import deliver

    code, _, parts = case(3)
    step = code.step(1, "packed")
    totals = []
    for how, sites in (("plain", code.sites), ("masked", code.sites), ("masked", code.sites[::-1])):
        adder = by_name(how)
        roster = Roster(tuple(sorted(sites)), threshold=len(sites))
        roster = adder.enrol(roster) if hasattr(adder, "enrol") else roster
        own = dict(zip(code.sites, parts))
        sides = {s: adder.exchange(s, roster, step, code.contribution(own[s], s)) for s in sites}
        sides["coordinator"] = adder.exchange("coordinator", roster, step, None)
        deliver(sides)
        result = sides["coordinator"].result()
        assert isinstance(result, Total)
        totals.append(result.arrays["packed"])
    assert all(np.array_equal(totals[0], t) for t in totals[1:])
    assert code.unpack(totals[0]) is not None


def test_widening_ends_with_words_where_nothing_adds() -> None:
    code = Packing({"x": Field((5,), 0.01, 0.0, 1.0)}, ("a", "b", "c"), "2 mode1")
    widest = next(k for k in range(1, 100) if 2 * k >= code.word)
    assert code.widened(widest).size >= code.size
    with pytest.raises(ProtocolMismatch, match=r"'2 mode1'.*not the sum of what the sites sent"):
        code.widened(widest + 1)
