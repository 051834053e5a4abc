"""Attacks succeed on what is published in the clear, and fail where the theory says so."""

from __future__ import annotations

import pytest

from polyclinic.evaluation.attacks import polynomial, trip

pytestmark = pytest.mark.attack


@pytest.mark.parametrize("room", [polynomial, trip], ids=["alignment", "trip"])
def test_attacks_go_as_the_theory_says(room: object) -> None:
    results = room.run()  # type: ignore[attr-defined]
    wrong = [a for a in results if not a.as_expected]
    assert not wrong, wrong
    assert any(a.succeeded for a in results) and any(not a.succeeded for a in results)
