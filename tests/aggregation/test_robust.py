"""Robust rules: what liars can and cannot do, and what the rules cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyclinic.errors import ConfigError
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Contribution, Roster, Step

Make = Callable[..., Any]
RULES = ["median", "trimmed", "geometric", "krum", "multikrum", "bounded"]
NAMES = tuple(f"s{i}" for i in range(10))
STEP = Step(1, "statistics", {"S": (20,), "T": (3, 2)}, bound=1e6)


def honest(seed: int = 0) -> dict[str, Contribution]:
    rng = np.random.default_rng(seed)
    centre = {"S": rng.standard_normal(20), "T": rng.standard_normal((3, 2))}
    return {s: Contribution({k: a + 0.1 * rng.standard_normal(a.shape) for k, a in centre.items()}) for s in NAMES}


def attacked(kind: str) -> dict[str, Contribution]:
    rng = np.random.default_rng(9)
    parts = honest()
    for s in NAMES[3:5]:
        lie = {
            "huge": lambda a: 1e5 * rng.standard_normal(a.shape),
            "permuted": lambda a: 8 * np.roll(a, 1, axis=0),
            "opposite": lambda a: -20 * a,
        }[kind]
        parts[s] = Contribution({k: lie(a) for k, a in parts[s].arrays.items()})  # type: ignore[no-untyped-call]
    return parts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["huge", "permuted", "opposite"])
def test_two_liars_of_ten_cannot_move_the_total_far(add: Make, rule: str, kind: str) -> None:
    roster = Roster(NAMES, threshold=10)
    total = add(by_name(rule), roster, STEP, attacked(kind)).run()["coordinator"]
    plain = add(by_name("plain"), roster, STEP, attacked(kind)).run()["coordinator"]
    good = np.mean([honest()[s].arrays["S"] for s in NAMES if s not in NAMES[3:5]], axis=0)
    error = np.linalg.norm(total.mean("S") - good) / np.linalg.norm(good)
    ruined = np.linalg.norm(plain.mean("S") - good) / np.linalg.norm(good)
    assert ruined > 1.0
    assert error < (0.7 if rule == "bounded" else 0.15)
    assert total.members == 10


@pytest.mark.parametrize("rule", RULES)
def test_without_liars_the_cost_is_small(add: Make, rule: str) -> None:
    total = add(by_name(rule), Roster(NAMES, threshold=10), STEP, honest()).run()["coordinator"]
    plain = add(by_name("plain"), Roster(NAMES, threshold=10), STEP, honest()).run()["coordinator"]
    off = np.linalg.norm(total.mean("T") - plain.mean("T"))
    assert off < {"krum": 0.5, "bounded": 1e-12}.get(rule, 0.12)


def test_rules_by_hand() -> None:
    step = Step(1, "s", {"S": (1,)}, bound=1e6)
    parts = {f"s{i}": Contribution({"S": np.array([float(x)])}) for i, x in enumerate([1, 2, 3, 4, 100])}
    got = {
        r: by_name(r, malicious=1).add(step, parts)[0]["S"][0] / 5  # type: ignore[attr-defined]
        for r in ("median", "trimmed", "krum", "multikrum")
    }
    assert got == {"median": 3.0, "trimmed": 3.0, "krum": 2.0, "multikrum": 2.5}
    assert by_name("geometric").add(step, parts)[0]["S"][0] / 5 == pytest.approx(3.0, abs=1e-3)  # type: ignore[attr-defined]
    assert by_name("bounded", norm=2.0).add(step, parts)[0]["S"][0] == 1 + 2 + 2 + 2 + 2  # type: ignore[attr-defined]


def test_an_impossible_contribution_is_left_out_and_named(add: Make) -> None:
    parts = honest()
    office = add(by_name("trimmed"), Roster(NAMES, threshold=10), STEP, parts)
    for bad, value in ((NAMES[0], np.full(20, np.nan)), (NAMES[1], np.full(20, 1e9))):
        office.sides[bad].message.body["arrays"]["S"] = value
    total = office.run()["coordinator"]
    assert total.members == 8
    assert set(office.sides["coordinator"].refused) == set(NAMES[:2])
    assert np.isfinite(total.arrays["S"]).all()


def test_too_many_liars_for_the_rule_are_refused() -> None:
    for rule, malicious in (("median", 5), ("trimmed", 5), ("krum", 4)):
        with pytest.raises(ConfigError, match="cannot stand"):
            by_name(rule, malicious=malicious).exchange("coordinator", Roster(NAMES), STEP, None)


def test_robust_and_secure_exclude_each_other() -> None:
    for name in ("masked+median", "subspace+krum"):
        with pytest.raises(ConfigError, match="must see every contribution"):
            by_name(name)
    with pytest.raises(ConfigError, match="unknown aggregation"):
        by_name("average")
    for rule in RULES:
        assert by_name(rule, identities={}).reveals == "each"
        assert by_name(rule).noise_share(Roster(NAMES)) == 1.0  # full noise at every site


@pytest.mark.parametrize("rule", [r for r in RULES if r != "bounded"])
def test_the_stated_noise_is_the_noise_of_the_rule(rule: str) -> None:
    """The card and the shrinkage rely on the total's noise_sd: compare with the noise of many coordinates."""
    rng = np.random.default_rng(3)
    step = Step(1, "s", {"S": (4000,)}, bound=1e6, sensitivity=1.0, multiplier=2.0)
    adder: Any = by_name(rule)
    roster = Roster(NAMES, threshold=10)
    sides = {s: adder.exchange(s, roster, step, Contribution({"S": 2.0 * rng.standard_normal(4000)})) for s in NAMES}
    coordinator = adder.exchange("coordinator", roster, step, None)
    for s in NAMES:
        coordinator.receive(sides[s].start()[0])
    total = coordinator.result()
    assert total.noise_sd == pytest.approx(total.arrays["S"].std(), rel=0.1)


def test_the_card_says_what_a_robust_rule_traded() -> None:
    import polyclinic as pc

    sites = pc.datasets.planted_counts(
        patients=120, procedures=20, diagnoses=25, phenotypes=2, seed=0, sites=4, events=8
    )
    card = pc.LocalTF(rank=2, rounds=2, seed=0, aggregation="median").fit(sites).privacy_
    assert "no secure sum" in card.saw["the coordinator"]
    assert card.epsilon is None
