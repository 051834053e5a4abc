"""Edges of book, grid and door that faults put into the code (benchmarks/mutants.py) once passed unnoticed."""

from __future__ import annotations

import fcntl
import math
import os
import time

import pytest

from polyclinic.errors import ConfigError, LedgerError
from polyclinic.privacy import bookfile
from polyclinic.privacy.accountant import Gaussian, Unbounded, calibrate, gaussian_mu
from polyclinic.privacy.budget import Privacy
from polyclinic.privacy.charge import Charge
from polyclinic.privacy.door import Door
from polyclinic.privacy.grid import event_of, noise_scale, together
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.policy import Policy
from polyclinic.privacy.reading import Reading
from polyclinic.privacy.release import Step


def charge(n: int = 0, **more) -> Charge:
    return Charge("icu", "dpem", n, "x", 0, Gaussian(10.0), **more)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- snapshots


@pytest.fixture
def snapped(tmp_path, monkeypatch):
    """A book of nine lines with a snapshot of the first eight."""
    monkeypatch.setattr(bookfile, "EVERY", 8)
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    for n in range(8):
        ledger.charge(charge(n))
    return ledger


def test_a_book_is_read_on_from_its_own_snapshot(snapped):
    path = snapped.path
    made = Reading.from_snapshot(path, path.with_name("l.jsonl.state"))
    assert made is not None and made.count == 8
    assert made.offset < path.stat().st_size
    os.truncate(path, made.offset)
    assert Reading.from_snapshot(path, path.with_name("l.jsonl.state")) is not None, "it ends where the snapshot does"
    os.truncate(path, made.offset - 1)
    assert Reading.from_snapshot(path, path.with_name("l.jsonl.state")) is None, "lines of the snapshot are gone"


def test_a_snapshot_of_another_key_is_not_believed(snapped, tmp_path):
    state = snapped.path.with_name("l.jsonl.state")
    other = Ledger(tmp_path / "other" / "l.jsonl", site="n")
    for n in range(8):
        other.charge(charge(n))
    theirs = other.path.with_name("l.jsonl.state")
    assert Reading.from_snapshot(other.path, theirs) is not None
    assert Reading.from_snapshot(snapped.path, theirs) is None, "whole, but signed by another book's key"
    snapped.path.with_name("l.jsonl.key").unlink()
    assert Reading.from_snapshot(snapped.path, state) is None, "nobody here can vouch for it"
    assert Reading.from_snapshot(snapped.path, tmp_path / "none") is None
    assert Reading.from_snapshot(tmp_path / "none", state) is None


def test_a_crash_leaves_one_line_without_a_head_and_no_two(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    heads = []
    for n in range(4):
        ledger.charge(charge(n))
        heads.append((tmp_path / "l.jsonl.head").read_text())
    (tmp_path / "l.jsonl.head").write_text(heads[-2])
    assert len(Ledger(tmp_path / "l.jsonl").charges()) == 4
    (tmp_path / "l.jsonl.head").write_text(heads[-3])
    with pytest.raises(LedgerError, match="does not hold together") as told:
        Ledger(tmp_path / "l.jsonl").charges()
    assert "2 lines are newer" in told.value.faults[0]


# ---- the lock


@pytest.mark.parametrize("instead", [False, True])
def test_a_lock_file_that_was_removed_is_let_go_of(tmp_path, monkeypatch, instead):
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    ledger.charge(charge())
    lock, real, tries, held = tmp_path / "l.jsonl.lock", fcntl.flock, [], open_files()

    def flock(handle, how):
        if not tries:
            keep = os.open(lock, os.O_RDWR)  # its number on the disk is not given to the next
            lock.unlink()
            if instead:
                lock.touch()
            os.close(keep)
        tries.append(os.fstat(handle).st_ino)
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    ledger.charge(charge(1))
    assert len(tries) == 2, "the one that keeps nobody out is not the lock"
    assert open_files() == held
    assert len(ledger.charges()) == 2


def test_a_lock_that_cannot_be_had_leaves_no_file_open(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    ledger.charge(charge())
    held = open_files()
    with monkeypatch.context() as m:
        m.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError("no locks here")))
        with pytest.raises(OSError, match="no locks"):
            ledger.charge(charge(1))
    assert open_files() == held
    ledger.charge(charge(1))


# ---- noise


def test_several_events_are_one_as_costly_as_all():
    assert together([Gaussian(10.0), Gaussian(10.0)]).multiplier == pytest.approx(10 / 2**0.5)
    assert together([Gaussian(0.5), Gaussian(0.5)]).multiplier == pytest.approx(0.5 / 2**0.5)
    assert together([Gaussian(10.0), Unbounded()]) == Unbounded()
    assert together([Gaussian(10.0), Gaussian(0.0)]) == Unbounded(), "no noise at all is no event with a bound"
    assert together([Gaussian(1e200), Gaussian(1e200)]) == Unbounded(), "nothing that float64 can tell from none"
    assert gaussian_mu([Gaussian(1e-200)]) == math.inf
    assert gaussian_mu([Gaussian(1e200)]) == 0.0
    assert together([Gaussian(3.0)]) == Gaussian(3.0)
    assert together([Unbounded()]) == Unbounded()


@pytest.mark.parametrize(
    ("sensitivity", "multiplier"), [(None, 5.0), (1.0, None), (None, None), (1.0, 0.0), (0.0, 5.0)]
)
def test_noise_needs_a_sensitivity_and_a_multiplier(sensitivity, multiplier):
    bare = Step(1, "x", {"x": (3,)}, bound=9.0, sensitivity=sensitivity, multiplier=multiplier)
    assert event_of(bare) == Unbounded()
    assert noise_scale(bare, 1.0).sd == 0.0


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("multiplier", [2.0, 3.0, 5.5])
def test_a_grid_that_is_announced_is_halved_until_it_is_fine_and_no_further(share, multiplier):
    votes = Step(0, "votes", {"votes": (9,)}, bound=100.0, sensitivity=1.0, multiplier=multiplier, grid=1.0)
    scale = noise_scale(votes, share)
    assert 1024 <= math.sqrt(share) * scale.sd / scale.grid < 2048


def test_the_largest_epsilon_is_a_thousand_million():
    assert calibrate(1e9, 1e-6)[0] > 0
    with pytest.raises(ConfigError, match="not between"):
        calibrate(1e9 + 0.5, 1e-6)


# ---- the door


def test_what_was_set_aside_is_given_back(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    rules = Policy(max_epsilon_total=1.0)
    door = Door("n", policy=rules, ledger=ledger)
    door.give_back("nothing was asked yet")
    assert ledger.count == 0
    door.admit("icu", "dpem", Privacy(0.9), 3, 50)
    assert max(r.left(time.time()) for r in ledger.tally.open.values()) > 0
    door.give_back("another site refused")
    assert not ledger.tally.open
    Door("n", policy=rules, ledger=ledger).admit("next", "dpem", Privacy(0.9), 3, 50)
