"""Findings with a formal guarantee: rows of length at most 1, one epsilon, intervals that contain the noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyclinic as pc
from polyclinic.analysis.pipelines.pipeline import StudyPipeline
from polyclinic.analysis.private.findings import noisy_area
from polyclinic.analysis.private.forecast import BINS, SHARES, Asked, spend
from polyclinic.analysis.private.moments import PrivateFindings, PrivateFindingsPublic
from polyclinic.analysis.private.surrogate import Observed, Surrogate, posterior
from polyclinic.analysis.private.unit_rows import GRID
from polyclinic.analysis.projection import STANDARD, Covariates, Projector
from polyclinic.analysis.statistics.regression import profile
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.interfaces import Schema, seeds
from polyclinic.protocol.loop import run
from polyclinic.studies.registry import make
from polyclinic.tensors.sparse import SparseTensor

ALL = ("carriers", "people", "outcome", "survival", "completion")
R, CODES = 12, (20, 25)
HOSTILE = (0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e308, 5e-324)


def paid(**more: Any) -> PrivateFindings:
    rng = np.random.default_rng(0)
    factors = [rng.gamma(0.4, size=(n, R)) for n in CODES]
    placer = Projector(factors, lambda site: _placed(site, factors))
    given = {"planning_size": 10**6, "what": ALL, "privacy": pc.Privacy(1.0), "aggregation": "masked", **more}
    return PrivateFindings(model=placer, variables=STANDARD, covariates=Covariates(STANDARD, site=False), **given)


def _placed(site: pc.Site, factors: list[Any]) -> Any:
    """Memberships as broken as a record can make them."""
    t = site.counts()
    out = np.zeros((t.patients, R))
    who = np.repeat(t.rows, np.diff(t.indptr))
    with np.errstate(all="ignore"):
        np.add.at(out, who, t.values[:, None] * factors[0][t.codes[0]] * factors[1][t.codes[1]])
    return out


@st.composite
def records(draw: Any) -> pc.Site:
    """One patient: any codes, any counts, any outcome, age, sex, time."""
    k = draw(st.integers(1, 60))
    cells = draw(
        st.lists(st.tuples(st.integers(0, CODES[0] - 1), st.integers(0, CODES[1] - 1)), min_size=k, max_size=k)
    )
    cells = sorted(set(cells))
    counts = draw(
        st.lists(st.sampled_from((1e-300, 0.5, 1.0, 3.0, 1e15, 1.7e308)), min_size=len(cells), max_size=len(cells))
    )
    tensor = SparseTensor(np.array([(0, *c) for c in cells]), np.array(counts), (1, *CODES))
    people = pc.People(
        {"age": [draw(st.sampled_from((*HOSTILE, 61.0)))], "sex": [draw(st.sampled_from(["F", "M", "", "x"]))]},
        time=[draw(st.sampled_from([0.0, 5.0, 1e300, np.nan]))],
        event=[draw(st.booleans())],
    )
    return pc.Site("one", tensor, labels=[draw(st.sampled_from([0.0, 1.0, np.nan]))], people=people)


def _states(act: PrivateFindings, seed: int) -> list[PrivateFindingsPublic]:
    """Public states of every stage, with numbers that no honest run would make."""
    rng = np.random.default_rng(seed)
    first = act.init_public(Schema(CODES, (), ("a", "b", "c")), rng)
    made = act.spending(first)
    width = act.asked(3).width
    tables = tuple(rng.normal(size=p.shape) * 10.0 ** rng.integers(0, 9) for p in made.tables)
    at = rng.normal(size=(1, width)) * 10.0 ** rng.integers(-3, 6)
    cuts = np.sort(rng.normal(size=BINS - 1)) * 5
    from dataclasses import replace

    later = replace(first, tables=tables, tables_sd=(1.0,) * len(tables), at=at, cuts=cuts)
    return [replace(later, stage=s) for s in ("tables", "gradient", "scores")]


@given(records(), st.integers(0, 10**6), st.sampled_from([1, 3, 8]))
@settings(max_examples=80, deadline=None)
def test_no_record_makes_a_row_longer_than_one(site: pc.Site, seed: int, carried: int) -> None:
    act = paid(max_carried=carried)
    for public in _states(act, seed):
        step = act.next_step(public)
        assert step is not None and step.sensitivity == 1.0 and step.multiplier is not None
        with np.errstate(all="ignore"):
            mine = act.contribute(step, site, act.init_site(site, public, seeds(0)), public, seeds(0))[1]
        square = 0
        for a in mine.arrays.values():
            whole = [int(x) for x in (a / GRID).ravel()]
            assert all(x * GRID == y for x, y in zip(whole, a.ravel()))  # whole grid steps
            square += sum(x * x for x in whole)
        assert square <= int(1 / GRID) ** 2, (step.name, square * GRID**2)


def test_a_row_with_everything_uses_most_of_its_length() -> None:
    """A bound that no record comes near would be noise for nothing."""
    act = paid(max_carried=3)
    tensor = SparseTensor(np.array([(0, i % 20, i % 25) for i in range(60)]), np.ones(60), (1, *CODES))
    people = pc.People({"age": [120.0], "sex": ["M"]}, time=[5.0], event=[True])
    site = pc.Site("one", tensor, labels=[1.0], people=people)
    public = _states(act, 1)[0]
    step = act.next_step(public)
    assert step is not None
    mine = act.contribute(step, site, act.init_site(site, public, seeds(0)), public, seeds(0))[1]
    assert 0.8 < sum(float(np.square(a).sum()) for a in mine.arrays.values()) <= 1


def _network(n: int = 12_000, seed: int = 0) -> list[pc.Site]:
    return list(pc.datasets.icu_network(patients=n, seed=seed))


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, list[pc.Site]]:
    sites = _network()
    return pc.SumALS(rank=6, rounds=8).fit(sites), sites


def test_the_ledger_says_what_was_asked_and_figures_are_near_the_exact_ones(fitted: tuple[Any, list[pc.Site]]) -> None:
    model, sites = fitted
    doors = {s.name: ReleaseGate(s.name, noise=SimulatedNoise(np.random.default_rng(i))) for i, s in enumerate(sites)}
    found = pc.evaluate(
        model,
        sites,
        what=["carriers", "outcome", "completion"],
        privacy=pc.Privacy(1.0),
        aggregation="masked",
        doors=doors,
    )
    assert [d.ledger.epsilon(1e-6) for d in doors.values()] == pytest.approx([1.0] * len(sites), abs=1e-6)
    assert found.privacy_.epsilon == pytest.approx(1.0, abs=1e-6)
    assert found.not_bought == {} and found.forecast is not None and found.prevalence is not None
    exact = pc.evaluate(model, sites, what=["carriers", "outcome"], adjust=[])
    assert exact.prevalence is not None and exact.outcome is not None and found.outcome is not None
    error = np.abs(np.subtract(found.prevalence["share"], exact.prevalence["share"]))
    assert error.max() < 2 * found.forecast["error_95"][0] / 100
    assert (
        np.mean(
            [
                a <= x <= b
                for a, x, b in zip(found.prevalence["low"], exact.prevalence["share"], found.prevalence["high"])
            ]
        )
        > 0.6
    )
    b = np.subtract(found.outcome.effects["coefficient"], exact.outcome.effects["coefficient"])
    assert np.sqrt(np.mean(np.square(b))) < 0.35
    assert found.outcome.auc is not None and found.outcome.auc.low < found.outcome.auc.value < found.outcome.auc.high


def test_what_cannot_be_read_is_not_bought_and_its_share_goes_to_the_rest() -> None:
    full = spend(Asked(pc.Privacy(1.0), ALL, 10, levels=(4, 3), variables=2, columns=3, numbers=1), 30_000)
    few = spend(Asked(pc.Privacy(1.0), ALL, 10, levels=(4, 3), variables=2, columns=3, numbers=1), 3_000)
    assert full.what == ALL and not full.refused
    assert few.what == ("carriers", "completion")
    assert set(few.refused) == {"people", "outcome", "auc", "survival"}
    assert "events" in few.refused["outcome"]
    by_name = {f.figure: f.error for f in few.forecasts}
    fair = {f.figure: f.error for f in full.forecasts}
    assert by_name["carriers"] < fair["carriers"] * 10  # ten times fewer patients, and less noise
    nothing = spend(Asked(pc.Privacy(0.1), ALL, 10), 100)
    assert nothing.what == () and set(nothing.refused) >= {"carriers", "outcome"}
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_shares_sum_to_the_part_of_the_budget_that_was_asked_for() -> None:
    from polyclinic.privacy.accounting.accountant import calibrate

    for what in (ALL, ("carriers",), ("outcome",), ("carriers", "completion")):
        for size in (None, 50_000.0):
            made = spend(
                Asked(pc.Privacy(1.0), what, 10, levels=(4,), variables=1, columns=1, size=size, part=0.3), 50_000
            )
            times = {"size": 1, "tables": 1, "gradient": 2, "scores": 1}
            spent = sum(times[n] / m**2 for n, m in made.multipliers.items())
            assert spent == pytest.approx(0.3 / calibrate(1.0, 1e-6)[0] ** 2, rel=1e-9)
            for parts in (made.tables, made.scores):
                assert sum(p.share for p in parts) == pytest.approx(1.0 if parts else 0.0)


def test_too_few_patients_spend_nothing_but_their_number() -> None:
    sites = _network(300)
    model = pc.SumALS(rank=3, rounds=3).fit(sites)
    doors = {s.name: ReleaseGate(s.name) for s in sites}
    found = pc.evaluate(model, sites, privacy=pc.Privacy(0.5), aggregation="masked", doors=doors)
    assert found.prevalence is None and found.outcome is None and "carriers" in found.not_bought
    assert max(d.ledger.epsilon(1e-6) for d in doors.values()) < 0.05


def test_few_events_are_noticed_once_their_number_was_bought() -> None:
    """The public guess of the rate was wrong: no gradient is bought."""
    sites = [pc.Site(s.name, s.tensor, labels=np.arange(s.patients) % 400 == 0) for s in _network(9000)]
    model = pc.SumALS(rank=4, rounds=3).fit(sites)
    found = pc.evaluate(
        model, sites, what=["outcome"], privacy=pc.Privacy(1.0), aggregation="masked", planning_size=9000
    )
    assert found.outcome is not None and "not bought" in found.outcome.note
    assert not found.outcome.effects.rows and "events" in found.not_bought["outcome"]


def test_a_private_study_pays_fit_and_findings_with_one_epsilon() -> None:
    sites = list(pc.datasets.planted_counts(9000, 30, 40, phenotypes=4, codes=(4, 5), sites=3, seed=0))
    study = Study.parse(
        {
            "study": {"name": "p", "seed": 0},
            "data": {"dataset": "planted_counts", "patients": 9000},
            "method": {"name": "dpem", "rank": 4, "rounds": 3, "aggregation": "masked"},
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "evaluate": {"what": ["carriers", "completion"], "share": 0.4},
        }
    )
    m = make(study)
    assert isinstance(m, StudyPipeline)
    doors = {s.name: ReleaseGate(s.name) for s in sites}
    outcome = run(m, sites, doors=doors)
    m.publish(outcome)
    assert [d.ledger.epsilon(1e-6) for d in doors.values()] == pytest.approx([1.0] * 3, abs=1e-6)
    assert m.privacy_.epsilon == pytest.approx(1.0, abs=1e-6) and m.privacy_.claimed == 1.0
    assert m.findings_.privacy_.epsilon < 0.7 and "with the fit" in str(m.findings_.privacy_)
    assert m.findings_.prevalence is not None and m.findings_.completion is not None
    assert m.findings_.replicability is None


def test_entry_level_privacy_is_refused_with_the_way_out() -> None:
    study = Study.parse(
        {
            "study": {"name": "p"},
            "data": {"dataset": "icu_network", "patients": 100},
            "method": {"name": "dpfact", "rank": 3, "aggregation": "plain"},
            "privacy": {"epsilon": 1.0, "level": "entry", "clip": 1.0},
            "evaluate": {},
        }
    )
    with pytest.raises(ConfigError, match="protect patients"):
        make(study)


def test_what_privacy_cannot_do_is_said(fitted: tuple[Any, list[pc.Site]]) -> None:
    model, sites = fitted
    with pytest.raises(ConfigError, match="protect patients"):
        pc.evaluate(model, sites, privacy=pc.Privacy(1.0, level="entry"))
    with pytest.raises(ConfigError, match="levels must be public"):
        pc.evaluate(model, sites, privacy=pc.Privacy(1.0), adjust=["age", "insurance"])
    found = pc.evaluate(model, sites, privacy=pc.Privacy(1.0), what="carriers", planning_size=5)
    assert "not bought: carriers" in repr(found)


def test_a_stored_model_is_evaluated_under_a_guarantee_of_its_own(tmp_path: Path, capsys: Any) -> None:
    from polyclinic.cli import main

    head = '[study]\nname = "p"\n[data]\ndataset = "icu_network"\npatients = 4000\n[method]\nname = "sumals"\nrank = 3\nrounds = 3\n'
    (tmp_path / "fit.toml").write_text(head + 'aggregation = "masked"\n')
    tail = 'aggregation = "masked"\n[privacy]\nepsilon = 2.0\n[evaluate]\nwhat = ["carriers", "outcome"]\nplanning_size = 4000\n'
    (tmp_path / "paid.toml").write_text(head + tail)
    run_folder, paid_study = str(tmp_path / "run"), str(tmp_path / "paid.toml")
    for words in (
        ["simulate", str(tmp_path / "fit.toml"), "--out", run_folder],
        ["evaluate", run_folder, paid_study, "--plan", "--json"],
        ["evaluate", run_folder, paid_study, "--json"],
    ):
        with pytest.raises(SystemExit) as done:
            main(words)
        assert done.value.code in (0, None), capsys.readouterr().err
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert '"error_95"' in said and found["not_bought"] == {}
    assert found["privacy"]["epsilon"] == pytest.approx(2.0, abs=1e-6)


@pytest.mark.protocol
def test_the_paid_act_passes_the_battery() -> None:
    sites = example_sites(patients=300)
    model = pc.SumALS(rank=2, rounds=3).fit(sites)
    act = PrivateFindings(model=model, what=("carriers", "completion"), privacy=pc.Privacy(50.0), planning_size=5000)
    pc.check_protocol(act, sites)


def test_the_posterior_of_exact_sums_is_the_regression() -> None:
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(20_000), rng.random((20_000, 3)) < 0.3, rng.uniform(-1, 1, 20_000)]).astype(float)
    truth = np.array([-2.0, 0.8, -0.5, 0.0, 0.4])
    y = (rng.random(20_000) < 1 / (1 + np.exp(-x @ truth))).astype(float)
    beta = np.zeros(5)
    for _ in range(30):
        part = profile(x, y, beta, own=False)
        beta = beta + np.linalg.solve(part.information, part.score)
    itself = Surrogate(x, np.full(len(x), 1 / len(x)))
    at = np.zeros(5)
    g = x.T @ (y - 0.5)
    found, covariance = posterior(itself, len(x), [Observed(at, g, 1e-3)], at)
    se = np.sqrt(np.diag(np.linalg.inv(profile(x, y, beta, own=False).information)))
    assert np.abs(found - beta).max() < 0.01  # the prior's pull
    assert np.sqrt(np.diag(covariance)) == pytest.approx(se, rel=0.02)


def test_an_auc_interval_contains_the_noise() -> None:
    rng = np.random.default_rng(3)
    s = rng.normal(size=8000)
    y = rng.random(8000) < 1 / (1 + np.exp(-(s - 2.2)))
    edges = np.quantile(s, np.arange(1, 16) / 16)
    cell = np.searchsorted(edges, s)
    cases, others = (np.bincount(cell[y == k], minlength=16).astype(float) for k in (True, False))
    exact = noisy_area(cases, others, 0.0).value
    hit = []
    for _ in range(400):
        a = noisy_area(cases + 12 * rng.normal(size=16), others + 12 * rng.normal(size=16), 12.0)
        hit.append(abs(a.value - exact) <= (a.high - a.low) / 2)
    assert np.mean(hit) > 0.93
