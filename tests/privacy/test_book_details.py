"""Details of door, book and accountant that faults put into the code (benchmarks/mutants.py) once passed unnoticed."""

from __future__ import annotations

import inspect
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.privacy.accounting.accountant import FINE as CURVE
from polyclinic.privacy.accounting.accountant import (
    DiscreteGaussian,
    Gaussian,
    Unbounded,
    _foreign,
    calibrate,
    epsilon,
    gaussian_mu,
)
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.accounting.noise_grid import EXACT, FINE, LEAST, event_of, noise_scale
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.gate.release_store import ReleaseStore, bytes_digest, release_digest
from polyclinic.privacy.gate.review import in_words
from polyclinic.privacy.ledger.balance import Account, Balance
from polyclinic.privacy.ledger.entries import Approve, CloseLine, Gap, Reserve
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Contribution, Step
from polyclinic.protocol.aggregators import facts_of


def step(**more: Any) -> Step:
    given = {"bound": 9.0, "sensitivity": 1.0, "multiplier": 10.0, **more}
    return Step(1, "x", {"x": (3,)}, **given)


def charge(event: Any = None, **more: Any) -> Charge:
    return Charge("icu", "dpem", 1, "x", 0, Gaussian(10.0) if event is None else event, **more)


# ---- noise inside the charged event


@pytest.mark.parametrize(("sensitivity", "multiplier"), [(1e-3, 5.0), (0.05, 10.0), (1.0, 1.0), (3.0, 40.0)])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_the_noise_that_is_drawn_is_the_one_in_the_event(sensitivity: float, multiplier: float, share: float) -> None:
    s = step(sensitivity=sensitivity, multiplier=multiplier)
    scale = noise_scale(s, share)
    assert scale.grid is not None
    assert scale.sd >= sensitivity * multiplier, "never less than what the event says"
    least = math.hypot(sensitivity * multiplier, 2 * scale.grid)
    assert least <= scale.sd * (1 + 1e-12) <= least * (1 + 2e-5), "no less than the lemma asks for, and hardly more"
    assert math.sqrt(share) * scale.sd >= LEAST * scale.grid
    assert event_of(s) == Gaussian(multiplier)
    out = (
        ReleaseGate("n")
        .release(
            Step(1, "x", {"x": (4000,)}, bound=9.0, sensitivity=sensitivity, multiplier=multiplier),
            Contribution({"x": np.zeros(4000)}),
            share=share,
        )
        .arrays["x"]
    )
    assert out.std() == pytest.approx(math.sqrt(share) * scale.sd, rel=0.06)
    assert abs(out.mean()) < 5 * scale.sd / math.sqrt(4000)


def test_a_grid_is_as_fine_as_whole_numbers_allow() -> None:
    s = step(grid=1.0)
    scale = noise_scale(s, 1.0)
    assert math.sqrt(1.0) * scale.sd >= FINE * scale.grid  # type: ignore[operator]
    assert (s.bound + 20 * scale.sd) / scale.grid <= EXACT  # type: ignore[operator]
    wide = step(grid=1.0, bound=2.0**48)
    coarse = noise_scale(wide, 1.0)
    assert (wide.bound + 20 * coarse.sd) / coarse.grid <= EXACT  # type: ignore[operator]
    assert (wide.bound + 20 * coarse.sd) / (coarse.grid / 2) > EXACT / 2, "and no coarser than that"  # type: ignore[operator]


def test_a_step_without_noise_has_none_and_no_bound() -> None:
    exact = Step(1, "x", {"x": (3,)}, bound=9.0)
    assert noise_scale(exact, 1.0).sd == 0.0
    assert event_of(exact) == Unbounded()
    assert gaussian_mu([event_of(step(), [Gaussian(10.0)])]) == pytest.approx(math.sqrt(2) / 10)


def test_the_grid_leaves_room_for_twenty_standard_deviations() -> None:
    """100 times the sensitivity on a grid of 1: it is made finer while bound and noise stay exact in float64."""

    def grid(bound: float, **more: Any) -> float | None:
        return noise_scale(step(bound=bound, multiplier=100.0, grid=1.0, **more), 1.0).grid

    assert grid(2.0**52 - 3000) == 0.5
    assert grid(2.0**52 - 2050) == 0.5, "20 standard deviations, not 21"
    assert grid(2.0**52 - 1000) == 1.0, "above the bound, not below it"
    assert grid(2.0**53 - 3000) == 1.0
    assert grid(2.0**53 - 2050) == 1.0
    for bound in (2.0**53 - 1000, 2.0**54):
        with pytest.raises(ConfigError, match="too large for a grid"):
            grid(bound)
    with pytest.raises(ConfigError, match="too large for a grid"):
        noise_scale(step(bound=1.0, multiplier=1e15, grid=1.0), 1.0)
    edge = noise_scale(step(bound=2.0**53 - 4096.0, multiplier=math.sqrt(204.8**2 - 4), grid=1.0), 1.0)
    assert edge.grid == 1.0, "just as much as fits"


