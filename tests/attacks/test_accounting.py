"""Attacks on what is booked: each failed to be stopped once, and is stopped now (ATTACKS rows 2, 3, 8, 11, 19, 28)."""

from __future__ import annotations

import contextlib
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

import polyclinic as pc
from polyclinic.aggregation.plain import Plain
from polyclinic.errors import PolicyRefusal
from polyclinic.privacy.accounting.accountant import Gaussian, calibrate, epsilon, gaussian_epsilon
from polyclinic.privacy.accounting.mechanisms import ExactNoise
from polyclinic.privacy.accounting.noise_grid import noise_scale
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Contribution, Step
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.loop import Simulation
from polyclinic.tensors.axis import Axis
from polyclinic_papers.decentralised.subspace import Subspace


def counts(vocabulary: str = "public") -> list[pc.Site]:
    from dataclasses import replace

    sites = pc.datasets.planted_counts(240, 12, 15, phenotypes=2, codes=(4, 5), sites=3, seed=0)
    made = []
    for s in sites:
        t = s.counts()
        axes = [t.axes[0], *(replace(Axis.of(a, n), vocabulary=vocabulary) for n, a in enumerate(t.axes[1:], 1))]  # type: ignore[arg-type]
        made.append(replace(s, tensor=type(t)(t.coords, t.values, t.shape, axes)))
    return made


def matrices(n: int = 120) -> list[pc.Site]:
    rng = np.random.default_rng(0)
    return [pc.Site(name, features=rng.normal(size=(n, 2))) for name in ("east", "north", "south")]


def spent(doors: dict[str, ReleaseGate], delta: float = 1e-6) -> float:
    return max(d.ledger.epsilon(delta) for d in doors.values())


# ---- row 2: the card forgets


def test_the_card_has_what_a_scaler_cost_and_an_unpaid_one_leaves_no_bound() -> None:
    sites = matrices()
    doors = {s.name: ReleaseGate(s.name) for s in sites}
    scaled = pc.Standardizer(radius=5.0, privacy=pc.Privacy(2.0)).fit(sites, doors=doors).transform(sites)
    asked = {"n_components": 2, "radius": 5.0, "paid_rounds": 2, "privacy": pc.Privacy(1.0)}
    card = pc.GaussianMixture(**asked).fit(scaled, doors=doors).privacy_  # type: ignore[arg-type]
    assert card.epsilon == pytest.approx(spent(doors), rel=1e-9)
    assert card.epsilon is not None and card.epsilon > 2.0
    bare = pc.GaussianMixture(**asked).fit(pc.Standardizer().fit_transform(sites)).privacy_  # type: ignore[arg-type]
    assert bare.epsilon is None
    assert bare.guarantee == "heuristic"
    assert any("zoom-1" in r for r in bare.reasons)


ADDERS = ("plain", "masked", "subspace", "median")


@pytest.mark.parametrize("adder", ADDERS)
@pytest.mark.parametrize("vocabulary", ["public", "data"])
def test_card_and_worst_book_agree_for_tensors(adder: str, vocabulary: str) -> None:
    sites = counts(vocabulary)
    doors = {s.name: ReleaseGate(s.name) for s in sites}
    model = pc.DPEM(rank=2, rounds=2, privacy=pc.Privacy(1.0), aggregation=adder).fit(sites, doors=doors)
    card = model.privacy_
    assert card.epsilon == pytest.approx(spent(doors), rel=1e-9, abs=1e-9)
    assert (card.guarantee == "formal") == (vocabulary != "data")
    assert card.aggregation == adder


@pytest.mark.parametrize("adder", ADDERS)
@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("method", ["mixture", "standardizer", "pca"])
def test_card_and_worst_book_agree_for_features(adder: str, scaler: bool, method: str) -> None:
    sites = matrices()
    doors = {s.name: ReleaseGate(s.name) for s in sites}
    privacy = pc.Privacy(1.0, max_sites_per_patient=2)
    if scaler:
        first = pc.Standardizer(radius=5.0, privacy=privacy).fit(sites, doors=doors)
        sites = first.transform(sites)
    kinds = {
        "mixture": lambda: pc.GaussianMixture(
            n_components=2, radius=5.0, paid_rounds=2, privacy=privacy, aggregation=adder
        ),
        "standardizer": lambda: pc.Standardizer(radius=5.0, privacy=privacy, aggregation=adder),
        "pca": lambda: pc.FederatedPCA(n_components=1, radius=5.0, privacy=privacy, aggregation=adder),
    }
    card = kinds[method]().fit(sites, doors=doors).privacy_  # type: ignore[attr-defined, no-untyped-call]
    assert card.epsilon == pytest.approx(spent(doors), rel=1e-9, abs=1e-9)
    assert card.guarantee == "formal"


