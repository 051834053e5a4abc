"""A study between real processes ends with the findings of one process: the same public state, the same sections."""

from __future__ import annotations

from typing import Any

import pytest
from tests.e2e.flare_federation import Federation

pytest.importorskip("nvflare")

from tests.e2e.conftest import NOISE
from tests.e2e.flare_federation import same

from polyclinic.config import Study
from polyclinic.privacy.accounting.accountant import epsilon
from polyclinic.report.findings import sections
from polyclinic.studies.registry import federated

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


WHAT = ["carriers", "people", "survival", "completion"]  # 180 patients have no odds ratio that could be bought
PEOPLE = """
[people]
outcome = "label"
age = [0, 50, 70, 120]
sex = true
survival = {time = "days", event = "died", grid = "30d", until = "720d"}
"""


def _both(federation: Federation, study: Any, **options: Any) -> Any:
    """The method published from the study between processes, and from one process."""
    order = federation.order(study)
    status = federation.follow(order)
    assert status["state"] == "finished", (status, federation.events(order))
    apart, together = federated(Study.read(study)), federated(Study.read(study))
    outcome, reference = federation.outcome(order), federation.in_process(study, **options)
    assert same(outcome.public, reference.public)
    apart.publish(outcome)
    together.publish(reference)
    return order, apart, together


def test_a_study_ends_with_the_findings_of_one_process(federation: Federation) -> None:
    study = federation.study(
        "findings", 'name = "sumals"\nrank = 3\nrounds = 4\naggregation = "masked"', tail=f"{PEOPLE}[evaluate]\n"
    )
    _, apart, together = _both(federation, study)
    found = [m.findings_.to_json() for m in (apart, together)]
    shown = [[s.id for s in sections(f) if s.tables] for f in found]
    assert shown[0] == shown[1] == ["replicate", "carriers", "people", "outcome", "survival", "completion"]
    assert found[0]["missing"] == found[1]["missing"] == {}
    for part in ("replicability", "prevalence", "people", "completion", "survival"):
        assert found[0][part] == found[1][part]
    assert found[0]["outcome"] == found[1]["outcome"]
    assert found[0]["traffic"]["rounds"] <= 15


def test_a_private_study_pays_fit_and_findings_from_every_book(federation: Federation) -> None:
    study = federation.study(
        "paid-findings",
        'name = "dpem"\nrank = 3\nrounds = 2\naggregation = "masked"\nplanning_size = 200000',
        tail=f"[privacy]\nepsilon = 1.0\ndelta = 1e-6\n{PEOPLE}[evaluate]\nwhat = {WHAT}\n",
    )
    _, apart, together = _both(federation, study, noise_seed=NOISE)
    found = [m.findings_.to_json() for m in (apart, together)]
    assert [s.id for s in sections(found[0]) if s.tables] == [s.id for s in sections(found[1]) if s.tables]
    assert [s.id for s in sections(found[0]) if s.tables] == WHAT
    assert found[0]["prevalence"] == found[1]["prevalence"] and found[0]["forecast"] == found[1]["forecast"]
    for name in federation.names:
        events = [c.event for c in federation.charges(name, "paid-findings")]
        assert epsilon(events, 1e-6) == pytest.approx(1.0, abs=1e-6)
