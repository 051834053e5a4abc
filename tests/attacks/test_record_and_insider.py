"""Rows 4 and 7: a record from exact totals, and a hospital that takes its own noise off."""

from __future__ import annotations

import pytest

import polyclinic as pc
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.auditing.run import Insider, audit
from polyclinic.errors import ConfigError
from polyclinic_papers.attacks import record
from polyclinic_papers.attacks.named import insider


def test_exact_totals_give_the_record_of_a_sole_carrier_and_a_floor_does_not() -> None:
    exact, floored = record.run(seed=3)  # a seed that nothing was tuned on
    assert exact.succeeded
    assert not floored.succeeded


def test_the_card_of_every_exact_method_on_sums_says_so() -> None:
    attacks = pc.SumALS(rank=2, rounds=1, aggregation="masked").fit(record.network(0)).privacy_.attacks
    assert any("record" in a and "150" in a for a in attacks), "with the size at which it was shown"


def dpem() -> pc.DPEM:
    return pc.DPEM(rank=1, rounds=1, background=False, privacy=pc.Privacy(2.0), aggregation="masked")


@pytest.mark.parametrize(("sites", "lost"), [(4, 0), (5, 1), pytest.param(7, 2, marks=pytest.mark.slow)])
def test_an_insider_faces_what_was_booked(sites: int, lost: int) -> None:
    found = audit(dpem(), canaries=9000, patients=50, seed=7, insider=Insider(sites, lost))
    assert found.verdict == "passed", str(found)


@pytest.mark.parametrize(("sites", "lost"), [(3, 0), pytest.param(5, 1, marks=pytest.mark.slow)])
def test_the_insider_audit_finds_shares_that_count_on_the_insider(
    monkeypatch: pytest.MonkeyPatch, sites: int, lost: int
) -> None:
    """Row 4 as it was: each adds 1/t of the noise, and whoever takes its own off faces less than was booked.

    With 5 sites and one lost that is 13 % of the noise: it takes many canaries to see it.
    """
    monkeypatch.setattr(Masked, "noise_share", lambda self, roster: 1 / roster.threshold)
    found = audit(dpem(), canaries=30_000, patients=50, seed=7, insider=Insider(sites, lost))
    assert found.verdict == "failed"
    assert any("too little noise" in f for f in found.faults)


def test_an_insider_needs_others() -> None:
    with pytest.raises(ConfigError, match="three that are there"):
        Insider(3, 1)


def test_the_battery_runs_both_and_both_claims_stand() -> None:
    assert all(a.as_expected for a in insider(seed=11))
