"""A card claims no more than what was paid for."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from polyclinic import DPEM, TRIP, DPFact, GaussianMixture, LocalTF, SumALS
from polyclinic.methods.similarity.federated import ConsensusUnPSL
from polyclinic.privacy.accounting.accountant import Gaussian, calibrate, epsilon, gaussian_mu, theorem_4_1
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import Card, central_card
from polyclinic.privacy.card.card import make_card as from_lines
from polyclinic.privacy.card.release_history import Certified, ReleaseHistory
from polyclinic.privacy.facts import MethodFacts
from polyclinic.privacy.release import Release, Step
from polyclinic.protocol.aggregators import facts_of
from polyclinic.tensors.axis import Axis
from polyclinic_papers.decentralised.leakage import Masks

METHODS = {m.name: m.facts for m in (DPEM, TRIP, DPFact, LocalTF, SumALS, GaussianMixture, ConsensusUnPSL)}
PUBLIC = (Axis("procedure", vocabulary="public"), Axis("diagnosis", vocabulary="public"))
DATA = (Axis("procedure", vocabulary="public"), Axis("diagnosis", vocabulary="data"))


def make_card(
    method: str,
    steps: Any,
    *,
    axes: tuple[()] = (),
    aggregation: str = "plain",
    privacy: Any = None,
    masks: Masks | None = None,
    attempts: tuple[()] = (),
    **more: Any,
) -> Card:
    """The card of a run that took these steps under this way to add."""

    def leak(s: Step) -> float:
        mu = 0.0 if masks is None else gaussian_mu(masks.events(s))
        return float("inf") if mu is None else mu

    by = facts_of(aggregation)
    done = [Release(n, s, by=by, leak=leak(s), attempt=dict(attempts).get(n, 0)) for n, s in enumerate(steps)]  # type: ignore[call-overload]
    happened = ReleaseHistory.of(method, done, axes=axes, asked=privacy, **more)
    return from_lines(METHODS.get(method, MethodFacts()), happened)


def private(eps: float = 1.0) -> list[Step]:
    return [
        Step(t, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=m)
        for t, m in enumerate(calibrate(eps, 1e-6, shares=(0.2, 0.8)))
    ]


def entry(epochs: int = 20, eps: float = 1.2) -> list[Step]:
    m = (2 * theorem_4_1(eps, 1e-4, epochs=epochs)) ** -0.5
    return [
        Step(t, f"mode {n}", {"x": (3,)}, bound=9.0, sensitivity=0.2, multiplier=m, adjacency="entry", formal=False)
        for t in range(epochs)
        for n in (1, 2)
    ]


def test_formal_when_everything_is_paid() -> None:
    card = make_card("dpem", private(), axes=PUBLIC, aggregation="masked", privacy=Privacy(1.0))  # type: ignore[arg-type]
    assert (card.guarantee, card.adjacency, card.delta) == ("formal", "patient", 1e-6)
    assert card.epsilon == pytest.approx(1.0, abs=1e-6)
    assert card.claimed == 1.0
    assert card.attacks == ()


def test_vocabulary_from_the_data_downgrades_and_says_why() -> None:
    card = make_card("dpem", private(), axes=DATA, aggregation="masked", privacy=Privacy(1.0))  # type: ignore[arg-type]
    assert card.guarantee == "heuristic"
    assert any("'diagnosis'" in r and "data" in r for r in card.reasons)
    assert not any("procedure" in r for r in card.reasons)


@pytest.mark.parametrize("counts", [True, False])
def test_one_unpaid_sum_leaves_no_epsilon(counts: bool) -> None:
    steps = [*private(), Step(9, "score", {"sse": ()}, bound=9.0, counts=counts)]
    card = make_card("dpem", steps, axes=PUBLIC, privacy=Privacy(1.0))  # type: ignore[arg-type]
    assert card.guarantee == "heuristic"
    assert card.epsilon is None
    assert any("score" in r for r in card.reasons)


def test_an_unproven_sensitivity_is_never_formal() -> None:
    steps = [replace(s, formal=False) for s in private()]
    assert make_card("mine", steps, axes=PUBLIC, privacy=Privacy(1.0)).guarantee == "heuristic"  # type: ignore[arg-type]


@pytest.mark.paper
@pytest.mark.parametrize("method", ["dpfact", "localtf"])
def test_the_papers_mechanism_is_heuristic_with_claimed_and_tight_values(method: str) -> None:
    card = make_card(method, entry(), privacy=Privacy(1.2, 1e-4, level="entry", clip=1.0))
    assert (card.guarantee, card.adjacency) == ("heuristic", "entry")
    assert card.claimed == pytest.approx(1.2, abs=1e-6)
    assert card.claimed_exact == pytest.approx(1.239, abs=0.001)  # ERRATA E0.9
    assert card.epsilon == pytest.approx(0.877, abs=0.001)
    assert card.attacks


def test_scores_beside_the_papers_mechanism_are_named_as_not_covered() -> None:
    steps = [*entry(), Step(20, "score", {"sse": ()}, bound=9.0, counts=False)]
    card = make_card("dpfact", steps, privacy=Privacy(1.2, 1e-4, level="entry", clip=1.0))
    assert card.epsilon is not None
    assert any("score" in r for r in card.reasons)


def test_without_a_clip_there_is_no_epsilon() -> None:
    steps = [Step(1, "factors", {"x": (3,)}, bound=9.0)]
    card = make_card("dpfact", steps, privacy=Privacy(1.2, 1e-4, level="entry"))
    assert card.epsilon is None
    assert card.guarantee == "none"
    assert any("clip" in r for r in card.reasons)


@pytest.mark.parametrize("method", ["trip", "unpsl", "mixture"])
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_methods_without_noise_say_none(method: str, aggregation: str) -> None:
    card = make_card(method, [Step(1, "factors", {"x": (3,)}, bound=9.0)], aggregation=aggregation)
    assert (card.guarantee, card.epsilon, card.adjacency, card.delta) == ("none", None, None, None)
    assert bool(card.attacks) == (aggregation == "plain" or method != "unpsl"), "attacks on sums stay"
    assert ("sum" in card.saw["the coordinator"]) == (aggregation == "masked")


def test_subspace_alone_hides_contributions_and_not_sums() -> None:
    card = make_card("mixture", [Step(1, "sums", {"x": (3,)}, bound=9.0)], aggregation="subspace")
    assert card.guarantee == "information-theoretic"
    assert card.epsilon is None
    assert "sums are exact" in card.reasons[0]


def test_under_subspace_the_masks_leak_is_charged() -> None:
    plain = make_card("dpem", private(), axes=PUBLIC, aggregation="plain", privacy=Privacy(1.0))  # type: ignore[arg-type]
    bare = make_card("dpem", private(), axes=PUBLIC, aggregation="subspace", privacy=Privacy(1.0), masks=Masks(0.0, 2))  # type: ignore[arg-type]
    assert bare.epsilon is None
    weak = make_card("dpem", private(), axes=PUBLIC, aggregation="subspace", privacy=Privacy(1.0), masks=Masks(20, 2))  # type: ignore[arg-type]
    strong = make_card(
        "dpem",
        private(),
        axes=PUBLIC,  # type: ignore[arg-type]
        aggregation="subspace",
        privacy=Privacy(1.0),
        masks=Masks(1e5, 2),
    )
    assert weak.guarantee == strong.guarantee == "formal"
    assert plain.epsilon < strong.epsilon < plain.epsilon + 1e-6  # type: ignore[operator]
    leak = [Gaussian(20 * 2**0.5, 2 * 2), *(Gaussian(s.multiplier) for s in private())]  # type: ignore[arg-type]
    assert weak.epsilon == pytest.approx(epsilon(leak, 1e-6))
    assert weak.epsilon > 1.04 * plain.epsilon  # type: ignore[operator]


def test_a_cycle_is_not_formal_because_two_neighbours_can_pool() -> None:
    card = make_card("dpem", private(), axes=PUBLIC, aggregation="cycle", privacy=Privacy(1.0))  # type: ignore[arg-type]
    assert card.guarantee == "heuristic"
    assert any("pool" in r for r in card.reasons)


def test_retries_cost_what_the_masks_leak_again_and_nothing_else() -> None:
    """Noise is drawn once for a sum: another attempt sends the same bytes."""
    once = make_card("dpem", private(), axes=PUBLIC, privacy=Privacy(1.0))  # type: ignore[arg-type]
    assert make_card("dpem", private(), axes=PUBLIC, privacy=Privacy(1.0), attempts={1: 2}).epsilon == once.epsilon  # type: ignore[arg-type]
    kept = {"axes": PUBLIC, "aggregation": "subspace", "privacy": Privacy(1.0), "masks": Masks(20, 2)}
    assert (
        make_card("dpem", private(), **kept, attempts={1: 3}).epsilon  # type: ignore[arg-type, operator]
        > 1.02 * make_card("dpem", private(), **kept).epsilon  # type: ignore[arg-type, operator]
    )


def test_a_method_without_facts_says_that_nobody_looked() -> None:
    """Also when it is called like a method that was studied: no table goes by names."""
    steps = [Step(1, "factors", {"x": (3,)}, bound=9.0)]
    assert make_card("mine", steps).attacks == ("no attack was studied",)
    assert from_lines(MethodFacts(), ReleaseHistory.of("trip", [Release(0, steps[0])])).attacks == (
        "no attack was studied",
    )


def exact(*names: str) -> list[Step]:
    return [Step(n, name, {"x": (3,)}, bound=9.0) for n, name in enumerate(names)]


@pytest.mark.parametrize("method", ["trip", "sumals"])
@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (("setup", "warm", "sweep"), False),
        (("setup", "energies", "cells", "lift"), True),
        (("setup", "energies", "cells+1"), True),  # repeated with a wider window
        (("2/setup", "2/cells"), True),  # of another start
        (("cells+sweep",), True),  # beside another method
        (("sweep+cells",), True),
        (("cellsize",), False),
    ],
)
def test_an_attack_on_a_step_is_listed_where_the_step_ran(method: str, names: tuple[str, ...], listed: bool) -> None:
    card = make_card(method, exact(*names), aggregation="masked")
    assert any("membership inference" in a for a in card.attacks) == listed
    assert any("only patient with a code" in a for a in card.attacks), "those on any exact sum stay"


def test_a_vocabulary_that_was_paid_for_does_not_hide_the_attacks_on_exact_sums() -> None:
    paid = Step(0, "vocabulary", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=9.0)
    bare = make_card("sumals", exact("setup", "cells"), aggregation="masked")
    card = make_card("sumals", [paid, *exact("setup", "cells")], aggregation="masked", privacy=Privacy(1.0))
    assert card.attacks == bare.attacks != ()
    assert card.epsilon is None


def test_noise_on_some_steps_lists_the_attacks_on_both() -> None:
    steps = [*entry(), *exact("factors")]
    attacks = make_card("dpfact", steps, privacy=Privacy(1.2, 1e-4, level="entry", clip=1.0)).attacks
    assert any("saddle" in a for a in attacks)
    assert any("exact totals" in a for a in attacks)


def test_codes_that_were_paid_for_elsewhere_are_not_called_formal() -> None:
    axes = (Axis("procedure", vocabulary="public"), Axis("diagnosis", vocabulary="paid"))
    card = make_card("dpem", private(), axes=axes, privacy=Privacy(1.0))  # type: ignore[arg-type]
    assert card.guarantee == "heuristic"
    assert any("'diagnosis'" in r and "not in this epsilon" in r for r in card.reasons)


@pytest.mark.parametrize(("asked", "guarantee"), [(20.0, "formal"), (25.0, "heuristic")])
def test_a_card_between_hosts_is_formal_only_where_messages_do_not_depend_on_records(
    asked: float, guarantee: str
) -> None:
    certified = Certified(("east",), of=1, needed=1)
    card = make_card("dpem", private(asked), privacy=Privacy(asked), certified=certified)
    assert card.guarantee == guarantee
    assert any("up to 20" in r for r in card.reasons) == (guarantee != "formal")
    assert make_card("dpem", private(asked), privacy=Privacy(asked)).guarantee == "formal", (
        "in one process nobody answers"
    )


def test_a_site_that_was_not_in_every_exact_sum_is_named() -> None:
    step = Step(1, "factors", {"x": (3,)}, bound=9.0)
    members = [("east", "north", "south"), ("east", "south")]
    happened = ReleaseHistory.of("trip", [Release(n, step, members=m) for n, m in enumerate(members)])
    assert any("north" in r and "drops out" in r for r in from_lines(METHODS["trip"], happened).reasons)


CARDS = [
    make_card("dpem", private(), axes=PUBLIC, aggregation="masked", privacy=Privacy(1.0)),  # type: ignore[arg-type]
    make_card("dpfact", entry(), privacy=Privacy(1.2, 1e-4, level="entry", clip=1.0)),
    make_card("trip", [Step(1, "factors", {"x": (3,)}, bound=9.0)]),
    make_card("mixture", [Step(1, "s", {"x": (3,)}, bound=9.0)], aggregation="subspace"),
    central_card("cpals"),
]


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.method)
def test_no_epsilon_is_ever_bare(card: Any) -> None:
    for text in (str(card), card._repr_html_(), card.headline):
        for line in re.split("\n|<tr>", text):
            if re.search(r"epsilon [0-9]", line):
                assert "delta" in line
                assert re.search("patient|entry", line)
    assert card.guarantee in str(card)


@pytest.mark.parametrize("card", CARDS, ids=lambda c: c.method)
def test_cards_survive_json(card: Any) -> None:
    assert Card.from_dict(json.loads(card.to_json())) == card


def test_the_noise_source_is_on_the_card() -> None:
    assert "simulation" in CARDS[0].noise
    assert "exact" in make_card("dpem", private(), noise="exact (discrete Gaussian, OpenDP)").noise


def test_html_is_escaped() -> None:
    assert "<script>" not in central_card("<script>")._repr_html_()


def test_an_audit_stands_beside_the_epsilon() -> None:
    card = CARDS[0].with_audit({"verdict": "passed", "mu": 0.23})
    assert "verdict passed" in str(card)
