"""Nothing passes the door unpaid, and noise is what was announced."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.errors import ConfigError, PolicyRefusal, ProtocolMismatch
from polyclinic.privacy.accounting.accountant import Gaussian, Unbounded, calibrate
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.mechanisms import ExactNoise, SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.gate.release_store import ReleaseStore
from polyclinic.privacy.ledger.ledger import Charge, Ledger
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Contribution, Step

GRID = 2.0**-16


def step(round: int = 1, size: int = 4000, **more: Any) -> Step:
    given = {"bound": 1e4, "sensitivity": 1.0, "multiplier": 10.0, "grid": GRID, **more}
    return Step(round, "statistics", {"x": (size,)}, **given)


def values(size: int = 4000, value: float = 3.0) -> Contribution:
    return Contribution({"x": np.full(size, value)})


def fixed(seed: int = 0) -> SimulatedNoise:
    return SimulatedNoise(np.random.default_rng(seed))


@pytest.mark.parametrize("noise", [fixed, ExactNoise], ids=["simulated", "exact"])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_noise_has_the_share_of_the_announced_variance(noise: Any, share: float) -> None:
    out = ReleaseGate("n", noise=noise()).release(step(), values(), share=share, attempt=0)
    error = out.arrays["x"] - 3.0
    assert error.std() == pytest.approx(10 * share**0.5, rel=0.06)
    assert abs(error.mean()) < 5 * error.std() / 4000**0.5


@pytest.mark.parametrize("noise", [fixed, ExactNoise], ids=["simulated", "exact"])
def test_what_leaves_is_whole_multiples_of_the_grid(noise: Any) -> None:
    out = ReleaseGate("n", noise=noise()).release(step(size=50), values(50), share=1.0, attempt=0).arrays["x"] / GRID
    assert np.array_equal(out, np.rint(out))
    assert np.abs(out).max() < 2**53


def test_exact_noise_without_an_announced_grid_brings_its_own() -> None:
    door = ReleaseGate("n", noise=ExactNoise())
    out = door.release(step(grid=None, size=500), values(500, 0.1), share=1.0, attempt=0).arrays["x"]
    assert out.std() == pytest.approx(10, rel=0.2)
    (charge,) = door.ledger.charges()
    assert charge.event == Gaussian(10.0)
    units = out / charge.grid  # type: ignore[operator]
    assert np.array_equal(units, np.rint(units))
    assert 10 < charge.sd < 10 * (1 + 2**-15), "rounding is paid with a little more noise"


def test_the_ledger_is_charged_the_guaranteed_noise_of_the_total() -> None:
    for share in (1.0, 1 / 7):
        door = ReleaseGate("n", noise=fixed())
        door.release(step(), values(), share=share, attempt=0)
        assert door.ledger.charges()[0].event == Gaussian(10.0)


def test_calibrated_rounds_spend_the_epsilon_that_was_asked_for() -> None:
    door = ReleaseGate("n", noise=fixed())
    door.admit("icu", "dpem", Privacy(epsilon=1.0), 3, 100)
    for t, m in enumerate(calibrate(1.0, 1e-6, shares=(0.07, 0.33, 0.6))):
        door.release(step(t, multiplier=m), values(), share=0.5, attempt=0)
    assert door.ledger.epsilon(1e-6) == pytest.approx(1.0, abs=1e-6)


def test_patients_at_several_sites_get_that_much_more_noise() -> None:
    door = ReleaseGate("n", noise=fixed())
    door.admit("icu", "dpem", Privacy(epsilon=1.0, max_sites_per_patient=3), 3, 100)
    assert door.noise_sd(step()) == 30
    out = door.release(step(), values(), share=1.0, attempt=0)
    assert (out.arrays["x"] - 3).std() == pytest.approx(30, rel=0.06)


def test_nothing_leaves_before_its_charge_is_on_disk_and_a_crash_in_between_is_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are prepared, the line is written, then they get their name; a crash at either point loses and costs nothing."""
    path, store = tmp_path / "ledger.jsonl", tmp_path / "out"
    door = ReleaseGate("n", ledger=Ledger(path), store=store, run="7f")
    with monkeypatch.context() as m:
        m.setattr(Ledger, "charge", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            door.release(step(), values(), share=1.0, attempt=0)
    (part,) = store.glob("*.part")
    before = part.read_bytes()
    assert not list(store.glob("*.npz"))
    door = ReleaseGate("n", ledger=Ledger(path), store=store, run="7f")
    with monkeypatch.context() as m:
        m.setattr(ReleaseStore, "keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            door.release(step(), values(), share=1.0, attempt=0)
    assert part.read_bytes() != before, "bytes without a line never left: they are drawn anew"
    booked = part.read_bytes()
    assert len(Ledger(path).charges()) == 1
    again = ReleaseGate("n", ledger=Ledger(path), store=store, run="7f")
    again.release(step(), values(), share=1.0, attempt=0)
    assert len(Ledger(path).charges()) == 1
    assert next(store.glob("*.npz")).read_bytes() == booked


def test_a_line_without_its_bytes_is_never_drawn_again(tmp_path: Path) -> None:
    """A store that was pruned or put back: fresh noise for an old charge would average out (attack 19)."""
    path, store = tmp_path / "ledger.jsonl", tmp_path / "out"
    door = ReleaseGate("n", ledger=Ledger(path), store=store, run="7f")
    door.release(step(), values(), share=1.0, attempt=0)
    for file in store.glob("*.npz"):
        file.unlink()
    for other in (door, ReleaseGate("n", ledger=Ledger(path), store=store, run="7f")):
        with pytest.raises(PolicyRefusal, match="not released again"):
            other.release(step(), values(), share=1.0, attempt=0)
    assert len(Ledger(path).charges()) == 1


@pytest.mark.parametrize("stored", [True, False])
def test_every_attempt_sends_the_same_bytes_and_pays_once(tmp_path: Path, stored: bool) -> None:
    store = tmp_path / "out" if stored else None
    ledger = Ledger(tmp_path / "l.jsonl")
    door = ReleaseGate("n", ledger=ledger, study="icu", store=store)
    first = door.release(step(), values(), share=0.5, attempt=0).arrays["x"]
    if stored:  # a resumed process, too
        door = ReleaseGate("n", ledger=Ledger(tmp_path / "l.jsonl"), study="icu", store=store)
    for attempt in (0, 1, 5):
        assert np.array_equal(door.release(step(), values(), share=0.5, attempt=attempt).arrays["x"], first)
    assert len(ledger.charges()) == 1


def test_what_the_way_to_add_leaks_is_paid_in_every_attempt() -> None:
    door = ReleaseGate("n", noise=fixed())
    for attempt in (0, 1, 1):
        door.release(step(), values(), share=0.5, attempt=attempt, also=(Gaussian(40.0),))
    assert [c.event.multiplier for c in door.ledger.charges()] == pytest.approx([(0.01 + 1 / 1600) ** -0.5, 40.0])  # type: ignore[union-attr]


def test_replaying_a_folder_with_other_values_pays_anew(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    door = ReleaseGate("n", ledger=ledger, study="icu", store=tmp_path / "out")
    first = door.release(step(), values(), share=1.0, attempt=0).arrays["x"]
    second = door.release(step(), values(value=4.0), share=1.0, attempt=0).arrays["x"]
    assert len(ledger.charges()) == 2
    assert abs((second - first).mean() - 1) < 1


def test_a_step_without_a_bound_is_recorded_as_unbounded() -> None:
    door = ReleaseGate("n")
    out = door.release(step(sensitivity=None, multiplier=None, grid=None), values(), share=1.0, attempt=0)
    assert np.array_equal(out.arrays["x"], values().arrays["x"])
    assert door.ledger.charges()[0].event == Unbounded()
    assert door.ledger.epsilon(1e-6) == float("inf")


def test_the_budget_stops_a_run_before_the_release() -> None:
    ledger = Ledger()
    door = ReleaseGate("n", policy=Policy(max_epsilon_per_study=0.5), ledger=ledger, noise=fixed(), study="icu")
    door.release(step(0), values(), share=1.0, attempt=0)
    with pytest.raises(PolicyRefusal, match="allowed"):
        door.release(step(1), values(), share=1.0, attempt=0)
    assert len(ledger.charges()) == 1
    assert ledger.epsilon(1e-6) <= 0.5


def test_showing_a_contribution_needs_the_owners_leave() -> None:
    shown = step(how="gather")
    with pytest.raises(PolicyRefusal, match="gather"):
        ReleaseGate("n", policy=Policy()).release(shown, values(), share=1.0, attempt=0)
    out = ReleaseGate("n", policy=Policy(sums=("gather",)), noise=fixed()).release(
        shown, values(), share=0.01, attempt=0
    )
    assert (out.arrays["x"] - 3).std() == pytest.approx(10, rel=0.06), "shown alone, it carries all the noise"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"x": np.full(4000, 2e4)}, "bound"),
        ({"x": np.full(4000, np.nan)}, "NaN"),
        ({"y": np.zeros(4000)}, "announced"),
        ({"x": np.full(4000, GRID / 2)}, "grid"),
    ],
)
def test_what_was_not_announced_is_refused_before_the_charge(bad: Any, reason: str) -> None:
    door = ReleaseGate("n")
    with pytest.raises(ProtocolMismatch, match=reason):
        door.release(step(), Contribution(bad), share=1.0, attempt=0)
    assert not door.ledger.charges()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError):
        ReleaseGate("n").release(step(), values(), share=share, attempt=0)


