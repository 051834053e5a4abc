"""Edges of book, grid and door that faults put into the code (benchmarks/mutants.py) once passed unnoticed."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from polyclinic.errors import ConfigError, LedgerError, PolicyRefusal, PolyclinicError
from polyclinic.privacy.accounting.accountant import (
    ZCDP,
    DiscreteGaussian,
    Gaussian,
    SubsampledGaussian,
    Unbounded,
    _foreign,
    calibrate,
    epsilon,
    epsilon_rdp,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    theorem_4_1,
)
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise, add_noise, discrete_gaussian
from polyclinic.privacy.accounting.noise_grid import NoiseScale, event_of, noise_scale, on_grid, together
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.gate import ReleaseGate, Waits
from polyclinic.privacy.gate.release_store import ReleaseStore, bytes_digest
from polyclinic.privacy.ledger import ledger_file as bookfile
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import (
    START,
    Approve,
    Began,
    CloseLine,
    Evaluate,
    Gap,
    Note,
    Reserve,
    opened,
    sealed,
)
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.reader import LedgerReader, verify_lines
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Contribution, Step


def charge(n: int = 0, **more: Any) -> Charge:
    return Charge("icu", "dpem", n, "x", 0, Gaussian(10.0), **more)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- snapshots


@pytest.fixture
def snapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A book of nine lines with a snapshot of the first eight."""
    monkeypatch.setattr(bookfile, "EVERY", 8)
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    for n in range(8):
        ledger.charge(charge(n))
    return ledger


def test_a_book_is_read_on_from_its_own_snapshot(snapped: Ledger) -> None:
    path = snapped.path
    assert path is not None
    made = LedgerReader.from_snapshot(path, path.with_name("l.jsonl.state"))
    assert made is not None and made.count == 8
    assert made.offset < path.stat().st_size
    os.truncate(path, made.offset)
    assert LedgerReader.from_snapshot(path, path.with_name("l.jsonl.state")) is not None, (
        "it ends where the snapshot does"
    )
    os.truncate(path, made.offset - 1)
    assert LedgerReader.from_snapshot(path, path.with_name("l.jsonl.state")) is None, "lines of the snapshot are gone"


def test_a_snapshot_of_another_key_is_not_believed(snapped: Ledger, tmp_path: Path) -> None:
    assert snapped.path is not None
    state = snapped.path.with_name("l.jsonl.state")
    other = Ledger(tmp_path / "other" / "l.jsonl", site="n")
    for n in range(8):
        other.charge(charge(n))
    assert other.path is not None
    theirs = other.path.with_name("l.jsonl.state")
    assert LedgerReader.from_snapshot(other.path, theirs) is not None
    assert LedgerReader.from_snapshot(snapped.path, theirs) is None, "whole, but signed by another book's key"
    snapped.path.with_name("l.jsonl.key").unlink()
    assert LedgerReader.from_snapshot(snapped.path, state) is None, "nobody here can vouch for it"
    assert LedgerReader.from_snapshot(snapped.path, tmp_path / "none") is None
    assert LedgerReader.from_snapshot(tmp_path / "none", state) is None


