"""A study between real processes ends with the findings of one process: the same public state, the same sections."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
sys.path.insert(0, str(Path(__file__).parent))

from flare_federation import same

from polyclinic.engines.registry import federated
from polyclinic.report.findings import sections
from polyclinic.study import Study

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_study_ends_with_the_findings_of_one_process(federation):
    study = federation.study(
        "findings",
        'name = "sumals"\nrank = 3\nrounds = 4\naggregation = "masked"',
        tail='[evaluate]\nwhat = ["carriers", "completion", "replicate"]',
    )
    order = federation.order(study)
    status = federation.follow(order)
    assert status["state"] == "finished", (status, federation.events(order))
    apart, together = federated(Study.read(study)), federated(Study.read(study))
    outcome, reference = federation.outcome(order), federation.in_process(study)
    assert same(outcome.public, reference.public)
    apart.publish(outcome)
    together.publish(reference)
    found = [m.findings_.to_json() for m in (apart, together)]
    assert [s.id for s in sections(found[0]) if s.tables] == [s.id for s in sections(found[1]) if s.tables]
    assert found[0]["replicability"] == found[1]["replicability"]
    assert found[0]["prevalence"] == found[1]["prevalence"]