def test_the_first_release_waits_for_the_owner_and_then_leaves_unchanged(tmp_path: Path) -> None:
    def door() -> ReleaseGate:
        return ReleaseGate(
            "n", policy=Policy(review="names"), ledger=Ledger(tmp_path / "l.jsonl"), study="icu", store=tmp_path / "out"
        )

    with pytest.raises(PolicyRefusal, match="waits"):
        door().release(step(), values(), share=1.0, attempt=0)
    box = Outbox(tmp_path / "out" / "outbox")
    (pending,) = box.all()
    assert pending.state == "pending"
    assert pending.facts["study"] == "icu"
    shown = box.read(pending.id).arrays["x"]
    box.decide(pending.id, approve=True, by="privacy officer")
    assert np.array_equal(door().release(step(), values(), share=1.0, attempt=0).arrays["x"], shown)
    door().release(step(2), values(), share=1.0, attempt=0)  # later ones pass
    assert len(Ledger(tmp_path / "l.jsonl").charges()) == 2
    for file in (tmp_path / "out").rglob("*"):
        assert file.stat().st_mode & 0o077 == 0, file


def test_a_step_of_the_same_name_with_other_facts_waits_again(tmp_path: Path) -> None:
    """ATTACKS row 31: the two numbers of a first step were approved, and 851 others left unseen."""

    def door() -> ReleaseGate:
        return ReleaseGate(
            "n", policy=Policy(review="names"), ledger=Ledger(tmp_path / "l.jsonl"), study="icu", store=tmp_path
        )

    box = Outbox(tmp_path / "outbox")
    setup = Step(0, "setup", {"size": (2,)}, bound=1e9, counts=False)
    with pytest.raises(PolicyRefusal, match="waits"):
        door().release(setup, Contribution({"size": np.ones(2)}))
    box.decide(box.all()[0].id, approve=True, by="officer")
    door().release(setup, Contribution({"size": np.ones(2)}))
    with pytest.raises(PolicyRefusal, match="waits"):  # another name
        door().release(step(size=851), values(851))
    (waiting,) = [p for p in box.all() if p.state == "pending"]
    assert "851 numbers" in waiting.facts["words"][0]
    box.decide(waiting.id, approve=True, by="officer")
    door().release(step(size=851), values(851))
    for t in range(2, 6):  # the same facts in other rounds
        door().release(step(t, size=851), values(851))
    for other in (step(6, size=852), step(6, size=851, multiplier=5.0), step(6, size=851, how="gather")):
        with pytest.raises(PolicyRefusal):
            door().release(other, values(852 if other.size == 852 else 851))
    kinds = [e.kind for e in Ledger(tmp_path / "l.jsonl").entries]
    assert kinds.count("approve") == 2
    assert {e.body.by for e in Ledger(tmp_path / "l.jsonl").entries if e.kind == "approve"} == {"officer"}  # type: ignore[union-attr]


