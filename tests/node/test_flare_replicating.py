"""Halves between hosts, large enough for a Gram of their own: the flags of one process; and the paid link of a private study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.node.test_flare_halves import World

from polyclinic.analysis.pipelines.pipeline import StudyPipeline
from polyclinic.config import Study
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.minimum_patients import MinimumPatients
from polyclinic.studies.registry import federated

HEAD = "deadline = 200\nreplicate = 1\n"
PATIENTS = 760  # in each of three hospitals: a half has 16 for each of 64 cells


@pytest.fixture
def large(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """Hospitals with books of their own for each test: an exact study has no epsilon."""
    return World(tmp_path, policy=request.param, patients=PATIENTS)


def whole(path: Path) -> StudyPipeline:
    made = federated(Study.read(path))
    inner = made.method if isinstance(made, MinimumPatients) else made
    assert isinstance(inner, StudyPipeline)
    return inner


@pytest.mark.slow
@pytest.mark.parametrize("large", [""], indirect=True)
def test_halves_from_their_gram_have_the_flags_of_one_process(large: World) -> None:
    path = large.study("gram", 'name = "sumals"\nrank = 3\naggregation = "masked"', HEAD)
    order = large.order(path)
    large.open(order)
    between, alone = large.lead(order).run(), large.reference(path)
    tables, fits = [], []
    for outcome in (between, alone):
        method = whole(path)
        method.publish(outcome)
        fits.append(method._fits(method._of_fits(outcome.public.first))[0])
        tables.append(method.findings_.replicability)
    for a, b in zip(*fits, strict=True):  # on everybody and on both halves
        assert a.start.kind == b.start.kind == "gram"
        assert all(np.array_equal(x, y) for x, y in zip(a.factors, b.factors, strict=True))
    between_hosts, in_one = tables
    assert between_hosts is not None and in_one is not None
    assert between_hosts.rows == in_one.rows and any(r["replicable"] for r in in_one)


@pytest.mark.slow
@pytest.mark.parametrize("large", ["max_epsilon_total = 20"], indirect=True)
def test_the_paid_link_runs_between_hosts_within_the_budget(large: World) -> None:
    """Three planted phenotypes of 2,280 patients at epsilon 8: some column comes back, so the link is bought."""
    method = f'name = "dpem"\nrank = 4\nrounds = 4\naggregation = "masked"\nplanning_size = {3 * PATIENTS}'
    path = large.study("paid", method, HEAD, tail="[privacy]\nepsilon = 8.0\ndelta = 1e-6\n")
    order = large.order(path)
    large.open(order)
    outcome = large.lead(order).run()
    done = whole(path)
    done.publish(outcome)
    table = done.findings_.replicability
    assert table is not None and [r.step.name for r in outcome.releases].count("link") == 1
    assert all((r["holds_together"] is None) == (r["comes_back"] != "yes") for r in table)
    assert done.model_.privacy_.epsilon == pytest.approx(8.0, rel=1e-3)
    for site in large.sites.values():
        assert ledger_of(site.node).epsilon(1e-6) == pytest.approx(8.0, rel=1e-3)
