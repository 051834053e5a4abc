"""Presence from totals (ATTACKS row 7): works on exact ones, whatever hid the contributions, and not on paid ones."""

from __future__ import annotations

from polyclinic_papers.attacks import presence


def test_exact_totals_tell_who_alone_has_a_code_and_paid_ones_do_not() -> None:
    found = list(presence.run(0))
    assert len(found) == 3
    for attack in found:
        assert attack.as_expected, f"{attack.against}: {attack.detail}"
