"""UnPSL between hospitals: equals the centre, says what it sends, refuses, pays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic.errors import ConfigError, DataError, ProtocolMismatch
from polyclinic.methods.similarity.federated import ConsensusUnPSL
from polyclinic.methods.similarity.private import PrivateUnPSL, buckets
from polyclinic.methods.similarity.selection.unpsl_cv import UnPSLCV
from polyclinic.methods.similarity.unpsl import UnPSL
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site
from polyclinic_papers.planted_similarity import unpsl_synthetic
from polyclinic_papers.samples import load_parkinsons


def hospitals(n: int = 90, d: int = 5, seed: int = 0) -> list[Site]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, d))
    X[:, 0] += 2 * y
    return [Site(f"h{k}", features=X[k::3], labels=y[k::3]) for k in range(3)]


def gap(A: np.ndarray, B: np.ndarray) -> float:
    return float(np.linalg.norm(A - B) / np.linalg.norm(B))


@pytest.mark.protocol
@pytest.mark.slow
def test_three_hospitals_equal_the_centre_on_parkinsons(data_path: Callable[[str], Path]) -> None:
    X, y, _, _ = load_parkinsons(data_path("parkinsons"))
    where = np.random.default_rng(0).permutation(len(X)) % 3
    sites = [Site("abc"[k], features=X[where == k], labels=y[where == k]) for k in range(3)]
    centre = UnPSL(iterations=1500, inner=20, tol=1e-5, penalty=3.0).fit(X, y, groups=where)
    assert gap(UnPSL().fit_sites(sites, rounds=60).metric_, centre.metric_) < 1e-3


@pytest.mark.protocol
@pytest.mark.slow
@pytest.mark.parametrize(("data", "seed"), [("synthetic", 0), ("synthetic", 5), ("parkinsons", 1), ("parkinsons", 3)])
def test_three_hospitals_equal_the_centre_however_patients_are_spread(data: str, seed: int) -> None:
    from polyclinic_papers.unpsl import figure3

    assert figure3(data, seed=seed)["gap"][-1] < 1e-3  # type: ignore[arg-type]


@pytest.mark.protocol
def test_judged_pairs_at_the_hospitals_give_the_centre() -> None:
    planted = unpsl_synthetic(3, 90, 0)
    rows = {f"h{k}": np.arange(k, 90, 3) for k in range(3)}
    judged = {s: planted.pairs(r) for s, r in rows.items()}
    index = np.concatenate([rows[s][p] for s, (p, _) in judged.items()])
    sign = np.concatenate([v for _, v in judged.values()])
    centre = UnPSL(iterations=1500, inner=20, tol=1e-6, penalty=0.5).fit_pairs(planted.features, index, sign)
    sites = [Site(s, features=planted.features[r]) for s, r in rows.items()]
    assert gap(UnPSL().fit_sites(sites, pairs=judged).metric_, centre.metric_) < 1e-3


@pytest.mark.protocol
def test_masked_and_subspace_sums_give_the_plain_model() -> None:
    sites = hospitals()
    plain = UnPSL().fit_sites(sites, rounds=10)
    masked = UnPSL().fit_sites(sites, rounds=10, aggregation="masked")
    assert gap(masked.metric_, plain.metric_) < 1e-6
    subspace = UnPSL().fit_sites(sites, rounds=3, aggregation="subspace")
    assert gap(subspace.metric_, UnPSL().fit_sites(sites, rounds=3).metric_) < 1e-4


@pytest.mark.protocol
@pytest.mark.parametrize(
    "method",
    [
        ConsensusUnPSL(rounds=2, inner=3),
        PrivateUnPSL(rounds=2, privacy=Privacy(50.0), patients=200, radius=8.0, rank=1, classes=("0", "1")),
    ],
    ids=["consensus", "private"],
)
def test_the_contract_battery_passes(method: ConsensusUnPSL | PrivateUnPSL) -> None:
    from polyclinic import check_protocol

    assert check_protocol(method).passed


@pytest.mark.protocol
def test_the_order_of_the_list_does_not_matter() -> None:
    sites = hospitals()
    a = UnPSL().fit_sites(sites, rounds=4).metric_
    np.testing.assert_array_equal(a, UnPSL().fit_sites(sites[::-1], rounds=4).metric_)


@pytest.mark.protocol
def test_only_one_matrix_of_the_size_of_w_leaves_in_a_round() -> None:
    u = UnPSL().fit_sites(hospitals(d=5), rounds=4)
    assert u.traffic_.payload_bytes_up == 3 * 4 * 8 * 5 * 5
    assert u.privacy_.epsilon is None
    assert u.privacy_.guarantee == "none"
    assert {"objective", "primal_residual", "dual_residual"} <= set(u.history_[-1])


@pytest.mark.protocol
def test_a_checkpoint_goes_on_to_the_same_model() -> None:
    sites = hospitals()
    whole = Simulation(ConsensusUnPSL(rounds=5), sites)
    whole.run()
    part = Simulation(ConsensusUnPSL(rounds=5), sites)
    for _ in range(9):
        part.advance()
    rest = Simulation(ConsensusUnPSL(rounds=5), sites)
    rest.restore(part.state())
    rest.run()
    np.testing.assert_array_equal(rest.public.W, whole.public.W)


def test_a_hospital_of_one_patient_takes_part_and_adds_no_pair() -> None:
    sites = hospitals()
    lone = Site("zz", features=sites[0].matrix()[:1], labels=np.asarray(sites[0].labels)[:1])
    assert np.isfinite(UnPSL().fit_sites([*sites, lone], rounds=3).metric_).all()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"labels": None}, "no labels"),
        ({"labels": np.zeros(30, int), "all": True}, "dissimilar"),
        ({"nan": True}, "missing"),
    ],
)
def test_unusable_hospitals_are_refused_before_round_one(change: dict[str, object], word: str) -> None:
    sites = hospitals()
    if change.get("all"):
        sites = [Site(s.name, features=s.matrix(), labels=np.zeros(s.patients, int)) for s in sites]
    elif change.get("nan"):
        X = sites[0].matrix().copy()
        X[0, 0] = np.nan
        sites[0] = Site("h0", features=X, labels=sites[0].labels)
    else:
        sites[0] = Site("h0", features=sites[0].matrix())
    with pytest.raises(DataError, match=word):
        UnPSL().fit_sites(sites, rounds=2)


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (np.array(["ill", None] * 15, dtype=object), "15 patient"),
        (np.array(["ill", 1] * 15, dtype=object), "mix text and numbers"),
        (np.linspace(0.1, 0.9, 30), "measurements"),
        (np.array(["ill", "well"] * 15), "different ways"),
    ],
)
@pytest.mark.parametrize("privacy", [None, Privacy(1.0)])
def test_labels_that_are_no_classes_are_refused_before_anything_is_sent(
    labels: np.ndarray, word: str, privacy: Privacy | None
) -> None:
    sites = hospitals()
    sites[1] = Site("h1", features=sites[1].matrix(), labels=labels)
    paid = {} if privacy is None else {"privacy": privacy, "patients": 90, "radius": 6.0, "classes": (0, 1)}
    with pytest.raises(DataError, match=word):
        UnPSL().fit_sites(sites, rounds=2, **paid)


def test_text_is_a_class_as_good_as_a_number() -> None:
    sites = hospitals()
    named = [Site(s.name, features=s.matrix(), labels=np.array(["well", "ill"])[np.asarray(s.labels)]) for s in sites]
    a, b = UnPSL().fit_sites(sites, rounds=3), UnPSL().fit_sites(named, rounds=3)
    np.testing.assert_allclose(a.metric_, b.metric_, rtol=1e-6)
    assert b.classes_.tolist() == ["ill", "well"]


def test_hospitals_whose_features_are_all_constant_are_refused() -> None:
    flat = [Site(s.name, features=np.ones((30, 2)), labels=s.labels) for s in hospitals()]
    with pytest.raises(DataError, match="same in all patients"):
        UnPSL().fit_sites(flat, rounds=2)


def test_what_only_a_centre_can_do_is_refused_between_hospitals() -> None:
    for model in (UnPSL(compare="distance"), UnPSL(reach="near"), UnPSLCV()):
        with pytest.raises(ConfigError, match="hospitals"):
            model.fit_sites(hospitals())


def test_wide_data_get_a_thin_w_and_too_large_messages_are_refused() -> None:
    rng = np.random.default_rng(0)
    wide = [Site(f"h{k}", features=rng.normal(size=(8, 501)), labels=np.arange(8) % 2) for k in range(3)]
    with pytest.raises(ConfigError, match="at most 50"):
        UnPSL(rank=60).fit_sites(wide)
    assert UnPSL(rank=2).fit_sites(wide, rounds=1, inner=2).components_.shape == (2, 501)
    huge = [Site(f"h{k}", features=np.zeros((2, 6000)), labels=[0, 1]) for k in range(3)]
    with pytest.raises(ConfigError, match="too large"):
        UnPSL().fit_sites(huge)


def framed(change: Callable[[pd.DataFrame], object]) -> list[Site]:
    """Three hospitals with data frames of columns a to e; the second one's is changed."""
    frames = [(s, pd.DataFrame(s.matrix(), columns=list("abcde"))) for s in hospitals()]
    return [Site(s.name, features=change(f) if s.name == "h1" else f, labels=s.labels) for s, f in frames]  # type: ignore[arg-type]


