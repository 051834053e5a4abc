"""Exact evaluations of different sets of people: the owner's limit, under the book's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polyclinic.errors import PolicyRefusal
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.entries import Note
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.policy.policy import Policy

PEOPLE = [f"p{i}" for i in range(30)]


def _door(path: Path, run: str, policy: Policy, cohort: str = "all") -> ReleaseGate:
    return ReleaseGate("north", policy=policy, ledger=Ledger(path, site="north"), study="s", run=run, cohort=cohort)


def test_another_set_of_people_is_refused_and_the_same_one_is_not(tmp_path: Path) -> None:
    book = tmp_path / "ledger.jsonl"
    _door(book, "a", Policy()).evaluates(PEOPLE)
    _door(book, "b", Policy()).evaluates(PEOPLE[::-1])  # a set has no order
    with pytest.raises(PolicyRefusal, match="exact") as e:
        _door(book, "c", Policy()).evaluates(PEOPLE[:-1])
    assert "1 other set" in e.value.faults[0]
    _door(book, "c", Policy(max_evaluations=2)).evaluates(PEOPLE[:-1])
    with pytest.raises(PolicyRefusal):
        _door(book, "d", Policy(max_evaluations=2)).evaluates(PEOPLE[:-2])
    assert "p17" not in book.read_text()  # a digest, never a name


def test_a_cohort_is_no_second_budget_unless_cohorts_are_disjoint(tmp_path: Path) -> None:
    book = tmp_path / "ledger.jsonl"
    _door(book, "a", Policy(), "one").evaluates(PEOPLE)
    with pytest.raises(PolicyRefusal):
        _door(book, "b", Policy(), "two").evaluates(PEOPLE[:5])
    _door(book, "b", Policy(cohorts_disjoint=True), "two").evaluates(PEOPLE[:5])


def test_the_limit_outlives_a_snapshot_of_the_book(tmp_path: Path) -> None:
    from polyclinic.privacy.ledger.balance import Balance

    book = Ledger(tmp_path / "ledger.jsonl", site="north")
    ReleaseGate("north", policy=Policy(), ledger=book, study="s", run="a").evaluates(PEOPLE)
    again = Balance.restore(book.tally.state())
    assert again.evaluated == book.tally.evaluated != {}
    old = {k: v for k, v in book.tally.state().items() if k != "evaluated"}
    with pytest.raises(KeyError):  # a snapshot that lacks a part is none: the ledger is read instead
        Balance.restore(old)


def test_of_orders_that_come_at_once_one_is_admitted(tmp_path: Path) -> None:
    book = tmp_path / "ledger.jsonl"
    Ledger(book, site="north").write(Note("begun"))

    def ask(k: int) -> bool:
        try:
            _door(book, f"o{k}", Policy()).evaluates(PEOPLE[: 10 + k])
        except PolicyRefusal:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(ask, range(6))) == 1


def test_zero_allows_none(tmp_path: Path) -> None:
    with pytest.raises(PolicyRefusal):
        _door(tmp_path / "ledger.jsonl", "a", Policy(max_evaluations=0)).evaluates(PEOPLE)
