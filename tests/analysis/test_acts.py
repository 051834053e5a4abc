"""Acts give what pooled patients give: statsmodels and scikit-learn as oracles, plain and masked, 1 to 20 sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.completion import Completion
from polyclinic.analysis.link import Link
from polyclinic.analysis.outcome import OutcomeAnalysis
from polyclinic.analysis.prevalence import Prevalence
from polyclinic.analysis.projection import Covariates, Projector, variables_of
from polyclinic.analysis.statistics.roc import Ranks
from polyclinic.analysis.survival import SurvivalAnalysis
from polyclinic.analysis.table_one import TableOne as TableOne
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.loop import run
from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site, pooled


def with_people(sites: list[Site], seed: int = 0) -> list[Site]:
    """Outcomes that go with the first kind of patient and with age, differ by hospital, and are sometimes unknown."""
    out = []
    for k, s in enumerate(sites):
        rng = np.random.default_rng([seed, k])
        n = s.patients
        age = rng.normal(60, 15, n)
        eta = -1.2 + 0.3 * k / len(sites) + 1.0 * np.asarray(s.labels) + 0.02 * (age - 60)
        y = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        y[rng.random(n) < 0.1] = -1
        people = People(
            {"age": age, "sex": rng.choice(["F", "M", ""], n)},
            time=rng.exponential(np.where(np.asarray(s.labels) == 1, 120, 300)),
            event=rng.random(n) < 0.6,
        )
        out.append(replace(s, labels=y, people=people))
    return out


@pytest.fixture(scope="module")
def sites() -> list[Site]:
    return with_people(example_sites(patients=100, sites=5))


@pytest.fixture(scope="module")
def model(sites: list[Site]) -> pc.SumALS:
    return pc.SumALS(rank=3, rounds=8).fit(sites)


def spread(sites: list[Site], parts: int) -> list[Site]:
    """The same patients at other hospitals."""
    whole = pooled(sites)
    where = np.arange(whole.patients) % parts
    return [replace(whole.take(where == k), name=f"h{k:02d}") for k in range(parts)]


@pytest.mark.parametrize("parts", [1, 5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_coefficients_equal_statsmodels_with_a_term_for_each_hospital(
    parts: int, aggregation: str, sites: list[Site], model: pc.SumALS
) -> None:
    import statsmodels.api as sm

    if parts == 1 and aggregation == "masked":
        pytest.skip("masks need three sites")
    here = spread(sites, parts)
    variables = variables_of(here)
    act = OutcomeAnalysis(model=model, covariates=Covariates(variables), baselines=False)
    public = run(act, here, adder=by_name(aggregation)).public
    x, y, dummies = [], [], []
    for k, s in enumerate(here):
        known = np.asarray(s.labels) >= 0
        columns = Covariates(variables).columns(s)[0]
        x.append(np.concatenate([columns, Projector.of(model).has(s)], axis=1)[known])
        y.append(np.asarray(s.labels)[known])
        dummies.append(np.tile(np.eye(parts)[k], (int(known.sum()), 1)))
    design = np.concatenate([np.concatenate(x), np.concatenate(dummies)], axis=1)
    p = len(public.climbs.base[0])
    # log-F(1,1): one more row a slope, half an event and half a non-event, outside every hospital
    more = np.repeat(np.eye(design.shape[1])[:p], 2, axis=0)
    oracle = sm.GLM(
        np.concatenate([*y, np.tile([1, 0], p)]),
        np.concatenate([design, more]),
        family=sm.families.Binomial(),
        freq_weights=np.concatenate([np.ones(len(design)), np.full(2 * p, 0.5)]),
    ).fit(tol=1e-13, maxiter=200)
    assert public.climbs.base[0] == pytest.approx(oracle.params[:p], rel=1e-6, abs=1e-8)
    assert np.sqrt(np.diag(public.climbs.covariance(0))) == pytest.approx(oracle.bse[:p], rel=1e-5)
    assert public.tally[:, :2].sum() == len(np.concatenate(y))
    assert public.tally[:, 2].sum() == sum(int((np.asarray(s.labels) < 0).sum()) for s in here)


def test_likelihood_ratio_tests_equal_refits(sites: list[Site], model: pc.SumALS) -> None:
    act = OutcomeAnalysis(model=model, covariates=Covariates(), baselines=False)
    public = run(act, sites).public
    for r in range(3):
        keep = [i for i in range(3) if i != r]
        factors = [f[:, keep] for f in model.factors_]
        has = {s.name: Projector.of(model).has(s)[:, keep].astype(float) for s in sites}
        less = Projector(factors, lambda s, has=has: has[s.name])  # type: ignore[misc]
        less.has = lambda s, has=has: has[s.name] > 0  # type: ignore[method-assign, misc]
        without = OutcomeAnalysis(model=less, covariates=Covariates(), baselines=False)
        alone = run(without, sites).public
        assert public.tests.height[r] == pytest.approx(alone.climbs.height[0], rel=1e-9)


def test_the_area_within_hospitals_equals_scikit_learn(sites: list[Site], model: pc.SumALS) -> None:
    from sklearn.metrics import roc_auc_score

    act = OutcomeAnalysis(model=model, covariates=Covariates(variables_of(sites)))
    public = run(act, sites).public
    ranks = Ranks(public.ranks)
    for i, d in enumerate(act.judged):
        values, weights = [], []
        for s in sites:
            outcome, known, half = act._rows(s, public)
            for k, _, use, _, eta in act._scores(s, public, outcome, known, half):
                cases, others = (outcome[use] == 1).sum(), (outcome[use] == 0).sum()
                if k == i and cases and others:
                    values.append(roc_auc_score(outcome[use], eta))
                    weights.append(cases * others / (cases + others))
        assert ranks.value(i) == pytest.approx(np.average(values, weights=weights), abs=1e-9), d.name


def test_no_hospital_number_is_seen_under_masks_not_even_an_intercept(sites: list[Site], model: pc.SumALS) -> None:
    """What reaches the coordinator of a masked sum looks like noise: no array of any site can be read from it."""
    seen: list[bytes] = []
    act = OutcomeAnalysis(model=model, covariates=Covariates())

    def tap(message: object) -> None:
        if getattr(message, "to", "") == "coordinator":
            for value in getattr(message, "body", {}).values():
                if isinstance(value, np.ndarray):
                    seen.append(value.tobytes())

    run(act, sites, adder=by_name("masked"), tap=tap)
    assert seen
    assert "intercept" not in " ".join(f.name for f in act.Public.__dataclass_fields__.values())
    plain = run(act, sites)
    shapes = {n for r in plain.releases for n in r.step.shapes}
    assert not any(name.startswith("a_") or "intercept" in name for name in shapes)
    means = np.array(
        [float(np.mean(np.frombuffer(b, np.uint64) / 2**64)) for b in seen if len(b) % 8 == 0 and len(b) > 4000]
    )
    assert len(means) and abs(means - 0.5).max() < 0.1


def test_counts_are_whole_and_equal_those_of_everybody(sites: list[Site], model: pc.SumALS) -> None:
    carriers = Prevalence(model=model)
    public = run(carriers, sites, adder=by_name("masked")).public
    has = np.concatenate([Projector.of(model).has(s) for s in sites])
    assert np.array_equal(public.carriers, has.sum(0))
    whole = pooled(sites)
    t = whole.counts()
    who = np.repeat(t.rows, np.diff(t.indptr))
    for mode, top in enumerate(carriers.codes()):
        owns = np.zeros((t.patients, t.shape[mode + 1]), bool)
        owns[who, t.codes[mode]] = True
        expected = owns.T.astype(int) @ has.astype(int)
        assert np.array_equal(public.support[mode], np.take_along_axis(expected, top, axis=0))
    variables = variables_of(sites)
    counts = run(TableOne(model=model, variables=variables), sites).public.counts
    for v, table in zip(variables, counts):
        level = v.level(whole)
        for r in range(3):
            assert table[r].tolist() == np.bincount(level[has[:, r]], minlength=len(v.words)).tolist()
        assert table[-1].sum() == whole.patients


def test_a_prediction_is_judged_by_level_and_small_levels_are_not_shown(sites: list[Site], model: pc.SumALS) -> None:
    found = pc.evaluate(model, sites, what=("outcome",)).outcome
    assert found is not None and found.by_level is not None and found.patients is not None
    rows = [dict(r) for r in found.by_level if r["variable"] == "sex" and r["patients"] is not None]
    assert sum(r["patients"] for r in rows) == found.patients
    assert sum(r["patients"] * r["observed"] for r in rows) == pytest.approx(found.events)
    assert all(r["observed_low"] < r["observed"] < r["observed_high"] and r["low"] < r["auc"] < r["high"] for r in rows)
    rare = [replace(s, labels=np.where(level_of(s) == "F", 0, np.asarray(s.labels))) for s in sites]
    hidden = pc.evaluate(model, rare, what=("outcome",)).outcome
    assert hidden is not None and hidden.by_level is not None
    assert all(r["auc"] is None for r in hidden.by_level if r["level"] == "F"), "nobody of them had the outcome"


def level_of(site: Site) -> np.ndarray:
    assert site.people is not None
    return np.asarray(site.people.columns["sex"])


def test_counts_of_a_hospital_leave_only_where_its_owner_shows_them(sites: list[Site], model: pc.SumALS) -> None:
    assert pc.evaluate(model, sites, what=("carriers",)).by_hospital is None
    first, *others = sites
    found = pc.evaluate(model, [replace(first, counted=11), *others], what=("carriers",)).by_hospital
    assert found is not None
    shown = {r["phenotype"]: r["patients"] for r in found if r["hospital"] == first.name}
    assert all(r["patients"] is None and r["of"] is None for r in found if r["hospital"] != first.name)
    carriers = Projector.of(model).has(first).sum(0)
    for r, n in enumerate(carriers):
        assert shown[r] == (None if 0 < n < 11 or 0 < first.patients - n < 11 else n)
    all_but_one = [replace(s, counted=11) for s in sites[:-1]] + [sites[-1]]
    table = pc.evaluate(model, all_but_one, what=("carriers",)).by_hospital
    assert table is not None
    for r in range(len(carriers)):  # with the total the last hospital's count would follow from the others'
        assert sum(row["patients"] is None for row in table if row["phenotype"] == r) != 1


@pytest.mark.parametrize(
    ("carriers", "left_out"),
    [
        ([30, 6, 4, 40], {"a", "b", "c"}),  # b and c are left out by their owners: together 10 of 80
        ([30, 0, 5, 40], {"a", "c"}),  # c alone, and b has none
        ([96, 60, 50, 20], {"a", "d"}),  # 4 of a's 100 do not have it
        ([96, 94, 50, 20], {"a", "b", "d"}),  # 10 of 200
    ],
)
def test_counts_of_hospitals_that_are_left_out_are_not_few_together(carriers: list[int], left_out: set[str]) -> None:
    def shares(site: pc.Site) -> np.ndarray:
        return np.arange(100)[:, None] < carriers["abcd".index(site.name)]

    cells = np.array([[i, 0, 0] for i in range(100)])
    sites = [pc.Site(n, pc.SparseTensor(cells, np.ones(100), (100, 1, 1)), counted=11) for n in "abcd"]
    act = Prevalence(model=Projector([np.ones((1, 1)), np.ones((1, 1))], shares))
    table = act.by_hospital(run(act, sites).public)
    assert table is not None
    assert {r["hospital"] for r in table if r["patients"] is None} == left_out


def test_a_code_that_three_patients_have_is_hidden_and_one_of_two_hundred_is_not() -> None:
    coords, n = [], 400
    for i in range(n):
        coords.append([i, 0, 0])
        if i < 3:
            coords.append([i, 1, 0])
        if i < 200:
            coords.append([i, 2, 0])
    site = pc.Site("a", pc.SparseTensor(coords, np.ones(len(coords)), (n, 3, 1)))
    act = Prevalence(model=Projector([np.ones((3, 1)), np.ones((1, 1))], lambda s: np.ones((s.patients, 1))))
    shown = act.shown(run(act, [site]).public)
    assert shown[0][:, 0].tolist() == [True, False, True]


@pytest.mark.parametrize("stratified", [False, True])
def test_cox_equals_statsmodels(stratified: bool, sites: list[Site], model: pc.SumALS) -> None:
    from statsmodels.duration.hazard_regression import PHReg

    variables = variables_of(sites)
    act = SurvivalAnalysis(model=model, covariates=Covariates(variables, site=stratified), width=7, until=364)
    public = run(act, sites, adder=by_name("masked")).public
    x, time, event, where = [], [], [], []
    for k, s in enumerate(sites):
        assert s.people is not None and s.people.time is not None and s.people.event is not None
        x.append(np.concatenate([Covariates(variables).columns(s)[0], Projector.of(model).has(s)], axis=1))
        at = np.floor(s.people.time / 7)
        event.append(s.people.event & (at < 52))
        time.append(np.minimum(at, 51))
        where.append(np.full(s.patients, k))
    design = np.concatenate(x)
    p = design.shape[1]

    def penalised(b: np.ndarray) -> np.ndarray:
        from polyclinic.analysis.statistics.intervals import logf

        fitted = PHReg(
            np.concatenate(time),
            design,
            status=np.concatenate(event).astype(int),
            ties="efron",
            strata=np.concatenate(where) if stratified else None,
        )
        return np.asarray(fitted.score(b)) + logf(b)[1]

    assert p == len(public.climbs.base[0])
    assert np.abs(penalised(public.climbs.base[0])).max() < 1e-5


def test_a_site_with_one_outcome_an_empty_half_or_one_patient_does_not_fail(
    sites: list[Site], model: pc.SumALS
) -> None:
    odd = [
        replace(sites[0], labels=np.zeros(sites[0].patients, int)),
        sites[1].take([0]),
        *sites[2:],
        replace(sites[1].take(np.arange(0)), name="empty"),
    ]
    public = run(OutcomeAnalysis(model=model, covariates=Covariates(variables_of(sites))), odd).public
    assert public.stage == "end"
    assert all(np.isfinite(b).all() for b in public.climbs.base)
    nobody = [replace(s, labels=None) for s in sites]
    assert run(OutcomeAnalysis(model=model, covariates=Covariates()), nobody).public.stage == "end"


def test_hidden_codes_are_predicted_where_structure_was_planted_and_not_where_codes_were_permuted() -> None:
    sites = pc.datasets.planted_counts(1500, 40, 50, phenotypes=5, codes=(5, 6), sites=3, seed=1)
    rng = np.random.default_rng(0)
    torn = []
    for s in sites:
        t = s.counts()
        shuffled = np.column_stack([t.coords[:, 0], *(rng.permutation(t.coords[:, m]) for m in (1, 2))])
        torn.append(pc.Site(s.name, pc.SparseTensor(shuffled, t.values, t.shape, t.axes)))
    low = []
    for here in (sites, torn):
        model = pc.SumALS(rank=5, rounds=20).fit(here)
        act = Completion(model=model)
        low.append(act.table(run(act, here).public)[0])
    assert low[0]["low"] > 0.2
    assert low[1]["nats"] < 0.02


@pytest.mark.protocol
@pytest.mark.parametrize("which", ["sums", pytest.param("regressions", marks=pytest.mark.slow)])
def test_every_act_passes_the_battery(which: str) -> None:
    sites = with_people(example_sites(patients=40))
    model = pc.SumALS(rank=2, rounds=3).fit(sites)
    variables = variables_of(sites)[:1]
    with_site, without = Covariates(variables), Covariates(variables, site=False)
    acts = [
        Prevalence(model=model),
        TableOne(model=model, variables=variables),
        OutcomeAnalysis(model=model, covariates=without, baselines=False),
        OutcomeAnalysis(model=model, covariates=with_site, baselines=False),
        SurvivalAnalysis(model=model, covariates=without),
        SurvivalAnalysis(model=model, covariates=with_site),
        Completion(model=model),
        Link(model=model),
    ]
    for act in acts:
        if (act.name in ("outcome", "survival")) == (which == "regressions"):
            assert pc.check_protocol(act, sites).passed


def _tangled(linked: float) -> list[Site]:
    """Codes drawn apart in every cell (but in a share ``linked`` of patients), of very unequal records, at unlike hospitals."""
    from polyclinic.tensors.sparse import SparseTensor

    out = []
    for k in range(5):
        rng = np.random.default_rng([k, 5])
        cells = np.rint(np.exp(rng.normal(1.5, 1.2, 800))).astype(int) + 1
        who = np.repeat(np.arange(800), cells)
        share = np.r_[
            0.05 + 0.05 * k, np.full(59, (0.95 - 0.05 * k) / 59)
        ]  # the first code of both modes is a hospital's habit
        codes = [rng.choice(60, len(who), p=share) for _ in range(2)]
        with_it = (rng.random(800) < linked)[who] & (rng.random(len(who)) < 0.5)
        cube = np.column_stack([who, *(np.where(with_it, 0, c) for c in codes)])
        out.append(Site(f"h{k}", SparseTensor(cube, np.ones(len(who)), (800, 60, 60))))
    return out


def test_neither_hospitals_nor_long_records_make_codes_hold_together() -> None:
    part = np.zeros((60, 1))
    part[0] = 1.0
    z = {}
    for linked in (0.0, 0.1):
        sites = _tangled(linked)
        act = Link(model=Projector((part, part), lambda site: np.ones((site.patients, 1))))
        z[linked] = float(act.rho(run(act, sites).public)[1][0])
    assert abs(z[0.0]) < 3 < 10 < z[0.1], z


def test_no_number_of_patients_with_both_gives_a_small_count_away() -> None:
    """With prevalence and total, one cell of a phenotype's 2 x 2 table gives the others."""
    sites = pc.datasets.icu_network(patients=300, seed=1)
    found = pc.evaluate(pc.SumALS(rank=6, rounds=6, seed=0).fit(sites), sites, what=("carriers", "outcome"))
    assert found.outcome is not None and found.prevalence is not None and found.outcome.unknown == 0
    cases, others = found.outcome.events, found.patients - found.outcome.events
    shown = 0
    for effect, people in zip(found.outcome.effects, found.prevalence):
        if effect["events"] is not None and people["patients"] is not None:
            both, carriers = effect["events"], people["patients"]
            cells = (both, cases - both, carriers - both, others - carriers + both)
            assert not any(0 < cell < 11 for cell in cells)
            shown += 1
    assert 0 < shown < 6


def test_an_impossible_age_is_unknown_in_table_1_and_in_the_regression_alike() -> None:
    site = with_people(example_sites())[0]
    assert site.people is not None
    age = np.array(site.people.columns["age"], np.float64)
    age[:3] = [-3.0, 400.0, np.nan]
    wrong = replace(site, people=replace(site.people, columns={**site.people.columns, "age": age}))
    (variable,) = (v for v in variables_of([wrong]) if v.name == "age")
    known = variable.columns(wrong)[1]
    assert not known[:3].any() and (known == (variable.level(wrong) < len(variable.words) - 1)).all() and known.any()