@pytest.mark.protocol
def test_columns_in_another_order_are_put_in_one_order() -> None:
    u = UnPSL().fit_sites(framed(lambda f: f[list("edcba")]), rounds=4)
    assert gap(u.metric_, UnPSL().fit_sites(hospitals(), rounds=4).metric_) < 1e-6
    assert u.feature_names_in_.tolist() == list("abcde")
    assert not hasattr(u.fit_sites(hospitals(), rounds=1), "feature_names_in_")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.rename(columns={"b": "bmi"}), ["'h1' lacks 'b'; has besides 'bmi'", "columns"]),
        (lambda f: f[list("abcd")], ["'h1' lacks 'e'"]),
        (lambda f: f.to_numpy()[:, :4], ["'h0' has 5 features", "'h1' has 4 features"]),
    ],
)
@pytest.mark.parametrize("privacy", [None, Privacy(1.0)])
def test_other_columns_are_refused_by_name_before_anything_is_summed(
    change: Callable[[pd.DataFrame], object], words: list[str], privacy: Privacy | None
) -> None:
    paid = {} if privacy is None else {"privacy": privacy, "patients": 90, "radius": 6.0, "classes": (0, 1)}
    with pytest.raises(ProtocolMismatch) as e:
        UnPSL().fit_sites(framed(change), rounds=2, **paid)
    assert all(w in str(e.value) for w in words)
    assert "pc.align" not in str(e.value)


