"""Studies between real processes on NVIDIA FLARE: the same models as in one process, and refusals where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.e2e.flare_federation import Federation

pytest.importorskip("nvflare")

import hospitals
from tests.e2e.flare_federation import same
from tests.traces import files_with_patients

import polyclinic as pc
from polyclinic.privacy.gate.owner_rules import ledger_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TRIP = 'name = "trip"\nrank = 4\nrounds = {}\naggregation = "{}"'
NOISE = 11  # as in conftest.py


def _run(federation: Federation, study: Any) -> Any:
    order = federation.order(study)
    status = federation.follow(order)
    assert status["state"] == "finished", (status, federation.events(order))
    return order, federation.outcome(order)


@pytest.mark.slow  # in every run: the same, through kills (test_flare_faults)
def test_plain_study_is_bit_equal_to_one_process(federation: Federation) -> None:
    study = federation.study("trip-plain", TRIP.format(5, "plain"))
    order, outcome = _run(federation, study)
    reference = federation.in_process(study)
    assert same(outcome.public, reference.public)
    assert [h["objective"] for h in outcome.history] == [h["objective"] for h in reference.history]
    for name, site in federation.sites.items():
        assert len(federation.charges(name, "trip-plain")) == len(reference.releases)
        kept = site.study(order.digest)
        assert (kept / "outcome.npz").stat().st_mode & 0o077 == 0
        assert not (kept / "state.ckpt").exists()


@pytest.mark.slow
def test_one_python_call_runs_a_study_between_hosts(federation: Federation) -> None:
    """pc.run_study signs, follows and publishes; the model is that of one process."""
    study = federation.study("one-call", TRIP.format(3, "plain"))
    rounds = []
    run = pc.run_study(study, federation=federation.coordinator.path, progress=lambda e: rounds.append(e.round))
    reference = federation.in_process(study)
    assert run.metrics["engine"] == "flare" and run.metrics["rounds"] == 3 and max(rounds) >= 3
    assert np.isclose(run.metrics["objective"], reference.history[-1]["objective"], rtol=0, atol=0)
    assert pc.load(run.path).rank == 4


@pytest.mark.slow
def test_no_word_of_a_patient_is_left_in_any_folder(federation: Federation) -> None:
    """After studies between real processes: sites' folders, their FLARE workspaces, the coordinator's, and the books."""
    for name, how in (("left-plain", "plain"), ("left-masked", "masked")):
        _run(federation, federation.study(name, TRIP.format(2, how)))
        for site in federation.sites.values():
            own = site.node.name
            source = [f for f in files_with_patients([site.node_path.parent], own) if f.suffix == ".csv"]
            assert source, "the search finds patients where they are"
            assert files_with_patients([site.node.home, site.path, federation.coordinator.path], own) == []
            book = ledger_of(site.node).path
            assert book is not None
            assert book.exists() and book not in files_with_patients([book.parent], own)
            assert site.pins.exists() and (site.path / "identity.key").exists()


@pytest.mark.slow
def test_masked_study_is_equal_to_one_process(federation: Federation) -> None:
    study = federation.study("trip-masked", TRIP.format(3, "masked"))
    _, outcome = _run(federation, study)
    assert same(outcome.public, federation.in_process(study).public)


@pytest.mark.slow
def test_codes_of_few_patients_drop_out_everywhere_and_the_books_say_so(federation: Federation) -> None:
    data = hospitals.TENSOR.replace("minimum_patients = 1 ", "minimum_patients = 40 ")
    study = federation.study("floor", TRIP.format(2, "masked"), data=data)
    _, outcome = _run(federation, study)
    reference = federation.in_process(study)
    assert same(outcome.public, reference.public)
    assert all(0 < k.sum() < len(k) for k in outcome.public.kept)
    assert outcome.releases[0].step.name == "support"
    for name in federation.names:
        assert len(federation.charges(name, "floor")) == len(reference.releases)


def test_mixture_by_subspace_is_equal_to_one_process(federation: Federation) -> None:
    method = 'name = "gaussianmixture"\nn_components = 2\nrounds = 1\naggregation = "subspace"\nradius = 20.0'
    study = federation.study("mixture", method, data=hospitals.FEATURES)
    _, outcome = _run(federation, study)
    assert same(outcome.public, federation.in_process(study).public)
    assert outcome.traffic.bytes_up > 0


@pytest.mark.slow
def test_similarity_is_bit_equal_to_one_process(federation: Federation) -> None:
    study = federation.study("unpsl", 'name = "unpsl"\nrounds = 3\naggregation = "plain"', data=hospitals.FEATURES)
    _, outcome = _run(federation, study)
    assert same(outcome.public, federation.in_process(study).public)


def test_private_em_by_masked_sums_is_equal_to_one_process_and_paid(federation: Federation) -> None:
    study = federation.study(
        "dpem",
        'name = "dpem"\nrank = 4\nrounds = 2\naggregation = "masked"',
        tail="[privacy]\nepsilon = 4.0\ndelta = 1e-6",
    )
    _, outcome = _run(federation, study)
    reference = federation.in_process(study, noise_seed=NOISE)
    assert same(outcome.public, reference.public)
    assert outcome.noise.startswith("not private")  # the seed above is for this comparison only, and the card says so
    for name in federation.names:
        charges = federation.charges(name, "dpem")
        assert len(charges) == len(reference.releases)
        assert all(c.formal for c in charges)


TIMED = hospitals.TENSOR.replace('["drug", "diagnosis"]', '["drug", "time"]').replace(
    ', diagnosis = "diagnosis.csv"', ""
)


@pytest.mark.slow  # in every run: the same between both halves without processes (tests/node/test_flare_time.py)
@pytest.mark.parametrize(
    ("name", "method", "data"),
    [
        ("courses", 'name = "parafac2"\nrank = 2\nrounds = 3\nwarmup = 1', TIMED + '\n[time]\nbins = "30d"\n'),
        ("topics", 'name = "topics"\nrank = 2\nrounds = 3', hospitals.TENSOR),
        ("classes", 'name = "latentclass"\nn_components = 2\nrounds = 3', hospitals.FEATURES),
    ],
)
def test_courses_counts_and_classes_are_bit_equal_to_one_process(
    federation: Federation, name: str, method: str, data: Any
) -> None:
    study = federation.study(name, f'{method}\naggregation = "masked"', data=data)
    _, outcome = _run(federation, study)
    assert same(outcome.public, federation.in_process(study).public)
