"""A hospital with too few patients stays away between hosts, and the study goes on with the others and says so."""

from __future__ import annotations

import hospitals
import pytest
from tests.node.test_flare_halves import TRIP, World

from polyclinic.cli.node.site_init import TEMPLATE
from polyclinic.errors import PolyclinicError
from polyclinic.node.admission import membership
from polyclinic.node.enrolment.folders import read_events, read_json
from polyclinic.node.flare.result import read_model, write_outcome
from polyclinic.node.flare.run_study import publish
from polyclinic.report.html import write_report
from polyclinic.studies.run_folder import RunFolder

INIT = "min_patients = 20"  # as `site init` writes it


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four hospitals with the policy of `site init`; west has eight patients."""
    assert INIT in TEMPLATE
    names, hospital = hospitals.NAMES, hospitals.hospital
    few = {"west": 8}
    hospitals.NAMES = (*names, "west")  # type: ignore[assignment]
    hospitals.hospital = lambda folder, name, patients, policy: hospital(  # type: ignore[assignment, misc]
        folder,
        name,
        patients=few.get(name, patients),  # type: ignore[arg-type]
        policy=policy,
    )
    try:
        return World(tmp_path_factory.mktemp("small"), policy=INIT)
    finally:
        hospitals.NAMES, hospitals.hospital = names, hospital


@pytest.mark.parametrize("adder", ["plain", "masked"])
def test_the_study_goes_on_without_it_and_says_who_was_missing(world: World, adder: str) -> None:
    path = world.study(f"small-{adder}", TRIP.format(2, adder), head="deadline = 60\nquorum = 3\n")
    order = world.order(path)
    world.open(order)
    lead = world.lead(order)
    outcome = lead.run()
    assert set(lead.refused) == {"west"}
    assert set(outcome.releases[-1].members) == {"east", "north", "south"}
    assert any(e["event"] == "refused" and e["site"] == "west" for e in read_events(lead.events))
    told = str(lead.refused) + str(read_events(lead.events))
    assert "8 patients" not in told  # how many there are is nobody's business
    assert any("fewer than 20 patients" in str(r) for r in membership.refusals(world.sites["west"]))  # its owner knows
    run = world.coordinator.run(order.id)
    write_outcome(run, outcome)
    publish(run, order, read_model(run, order), sorted(lead.refused))
    about = read_json(run / "study.json")
    assert about["without"] == ["west"] and about["sites"] == ["east", "north", "south"]
    assert "west was asked and took no part." in write_report(RunFolder(run)).read_text()


def test_too_few_others_stop_it_before_anything_is_summed(world: World) -> None:
    path = world.study("small-all", TRIP.format(2, "plain"), head="deadline = 5\nquorum = 4\n")
    order = world.order(path)
    world.open(order)
    lead = world.lead(order)
    with pytest.raises(PolyclinicError, match="too many sites refused"):
        lead.run()
    assert lead.number == 0
    assert read_json(lead.folder / "order.json")
