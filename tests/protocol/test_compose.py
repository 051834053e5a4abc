"""Combinators change no method: parts give the bits that they give alone, for one epsilon where they share no patient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.composition import Parallel, Sequential, half_method
from polyclinic.protocol.loop import run
from polyclinic.protocol.patient_halves import halves_of


def halved(method: Any, key: str) -> Parallel:
    """The method twice, on two halves of the patients, as one run: a patient feeds one half, so both cost one epsilon."""
    return Parallel([half_method(method, key, half=h) for h in (0, 1)], disjoint=True, name=method.name)


@pytest.fixture(scope="module")
def sites() -> list[pc.Site]:
    return example_sites(patients=60)


def test_a_half_depends_on_the_key_and_the_patient_alone(sites: list[pc.Site]) -> None:
    half = halves_of(sites[1], "key")
    assert 0.2 < half.mean() < 0.8
    order = np.random.default_rng(0).permutation(sites[1].patients)
    assert np.array_equal(halves_of(sites[1].take(order), "key"), half[order])
    assert not np.array_equal(halves_of(sites[1], "key", 1), half)
    assert not np.array_equal(halves_of(sites[1], "other"), half)


def test_halves_are_bit_equal_to_two_separate_fits(sites: list[pc.Site]) -> None:
    both = halved(pc.SumALS(rank=2, rounds=4), "key")
    outcome = run(both, sites)
    for h, (part, public) in enumerate(zip(both.parts, both.publics(outcome.public))):
        apart = run(part.method, [s.take(halves_of(s, "key") == h) for s in sites])  # type: ignore[attr-defined]
        for a, b in zip(public.factors, apart.public.factors):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_two_private_halves_cost_one_epsilon(sites: list[pc.Site], aggregation: str) -> None:
    privacy = pc.Privacy(epsilon=2.0, delta=1e-5)
    m = pc.DPEM(rank=3, rounds=3, privacy=privacy, aggregation=aggregation, planning_size=200)
    doors = {s.name: ReleaseGate(s.name) for s in sites}
    run(halved(m, "key"), sites, doors=doors)
    assert max(d.ledger.epsilon(1e-5) for d in doors.values()) == pytest.approx(2.0, rel=1e-3)


def test_ranks_side_by_side_equal_ranks_alone(sites: list[pc.Site]) -> None:
    methods = [pc.TRIP(rank=2, rounds=3), pc.TRIP(rank=3, rounds=5)]
    ladder = Parallel(methods)
    outcome = run(ladder, sites)
    for m, public in zip(methods, ladder.publics(outcome.public)):
        alone = run(m, sites).public
        assert all(np.array_equal(a, b) for a, b in zip(public.factors, alone.factors))


def test_a_ladder_of_private_fits_is_refused() -> None:
    m = pc.DPEM(rank=2, rounds=2, privacy=pc.Privacy(1.0), planning_size=100)
    with pytest.raises(ConfigError, match="every part costs budget"):
        Parallel([m, m])


@pytest.mark.protocol
@pytest.mark.parametrize("kind", ["halved", "ladder", "then"])
def test_combinators_pass_the_battery(kind: str, sites: list[pc.Site]) -> None:
    m = pc.SumALS(rank=2, rounds=3)
    made = {  # type: ignore[no-untyped-call]
        "halved": lambda: halved(m, "key"),
        "ladder": lambda: Parallel([m, pc.SumALS(rank=3, rounds=2)]),
        "then": lambda: Sequential(
            m, lambda public, setting: pc.SumALS(rank=2, rounds=2, seed=1), (m.Public, m.Private)
        ),
    }[kind]()
    pc.check_protocol(made, sites)  # type: ignore[arg-type]
