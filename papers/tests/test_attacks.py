"""Attacks succeed on what is published in the clear, and fail where the theory says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyclinic.auditing.attacks import Attack
from polyclinic_papers.attacks import dictionary, polynomials, trip

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("run", [lambda: [*dictionary.run(), *polynomials.run()], trip.run], ids=["alignment", "trip"])
def test_attacks_go_as_the_theory_says(run: Callable[[], list[Attack]]) -> None:
    results = run()
    wrong = [a for a in results if not a.as_expected]
    assert not wrong, wrong
    assert any(a.succeeded for a in results) and any(not a.succeeded for a in results)