def test_a_crash_leaves_one_line_without_a_head_and_no_two(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    heads = []
    for n in range(4):
        ledger.charge(charge(n))
        heads.append((tmp_path / "l.jsonl.head").read_text())
    (tmp_path / "l.jsonl.head").write_text(heads[-2])
    assert len(Ledger(tmp_path / "l.jsonl").charges()) == 4
    (tmp_path / "l.jsonl.head").write_text(heads[-3])
    with pytest.raises(LedgerError, match="failed its check") as told:
        Ledger(tmp_path / "l.jsonl").charges()
    assert "2 lines are newer" in told.value.faults[0]


def test_a_snapshot_that_was_edited_is_not_believed(snapped: Ledger) -> None:
    assert snapped.path is not None
    state = snapped.path.with_name("l.jsonl.state")
    good = json.loads(state.read_text())
    edited = {**json.loads(good["state"]), "count": 7}
    state.write_text(json.dumps({**good, "state": json.dumps(edited)}))
    assert LedgerReader.from_snapshot(snapped.path, state) is None
    state.write_text(json.dumps(good))
    assert LedgerReader.from_snapshot(snapped.path, state) is not None


def test_what_a_crash_left_of_a_head_is_swept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", anchor=tmp_path / "far" / "away" / "head")
    ledger.charge(charge())
    before = (tmp_path / "l.jsonl.head").read_text()
    ledger.charge(charge(1))
    assert (tmp_path / "far/away/head").read_text() == (tmp_path / "l.jsonl.head").read_text()
    (tmp_path / "l.jsonl.head").write_text(before)
    stray = tmp_path / ".l.jsonl.head.half"
    stray.touch()
    Ledger(tmp_path / "l.jsonl").charge(charge(2))
    assert not stray.exists()
    assert Ledger(tmp_path / "l.jsonl").verify() == ()


def test_a_book_has_one_key(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge())
    read = LedgerReader()
    assert ledger.path is not None
    for line in ledger.path.read_bytes().splitlines(keepends=True):
        assert read.take(line) == []
    other = LedgerKey.of(tmp_path / "other.key", make=True)
    assert other is not None
    _, line = sealed(2, Began(other.public), read.hash, "", other.sign)
    assert read.take(line) == ["line 3: begins with another key; the book was rewritten"]
    _, line = sealed(2, Note("theirs"), read.hash, "", other.sign)
    assert read.take(line) == ["line 3: was not signed by the book's key"]
    assert read.key == ledger.export()["key"]


def test_a_book_of_two_lines_has_a_head_and_one_of_one_may_have_none(tmp_path: Path) -> None:
    path, head = tmp_path / "l.jsonl", tmp_path / "l.jsonl.head"
    ledger = Ledger(path)
    with ledger._opened():
        ledger._begin()  # the key's line
    head.unlink()
    assert Ledger(path).count == 1
    Ledger(path).charge(charge())
    head.unlink()
    with pytest.raises(LedgerError) as told:
        Ledger(path).charges()
    assert told.value.faults == ("l.jsonl.head is missing",)


# ---- lines


def test_a_line_is_handed_back_and_shows_everything(tmp_path: Path) -> None:
    for ledger in (Ledger(site="n"), Ledger(tmp_path / "l.jsonl", site="n")):
        entry = ledger.charge(charge(3))
        assert entry == ledger.entries[-1]
        shown = entry.plain()
        assert (shown["kind"], shown["round"], shown["number"]) == ("charge", 3, ledger.count - 1)
        assert (shown["previous"], shown["hash"], shown["signature"]) == (entry.previous, entry.hash, entry.signature)
        assert shown["v"] == 2
        assert entry.text == ""
        note = ledger.write(Note("repaired"))
        assert note.text == "repaired"
        assert ledger.export()["entries"][-1] == note.plain()  # type: ignore[index]


def test_what_a_line_does_not_say() -> None:
    assert (CloseLine("o", "done").sums, CloseLine("o", "done").chain) == (0, "")
    assert (Reserve("o", "icu").until, Reserve("o", "icu").events) == (0.0, ())
    assert {Gaussian(1.0).count, DiscreteGaussian(1.0, 1.0).count, ZCDP(1.0).count, Unbounded().count} == {1}
    assert SubsampledGaussian(0.5, 1.0).count == 1
    assert Step(1, "x", {}, bound=1.0).sites_per_patient == 1


def test_a_trail_without_signatures_is_said_to_be_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge())
    assert ledger.path is not None
    whole = ledger.path.read_text().splitlines()
    assert verify_lines(whole) == []
    assert verify_lines(whole, ledger.export()["key"]) == []  # type: ignore[arg-type]
    assert verify_lines(whole, "ab" * 32) == ["the lines are signed by another key than the one that was given"]
    assert verify_lines([]) == ["no line has the book's key"]


