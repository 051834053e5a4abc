"""Nothing passes the door unpaid, and noise is what was announced."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.errors import ConfigError, PolicyRefusal, ProtocolMismatch
from polyclinic.privacy.accountant import DiscreteGaussian, Gaussian, Unbounded, calibrate
from polyclinic.privacy.budget import Privacy
from polyclinic.privacy.door import Door
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.mechanism import ExactNoise, SimulatedNoise
from polyclinic.privacy.outbox import Outbox
from polyclinic.privacy.policy import Policy
from polyclinic.privacy.release import Contribution, Step

GRID = 2.0**-16


def step(round: int = 1, size: int = 4000, **more) -> Step:
    given = {"bound": 1e4, "sensitivity": 1.0, "multiplier": 10.0, "grid": GRID, **more}
    return Step(round, "statistics", {"x": (size,)}, **given)


def values(size: int = 4000, value: float = 3.0) -> Contribution:
    return Contribution({"x": np.full(size, value)})


def fixed(seed: int = 0) -> SimulatedNoise:
    return SimulatedNoise(np.random.default_rng(seed))


@pytest.mark.parametrize("noise", [fixed, ExactNoise], ids=["simulated", "exact"])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_noise_has_the_share_of_the_announced_variance(noise, share):
    out = Door("n", noise=noise()).release(step(), values(), share=share, attempt=0)
    error = out.arrays["x"] - 3.0
    assert error.std() == pytest.approx(10 * share**0.5, rel=0.06)
    assert abs(error.mean()) < 5 * error.std() / 4000**0.5


@pytest.mark.parametrize("noise", [fixed, ExactNoise], ids=["simulated", "exact"])
def test_what_leaves_is_whole_multiples_of_the_grid(noise):
    out = Door("n", noise=noise()).release(step(size=50), values(50), share=1.0, attempt=0).arrays["x"] / GRID
    assert np.array_equal(out, np.rint(out))
    assert np.abs(out).max() < 2**53


def test_exact_noise_without_an_announced_grid_brings_its_own():
    door = Door("n", noise=ExactNoise())
    out = door.release(step(grid=None, size=500), values(500, 0.1), share=1.0, attempt=0).arrays["x"]
    assert out.std() == pytest.approx(10, rel=0.2)
    (charge,) = door.ledger.charges()
    assert isinstance(charge.event, DiscreteGaussian)
    units = out / charge.details["grid"]
    assert np.array_equal(units, np.rint(units))
    assert 10 < charge.details["sd_total"] < 10 * (1 + 2**-15), "rounding is paid with a little more noise"


def test_the_ledger_is_charged_the_guaranteed_noise_of_the_total():
    for share in (1.0, 1 / 7):
        door = Door("n", noise=fixed())
        door.release(step(), values(), share=share, attempt=0)
        assert door.ledger.charges()[0].event == Gaussian(10.0)


def test_calibrated_rounds_spend_the_epsilon_that_was_asked_for():
    door = Door("n", noise=fixed())
    door.admit("icu", "dpem", Privacy(epsilon=1.0), 3, 100)
    for t, m in enumerate(calibrate(1.0, 1e-6, shares=(0.07, 0.33, 0.6))):
        door.release(step(t, multiplier=m), values(), share=0.5, attempt=0)
    assert door.ledger.epsilon(1e-6) == pytest.approx(1.0, abs=1e-6)


def test_patients_at_several_sites_get_that_much_more_noise():
    door = Door("n", noise=fixed())
    door.admit("icu", "dpem", Privacy(epsilon=1.0, max_sites_per_patient=3), 3, 100)
    assert door.noise_sd(step()) == 30
    out = door.release(step(), values(), share=1.0, attempt=0)
    assert (out.arrays["x"] - 3).std() == pytest.approx(30, rel=0.06)


def test_charge_is_on_disk_before_noise_is_drawn(tmp_path):
    path = tmp_path / "ledger.jsonl"

    class Watcher:
        exact, label = False, "watches"

        def integers(self, sd, shape):
            assert len(Ledger(path).charges()) == 1
            raise KeyboardInterrupt

    door = Door("n", ledger=Ledger(path), noise=Watcher(), store=tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        door.release(step(), values(), share=1.0, attempt=0)
    again = Door("n", ledger=Ledger(path), store=tmp_path / "out")
    again.release(step(), values(), share=1.0, attempt=0)
    assert len(Ledger(path).charges()) == 2, "the lost attempt stays paid, the retry pays anew"


def test_a_full_disk_after_the_charge_is_not_paid_twice(tmp_path, monkeypatch):
    import polyclinic.privacy.door as module

    ledger = Ledger(tmp_path / "l.jsonl")
    door = Door("n", ledger=ledger, study="icu", store=tmp_path / "out")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(module, "write_release", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                door.release(step(), values(), share=1.0, attempt=0)
    door.release(step(), values(), share=1.0, attempt=0)
    assert len(ledger.charges()) == 1
    door.release(step(), values(), share=1.0, attempt=1)
    assert len(ledger.charges()) == 2


@pytest.mark.parametrize("stored", [True, False])
def test_same_attempt_sends_the_same_bytes_and_another_pays_anew(tmp_path, stored):
    store = tmp_path / "out" if stored else None
    ledger = Ledger(tmp_path / "l.jsonl")
    door = Door("n", ledger=ledger, study="icu", store=store)
    first = door.release(step(), values(), share=0.5, attempt=0).arrays["x"]
    if stored:  # a resumed process, too
        door = Door("n", ledger=Ledger(tmp_path / "l.jsonl"), study="icu", store=store)
    assert np.array_equal(door.release(step(), values(), share=0.5, attempt=0).arrays["x"], first)
    assert len(ledger.charges()) == 1
    other = door.release(step(), values(), share=0.5, attempt=1).arrays["x"]
    assert not np.array_equal(other, first)
    assert len(ledger.charges()) == 2


def test_replaying_a_folder_with_other_values_pays_anew(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl")
    door = Door("n", ledger=ledger, study="icu", store=tmp_path / "out")
    first = door.release(step(), values(), share=1.0, attempt=0).arrays["x"]
    second = door.release(step(), values(value=4.0), share=1.0, attempt=0).arrays["x"]
    assert len(ledger.charges()) == 2
    assert abs((second - first).mean() - 1) < 1


def test_a_step_without_a_bound_is_recorded_as_unbounded():
    door = Door("n")
    out = door.release(step(sensitivity=None, multiplier=None, grid=None), values(), share=1.0, attempt=0)
    assert np.array_equal(out.arrays["x"], values().arrays["x"])
    assert door.ledger.charges()[0].event == Unbounded()
    assert door.ledger.epsilon(1e-6) == float("inf")


def test_the_budget_stops_a_run_before_the_release():
    ledger = Ledger()
    door = Door("n", policy=Policy(max_epsilon_per_study=0.5), ledger=ledger, noise=fixed(), study="icu")
    door.release(step(0), values(), share=1.0, attempt=0)
    with pytest.raises(PolicyRefusal, match="allowed"):
        door.release(step(1), values(), share=1.0, attempt=0)
    assert len(ledger.charges()) == 1
    assert ledger.epsilon(1e-6) <= 0.5


def test_showing_a_contribution_needs_the_owners_leave():
    shown = step(how="gather")
    with pytest.raises(PolicyRefusal, match="gather"):
        Door("n", policy=Policy()).release(shown, values(), share=1.0, attempt=0)
    out = Door("n", policy=Policy(allow_gather=True), noise=fixed()).release(shown, values(), share=0.01, attempt=0)
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
def test_what_was_not_announced_is_refused_before_the_charge(bad, reason):
    door = Door("n")
    with pytest.raises(ProtocolMismatch, match=reason):
        door.release(step(), Contribution(bad), share=1.0, attempt=0)
    assert not door.ledger.charges()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ConfigError):
        Door("n").release(step(), values(), share=share, attempt=0)


def test_the_first_release_waits_for_the_owner_and_then_leaves_unchanged(tmp_path):
    def door() -> Door:
        return Door(
            "n", policy=Policy(review="first"), ledger=Ledger(tmp_path / "l.jsonl"), study="icu", store=tmp_path / "out"
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


def test_every_release_waits_when_each_is_reviewed_and_rejection_is_final(tmp_path):
    door = Door("n", policy=Policy(review="each"), study="icu", outbox=tmp_path)
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


def test_review_without_an_outbox_is_refused_at_the_start():
    with pytest.raises(ConfigError, match="outbox"):
        Door("n", policy=Policy(review="each"))
