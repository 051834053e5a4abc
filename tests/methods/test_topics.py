"""Topics: modes side by side, rank and start from one matrix."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.starts.directions import replicating
from polyclinic.methods.starts.pairs import OWN, CooccurringCodes, PairsPublic
from polyclinic.methods.starts.saved import StartModel
from polyclinic.methods.topics.method import TopicsPublic
from polyclinic.models.phenotypes.projection import SideBySide
from polyclinic.protocol.interfaces import Step
from polyclinic.records.sites.site import Site, Sites
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.matching import cosines, match
from polyclinic.tensors.side_by_side import side_by_side
from polyclinic.tensors.sparse import SparseTensor


def recall(model: pc.Topics, sites: Sites) -> float:
    truth = sites.truth
    table = cosines(truth.factors, model.factors_)
    return float(match(list(truth.factors), model.factors_, table).likeness.sum()) / int(truth.rank)


def without_relations(sites: Sites) -> list[Site]:
    """The same codes, dealt to patients anew, each mode by itself."""
    rng, out = np.random.default_rng(0), []
    for s in sites:
        t = s.counts()
        who = np.repeat(t.rows, np.diff(t.indptr))
        coords = np.column_stack([who, *(rng.permutation(c) for c in t.codes)])
        out.append(Site(s.name, SparseTensor(coords, t.values, t.shape, t.axes)))
    return out


def test_records_that_repeat_are_recovered_at_the_rank_that_the_matrix_says() -> None:
    sites = pc.datasets.repeated_records(1500, 60, 5, 41, sites=4)
    model = pc.Topics(seed=0).fit(sites)
    assert abs(model.confirmed_ - 5) <= 2
    assert recall(model, sites) >= 0.9


def test_codes_without_relations_confirm_at_most_one_direction() -> None:
    sites = without_relations(pc.datasets.repeated_records(1500, 60, 5, 42, sites=4))
    try:
        confirmed = pc.Topics(seed=0).fit(sites).confirmed_
    except DataError as e:
        assert "confirm no direction" in str(e)
        confirmed = 0
    assert confirmed <= 1


def test_a_rank_below_what_replicates_is_named_and_one_above_is_not() -> None:
    sites = pc.datasets.repeated_records(1500, 60, 6, 43, sites=3)
    with pytest.warns(UserWarning, match=r"rank = 3 is below the \d+ directions .* Use rank = \d+"):
        pc.Topics(rank=3, rounds=2, seed=0).fit(sites)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.Topics(rank=12, rounds=2, seed=0).fit(sites)


def test_new_patients_are_placed_as_scikit_learn_places_documents() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    rng = np.random.default_rng(3)
    counts, shape = rng.poisson(0.6, (40, 12)).astype(float), rng.gamma(0.5, 20.0, (12, 3)) + 0.1
    tensor = SparseTensor(np.argwhere(counts > 0), counts[counts > 0], (40, 12), (Axis("patient"), Axis("code")))
    public = TopicsPublic(
        shape=(12,),
        blocks=(12,),
        pairs=PairsPublic(),
        volumes=np.ones(1),
        counts=shape,
        prior=np.zeros((12, 3)),
        alpha=np.full(3, 0.2),
    )
    lda = decomposition.LatentDirichletAllocation(3, doc_topic_prior=0.2, max_doc_update_iter=500, mean_change_tol=1e-9)
    lda._init_latent_vars(12)
    lda.components_ = np.ascontiguousarray(shape.T)
    lda.exp_dirichlet_component_ = np.ascontiguousarray(public.columns.T)
    rows = side_by_side(tensor)
    damped = np.zeros((40, 12))
    damped[rows.owner, rows.codes] = rows.values
    present = rows.totals > 0
    ours = SideBySide(public.columns, public.alpha, np.ones(3), np.arange(3), np.ones(12), 500).place(tensor, [shape])
    theirs = lda.transform(damped)
    assert np.allclose(ours[present] / ours[present].sum(1, keepdims=True), theirs[present], atol=1e-5)


@pytest.mark.slow
def test_pooled_lda_of_scikit_learn_recovers_no_more() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    sites = pc.datasets.repeated_records(1500, 60, 5, 44, sites=3)
    model = pc.Topics(seed=0).fit(sites)
    rows = side_by_side(SparseTensor.stack([s.counts() for s in sites]))
    lda = decomposition.LatentDirichletAllocation(len(model.weights_), max_iter=30, random_state=0)
    columns = lda.fit(rows.dense(np.arange(rows.size))).components_.T
    truth = sites.truth
    theirs = list(np.split(columns, [60]))
    pooled = float(match(list(truth.factors), theirs, cosines(truth.factors, theirs)).likeness.sum()) / 5
    assert recall(model, sites) >= pooled - 0.02


def test_one_mode_is_enough() -> None:
    sites = pc.datasets.repeated_records(1500, 60, 5, 45, sites=3)
    single = []
    for s in sites:
        t = s.counts()
        coords = np.column_stack([np.repeat(t.rows, np.diff(t.indptr)), t.codes[1]])
        single.append(Site(s.name, SparseTensor(coords, t.values, (t.patients, 60), (t.axes[0], t.axes[2]))))
    model = pc.Topics(rank=7, seed=0).fit(single)
    truth = [sites.truth.factors[1]]
    assert float(match(truth, model.factors_, cosines(truth, model.factors_)).likeness.sum()) / 5 >= 0.85


def test_a_mode_with_many_events_is_weighted_down_to_the_median() -> None:
    public = TopicsPublic(
        shape=(2, 2, 2),
        blocks=(2, 2, 2),
        pairs=PairsPublic(),
        volumes=np.array([100.0, 400.0, 6400.0]),
        counts=np.ones((6, 1)),
        prior=np.ones((6, 1)),
        alpha=np.ones(1),
    )
    assert public.weights(0.5)[::2].tolist() == [1.0, 1.0, 0.25]
    assert public.weights(0.0).tolist() == [1.0] * 6


def test_guides_lead_a_column_and_unknown_codes_are_named() -> None:
    sites = pc.datasets.repeated_records(1500, 60, 5, 46, sites=3)
    heaviest = np.argsort(-sites.truth.factors[1][:, 2])[:3]
    codes = tuple(f"D{j:03d}" for j in heaviest)
    model = pc.Topics(guides={"third": codes}, seed=0).fit(sites)
    column = [f[:, [model.guided_["third"]]] for f in model.factors_]
    alike = cosines(sites.truth.factors, column)[:, 0]
    assert int(np.argmax(alike)) == 2 and alike[2] > 0.8
    with pytest.raises(ConfigError, match="not in this study") as e:
        pc.Topics(guides={"third": ("D000", "X1"), "fourth": ("X2",)}, rounds=1).fit(sites)
    assert len(e.value.faults) == 2


def test_impossible_parameters_are_refused_together() -> None:
    with pytest.raises(ConfigError) as e:
        pc.Topics(nonnegative=False, zeros="missing", privacy=pc.Privacy(1.0), rank=0)
    assert all(word in str(e.value) for word in ("negative", "zeros", "noise", "rank"))


def test_a_site_whose_matrix_is_seen_leaves_out_pairs_of_few_patients() -> None:
    site = pc.datasets.repeated_records(300, 40, 3, 47, sites=1)[0]
    rows = side_by_side(site.counts())
    codes = np.flatnonzero(np.bincount(rows.codes, minlength=rows.size) >= 20)
    phase: CooccurringCodes[TopicsPublic, None] = CooccurringCodes(pc.Topics(rank=2, seed=0))
    parts = {}
    for shown in (False, True):
        pairs = PairsPublic(shown=shown, codes=codes, patients=np.full(rows.size, 300.0))
        public = TopicsPublic(
            shape=(40, 40),
            blocks=(40, 40),
            pairs=pairs,
            volumes=np.ones(2),
            counts=np.ones((80, 1)),
            prior=np.ones((80, 1)),
            alpha=np.ones(1),
        )
        step = Step(0, "pairs", {}, bound=1.0)
        parts[shown] = phase.contribute(step, site, None, public)[1].arrays["first"]
    from polyclinic.protocol.patient_halves import halves_of

    present = (rows.dense(codes)[halves_of(site, "pairs 0") == 0] > 0).astype(float)
    number = (present.T @ present)[np.triu_indices(len(codes), 1)]
    assert (parts[False][(number > 0) & (number < OWN)] > 0).all() and (parts[True][number < OWN] == 0).all()
    assert np.array_equal(parts[True][number >= OWN], parts[False][number >= OWN])


def test_directions_of_pure_chance_are_not_confirmed() -> None:
    rng = np.random.default_rng(5)
    halves = [np.triu(rng.poisson(4.0, (50, 50)), 1).astype(float) for _ in range(2)]
    assert replicating(*(h + h.T for h in halves)) == 0


def test_a_study_with_few_patients_starts_without_the_matrix_and_needs_a_rank() -> None:
    sites = pc.datasets.repeated_records(45, 60, 3, 48, sites=3)
    model = pc.Topics(rank=3, rounds=3, seed=0).fit(sites)
    assert model.factors_[0].shape == (60, 3) and model.confirmed_ == -1
    with pytest.raises(DataError, match="too few to compare which codes occur together"):
        pc.Topics(seed=0).fit(sites)


def test_modes_in_one_axis_are_split_again_and_give_the_same_columns_as_modes_of_their_own() -> None:
    crossed, side = pc.datasets.repeated_records(900, 40, 4, 49, sites=3), []
    for s in crossed:
        t, rows = s.counts(), side_by_side(s.counts(), "none")
        axes = (t.axes[0], Axis.side_by_side(t.axes[1:]))
        side.append(
            Site(s.name, SparseTensor(np.column_stack([rows.owner, rows.codes]), rows.values, (t.patients, 80), axes))
        )
    apart, joint = pc.Topics(seed=0).fit(crossed), pc.Topics(seed=0).fit(side)
    stacked = np.concatenate([f / f.sum(0) for f in apart.factors_])
    both = joint.factors_[0] / joint.factors_[0][:40].sum(0)
    assert len(joint.factors_) == 1 and cosines([stacked], [both]).max(1).min() > 0.999


def test_topics_replicate_on_records_and_nothing_does_on_permuted_codes() -> None:
    sites = pc.datasets.repeated_records(3000, 100, 6, 203, sites=3)
    method = pc.Topics(rank=8, seed=0)
    assert sum(row["replicable"] for row in pc.replicate(method, sites).table) >= 6
    assert not any(row["replicable"] for row in pc.replicate(method, without_relations(sites)).table)


def test_one_more_hospital_starts_from_the_saved_model_and_the_report_says_what_changed(tmp_path: Path) -> None:
    sites = pc.datasets.repeated_records(1500, 60, 5, 46, sites=4)
    first = pc.Topics(rank=6, seed=0, guides={"third": ("D000",)}).fit(sites[:3])
    first.save(tmp_path / "first.phenotypes")
    saved = pc.load(tmp_path / "first.phenotypes")
    again = pc.Topics(seed=0, start=saved).fit(sites)
    cold = pc.Topics(rank=6, seed=0).fit(sites)
    assert again.rank == "auto" and len(again.weights_) == 6, "the rank is the model's"
    assert (again.objective_ or np.inf) < 1.01 * (cold.objective_ or 0.0)
    assert again.traffic_.bytes_up < cold.traffic_.bytes_up / 2
    assert (again.changed_.match or 0.0) > 0.95
    text = pc.write_report(again, sites, tmp_path / "report.html").read_text("utf-8")
    assert "started from a saved model (sha256" in text and "of 6 phenotypes kept a likeness" in text
    guided = pc.write_report(first, sites[:3], tmp_path / "guided.html").read_text("utf-8")
    assert f"guided phenotype {first.guided_['third'] + 1} by third" in guided


@pytest.mark.parametrize("method", [pc.Topics, pc.TRIP, pc.LocalTF])
def test_a_saved_model_is_found_by_the_labels_of_its_codes(method: Any) -> None:
    sites = pc.datasets.repeated_records(600, 30, 3, 4, sites=2)
    first = method(rank=4, rounds=3, seed=0).fit(sites)
    axes: Any = sites[0].counts().axes[1:]
    other = [Axis(a.name, (*a.labels[:-1][::-1], "new")) for a in axes]
    start = StartModel.of(first).on(other, [30, 30], 4, True)
    for f, g in zip(first.factors_, start, strict=True):
        old = g[:-1][::-1]
        assert np.allclose(old / old.sum(0), f[:-1] / f[:-1].sum(0)) and (g[-1] > 0).all()
    strange = [Axis(a.name, tuple(f"X{k}" for k in range(30))) for a in axes]
    with pytest.raises(ConfigError, match="only 0% of the weight"):
        StartModel.of(first).on(strange, [30, 30], 4, True)
    with pytest.raises(ConfigError, match="shapes"):
        method(rank=5, start=first).fit(sites)
