"""A site on a slow line is not a dead site; what a dead one was asked is asked again. The driver's clock is ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.config import Study
from polyclinic.node.coordinator.coordinator import Coordinator
from polyclinic.node.coordinator.site_registry import SILENT, SLOWEST, Sending
from polyclinic.node.messages import Deliver, Status, encode_answer
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.studies.registry import federated


@pytest.fixture
def driver(tmp_path: Path) -> Coordinator:
    """Two sites, of which one said hello once, at 0, and then nothing."""
    identity = Identity.generate("coordinator")
    keys = {n: Identity.generate(n).public.hex() for n in ("north", "south")}
    study = Study.parse({"study": {"name": "x"}, "method": {"name": "trip", "rank": 2, "aggregation": "plain"}})
    order = StudyOrder("x", study.to_json(), {}, {**keys, "coordinator": identity.public.hex()}, 2, 60.0)
    made = Coordinator(order, federated(study), identity, tmp_path)
    for sent in made.due(0.0):
        made.heard(sent, encode_answer(Status("ready", "a")) if sent.site == "north" else None, 0.0)
    return made


def _send(driver: Coordinator, now: float, size: int = 0) -> Sending:
    driver.lines["north"].largest = size
    driver.lines["north"].queue.append(Deliver(0, 0))
    (sent,) = [s for s in driver.due(now) if not s.look]
    return sent


def test_a_silent_site_is_lost_after_seconds_and_one_that_never_spoke_is_absent(driver: Coordinator) -> None:
    assert (driver.state("north"), driver.state("south")) == ("ready", "absent")
    driver.due(SILENT + 0.1)
    assert (driver.state("north"), driver.state("south")) == ("lost", "absent")


def test_a_message_on_its_way_excuses_silence(driver: Coordinator) -> None:
    sent = _send(driver, 1.0, int(SLOWEST))  # two seconds more, for the question and an answer of its size
    # the coordinator runs all the time: its own sleep would count as no silence
    for second in range(2, int(SILENT) + 2):
        driver.due(float(second))
    driver.due(SILENT + 1.9)
    assert driver.state("north") == "ready"
    assert sent.seconds >= 2.0
    driver.due(SILENT + 2.1)
    assert driver.state("north") == "lost"


def test_what_a_process_was_asked_before_it_died_is_asked_again_of_the_next_one(driver: Coordinator) -> None:
    sent = _send(driver, 1.0)
    driver.heard(driver.lines["north"].looking, encode_answer(Status("ready", "b")), 1.5)  # type: ignore[arg-type]
    (again,) = [s for s in driver.due(1.6) if not s.look]
    assert again.data == sent.data  # under the same id: a process that lives has its answer ready
    driver.heard(sent, encode_answer(Status("ready", "a")), 1.7)  # too late: nobody waits for it
    assert driver.lines["north"].here is not None
    assert driver.lines["north"].here.life == "b"
