"""A hospital's own file makes its door; ledger, card and fold tell the same story."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gates import door_of

import polyclinic as pc
from polyclinic.config import Node
from polyclinic.errors import ConfigError, LedgerError, PolicyRefusal
from polyclinic.privacy.accounting.accountant import Gaussian, epsilon
from polyclinic.privacy.accounting.mechanisms import ExactNoise
from polyclinic.privacy.card.card import make_card
from polyclinic.privacy.card.release_history import ReleaseHistory
from polyclinic.privacy.gate.owner_rules import ledger_of, noise_of, policy_between, policy_of
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.release import Contribution, Release, Step
from polyclinic.protocol.loop import Simulation


def node(tmp_path: Path, **sections: Any) -> Node:
    return Node.parse(
        {"site": {"name": "north"}, "source": {"kind": "files", "events": "e.csv"}, **sections}, folder=tmp_path
    )


def test_the_node_file_makes_the_door(tmp_path: Path) -> None:
    door = door_of(node(tmp_path, policy={"max_epsilon_total": 3.0, "min_patients": 20}, ledger={"cohort": "adults"}))
    assert door.noise.exact
    assert door.policy is not None
    assert door.policy.min_patients == 20
    step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    door.release(step, Contribution({"x": np.ones(3)}))
    ledger = ledger_of(node(tmp_path))
    assert ledger.charges()[0].cohort == "adults"
    assert ledger.verify() == ()


def test_erasing_the_sites_folder_does_not_erase_what_was_spent(tmp_path: Path) -> None:
    home = node(tmp_path)
    assert home.home.resolve() not in ledger_of(home).path.resolve().parents  # type: ignore[union-attr]


def test_a_ledger_begun_inside_the_folder_is_moved_out_and_goes_on(tmp_path: Path) -> None:
    made = node(tmp_path)
    inside = Ledger(made.home / "ledger.jsonl", site="north")
    step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    from polyclinic.privacy.gate.gate import ReleaseGate

    ReleaseGate("north", ledger=inside, study="old").release(step, Contribution({"x": np.ones(3)}))
    ReleaseGate("north", ledger=inside, study="old2").release(step, Contribution({"x": np.ones(3)}))
    ledger = ledger_of(made)
    assert ledger.path == tmp_path / "north.ledger.jsonl"
    assert ledger.verify() == ()
    assert [c.study for c in ledger.charges()] == ["old", "old2"]
    shutil.rmtree(made.home)
    assert len(ledger_of(made).charges()) == 2


def test_two_nodes_of_one_folder_keep_their_anchors_apart(tmp_path: Path) -> None:
    a, b = (node(tmp_path, site={"name": name}) for name in ("a", "b"))
    step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    door_of(a).release(step, Contribution({"x": np.ones(3)}))
    door_of(b).release(step, Contribution({"x": np.ones(3)}))
    assert ledger_of(a).verify() == ()
    for left in tmp_path.glob("a.ledger.jsonl*"):
        left.unlink()
    later = Step(2, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    with pytest.raises(LedgerError, match="failed its check"):  # a's own anchor tells of the book that is gone
        door_of(a).release(later, Contribution({"x": np.ones(3)}))
    assert ledger_of(b).verify() == ()


def test_a_ledger_in_the_erasable_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="site erase"):
        ledger_of(node(tmp_path, ledger={"path": "site/spent.jsonl"}))
    assert ledger_of(node(tmp_path, ledger={"path": "spent.jsonl"})).path == tmp_path / "spent.jsonl"


def test_seeded_noise_is_refused_at_a_real_hospital(tmp_path: Path) -> None:
    seeded = {"simulated_noise_seed": 3}
    for read in (door_of, ledger_of, policy_of, noise_of):
        with pytest.raises(ConfigError, match="rehearsal = true"):
            read(node(tmp_path, ledger=seeded))
    assert noise_of(node(tmp_path)).exact
    assert noise_of(node(tmp_path, site={"name": "north", "rehearsal": True})).exact  # the flag alone changes nothing


def test_seeded_noise_of_a_rehearsal_is_called_not_private_in_ledger_and_card(tmp_path: Path) -> None:
    made = node(tmp_path, site={"name": "north", "rehearsal": True}, ledger={"simulated_noise_seed": 3})
    step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    door_of(made).release(step, Contribution({"x": np.ones(3)}))
    (charge,) = ledger_of(made).charges()
    assert charge.noise.startswith("not private: simulated noise")
    for label in (noise_of(made).label, f"{ExactNoise.label}; {noise_of(made).label}"):  # at one site is enough
        happened = ReleaseHistory.of("dpem", [Release(0, step)], asked=pc.Privacy(1.0), noise=label)
        card = make_card(pc.DPEM.facts, happened)
        assert (card.guarantee, card.epsilon) == ("none", None)
        assert "not private: simulated noise" in str(card)


def test_every_wrong_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as e:
        policy_of(node(tmp_path, policy={"max_epsilon": 3, "min_cell": 0}, ledger={"file": "x"}))
    assert len(e.value.faults) == 3
    assert "max_epsilon_total" in str(e.value)


def network() -> list[pc.Site]:
    return pc.datasets.planted_counts(300, 15, 20, phenotypes=2, codes=(4, 5), sites=4, seed=0)


@pytest.mark.parametrize("aggregation", ["plain", "masked", "subspace"])
def test_ledger_and_card_agree_on_what_a_run_cost(aggregation: str) -> None:
    method = pc.DPEM(rank=3, rounds=3, privacy=pc.Privacy(1.0, 1e-6), aggregation=aggregation)
    fold = Simulation(method, network())
    method.publish(fold.run())
    card = method.privacy_
    plain = epsilon([Gaussian(r.step.multiplier) for r in fold.releases], 1e-6)  # type: ignore[arg-type]
    for party in fold.parties.values():
        assert party.door.ledger.epsilon(1e-6) == pytest.approx(card.epsilon, rel=1e-9)
    assert card.guarantee == "formal"
    if aggregation == "subspace":
        assert card.epsilon is not None and card.epsilon > plain, "masks of finite variance leak, and that is charged"
        assert card.epsilon == pytest.approx(1.0, rel=0.5)
    else:
        assert card.epsilon == pytest.approx(1.0, abs=1e-6)


def test_a_whole_fit_with_exact_noise_and_ledgers_on_disk(tmp_path: Path) -> None:
    from polyclinic.privacy.gate.gate import ReleaseGate

    sites = network()
    doors = {
        s.name: ReleaseGate(
            s.name, ledger=Ledger(tmp_path / f"{s.name}.jsonl"), noise=ExactNoise(), store=tmp_path / s.name
        )
        for s in sites
    }
    fitted = pc.DPEM(rank=3, rounds=2, privacy=pc.Privacy(4.0, 1e-6), aggregation="masked").fit(sites, doors=doors)
    assert "exact" in fitted.privacy_.noise
    for s in sites:
        ledger = Ledger(tmp_path / f"{s.name}.jsonl")
        assert ledger.verify() == ()
        assert len(ledger.charges()) == 4  # number of patients, marginals, two rounds
        assert ledger.epsilon(1e-6) == pytest.approx(4.0, abs=1e-6)


def test_a_budget_that_is_spent_stops_the_study_before_anything_is_computed(tmp_path: Path) -> None:
    made = node(tmp_path, policy={"max_epsilon_total": 1.4})
    door = door_of(made, exact=False)
    door.admit("first", "dpem", pc.Privacy(1.0), 3, 100)
    step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=4.3)
    door.release(step, Contribution({"x": np.ones(3)}))
    with pytest.raises(PolicyRefusal, match="nothing was computed"):
        door_of(made, exact=False).admit("second", "dpem", pc.Privacy(1.0), 3, 100)


@pytest.mark.parametrize(
    ("more", "review"),
    [
        ({}, "names"),
        ({"keys": {"studies": "ask"}}, "names"),
        ({"keys": {"studies": "policy"}}, "none"),
        ({"site": {"name": "north", "rehearsal": True}}, "none"),
        ({"policy": {"review": "none"}}, "none"),
        ({"policy": {"review": "each"}, "keys": {"studies": "policy"}}, "each"),
    ],
)
def test_between_hosts_somebody_looks_unless_the_file_says_otherwise(
    more: dict[str, dict[str, bool | str]], review: str
) -> None:
    node = Node.parse({"site": {"name": "north"}, "source": {"kind": "files"}, **more})
    assert policy_between(node).review == review
    assert policy_of(node).review == more.get("policy", {}).get("review", "none"), "in one process nobody waits"
