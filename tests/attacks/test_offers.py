"""What an owner is shown is what the owner agrees to: no order can write over it, hide in it, or take its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.hostile_world import World
from typer.testing import CliRunner

from polyclinic.cli.node.site import app
from polyclinic.errors import MessageRefused, PolicyRefusal, PolyclinicError
from polyclinic.node.admission import membership
from polyclinic.node.admission.offer import Offer
from polyclinic.node.enrolment.folders import SiteFolder, private, write_json
from polyclinic.node.signed_study import StudyOrder, read_order
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.entries import Accept

pytestmark = pytest.mark.attack
EXACT = 'name = "sumals"\nrank = 3\nrounds = 2\naggregation = "masked"'
PAID = 'name = "dpem"\nplanning_size = 10000\nrank = 2\nrounds = 1\naggregation = "masked"'
EVALUATE = '[people]\nage = [0, 50, 120]\n[evaluate]\nwhat = ["carriers", "people"]\n'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("offers"), ask_owner=True)


@pytest.fixture
def site(world: World) -> SiteFolder:
    folder = world.sites["east"]
    shutil.rmtree(folder.studies, ignore_errors=True)
    return folder


def offered(site: SiteFolder, order: StudyOrder) -> StudyOrder:
    """As a site keeps an order that reached it."""
    write_json(private(site.study(order.digest)) / "order.json", {"order": order.encode()})
    return order


def said(order: StudyOrder, **values: Any) -> dict[str, Any]:
    return {**order.study, "study": {**order.study["study"], **values}}


def review(site: SiteFolder, *more: str) -> str:
    done = CliRunner().invoke(app, ["review", "--node", str(site.node_path), *more])
    assert done.exit_code in (0, 4), done.output
    return done.output


def test_everything_that_is_asked_is_shown(world: World, site: SiteFolder) -> None:
    order = world.order("all", EXACT, head="deadline = 30\nquorum = 3\nreplicate = 2\n", tail=EVALUATE)
    order = offered(site, order)
    text = review(site)
    assert order.digest in text
    assert "2 halvings" in text
    assert "4 halves" in text
    assert "findings after the fit: carriers people, exact" in text
    assert "exact sums wait for a site that is lost" in text
    assert "age=0.0 50.0 120.0" in text
    fit = offered(site, world.order("alone", EXACT, head="deadline = 30\nreplicate = 0\n"))
    text = "\n".join(Offer(fit).words())
    assert "halves of the patients: none" in text
    assert "findings: none" in text
    assert "exact sums wait for a site that is lost" in text


def test_no_section_of_an_order_is_left_out(world: World) -> None:
    order = world.order("sections", EXACT, head="deadline = 30\n", tail=EVALUATE)
    hidden = {"cohort": {"sql": "c0ffee"}, "visits": {"gap": "7d"}, "labels": {"outcome": "died"}, "unheard": {"of": 1}}
    words = "\n".join(Offer(world.forged(order, study={**order.study, **hidden})).words())
    for mark in ("c0ffee", "7d", "died", "unheard: of=1"):
        assert mark in words


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2J\x1b[1;1Hprivacy asked: patient-level",
        "harmless\n  privacy asked, over the whole study: level patient, epsilon 0.1",
        "harmless\r  method: dpem",
        "\u202emethod: dpem",
        "\x9b2J harmless",
    ],
)
def test_words_of_an_order_move_no_cursor_and_begin_no_line(world: World, site: SiteFolder, text: str) -> None:
    order = world.order("words", EXACT)
    study = said(order, description=text, key=text)
    study["method"] = {**study["method"], text: text}
    study["tensor"] = {**study["tensor"], text: [text, {text: text}]}
    study[text] = {text: text}
    bad = offered(site, world.forged(order, study=study))
    shown = review(site)
    assert all(c.isprintable() or c == "\n" for c in shown)
    begins = {x.strip().split(":")[0].split(" ")[0] for x in shown.splitlines()}
    honest = {
        "order",
        "it",
        "method",
        "privacy",
        "tensor",
        "halves",
        "findings",
        "if",
        "study",
        "at",
        "site",
        "decide",
        "the",
        "Sites",
        "Dossier",
        "Signed",
    }
    assert {b for b in begins if b} <= honest | {w.split(":")[0].split(" ")[0] for w in Offer(bad).words()}
    assert sum(x.strip().startswith("privacy asked") for x in shown.splitlines()) == 1
    assert sum(x.strip().startswith("method:") for x in shown.splitlines()) == 1


def test_an_agreement_is_to_the_order_that_was_shown(world: World, site: SiteFolder) -> None:
    first = offered(site, world.order("swap", EXACT))
    assert first.digest in review(site)
    shutil.rmtree(site.study(first.digest))  # erased, or lost with its disk: the name is free again
    second = offered(site, world.forged(first, study=said(first, replicate=7)))
    with pytest.raises(PolicyRefusal, match="not what was shown"):
        membership.decide(site, first.id, accept=True)
    assert second.digest not in ledger_of(site.node).tally.accepted
    review(site)
    membership.decide(site, first.id, accept=True, by="Dr Ost")
    line = next(e.body for e in reversed(ledger_of(site.node).entries) if isinstance(e.body, Accept))
    assert line == Accept(second.digest, "Dr Ost", Offer(second).digest())


def test_two_orders_of_one_name_are_told_apart_by_their_digests_alone(world: World, site: SiteFolder) -> None:
    first = offered(site, world.order("twice", EXACT))
    second = offered(site, world.forged(first, study=said(first, replicate=3)))
    text = review(site)
    assert first.digest in text
    assert second.digest in text
    with pytest.raises(PolyclinicError, match="several orders"):
        membership.decide(site, first.id, accept=True)
    membership.decide(site, second.digest[:12], accept=True)
    line = next(e.body for e in reversed(ledger_of(site.node).entries) if isinstance(e.body, Accept))
    assert (line.order, line.shown) == (second.digest, Offer(second).digest())  # named by its digest: bound as well
    assert first.digest not in ledger_of(site.node).tally.accepted


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "r0001-0123456789abcdef-" + "0" * 32},  # would be read as a release that waits
        {"study": {"method": {"name": "sumals", "aggregation": "masked"}}},
        {"study": {"study": [], "method": {"name": "sumals", "aggregation": "masked"}}},
    ],
)
def test_orders_that_cannot_be_shown_are_none(world: World, site: SiteFolder, changes: dict[str, Any]) -> None:
    order = world.order("odd", EXACT)
    bad = offered(site, world.forged(order, **changes))
    with pytest.raises(MessageRefused):
        read_order(bad.encode(), world.key.public)
    offered(site, order)
    assert order.id in review(site)  # the others can still be read


def test_a_description_has_an_end(world: World) -> None:
    order = world.order("long", EXACT)
    long = world.forged(order, study=said(order, description="x" * 4001))
    with pytest.raises(MessageRefused) as e:
        read_order(long.encode(), world.key.public)
    assert "longer than 4,000" in str(e.value.faults)


def test_a_release_that_waits_is_not_laid_out_anew(tmp_path: Path) -> None:
    import numpy as np

    from polyclinic.privacy.gate.outbox import Outbox
    from polyclinic.privacy.release import Contribution

    box = Outbox(tmp_path)
    box.put("r", Contribution({"x": np.ones(2)}), {"words": ["two numbers"]})
    again = box.put("r", Contribution({"x": np.zeros(2)}), {"words": ["nothing at all"]})
    assert again.facts["words"] == ["two numbers"]
    assert box.read("r").arrays["x"].tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_a_cohort_of_few_is_in_no_exact_study(tmp_path: Path) -> None:
    """Days and ages are the order's to choose: a day on which one known patient came would be that patient's record."""
    from polyclinic.node.admission.admission import admit

    world = World(tmp_path, patients=25)
    east = world.sites["east"]
    day = {"start": "2024-01-05", "end": "2024-01-11"}
    exact = world.order("day", EXACT)
    narrow = world.forged(exact, id="narrow", study={**exact.study, "time": {**(exact.study.get("time") or {}), **day}})
    with pytest.raises(PolicyRefusal) as e:
        admit(narrow, east, lambda questions: None)
    assert "fewer than 11 patients here" in str(e.value.faults)
    admit(exact, east, lambda questions: None)
    paid = world.order("paid", PAID, tail="[privacy]\nepsilon = 0.1\ndelta = 1e-6\n")
    paid = world.forged(paid, study={**paid.study, "time": {**(paid.study.get("time") or {}), **day}})
    admit(paid, east, lambda questions: None)  # noise hides the few as well as the many
    east.node_path.write_text(east.node_path.read_text().replace("[policy]", "[policy]\nmin_patients = 1"))
    admit(world.forged(narrow, id="allowed"), SiteFolder.of(east.node_path), lambda questions: None)
