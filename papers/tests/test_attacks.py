"""Attacks succeed on what is published in the clear, and fail where the theory says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polyclinic.auditing.attacks import Attack, dictionary, trip
from polyclinic_papers import polynomial_attack

pytestmark = pytest.mark.attack


@pytest.mark.parametrize(
    "run", [lambda: [*dictionary.run(), *polynomial_attack.run()], trip.run], ids=["alignment", "trip"]
)
def test_attacks_go_as_the_theory_says(run: Callable[[], list[Attack]]) -> None:
    results = run()
    wrong = [a for a in results if not a.as_expected]
    assert not wrong, wrong
    assert any(a.succeeded for a in results) and any(not a.succeeded for a in results)