# ---- row 3: patients at several sites


@pytest.mark.parametrize("sites_per_patient", [1, 3])
def test_every_estimator_pays_for_patients_at_several_sites(sites_per_patient: int) -> None:
    privacy = pc.Privacy(1.0, max_sites_per_patient=sites_per_patient)
    methods = (
        pc.Standardizer(radius=5.0, privacy=privacy),
        pc.FederatedPCA(radius=5.0, privacy=privacy),
        pc.GaussianMixture(n_components=2, radius=5.0, paid_rounds=2, privacy=privacy),
    )
    for m in methods:
        fold = Simulation(m, matrices())
        m.publish(fold.run())
        seen = [r.step.noise_sd / (r.step.multiplier * r.step.sensitivity) for r in fold.releases]  # type: ignore[operator]
        assert set(np.round(seen, 9)) == {float(sites_per_patient)}, m.name
        for party in fold.parties.values():
            lines = party.door.ledger.charges()
            assert {c.sites_per_patient for c in lines} == {sites_per_patient}
            assert all(c.sd >= sites_per_patient * c.event.multiplier * c.sensitivity for c in lines)  # type: ignore[operator, union-attr]
        assert any(f"no more than {sites_per_patient} site" in a for a in m.privacy_.assumptions)


# ---- row 8: sums of coarse discrete Gaussians


def exact_epsilon(parameter: float, shares: int, moved: int, delta: float = 1e-6) -> float:
    """Hockey-stick curve of the sum of ``shares`` discrete Gaussians (in grid units) moved by whole grid steps."""
    reach = int(np.ceil(14 * parameter)) + 2
    k = np.arange(-reach, reach + 1)
    p = np.exp(-(k**2) / (2 * parameter**2))
    p /= p.sum()
    law = p
    for _ in range(shares - 1):
        law = np.convolve(law, p)
    q, r = np.append(law, np.zeros(moved)), np.insert(law, 0, np.zeros(moved))

    def excess(e: float) -> float:
        return float(np.maximum(q - np.exp(e) * r, 0).sum()) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, 400.0))


@pytest.mark.parametrize(("asked", "shares"), list(itertools.product((1.0, 4.0, 8.0, 16.0), (1, 3, 10, 30))))
def test_votes_cost_what_is_booked(asked: Any, shares: Any) -> None:
    (multiplier,) = calibrate(asked, 1e-6, shares=(0.14,))
    step = Step(0, "votes", {"votes": (9,)}, bound=1e6, sensitivity=1.0, multiplier=multiplier, grid=1.0)
    scale = noise_scale(step, 1 / shares)
    grid = max(scale.grid, 2.0**-6)  # type: ignore[type-var]  # the curve is computed on a coarser grid than is used, which costs more
    sd = float(np.sqrt(multiplier**2 + 4 * grid**2))  # type: ignore[operator]
    true = exact_epsilon(sd / np.sqrt(shares) / grid, shares, round(1 / grid))  # type: ignore[operator]
    booked = epsilon([_event(step)], 1e-6)
    assert true <= booked * (1 + 1e-6)
    assert true >= 0.99 * booked or multiplier < 20 * grid  # type: ignore[operator]


def _event(step: Step) -> Any:
    from polyclinic.privacy.accounting.noise_grid import event_of

    return event_of(step)


@pytest.mark.parametrize("steps", [8, 12, 20, 50])  # grid steps of noise in a share
@pytest.mark.parametrize(("shares", "moved"), [(1, 1), (1, 7), (3, 5), (6, 30)])
def test_the_charge_is_never_below_the_exact_curve_and_tight_on_fine_grids(steps: int, shares: int, moved: int) -> None:
    """The lemma: shares of parameter s on a grid h, together as private as a Gaussian of sd sqrt(t s^2 - 4 h^2)."""
    total = np.sqrt(shares * steps**2)
    booked = gaussian_epsilon(moved / float(np.sqrt(total**2 - 4)), 1e-6)
    true = exact_epsilon(float(steps), shares, moved)
    assert true <= booked * (1 + 1e-9)
    if steps >= 20:
        assert booked <= 1.01 * true + 1e-12


