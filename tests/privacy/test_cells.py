"""Small cells are hidden, and so is what gives them away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import DataError
from polyclinic.privacy.small_cells import effective_contributors, suppress


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


@pytest.mark.parametrize("bad", [[-1, 2], [float("nan")], [[[1]]]])
def test_tables_that_are_no_counts_are_refused(bad: Any) -> None:
    with pytest.raises(DataError):
        suppress(bad)


def test_a_phenotype_of_one_patient_has_one_contributor() -> None:
    w = np.ones((100, 2))
    w[1:, 1] = 1e-9
    assert effective_contributors(w) == pytest.approx([100, 1])