def test_a_line_that_does_not_hold_is_not_taken_in(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge())
    assert ledger.path is not None
    first, second = ledger.path.read_bytes().splitlines(keepends=True)
    read = LedgerReader()
    assert read.take(first) == []
    for wrong in (b"{\n", second.replace(b"dpem", b"trip"), first):
        assert read.take(wrong)
        assert (read.count, read.offset, read.tally.all.mu2) == (1, len(first), 0.0)
    assert read.take(second) == []
    assert (read.count, read.offset) == (2, len(first) + len(second))


def test_one_wrong_line_is_one_fault_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path)
    for n in range(3):
        ledger.charge(charge(n))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"rubbish\n", *lines[3:]]))
    read = LedgerReader()
    entries, faults = read.all(path)
    assert [f[:23] for f in faults] == ["line 3: not an entry of"]
    assert (len(entries), read.count, read.offset) == (3, 4, path.stat().st_size)


def test_a_torn_end_of_a_wrong_book_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    Ledger(path).charge(charge())
    path.write_bytes(path.read_bytes().replace(b"dpem", b"trip") + b'{"torn')
    with pytest.raises(LedgerError) as told:
        Ledger(path).charges()
    assert told.value.faults[-1] == "the last line is not complete"
    assert "hash does not fit" in told.value.faults[0]
    assert sum("not complete" in f for f in Ledger(path).verify()) == 1


def test_a_charge_that_cannot_be_added_up_is_a_fault() -> None:
    _, line = sealed(0, Charge("icu", "dpem", 1, "x", 0, Gaussian("much")), START, "n")  # type: ignore[arg-type]
    (fault,) = LedgerReader(trusted=9)._lines(line)[1]
    assert fault.startswith("line 1: not an entry of a ledger")


def test_there_is_nothing_to_repair_in_no_book(tmp_path: Path) -> None:
    Ledger().repair()
    Ledger(tmp_path / "l.jsonl").repair()
    assert not (tmp_path / "l.jsonl").exists() and not (tmp_path / "l.jsonl.head").exists()


def test_only_lines_that_were_checked_before_are_trusted(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path)
    for n in range(2):
        ledger.charge(charge(n))
    lines = path.read_bytes().splitlines(keepends=True)
    value = json.loads(lines[1])
    lines[1] = lines[1].replace(value["signature"].encode(), b"00" * 64)
    path.write_bytes(b"".join(lines))
    assert LedgerReader(trusted=2).all(path)[1] == []
    assert LedgerReader(trusted=1).all(path)[1] == ["line 2: was not signed by the book's key"]
    first = json.loads(lines[0])["signature"].encode()
    path.write_bytes(lines[0].replace(first, b"00" * 64))
    assert LedgerReader().all(path)[1] == ["line 1: was not signed by the book's key"]


def test_a_number_that_is_none_does_not_make_the_next_line_wrong() -> None:
    _, bad = sealed("one", Note("a"), START, "n")  # type: ignore[arg-type]
    entry, good = sealed(1, Note("b"), opened(bad.rstrip())[0].hash, "n")
    read = LedgerReader(trusted=9)
    assert read._line(bad.rstrip(), 0)[1] == ["line 1: is entry one; lines were removed or reordered"]
    entries, faults, _ = read._lines(bad + good)
    assert len(entries) == 2 and len(faults) == 2 and all(f.startswith("line 1:") for f in faults)
    assert (read.count, read.hash) == (2, entry.hash)


def test_a_book_that_was_cut_to_what_holds_gets_its_head_again(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path, site="n")
    for n in range(4):
        ledger.charge(charge(n))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    cut = Ledger(path, site="n")
    cut.repair()
    head = json.loads((tmp_path / "l.jsonl.head").read_text())
    assert (head["count"], head["hash"]) == (3, json.loads(path.read_text().splitlines()[-1])["hash"])
    assert cut.verify() == ()
    assert len(Ledger(path, site="n").charges()) == 2