def test_a_grid_that_cannot_be_refined_is_refused() -> None:
    coarse = Step(0, "votes", {"votes": (9,)}, bound=2.0**52, sensitivity=1.0, multiplier=2.0, grid=1.0)
    with pytest.raises(pc.errors.ConfigError, match="no proven cost"):
        ReleaseGate("n", noise=ExactNoise()).release(coarse, Contribution({"votes": np.zeros(9)}))


# ---- row 11: an honest study runs to its end


def test_a_private_mixture_with_exact_noise_runs_within_what_it_asked_for() -> None:
    sites = matrices(300)
    m = pc.GaussianMixture(n_components=2, radius=5.0, paid_rounds=3, privacy=pc.Privacy(1.0), aggregation="masked")
    policy = Policy(max_epsilon_per_study=1.0, max_epsilon_total=1.0)
    doors = {s.name: ReleaseGate(s.name, noise=ExactNoise(), policy=policy) for s in sites}
    for d in doors.values():
        d.admit("s", m.name, m.params.privacy, 3, 300)
    Simulation(m, sites, doors=doors).run()
    for d in doors.values():
        assert 0.999 < d.ledger.epsilon(1e-6) <= 1.0 + 1e-9


# ---- row 19: fresh noise for an old charge


def test_what_masks_leak_is_set_aside_with_the_price() -> None:
    """Under subspace a study that asks for the whole limit is refused at its door, not by its last release."""
    sites = counts()
    asked = pc.Privacy(1.0)
    roomy = epsilon([Gaussian(calibrate(1.0, 1e-6)[0] / math.sqrt(1.01))], 1e-6)

    def run(limit: float) -> dict[str, ReleaseGate]:
        doors = {s.name: ReleaseGate(s.name, policy=Policy(max_epsilon_total=limit), run="o") for s in sites}
        for d in doors.values():
            d.admit("s", "dpem", asked, len(sites), 100, margin=Subspace.margin)
        pc.DPEM(rank=2, rounds=2, privacy=asked, aggregation="subspace").fit(sites, doors=doors)
        return doors

    with pytest.raises(PolicyRefusal, match="1% for what the way to add leaks"):
        run(1.0)
    for d in run(roomy * (1 + 1e-12)).values():
        held = d.ledger.tally.open["o"]
        assert 1 / calibrate(1.0, 1e-6)[0] ** 2 < held.charged < held.mu2, "the leak is in it, and fits"


def test_a_pruned_release_is_never_drawn_again(tmp_path: Path) -> None:
    path, store = tmp_path / "l.jsonl", tmp_path / "out"
    step = Step(2, "sums", {"x": (200,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    got = set()
    for _ in range(20):  # a second job of the same order, with its store pruned each time
        door = ReleaseGate("n", ledger=Ledger(path), store=store, run="order")
        with contextlib.suppress(PolicyRefusal):
            got.add(door.release(step, Contribution({"x": np.ones(200)})).arrays["x"].tobytes())
        for file in store.glob("*"):
            file.unlink()
    assert len(got) == 1
    assert Ledger(path).epsilon(1e-6) == pytest.approx(gaussian_epsilon(0.1, 1e-6))


# ---- row 28: the card speaks of what ran


@pytest.mark.parametrize("named", ["plain", "masked"])
@pytest.mark.parametrize("ran", ["plain", "masked", "subspace", "cycle", "median"])
def test_the_card_speaks_of_the_sum_that_ran(named: str, ran: str) -> None:
    tapped: set[str] = set()
    model = pc.TRIP(rank=2, rounds=2, aggregation=named)
    fold = Simulation(
        model, counts(), adder=by_name(ran), tap=lambda m: tapped.add(f"{m.to == 'coordinator'} {m.kind}")
    )
    model.publish(fold.run())
    card = model.privacy_
    assert card.aggregation == ran
    sees_each = "True contribution" in tapped
    assert sees_each == ("each site's contribution" in card.saw.get("the coordinator", ""))
    assert ("a coordinator" in card.saw) == (ran in ("subspace", "cycle"))
    assert bool(sees_each) == any("Gram matrix" in a for a in card.attacks)


class Mine(Plain):
    """Another author's way to add that reuses a name."""


def test_a_tap_hears_what_the_card_says_of_a_plugged_in_sum() -> None:
    model = pc.TRIP(rank=2, rounds=2, aggregation="masked").fit(counts(), adder=Mine())
    assert model.privacy_.saw["the coordinator"] == "each site's contribution, exact"