def test_a_share_needs_eight_grid_steps() -> None:
    wide = 2.0**52 - 3000  # cannot be made finer than a half
    fits = step(bound=wide, multiplier=100.0, grid=1.0)
    assert noise_scale(fits, (LEAST * 0.5 / 100.005) ** 2 * (1 + 1e-4)).grid == 0.5
    with pytest.raises(ConfigError, match="grid steps of noise"):
        noise_scale(fits, (LEAST * 0.5 / 100.005) ** 2 * (1 - 1e-3))


def test_values_of_their_own_grid_are_paid_for_with_its_rounding() -> None:
    s = Step(1, "x", {"x": (100,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    scale = noise_scale(s, 1.0)
    first = 2.0 ** math.floor(math.log2(2.0**-16 / 10))
    moved = 1.0 + first * 10
    assert scale.sd == pytest.approx(math.sqrt((10 * moved) ** 2 + 4 * scale.grid**2), rel=1e-15)  # type: ignore[operator]


def test_a_line_says_what_the_release_was() -> None:
    door = ReleaseGate("n", study="icu")
    door.method = "dpem"
    values = Contribution({"x": np.zeros(3)})
    door.release(step(), values, share=0.5, number=7, by=facts_of("masked"), attempt=2)
    door.release(Step(2, "y", {"x": (3,)}, bound=9.0), values)
    door.release(
        Step(3, "z", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=9.0, formal=False),
        values,
        by=facts_of("subspace"),
    )
    paid, exact, claimed = door.ledger.charges()
    assert (paid.formal, exact.formal, claimed.formal) == (True, False, False)
    assert (paid.recipient, exact.recipient, claimed.recipient) == ("total", "coordinator", "peers")
    assert (paid.number, paid.attempt, paid.share, exact.number, exact.attempt, exact.share) == (7, 2, 0.5, -1, 0, 1.0)
    assert paid.sd == noise_scale(step(), 0.5).sd
    assert paid.noise == door.noise.label
    assert (exact.sd, exact.noise, exact.event) == (0.0, "none", Unbounded())
    assert paid.by.name == "masked"
    assert paid.shapes == {"x": (3,)}
    assert (paid.study, paid.method, paid.site, paid.cohort) == ("icu", "dpem", "n", "all")


def test_a_further_attempt_pays_what_the_masks_leak_and_no_noise() -> None:
    door = ReleaseGate("n", run="r")
    values = Contribution({"x": np.zeros(3)})
    leak = [Gaussian(50.0)]
    first = door.release(step(), values, by=facts_of("subspace"), also=leak)
    again = door.release(step(), values, by=facts_of("subspace"), also=leak, attempt=1)
    door.release(step(), values, by=facts_of("subspace"), also=leak, attempt=1)
    assert np.array_equal(first.arrays["x"], again.arrays["x"])
    one, two = door.ledger.charges()
    assert gaussian_mu([one.event]) == pytest.approx(math.hypot(1 / 10, 1 / 50))
    assert (two.event, two.attempt, two.sd, two.grid, two.noise) == (Gaussian(50.0), 1, 0.0, None, "none")
    assert door.wrote(one)
    assert not door.wrote(charge(run="another"))


def test_digests_of_releases_are_those_of_books_that_are_resumed() -> None:
    values = Contribution({"x": np.arange(3.0)})
    assert bytes_digest(step(), values) == "22ea751b5883fdfa3f0e215b161b6f74ecd019800b88d0ce8f59526f4ad3b6c1"
    assert release_digest(step(), 0.5, values) == "72920d61d316da3cc6fc6acde8a08568474f3797376c9640fe2a665f77914fc6"


def test_in_memory_the_last_two_rounds_are_kept() -> None:
    store = ReleaseStore()
    for t in range(4):
        s = Step(t, "x", {"x": (3,)}, bound=9.0)
        store.keep(f"r{t}-0", s, f"d{t}", Contribution({"x": np.full(3, float(t))}))
    assert [store.find(f"r{t}", f"d{t}")[1] is not None for t in range(4)] == [False, False, True, True]
    assert store.find("r3", "other") == ("r3-1", None), "other values under a name are another release"


@pytest.mark.parametrize(("name", "told"), [("rare", True), ("size", False), ("strange", True)])
def test_what_is_rare_here_stands_beside_steps_that_could_tell_it(tmp_path: Path, name: str, told: bool) -> None:
    door = ReleaseGate("n", policy=Policy(review="names"), ledger=Ledger(tmp_path / "l.jsonl"), store=tmp_path, run="o")
    door.facts = MethodFacts(steps={"rare": StepMeaning("codes", "a rare code"), "size": StepMeaning("how many")})
    door.here = ("here: 3 of 9 codes",)
    with pytest.raises(PolicyRefusal, match="waits"):
        door.release(Step(1, name, {"x": (3,)}, bound=9.0), Contribution({"x": np.ones(3)}))
    with pytest.raises(PolicyRefusal, match="waits"):  # with noise nothing of the kind can be told
        door.release(
            Step(1, f"{name}2", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=9.0),
            Contribution({"x": np.ones(3)}),
        )
    first, noisy = sorted(Outbox(tmp_path / "outbox").all(), key=lambda p: p.facts["step"])
    assert ("here: 3 of 9 codes" in first.facts["words"]) == told
    assert "here: 3 of 9 codes" not in noisy.facts["words"]


# ---- reservations


def test_a_reservation_covers_exactly_what_was_set_aside() -> None:
    tally = Balance()
    tally.add(Reserve("o", "icu", "all", (Gaussian(10.0),), until=100.0))
    fits = charge(Gaussian(10.0), run="o")
    assert tally.covers(fits, now=50.0)
    assert not tally.covers(charge(Gaussian(9.9), run="o"), now=50.0)
    assert tally.covers(fits, now=100.0)
    assert not tally.covers(fits, now=100.1), "its time is over"
    assert not tally.covers(charge(Gaussian(10.0), run="o", cohort="other"), now=50.0)
    assert not tally.covers(charge(Gaussian(10.0), run="another"), now=50.0)
    assert not tally.covers(charge(Unbounded(), run="o"), now=50.0)
    tally.add(charge(Gaussian(20.0), run="o"))
    assert tally.open["o"].left(50.0) == pytest.approx(1 / 100 - 1 / 400)
    assert not tally.covers(fits, now=50.0)


def test_reserved_and_spent_are_added_in_the_right_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    tally = Balance()
    tally.add(Reserve("o", "icu", "adults", (Gaussian(10.0),)))
    tally.add(Reserve("p", "ward", "children", (Gaussian(5.0),)))
    tally.add(charge(Gaussian(20.0), run="o", cohort="adults"))
    held = {"adults": 1 / 100 - 1 / 400, "children": 1 / 25}

    def eps(mu2: float) -> float:
        return epsilon([Gaussian(mu2**-0.5)], 1e-6)

    assert tally.epsilon(1e-6) == pytest.approx(eps(1 / 400 + sum(held.values())))
    assert tally.epsilon(1e-6, cohort="adults") == pytest.approx(eps(1 / 100))
    assert tally.epsilon(1e-6, cohort="adults", apart="o") == pytest.approx(eps(1 / 400))
    assert tally.epsilon(1e-6, study="ward") == pytest.approx(eps(1 / 25))
    assert tally.epsilon(1e-6, more=0.01, apart="p") == pytest.approx(eps(1 / 100 + 0.01))
    summary = tally.summary()
    assert summary["cohort adults"] == pytest.approx([1 / 400, 0, held["adults"]])
    assert summary["all"] == pytest.approx([1 / 400, 0, sum(held.values())])
    assert summary["time"] == 1_000_000
    again = Balance.restore(tally.state())
    assert again.state() == tally.state()
    tally.add(CloseLine("o", "finished"))
    assert "o" not in tally.open
    assert tally.over("o")
    assert not tally.over("p")


def test_a_gap_is_counted_in_its_cohort_and_over_all() -> None:
    tally = Balance()
    tally.add(Gap(5, "aa", "dpo", "fire", "adults", (Gaussian(10.0), Unbounded())))
    assert (tally.all.mu2, tally.all.unbounded) == (pytest.approx(0.01), 1)  # type: ignore[comparison-overlap]
    assert tally.cohorts["adults"].mu2 == pytest.approx(0.01)
    account = Account()
    account.add(Unbounded())
    account.add(Gaussian(10.0, 4))
    assert (account.mu2, account.beyond) == (pytest.approx(0.04), 1)  # type: ignore[comparison-overlap]


# ---- the door


def test_an_admission_begins_the_run_that_follows(tmp_path: Path) -> None:
    door = ReleaseGate("n", policy=Policy(), ledger=Ledger(tmp_path / "l.jsonl"))
    door.admit("s", "dpem", Privacy(1.0), 3, 100)
    session = door.session
    assert session
    assert door.begin() == session, "the run that was just admitted"
    assert door.begin() != session, "the next is another"
    assert door.begin("mine") == door.session == "mine"


def test_a_run_that_stopped_gives_back_after_two_weeks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert inspect.signature(ReleaseGate).parameters["waits"].default.resumption == 14 * 24 * 3600
    ledger = Ledger(tmp_path / "l.jsonl")
    ReleaseGate("n", policy=Policy(), ledger=ledger, run="o").admit("s", "dpem", Privacy(1.0), 3, 100)
    assert ledger.tally.open["o"].until == 1_000_000 + 14 * 86_400


def test_what_was_set_aside_is_held_up_to_its_last_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    assert ledger.reserve(Reserve("o", "icu", until=1_000.0)) == []
    for now, left in ((1_000.0, ["o", "p"]), (1_000.5, ["p"])):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert ledger.reserve(Reserve("p", "icu")) == []
        assert sorted(ledger.tally.open) == left


def test_a_head_that_is_whole_is_not_written_again_before_the_next_line(tmp_path: Path) -> None:
    path, heads = tmp_path / "l.jsonl", []
    Ledger(path).reserve(Reserve("o", "icu"))

    class Watched(Ledger):
        def _write_head(self) -> None:
            super()._write_head()
            heads.append(self._reading.count)

    Watched(path).reserve(Reserve("p", "icu"))
    assert heads == [3]


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_is_a_part(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        ReleaseGate("n").release(step(), Contribution({"x": np.zeros(3)}), share=share)


def test_a_gathered_release_carries_all_the_noise_itself() -> None:
    shown = Step(1, "x", {"x": (4000,)}, bound=9.0, sensitivity=1.0, multiplier=10.0, how="gather")
    door = ReleaseGate("n")
    out = door.release(shown, Contribution({"x": np.zeros(4000)}), share=0.1).arrays["x"]
    assert out.std() == pytest.approx(10.0, rel=0.06)
    (line,) = door.ledger.charges()
    assert (line.share, line.recipient) == (1.0, "coordinator")


def test_a_refused_study_gives_back_what_was_set_aside(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    door = ReleaseGate("n", policy=Policy(min_patients=50), ledger=ledger, run="o")
    door.admit("s", "dpem", Privacy(1.0), 3, 2**31)
    assert "o" in ledger.tally.open
    with pytest.raises(PolicyRefusal):
        door.admit("s", "dpem", Privacy(1.0), 3, 10)
    assert "o" not in ledger.tally.open


@pytest.mark.parametrize("how", ["sum", "gather"])
@pytest.mark.parametrize(
    ("patients", "adder", "leaves"), [(1023, "plain", False), (1024, "plain", True), (5, "masked", True)]
)
def test_values_that_must_be_of_many_patients_are_not_shown_of_few(
    tmp_path: Path, how: str, patients: int, adder: str, leaves: bool
) -> None:
    """The Gram's second moments: at least 16 patients a cell where anybody sees a site's own."""
    ledger = Ledger(tmp_path / "l.jsonl")
    door = ReleaseGate("n", policy=Policy(sums=("gather",)), ledger=ledger)
    door.admit("s", "sumals", None, 3, patients)
    cells = Step(0, "cells", {"x": (3,)}, bound=9.0, how=how, patients=1024)  # type: ignore[arg-type]
    leaves = leaves and (how == "sum" or patients >= 1024)
    count = ledger.count
    if leaves:
        door.release(cells, Contribution({"x": np.ones(3)}), by=facts_of(adder))
        return
    with pytest.raises(PolicyRefusal, match="1,024 patients") as e:
        door.release(cells, Contribution({"x": np.ones(3)}), by=facts_of(adder))
    assert f"{patients:,} " not in str(e.value), "how many there are is not told"
    assert ledger.count == count


# ---- the book


def test_reserving_twice_is_one_reservation_and_a_closed_order_has_none(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    body = Reserve("o", "icu", "all", (Gaussian(10.0),))
    assert ledger.reserve(body) == []
    count = ledger.count
    assert ledger.reserve(body, unless=lambda tally: ["no room"]) == [], "it keeps what it has"
    assert ledger.count == count
    assert ledger.reserve(Reserve("p", "icu"), unless=lambda tally: ["no room"]) == ["no room"]
    assert ledger.count == count
    assert ledger.close("o", "finished", sums=7).body.sums == 7  # type: ignore[union-attr]
    assert ledger.close("o", "finished") is None
    assert "closed" in ledger.reserve(body)[0]


def test_paid_asks_for_the_attempt_and_the_bytes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge(run="o", release="r", bytes="ab"))
    assert ledger.paid("o", "r")
    assert ledger.paid("o", "r", 0, bytes="ab")
    assert not ledger.paid("o", "r", 1)
    assert not ledger.paid("o", "r", bytes="cd")
    assert not ledger.paid("o", "other")
    assert not ledger.paid("another", "r")


# ---- the accountant


@pytest.mark.parametrize("total", [0.5, 1.0, 1.0 + 5e-10])
def test_shares_up_to_the_whole_budget_are_split(total: float) -> None:
    parts = calibrate(1.0, 1e-6, shares=(total / 2, total / 2))
    assert epsilon([Gaussian(m) for m in parts], 1e-6) <= 1.0
    if total >= 1:
        assert epsilon([Gaussian(m) for m in parts], 1e-6) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("shares", [(0.6, 0.5), (1.0 + 1e-6,), (0.5, 0.0), (), (math.nan,)])
def test_more_than_the_whole_budget_is_refused(shares: Any) -> None:
    with pytest.raises(ConfigError, match="split"):
        calibrate(1.0, 1e-6, shares=shares)


@pytest.mark.parametrize("asked", [1e-3, 0.1, 1.0, 20.0, 200.0])
def test_a_budget_is_spent_to_its_last_part(asked: float) -> None:
    (m,) = calibrate(asked, 1e-6)
    assert asked * (1 - 1e-6) <= epsilon([Gaussian(m)], 1e-6) <= asked * (1 + 1e-9)


def test_an_identity_is_tied_once_and_names_are_approved_ahead(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.tie(b"a" * 32, lambda words: b"s" * 64)
    count = ledger.count
    ledger.tie(b"a" * 32, lambda words: b"s" * 64)
    assert ledger.count == count == 2, "the key's own line, and the identity's"
    ledger.tie(b"b" * 32, lambda words: b"s" * 64)
    assert ledger.count == 3
    bare = Ledger()
    bare.tie(b"a" * 32, lambda words: b"s" * 64)
    assert not bare.entries
    tally = Balance()
    tally.add(Approve("o", "lloyd-*", "ahead", "dpo"))
    tally.add(Approve("o", "sums", "ahead", "dpo"))
    assert tally.approves("o", "lloyd-0-1", "any facts")
    assert tally.approves("o", "sums", "any facts")
    assert not tally.approves("o", "lloydx", "any facts")
    assert not tally.approves("o", "sums2", "any facts")
    assert not tally.approves("p", "sums", "any facts")


def test_a_reservation_without_an_end_does_not_end() -> None:
    tally = Balance()
    tally.add(Reserve("o", "icu", events=(Gaussian(10.0),)))
    assert tally.open["o"].left(1e12) == pytest.approx(0.01)


def test_a_step_in_words_says_who_sees_it_and_whom_its_noise_covers() -> None:
    own = "who sees it: the coordinator: your own values, by themselves"
    for more, gathered, covers in (
        ({}, False, "what one patient can move"),
        ({"adjacency": "entry"}, False, "what one entry can move"),
        ({"how": "gather"}, True, "what one patient can move"),
    ):
        lines = in_words(step(**more), 1.0, facts_of("masked"), MethodFacts())
        assert (own in lines) == gathered
        assert covers in lines[-1]


def test_a_grid_that_is_just_fine_enough_has_the_curve_of_the_continuous_noise() -> None:
    at, below = (_foreign(DiscreteGaussian(5.0, sd=sd)) for sd in (CURVE, CURVE - 1))
    assert at == _foreign(Gaussian(5.0)) != below