def test_a_new_book_leaves_no_file_open(tmp_path: Path) -> None:
    Ledger(tmp_path / "first.jsonl").charge(charge())
    held = open_files()
    for n in range(3):
        Ledger(tmp_path / f"{n}.jsonl").charge(charge())
    assert open_files() == held


def test_prepared_bytes_leave_only_if_they_are_the_ones_in_the_book(tmp_path: Path) -> None:
    store, values = ReleaseStore(tmp_path / "open"), Contribution({"x": np.ones(3)})
    step = Step(1, "x", {"x": (3,)}, bound=9.0)
    (tmp_path / "open").mkdir(mode=0o755)
    store.prepare("id", step, "digest", values)
    assert (tmp_path / "open").stat().st_mode & 0o077 == 0, "nobody else reads what waits"
    right = bytes_digest(step, values)
    assert store.finish("other", step, "digest", lambda d: True) is None
    assert store.finish("id", step, "of other values", lambda d: True) is None
    assert store.finish("id", step, "digest", lambda d: d != right) is None
    found = store.finish("id", step, "digest", lambda d: d == right)
    assert found is not None and (found.arrays["x"] == 1).all()
    assert store.finish("id", step, "digest", lambda d: True) is None, "they have their name now"


# ---- the lock


@pytest.mark.parametrize("instead", [False, True])
def test_a_lock_file_that_was_removed_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instead: bool
) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    ledger.charge(charge())
    lock, real, tries, held = tmp_path / "l.jsonl.lock", fcntl.flock, [], open_files()  # type: ignore[var-annotated]

    def flock(handle: Any, how: str) -> None:
        if not tries:
            keep = os.open(lock, os.O_RDWR)  # its number on the disk is not given to the next
            lock.unlink()
            if instead:
                lock.touch()
            os.close(keep)
        tries.append(os.fstat(handle).st_ino)
        real(handle, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", flock)
    ledger.charge(charge(1))
    assert len(tries) == 2, "the one that keeps nobody out is not the lock"
    assert open_files() == held
    assert len(ledger.charges()) == 2


def test_a_lock_that_cannot_be_had_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_several_events_are_one_as_costly_as_all() -> None:
    assert together([Gaussian(10.0), Gaussian(10.0)]).multiplier == pytest.approx(10 / 2**0.5)  # type: ignore[union-attr]
    assert together([Gaussian(0.5), Gaussian(0.5)]).multiplier == pytest.approx(0.5 / 2**0.5)  # type: ignore[union-attr]
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
def test_noise_needs_a_sensitivity_and_a_multiplier(sensitivity: float | None, multiplier: float | None) -> None:
    bare = Step(1, "x", {"x": (3,)}, bound=9.0, sensitivity=sensitivity, multiplier=multiplier)
    assert event_of(bare) == Unbounded()
    assert noise_scale(bare, 1.0).sd == 0.0


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("multiplier", [2.0, 3.0, 5.5])
def test_a_grid_that_is_announced_is_halved_until_it_is_fine_and_no_further(share: float, multiplier: float) -> None:
    votes = Step(0, "votes", {"votes": (9,)}, bound=100.0, sensitivity=1.0, multiplier=multiplier, grid=1.0)
    scale = noise_scale(votes, share)
    assert 1024 <= math.sqrt(share) * scale.sd / scale.grid < 2048  # type: ignore[operator]


def test_only_a_step_with_a_grid_and_noise_gets_a_finer_one() -> None:
    def step(**more: Any) -> Step:
        return Step(1, "x", {"x": (3,)}, bound=9.0, sensitivity=1.0, **more)

    for same in (step(multiplier=10.0), step(grid=1.0), step(grid=1.0, multiplier=0.0)):
        assert on_grid(same, 0.5) is same
    little = on_grid(step(grid=0.25, multiplier=0.5), 0.5)
    assert little.grid is not None and little.grid < 0.25
    fine = on_grid(step(grid=1.0, multiplier=10.0), 0.5)
    assert fine.grid == noise_scale(step(grid=1.0, multiplier=10.0), 0.5).grid < 1  # type: ignore[operator]


def test_a_grid_that_is_fine_enough_stays_and_whole_numbers_reach_to_the_last() -> None:
    wanted = math.sqrt(1024**2 - 4)
    assert math.sqrt(wanted**2 + 4) == 1024
    votes = Step(0, "votes", {"votes": (9,)}, bound=100.0, sensitivity=1.0, multiplier=wanted, grid=1.0)
    assert noise_scale(votes, 1.0).grid == 1.0
    wanted = math.sqrt(60)
    assert math.sqrt(wanted**2 + 4) == 8
    coarse = Step(0, "x", {"x": (9,)}, bound=2.0**52 + 2.0**51, sensitivity=1.0, multiplier=wanted, grid=1.0)
    assert noise_scale(coarse, 1.0).sd == 8.0
    assert noise_scale(coarse, 1.0).grid == 1.0, "eight steps of noise are enough"
    wanted = math.sqrt(399)
    assert math.sqrt(wanted**2 + 1) == 20
    wide = Step(0, "x", {"x": (9,)}, bound=2.0**52 - 400, sensitivity=1.0, multiplier=wanted, grid=1.0)
    assert noise_scale(wide, 1.0).grid == 0.5
    beyond = Step(0, "x", {"x": (9,)}, bound=2.0**52 - 158.5, sensitivity=1.0, multiplier=7.9, grid=1.0)
    assert noise_scale(beyond, 1.0).grid == 1.0, "with half of it the last value would not be a whole number"


@pytest.mark.parametrize("grid", [0.5, 1.0, 4.0])
def test_values_with_their_noise_are_whole_numbers_that_float64_has(grid: float) -> None:
    noise = 100 * grid

    def scale(bound: float) -> NoiseScale:
        return noise_scale(Step(0, "x", {"x": (9,)}, bound=bound, sensitivity=1.0, multiplier=noise, grid=grid), 1.0)

    most = 2.0**53 * grid - 20 * math.sqrt(noise**2 + 4 * grid**2)
    assert scale(most - 10 * grid).grid == grid
    with pytest.raises(ConfigError, match="no proven cost"):
        scale(most + 10 * grid)


def test_the_largest_epsilon_is_a_thousand_million() -> None:
    assert calibrate(1e9, 1e-6)[0] > 0
    with pytest.raises(ConfigError, match="not between"):
        calibrate(1e9 + 0.5, 1e-6)


def test_a_fine_discrete_noise_is_a_gaussian_and_a_coarse_one_is_not() -> None:
    assert gaussian_mu([DiscreteGaussian(2.0, 1000.0)]) == 0.5
    assert gaussian_mu([DiscreteGaussian(2.0, 999.9)]) is None


@pytest.mark.parametrize("sd", [-1.0, math.nan, math.inf, 2.0**58])
def test_noise_that_cannot_be_drawn_is_refused(sd: Any) -> None:
    with pytest.raises(PolyclinicError):
        discrete_gaussian((3,), sd)


def test_what_was_set_aside_covers_itself_and_hardly_more() -> None:
    tally = Balance()
    tally.add(Reserve("o", "icu", events=(Gaussian(10.0),)))
    same = Charge("icu", "dpem", 1, "x", 0, Gaussian(10.0), run="o")
    assert tally.covers(same)
    assert tally.covers(replace(same, event=Gaussian(10.0 * (1 - 1e-13))))
    assert not tally.covers(replace(same, event=Gaussian(10.0 * (1 - 1e-11))))


def test_what_has_no_bound_has_none_in_other_words() -> None:
    assert isinstance(_foreign(Unbounded()), dp_accounting.NonPrivateDpEvent)
    assert epsilon([Unbounded(), Gaussian(1.0)], 1e-6) == epsilon_rdp([Unbounded()], 1e-6) == math.inf


def test_noise_is_added_in_whole_steps_of_the_grid() -> None:
    class Known(SimulatedNoise):
        def integers(self, sd: float, shape: Any) -> Any:
            asked.append(sd)
            return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)

    asked: list[float] = []
    mine = Contribution({"x": np.array([10.0, 10.1, -3.0])}, 1.0)
    out = add_noise(Known(), mine, 4.0, 0.25)
    assert out.arrays["x"].tolist() == [10.0, 10.25, -2.5]
    assert (asked, out.weight) == ([16.0], 1.0)
    assert add_noise(Known(), mine, 0.0, 0.25) is add_noise(Known(), mine, 4.0, None) is mine


