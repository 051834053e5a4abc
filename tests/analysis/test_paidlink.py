"""The paid link: one patient moves it by at most what is booked, it finds what holds together, and it costs what is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.replication.negative_control import permuted
from polyclinic.analysis.replication.private_link import Linked, PrivateLink, expected
from polyclinic.config import Study
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.interfaces import Schema, Step, seeds
from polyclinic.protocol.loop import run
from polyclinic.studies.analyses import replication_words
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study

SHAPE = (12, 15)


@dataclass(frozen=True)
class Told:
    """A half's model as everybody sees it."""

    factors: tuple[np.ndarray, ...]
    marginals: tuple[np.ndarray, ...]


def act(halves: tuple[Told, ...], tested: tuple[int, ...], epsilon: float = 1.0) -> PrivateLink:
    privacy = pc.Privacy(epsilon, 1e-6)
    placer = Projector(halves[0].factors, lambda site: np.zeros((site.patients, len(tested))))
    return PrivateLink(model=placer, halves=halves, tested=tested, privacy=privacy, aggregation="masked", key="key")


def hospital(patients: int, seed: int, shape: tuple[int, ...] = SHAPE) -> pc.Site:
    """Without ids: short and long records, some without any code; the first six have one phenotype and nothing else."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), rng.integers(0, 40, patients))
    coords = np.column_stack([who, *(rng.integers(0, n, len(who)) for n in shape)])
    coords[who < 6, 1:] = 0
    return pc.Site("north", pc.SparseTensor(coords, rng.choice([1.0, 9.0], len(who)), (patients, *shape)))


def told(rng: np.random.Generator, shape: tuple[int, ...], rank: int) -> Told:
    """A model as it may come back: columns of one code, flat ones, one that is nothing; frequencies of zero."""
    factors = [rng.gamma(rng.choice([0.02, 1.0, 50.0], rank), size=(n, rank)) for n in shape]
    marginals = [np.maximum(rng.normal(0.5, 0.5, n), 0.0) for n in shape]
    if rank > 1:
        factors[0][:, -1] = 0.0
    for f, q in zip(factors, marginals):  # the first: one code that nobody should have
        f[:, 0], q[0] = np.eye(len(f))[0], 0.0
    return Told(tuple(factors), tuple(marginals))


@pytest.mark.parametrize("shape", [SHAPE, (6, 7, 8)])
@pytest.mark.parametrize("rank", [1, 4])
def test_leaving_out_each_patient_moves_the_link_by_no_more_than_is_booked(shape: tuple[int, ...], rank: int) -> None:
    rng = np.random.default_rng(3)
    site = hospital(60, 4, shape)
    link = act((told(rng, shape, rank), told(rng, shape, rank)), tuple(range(rank)))
    step, total = given(link, site)
    modes = len(shape)
    assert len(total) == 1 + rank * (2 * modes + modes * (modes - 1) // 2)  # 5 R + 1 for two kinds of codes
    assert step.grid is not None and step.sensitivity == 1.0
    most, longest = int(step.sensitivity / step.grid) ** 2, 0
    for i in range(site.patients):
        _, without = given(link, site.take(np.arange(site.patients) != i))
        moved = sum((a - b) ** 2 for a, b in zip(total, without, strict=True))
        assert moved <= most, (i, (moved / most) ** 0.5)
        longest = max(longest, moved)
    assert longest > 0.8 * most  # the bound is used, not merely kept


def given(link: PrivateLink, site: pc.Site) -> tuple[Step, list[int]]:
    """The link's sum over one hospital, in whole steps of its grid as Python's integers."""
    setting = Schema(site.counts().shape[1:], site.counts().axes[1:], (site.name,))
    public = link.init_public(setting, seeds(0, "begin"))
    step = link.next_step(public)
    assert step is not None and step.grid is not None
    _, made = link.contribute(step, site, link.init_site(site, public, seeds(0)), public, seeds(0))
    flat = np.concatenate([made.arrays[n].ravel() for n in step.shapes]) / step.grid
    assert np.array_equal(flat, np.rint(flat))
    return step, [int(x) for x in flat]


def test_what_holds_together_is_found_and_permuted_codes_are_not() -> None:
    """z of the true columns is 10 and more above its noise of 1; of permuted ones it is that noise: both far from 6."""
    sites = pc.datasets.planted_counts(
        6000, 40, 50, phenotypes=6, codes=(5, 6), sites=3, seed=5, background=0.3, events=20
    )
    marginals = tuple(np.asarray(f).sum(1) + 0.2 for f in sites.truth.factors)
    true = Told(tuple(np.asarray(f) for f in sites.truth.factors), marginals)
    for data, holds in ((sites, True), (permuted(sites, 5), False)):
        link = act((true, true), tuple(range(6)), epsilon=4.0)
        rho, z = link.rho(run(link, data).public)
        assert (z > 6).all() if holds else (z < 6).all(), z
        assert (rho > 0.1).all() if holds else (np.abs(rho) < 0.1).all(), rho


def test_records_that_go_by_frequencies_alone_have_nothing_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    q = rng.gamma(0.5, size=30) + 0.01
    column = np.eye(30)[:, [0, int(q.argmax())]]
    drawn = np.array([rng.choice(30, 5, replace=False, p=q / q.sum()) for _ in range(20_000)])
    there = np.stack([(drawn == 0).any(1), (drawn == q.argmax()).any(1)], axis=1)
    mean = expected(column, q, np.array([5]))[0] * np.sqrt(5)
    assert mean == pytest.approx(there.mean(0), abs=0.06)
    assert expected(column, q, np.array([30]))[0] * np.sqrt(30) == pytest.approx([1.0, 1.0], abs=1e-3)


def test_halves_and_their_link_cost_the_epsilon_that_was_asked_for() -> None:
    sites = pc.datasets.planted_counts(3000, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    method = pc.DPEM(rank=4, rounds=4, planning_size=3000, privacy=pc.Privacy(8.0, 1e-5), aggregation="masked", seed=1)
    found = pc.replicate(method, sites)
    steps = [r.step.name for r in found.outcome.releases]
    back = [r for r in found.table if r["comes_back"] == "yes"]
    assert back and steps.count("link") == 1  # planted without background, epsilon 8: at least one comes back
    assert all((r["holds_together"] is None) == (r["comes_back"] != "yes") for r in found.table)
    card = found.model.privacy_
    assert card.guarantee == "formal" and card.epsilon == pytest.approx(8.0, rel=1e-3)
    assert "link" in Linked(method, "key", 2, 3).facts.steps


@pytest.mark.parametrize(("patients", "buys"), [(20_000, True), (1_000, False)])
def test_it_is_bought_only_where_public_numbers_say_that_it_can_be_read(patients: int, buys: bool) -> None:
    method = pc.DPEM(rank=8, planning_size=patients, privacy=pc.Privacy(1.0, 1e-6), aggregation="masked")
    both = Linked(method, "key", 2, 3)
    assert both.buys is buys
    asked = both.rungs.method.params.privacy.epsilon
    assert asked < 0.96 if buys else asked == 1.0
    one = Linked(method, "key", 1, 3)  # with one kind of codes there is nothing that could go together
    assert not one.buys


PRIVATE: dict[str, Any] = {
    "study": {"name": "paid", "seed": 0, "replicate": 1},
    "data": {"dataset": "planted_counts", "patients": 600, "phenotypes": 3, "sites": 3},
    "method": {"name": "dpem", "rank": 4, "rounds": 3, "aggregation": "masked", "planning_size": 600},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
}


def test_a_private_study_that_evaluates_nothing_gives_its_fit_the_whole_budget(tmp_path: Path) -> None:
    study = Study.parse(PRIVATE)
    method = make(study)
    linked = method.linked
    assert linked is not None and not linked.buys  # 600 patients are too few for the link
    assert method.rungs.method.params.privacy.epsilon == 2.0
    run_study(study, method, RunFolder.create(tmp_path / "run"), threads=1)
    assert method.model_.privacy_.epsilon == pytest.approx(2.0, rel=1e-3)
    assert [r["holds_together"] for r in method.findings_.replicability] == [None] * len(method.findings_.replicability)
    assert "not tested" in replication_words(study)


def test_fit_link_and_findings_of_a_private_study_share_one_epsilon() -> None:
    study = Study.parse(
        {
            **PRIVATE,
            "data": {**PRIVATE["data"], "patients": 3000},
            "method": {**PRIVATE["method"], "planning_size": 3000},
            "evaluate": {"what": ["carriers"]},
            "privacy": {"epsilon": 8.0, "delta": 1e-5},
        }
    )
    method = make(study)
    assert method.linked is not None and method.linked.buys and "held-out association" in replication_words(study)
    sites = pc.datasets.planted_counts(3000, phenotypes=3, sites=3, seed=0)
    doors = {s.name: ReleaseGate(s.name) for s in sites}
    method.publish(run(method, sites, doors=doors))
    spent = max(d.ledger.epsilon(1e-5) for d in doors.values())
    assert 7.0 < spent <= 8.0 * (1 + 1e-6)
    assert method.findings_.prevalence is not None
    table = method.findings_.replicability
    assert table is not None
    assert all((r["holds_together"] is None) == (r["comes_back"] != "yes") for r in table)