def test_a_site_without_names_is_taken_by_position_unless_the_others_disagree() -> None:
    named = framed(lambda f: f.to_numpy())
    assert gap(UnPSL().fit_sites(named, rounds=2).metric_, UnPSL().fit_sites(hospitals(), rounds=2).metric_) < 1e-6
    turned = Site("h2", features=named[2].matrix()[:, ::-1], labels=named[2].labels, columns=list("edcba"))
    with pytest.raises(ProtocolMismatch, match="'h1' does not name its columns"):
        UnPSL().fit_sites([*named[:2], turned], rounds=2)


@pytest.mark.protocol
@pytest.mark.parametrize("scale", [[1e-9, 1, 1, 1, 1], [1e-8] * 5, [1e-20, 1e5, 1, 1, 1]])
def test_masked_sums_lose_no_feature_for_its_unit(scale: list[float]) -> None:
    small = [Site(s.name, features=s.matrix() * scale, labels=s.labels) for s in hospitals()]
    masked = UnPSL().fit_sites(small, rounds=4, aggregation="masked").feature_weights_
    np.testing.assert_allclose(masked, UnPSL().fit_sites(hospitals(), rounds=4).feature_weights_, rtol=1e-5)


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        UnPSL().fit_sites(hospitals(), round=3)


def test_one_patient_moves_a_private_sum_by_at_most_one() -> None:
    sites = hospitals(300, seed=4)
    method = PrivateUnPSL(privacy=Privacy(50.0), patients=300, radius=6.0, rounds=2, rank=2, classes=("0", "1"))
    fold = Simulation(method, sites)
    for _ in range(2):
        step = method.next_step(fold.public) if fold.public is not None else None
        if step is None:
            fold.begin()
            step = method.next_step(fold.public)
        assert step is not None
        private = fold.parties["h0"].private
        rng = np.random.default_rng(0)
        whole = method.contribute(step, sites[0], private, fold.public, rng)[1].arrays
        for i in range(0, 100, 7):
            less = sites[0].take(np.delete(np.arange(100), i))
            part = method.contribute(step, less, private, fold.public, rng)[1].arrays
            moved = np.sqrt(sum(float(((whole[k] - part[k]) ** 2).sum()) for k in whole))
            assert moved <= 1.0
        fold.advance()


def test_a_private_run_is_formal_and_pays_what_was_asked() -> None:
    asked = {"privacy": Privacy(2.0), "patients": 3000, "radius": 6.0, "classes": [0, 1]}
    u = UnPSL().fit_sites(hospitals(3000), aggregation="masked", **asked)
    assert u.classes_.tolist() == [0, 1], "the public list, not those that occur"
    assert u.privacy_.guarantee == "formal"
    assert u.privacy_.adjacency == "patient"
    assert u.privacy_.epsilon == pytest.approx(2.0, rel=1e-6)
    assert u.feature_weights_.argmax() == 0
    assert u.history_[-1]["objective"] is None


def test_too_many_features_for_the_patients_are_refused() -> None:
    with pytest.raises(ConfigError, match="too many"):
        UnPSL().fit_sites(hospitals(60, d=40), privacy=Privacy(1.0), patients=60, radius=6.0, classes=(0, 1))


@pytest.mark.parametrize("classes", [None, (), ("ill",), ("1", 1, 1.0), "ill"])
def test_private_classes_come_from_a_public_list(classes: str | tuple[float | str, ...] | None) -> None:
    given = {} if classes is None else {"classes": classes}
    with pytest.raises(ConfigError, match="public list"):
        UnPSL().fit_sites(hospitals(60), privacy=Privacy(1.0), patients=60, radius=6.0, **given)


def test_the_bucket_of_a_patient_depends_on_nobody_else() -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    every = buckets(X, y, key="k", round=3, count=9)
    np.testing.assert_array_equal(every[5:], buckets(X[5:], y[5:], key="k", round=3, count=9))
    assert (every != buckets(X, y, key="k", round=4, count=9)).any()