def test_shares_may_miss_the_whole_by_a_rounding() -> None:
    assert calibrate(1.0, 1e-6, shares=(1 + 1e-9,))[0] == pytest.approx(calibrate(1.0, 1e-6)[0])
    with pytest.raises(ConfigError, match="more than the whole"):
        calibrate(1.0, 1e-6, shares=(1 + 2e-9,))


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.1, math.nan])
@pytest.mark.parametrize(
    "ask",
    [
        lambda d: gaussian_epsilon(1.0, d),
        lambda d: epsilon([Gaussian(1.0)], d),
        lambda d: epsilon_rdp([Gaussian(1.0)], d),
        lambda d: calibrate(1.0, d),
        lambda d: theorem_4_1(1.0, d, epochs=1),
    ],
)
def test_delta_is_a_probability(ask: Any, delta: Any) -> None:
    with pytest.raises(ConfigError, match="not a probability"):
        ask(delta)


@pytest.mark.parametrize("mu", [30.0, 100.0, 1000.0])
def test_little_noise_has_its_price_too(mu: float) -> None:
    price = gaussian_epsilon(mu, 1e-6)
    assert mu * mu / 2 < price < mu * mu / 2 + 6 * mu
    assert gaussian_delta(price, mu) <= 1e-6 < gaussian_delta(price * (1 - 1e-6), mu)


