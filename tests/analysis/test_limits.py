"""Exact studies and evaluations: the owner's number a year, under the ledger's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polyclinic.errors import PolicyRefusal
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import Evaluate, Note
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.policy.policy import Policy


def _gate(path: Path, run: str, policy: Policy, cohort: str = "all") -> ReleaseGate:
    return ReleaseGate("north", policy=policy, ledger=Ledger(path, site="north"), study="s", run=run, cohort=cohort)


def test_every_order_counts_whoever_is_asked_about_and_the_same_order_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    two = Policy(max_exact=2)
    _gate(path, "a", two).asks_exactly()
    _gate(path, "a", two).asks_exactly()
    _gate(path, "b", two, "another cohort").asks_exactly()
    with pytest.raises(PolicyRefusal, match="exact") as e:
        _gate(path, "c", two).asks_exactly()
    assert "2 exact studies were asked here within a year" in e.value.faults[0]


def test_an_order_of_more_than_a_year_ago_counts_no_more() -> None:
    tally = Balance()
    tally.add(Evaluate("old", "all"), "2024-01-01T00:00:00+00:00")
    assert not Policy(max_exact=1).exact_faults(tally, "new", "2025-06-01T00:00:00+00:00")
    assert Policy(max_exact=1).exact_faults(tally, "new", "2023-06-01T00:00:00+00:00")


def test_by_default_twelve_a_year_and_none_where_an_epsilon_is_limited() -> None:
    assert Policy().exact_a_year == 12
    assert Policy(max_epsilon_total=1.0).exact_a_year == 0
    assert not Policy(max_epsilon_total=1.0).allows_unproven
    assert Policy(max_epsilon_total=1.0, max_exact=1).allows_unproven


def test_the_limit_outlives_a_snapshot_of_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", site="north")
    ReleaseGate("north", policy=Policy(), ledger=ledger, study="s", run="a").asks_exactly()
    again = Balance.restore(ledger.tally.state())
    assert again.exact == ledger.tally.exact != {}
    old = {k: v for k, v in ledger.tally.state().items() if k != "exact"}
    with pytest.raises(KeyError):  # a snapshot that lacks a part is none: the ledger is read instead
        Balance.restore(old)


def test_of_orders_that_come_at_once_one_is_admitted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path, site="north").write(Note("begun"))

    def ask(k: int) -> bool:
        try:
            _gate(path, f"o{k}", Policy(max_exact=1)).asks_exactly()
        except PolicyRefusal:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(ask, range(6))) == 1


def test_zero_allows_none(tmp_path: Path) -> None:
    with pytest.raises(PolicyRefusal):
        _gate(tmp_path / "ledger.jsonl", "a", Policy(max_exact=0)).asks_exactly()
