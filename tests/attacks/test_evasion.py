"""Ways around the owner's rules that worked, or might have: clocks, lock files, tickets, receipts, hostile numbers."""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import wait_until

import polyclinic as pc
from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.models.receipts import Receipt
from polyclinic.privacy.accounting.accountant import Gaussian, calibrate
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.gate import review as reviewer
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.ledger.entries import Refuse
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.signed_head import SignedHead
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Contribution, Step

pytestmark = pytest.mark.attack
LIMIT = Policy(max_epsilon_total=1.0)
DAY = 86_400.0


def step(multiplier: float, round: int = 1, size: int = 3) -> Step:
    return Step(round, "x", {"x": (size,)}, bound=9.0, sensitivity=1.0, multiplier=multiplier)


def test_a_clock_that_goes_forth_and_back_makes_no_room_for_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was set aside for a study ends after two weeks; put the clock forth, admit another, put it back: both could spend."""
    book, now = Ledger(tmp_path / "l.jsonl"), 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    (m,) = calibrate(0.9, 1e-6)
    first = ReleaseGate("n", policy=LIMIT, ledger=book, run="a")
    first.admit("a", "dpem", Privacy(0.9), 3, 100)
    monkeypatch.setattr(time, "time", lambda: now + 15 * DAY)
    second = ReleaseGate("n", policy=LIMIT, ledger=book, run="b")
    second.admit("b", "dpem", Privacy(0.9), 3, 100)
    monkeypatch.setattr(time, "time", lambda: now + 60)
    second.release(step(m), Contribution({"x": np.ones(3)}))
    with pytest.raises(PolicyRefusal, match="with this study"):
        first.release(step(m), Contribution({"x": np.ones(3)}))
    assert book.epsilon(1e-6) <= 0.9 + 1e-9
    assert [e.body.order for e in book.entries if isinstance(e.body, Refuse)] == ["a"]


def test_an_order_whose_time_is_over_can_be_admitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, now = Ledger(tmp_path / "l.jsonl"), 1e9
    monkeypatch.setattr(time, "time", lambda: now)
    door = ReleaseGate("n", policy=LIMIT, ledger=book, run="a")
    door.admit("a", "dpem", Privacy(0.9), 3, 100)
    monkeypatch.setattr(time, "time", lambda: now + 15 * DAY)
    door.admit("a", "dpem", Privacy(0.9), 3, 100)
    assert book.tally.open["a"].left(now + 16 * DAY) > 0


def test_a_removed_lock_file_lets_nobody_in_beside_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder of the old lock file, and a writer that waited for it, were both inside once a third made a new one."""
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(Charge("s", "m", 0, "x", 0, Gaussian(10.0)))
    lock = tmp_path / "l.jsonl.lock"
    old = os.open(lock, os.O_RDWR)
    fcntl.flock(old, fcntl.LOCK_EX)
    flock, waits = fcntl.flock, []

    def waiting(handle: int, how: int) -> None:
        waits.append(handle)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", waiting)
    writer = threading.Thread(target=lambda: ledger.charge(Charge("s", "m", 1, "x", 0, Gaussian(10.0))))
    writer.start()
    assert wait_until(lambda: len(waits) == 1), "it waits for the file that is about to go"
    lock.unlink()
    new = os.open(lock, os.O_RDWR | os.O_CREAT)
    flock(new, fcntl.LOCK_EX)
    os.close(old)
    wait_until(lambda: len(waits) == 2 or not writer.is_alive())
    assert writer.is_alive(), "the new file's holder is inside"
    os.close(new)
    writer.join(300)
    assert len(ledger.charges()) == 2


def test_an_approval_is_not_of_facts_that_begin_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight digits of a digest can be made to agree: the second step would leave on the first one's approval."""
    monkeypatch.setattr(reviewer, "facts_digest", lambda step, share, by: "abcdef01" + f"{step.size:056x}")
    door = ReleaseGate("n", policy=Policy(review="names"), ledger=Ledger(tmp_path / "l.jsonl"), store=tmp_path, run="o")
    box = Outbox(tmp_path / "outbox")
    exact = [Step(1, "x", {"x": (n,)}, bound=9.0) for n in (2, 851)]
    with pytest.raises(PolicyRefusal, match="waits"):
        door.release(exact[0], Contribution({"x": np.ones(2)}))
    box.decide(box.all()[0].id, approve=True, by="officer")
    door.release(exact[0], Contribution({"x": np.ones(2)}))
    (tmp_path / f"{box.all()[0].id.rsplit('-', 1)[0]}.npz").unlink()  # the second comes under the same name
    with pytest.raises(PolicyRefusal):
        door.release(exact[1], Contribution({"x": np.ones(851)}))
    assert sum(e.kind == "approve" for e in door.ledger.entries) == 1


def test_a_receipt_of_nothing_is_in_no_book(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.jsonl", site="north")
    book.charge(Charge("s", "m", 0, "x", 0, Gaussian(10.0)))
    assert Receipt("north", book.head, "signed").faults(book) == []
    assert "names no line" in Receipt("north", SignedHead(0, ""), "unsigned").faults(book)[0]
    assert Receipt("north", SignedHead(1, "0" * 64), "unsigned").faults(book)


@pytest.mark.parametrize("epsilon", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e10, 1e308])
def test_an_epsilon_that_is_none_is_refused_where_it_is_asked_for(epsilon: float) -> None:
    with pytest.raises(ConfigError):
        Privacy(epsilon)
    with pytest.raises(ConfigError, match="cannot be split"):
        calibrate(epsilon, 1e-6)


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e6, 1e9])
@pytest.mark.parametrize("delta", [1e-300, 1e-6, 0.5])
def test_extreme_budgets_are_priced_and_never_above_what_was_asked(epsilon: float, delta: float) -> None:
    from polyclinic.privacy.accounting.accountant import epsilon as spent

    if epsilon < 1e-12 and delta < 1e-12:
        with pytest.raises(ConfigError, match="more noise than can be computed"):
            calibrate(epsilon, delta)
        return
    (m,) = calibrate(epsilon, delta)
    assert m > 0
    assert spent([Gaussian(m)], delta) <= epsilon * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    "hostile",
    [
        {"sensitivity": math.nan, "multiplier": 10.0},
        {"sensitivity": 1.0, "multiplier": math.nan},
        {"sensitivity": -1.0, "multiplier": -10.0},
        {"sensitivity": 1.0, "multiplier": -10.0},
        {"sensitivity": 1.0, "multiplier": math.inf},
        {"sensitivity": 5e-324, "multiplier": 1e300},
        {"sensitivity": 1.0, "multiplier": 10.0, "grid": -1.0},
        {"sensitivity": 1.0, "multiplier": 10.0, "grid": math.nan},
        {"sensitivity": 1.0, "multiplier": 10.0, "grid": 1e300},
    ],
)
def test_steps_with_hostile_numbers_are_refused_or_have_no_bound(hostile: dict[str, Any]) -> None:
    """A method that announces nonsense gets no cheap release: nothing leaves, or what left costs everything."""
    door = ReleaseGate("n", policy=Policy(max_epsilon_total=1.0))
    wrong = Step(1, "x", {"x": (3,)}, bound=9.0, **hostile)
    with pytest.raises(
        (PolicyRefusal, ConfigError, pc.errors.PolyclinicError, ValueError, OverflowError, ZeroDivisionError)
    ):
        door.release(wrong, Contribution({"x": np.ones(3)}))
    assert not door.ledger.charges()