# ---- the door


def test_what_was_set_aside_is_given_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    rules = Policy(max_epsilon_total=1.0)
    door = ReleaseGate("n", policy=rules, ledger=ledger)
    door.give_back("nothing was asked yet")
    assert ledger.count == 0
    door.admit("icu", "dpem", Privacy(0.9), 3, 50)
    assert max(r.left(0.0) for r in ledger.tally.open.values()) > 0
    door.give_back("another site refused")
    assert not ledger.tally.open
    ReleaseGate("n", policy=rules, ledger=ledger).admit("next", "dpem", Privacy(0.9), 3, 50)


def test_an_exact_study_is_in_the_ledger_before_records_are_read_and_a_second_one_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    door = ReleaseGate("n", policy=Policy(max_exact=1), ledger=ledger, run="one")
    door.admit("icu", "sumals", None, 3, 50)
    door.asks_exactly()
    door.asks_exactly()
    (line,) = [e.body for e in ledger.entries if isinstance(e.body, Evaluate)]
    assert (line.order, line.people) == ("one", "")
    with pytest.raises(PolicyRefusal, match="exact"):
        ReleaseGate("n", policy=Policy(max_exact=1), ledger=ledger, run="two").asks_exactly()
    ReleaseGate("n", ledger=Ledger()).asks_exactly()


