"""Small cells are hidden, and so is what gives them away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import polyclinic as pc
from polyclinic.errors import DataError
from polyclinic.node.admission.admission import _without_rare_values
from polyclinic.privacy.small_cells import effective_contributors, suppress
from polyclinic.records.sites.people import People


def test_small_cells_and_what_gives_them_away_are_hidden() -> None:
    hide = suppress([[50, 4, 60], [70, 80, 90], [20, 30, 40]])
    assert hide[0, 1]
    assert not hide[:-1, :-1].all()
    for row in [*hide, *hide.T]:
        assert row.sum() != 1, "a single hidden cell in a line follows from its total"


def test_nothing_small_nothing_hidden() -> None:
    assert not suppress([[11, 20], [0, 30]]).any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=2, max_size=4))
def test_no_hidden_cell_follows_from_its_line(rows: Any) -> None:
    table = np.array(rows)
    hide = suppress(table)
    full = np.zeros((len(table) + 1, 4))
    full[:-1, :-1] = table
    full[:-1, -1] = table.sum(1)
    full[-1] = full[:-1].sum(0)
    assert hide[(full > 0) & (full < 11)].all()
    for values, hidden in [*zip(full, hide), *zip(full.T, hide.T)]:
        if hidden.any() and not hidden.all():
            assert hidden.sum() > 1
            assert values[hidden].sum() >= 11


def _bounds(full: np.ndarray, hide: np.ndarray, at: tuple[int, int]) -> tuple[float, float]:
    """What a reader can compute of a hidden cell: by linear programming over all tables with the shown cells and totals."""
    places = [tuple(p) for p in np.argwhere(hide)]
    sides, rhs = [], []
    for t, m in ((full, hide), (full.T, hide.T)):
        for k, (values, hidden) in enumerate(zip(t, m)):
            signs = np.append(np.ones(len(values) - 1), -1.0)
            cells = {(k, j) if t is full else (j, k): signs[j] for j in np.flatnonzero(hidden)}
            sides.append([cells.get(p, 0.0) for p in places])
            rhs.append(-float((signs * values)[~hidden].sum()))
    goal = np.array([float(p == at) for p in places])
    ends = [linprog(sign * goal, A_eq=sides, b_eq=rhs, bounds=(0, None)) for sign in (1, -1)]
    low, high = (np.inf if e.status == 3 else sign * e.fun for e, sign in zip(ends, (1, -1)))
    return float(low), float(high)


@settings(max_examples=40, deadline=None)
@example([[0, 30, 0, 9], [0, 12, 15, 2], [9, 30, 2, 9]])
@example([[0, 60, 0, 0, 5], [5, 15, 0, 0, 30], [12, 2, 0, 0, 60], [9, 12, 0, 0, 60], [60, 15, 12, 9, 12]])
@given(
    st.lists(
        st.lists(st.sampled_from([0, 0, 1, 2, 5, 9, 12, 15, 30, 60]), min_size=4, max_size=4), min_size=3, max_size=4
    )
)
def test_no_hidden_cell_follows_from_all_lines_together(rows: Any) -> None:
    table = np.array(rows)
    hide = suppress(table)
    full = np.pad(table, ((0, 1), (0, 1))).astype(float)
    full[:-1, -1] = table.sum(1)
    full[-1] = full[:-1].sum(0)
    for i, j in np.argwhere(hide & (full > 0) & (full < 11)):
        low, high = _bounds(full, hide, (i, j))
        assert low < high - 1e-6, (rows, (i, j), low)


@pytest.mark.parametrize("bad", [[-1, 2], [float("nan")], [[[1]]]])
def test_tables_that_are_no_counts_are_refused(bad: Any) -> None:
    with pytest.raises(DataError):
        suppress(bad)


def test_a_phenotype_of_one_patient_has_one_contributor() -> None:
    w = np.ones((100, 2))
    w[1:, 1] = 1e-9
    assert effective_contributors(w) == pytest.approx([100, 1])


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ("a" * 20 + "b" * 12 + "c" * 3, "a" * 20),  # three alone would be the unknown: the next smallest goes with them
        ("a" * 20 + "c" * 3, ""),
        ("a" * 20 + "c" * 3 + "d" * 8, "a" * 20),
        ("a" * 20 + "b" * 12, "a" * 20 + "b" * 12),
    ],
)
def test_values_of_few_patients_are_unknown_in_an_exact_study(values: str, kept: str) -> None:
    texts, numbers = np.array([*values]), np.array([float(ord(v)) for v in values])
    site = pc.Site("a", None, np.zeros((len(values), 1)), people=People({"t": texts, "n": numbers, "age": numbers}))
    people = _without_rare_values(site, 11, (97, 98, 99, 100, 101)).people  # bands of one year
    assert people is not None
    assert "".join(people.columns["t"].tolist()) == kept
    known = people.columns["n"].astype(float)
    assert known[np.isfinite(known)].tolist() == [float(ord(v)) for v in kept]
    assert np.array_equal(people.columns["age"].astype(float), known, equal_nan=True)
    wide = _without_rare_values(site, 11, (0, 200)).people
    assert wide is not None and wide.columns["age"].tolist() == numbers.tolist()