def test_steps_that_were_approved_ahead_do_not_wait(tmp_path: Path) -> None:
    from polyclinic.privacy.ledger.entries import Approve

    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.write(Approve("order", "stat*", "ahead", "officer"))
    door = ReleaseGate("n", policy=Policy(review="names"), ledger=ledger, study="icu", store=tmp_path, run="order")
    assert door.release(step(), values()).arrays["x"].shape == values().arrays["x"].shape
    with pytest.raises(PolicyRefusal, match="waits"):
        door.release(Step(0, "setup", {"size": (2,)}, bound=1e9), Contribution({"size": np.ones(2)}))


def test_every_release_waits_when_each_is_reviewed_and_rejection_is_final(tmp_path: Path) -> None:
    door = ReleaseGate("n", policy=Policy(review="each"), study="icu", outbox=tmp_path)
    for t in (1, 2):
        with pytest.raises(PolicyRefusal, match="waits"):
            door.release(step(t), values(), share=1.0, attempt=0)
    box = Outbox(tmp_path)
    first = box.all()[0]
    box.decide(first.id, approve=False, by="officer")
    with pytest.raises(PolicyRefusal, match="rejected"):
        door.release(step(1), values(), share=1.0, attempt=0)
    with pytest.raises(PolicyRefusal, match="already"):
        box.decide(first.id, approve=True, by="officer")


def test_review_without_an_outbox_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="outbox"):
        ReleaseGate("n", policy=Policy(review="each"))


@pytest.mark.parametrize("how", ["deleted", "put back", "edited"])
def test_a_stored_release_without_its_line_is_not_sent_again(tmp_path: Path, how: str) -> None:
    """A10: bytes in the store are only sent if the book has a line for these very bytes."""
    path, store = tmp_path / "book" / "l.jsonl", tmp_path / "out"
    step = Step(1, "sums", {"x": (5,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)

    def door() -> ReleaseGate:
        return ReleaseGate("n", ledger=Ledger(path, site="n"), store=store, run="order")

    mine = Contribution({"x": np.ones(5)})
    first = door()
    first.ledger.charge(Charge("old", "dpem", 1, "x", 0, Gaussian(50.0)))
    shutil.copytree(path.parent, tmp_path / "saved")
    out = first.release(step, mine).arrays["x"]
    assert np.array_equal(door().release(step, mine).arrays["x"], out), "with its line it is sent again, the same"
    if how == "edited":
        (file,) = store.glob("*.npz")
        with np.load(file) as z:
            held = dict(z)
        np.savez(file, **{k: v + 1.0 if v.shape == (5,) else v for k, v in held.items()})
    else:
        shutil.rmtree(path.parent)
        if how == "put back":
            shutil.copytree(tmp_path / "saved", path.parent)
    with pytest.raises(PolicyRefusal, match="no line for these bytes"):
        door().release(step, mine)