def test_noise_is_for_as_many_sites_as_the_study_says() -> None:
    step = Step(1, "x", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    door = ReleaseGate("n", policy=Policy(), ledger=Ledger(site="n"))
    assert door.noise_sd(step) == 10
    door.admit("icu", "dpem", Privacy(0.5, max_sites_per_patient=3), 3, 50)
    assert door.noise_sd(step) == 30
    door.admit("icu", "dpem", None, 3, 50)
    assert door.noise_sd(step) == 10


def test_an_owner_may_agree_ahead_while_a_release_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    door = ReleaseGate(
        "n", policy=Policy(review="names"), ledger=ledger, store=tmp_path / "s", waits=Waits(60.0), run="order"
    )
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            ledger.write(Approve("order", "x", "ahead", "dpo"))

    monkeypatch.setattr(time, "sleep", sleep)
    door.admit("icu", "dpem", None, 3, 50)
    out = door.release(Step(1, "x", {"x": (3,)}, bound=9.0), Contribution({"x": np.ones(3)}))
    assert (out.arrays["x"] == 1).all()
    assert looks == [0.2, 0.2]


@pytest.mark.parametrize("multiplier", [None, 10.0])
def test_an_owner_is_told_of_rare_codes_where_nothing_hides_them(tmp_path: Path, multiplier: float | None) -> None:
    door = ReleaseGate("n", policy=Policy(review="names"), ledger=Ledger(site="n"), store=tmp_path)
    door.here = ("here: 3 of 9 codes",)
    step = Step(1, "x", {"x": (3,)}, bound=9.0, sensitivity=0.05, multiplier=multiplier)
    with pytest.raises(PolicyRefusal, match="waits"):
        door.release(step, Contribution({"x": np.ones(3)}))
    assert door.outbox is not None
    (waiting,) = door.outbox.all()
    assert ("here: 3 of 9 codes" in waiting.facts["words"]) == (multiplier is None)
    assert waiting.facts["approves"] == "every release of this step with these facts"
    every = ReleaseGate("n", policy=Policy(review="each"), ledger=Ledger(site="n"), store=tmp_path / "each")
    with pytest.raises(PolicyRefusal, match="waits"):
        every.release(step, Contribution({"x": np.ones(3)}))
    assert every.outbox is not None
    assert every.outbox.all()[0].facts["approves"] == "these values"


def test_a_release_that_was_paid_and_not_sent_leaves_as_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    step, mine = Step(1, "x", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=9.0), Contribution({"x": np.ones(3)})

    def door() -> ReleaseGate:
        return ReleaseGate("n", ledger=ledger, store=tmp_path / "s", run="order")

    drawn: list[Contribution] = []

    def crash(*given: Any) -> None:
        drawn.append(given[-1])
        raise KeyError

    with monkeypatch.context() as m:
        m.setattr(ReleaseStore, "keep", crash)
        with pytest.raises(KeyError):
            door().release(step, mine)
    sent = door().release(step, mine)
    assert sent.arrays["x"].tolist() == drawn[0].arrays["x"].tolist()
    assert len(ledger.charges()) == 1


def test_a_book_without_a_line_has_a_head_without_a_key(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "l.jsonl").head == SignedHead(0, START)


def test_the_budget_is_looked_at_again_when_it_is_set_aside(tmp_path: Path) -> None:
    payer = BudgetHolder(Policy(max_epsilon_total=1.0), Ledger(tmp_path / "l.jsonl"))
    assert payer.reserve("a", "icu", Privacy(0.9), 0.0, 60.0) == []
    (fault,) = payer.reserve("b", "icu", Privacy(0.9), 0.0, 60.0)
    assert "with this study" in fault
    assert set(payer.ledger.tally.open) == {"a"}
    assert payer.reserve("c", "icu", None, 0.0, 60.0) == []


def test_a_gap_is_of_the_book_it_names_or_of_this_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    ledger.charge(charge())
    ledger.write(Gap(5, "ab" * 32, "dpo", "lost"))
    ledger.write(Gap(9, "cd" * 32, "dpo", "lost", book="ef" * 32))
    assert [g[0] for g in ledger.tally.gaps] == [ledger.entries[0].hash, "ef" * 32]
    assert ledger.tally.owned_up(ledger.entries[0].hash, 5, "ab" * 32)
    ledger.write(Gap(20, "", "dpo", "lost", heads=("12" * 32,)))
    assert [g[3] for g in ledger.tally.gaps] == [["ab" * 32], ["cd" * 32], ["12" * 32]]
