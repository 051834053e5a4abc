"""DPFact, LocalTF, distributed SGD: identities, l2,1, stability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Sites, pooled
from polyclinic.tensors.matching import match
from polyclinic_papers.prediction import outcome_auc, random_factors_auc


def same(a: object, b: object) -> bool:
    return (
        all(np.array_equal(x, y) for x, y in zip(a.factors_, b.factors_))  # type: ignore[attr-defined]
        and np.array_equal(a.weights_, b.weights_)  # type: ignore[attr-defined]
        and all(np.array_equal(a.memberships_[s], b.memberships_[s]) for s in a.memberships_)  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize("zeros", ["observed", "missing"])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_one_site_equals_cpsgd_bit_for_bit(zeros: str, nonnegative: bool) -> None:
    one = [pc.Site("x", pooled(example_sites()).tensor)]
    common = {"rank": 4, "rounds": 14, "seed": 3, "zeros": zeros, "nonnegative": nonnegative}
    central = pc.CPSGD(**common).fit(one)  # type: ignore[arg-type]
    assert same(pc.LocalTF(**common).fit(one), central)  # type: ignore[arg-type]
    assert same(pc.DPFact(**common, elastic=0, sparsity=0).fit(one), central)  # type: ignore[arg-type]


def test_localtf_with_one_pass_is_distributed_sgd() -> None:
    sites = example_sites()
    assert same(
        pc.LocalTF(rank=3, rounds=12, local_passes=1).fit(sites), pc.DistributedSGD(rank=3, rounds=12).fit(sites)
    )
    with pytest.raises(ConfigError, match="local_passes is 2"):
        pc.DistributedSGD(rank=3, local_passes=2).fit(sites)


def test_order_of_sites_changes_no_bit() -> None:
    sites = example_sites()
    for cls in (pc.TRIP, pc.LocalTF, pc.DPFact, pc.SumALS):
        assert same(cls(rank=3, rounds=12).fit(sites), cls(rank=3, rounds=12).fit(sites[::-1])), cls


def test_unstable_server_step_is_refused_before_round_one() -> None:
    """ERRATA E0.7: eq. 19 is stable only for 0 < eta gamma T < 2."""
    with pytest.raises(ConfigError, match=r"eta gamma T = 0.1 x 5 x 4 = 2 is not stable"):
        pc.DPFact(rank=2, variant="paper", zeros="missing", elastic=5, learning_rate=0.1).fit(example_sites())
    pc.DPFact(rank=2, rounds=2, variant="paper", zeros="missing", elastic=5, learning_rate=0.01).fit(example_sites())


def test_elastic_force_holds_sites_together() -> None:
    sites = pc.datasets.icu_network(patients=600, seed=0)

    def spread(elastic: float) -> float:
        from polyclinic.protocol.loop import Simulation

        outcome = Simulation(pc.DPFact(rank=6, rounds=20, elastic=elastic, sparsity=0), sites).run()
        privates: dict[str, Any] = dict(outcome.privates)
        return float(sum(np.square(p.factors[0] - outcome.public.factors[0]).sum() for p in privates.values()))

    assert spread(3.0) < spread(0.3)


def test_elastic_forces_balance_where_all_patients_are_fitted() -> None:
    """Small hospitals beside a large one: an average by energy ends away from the optimum of all patients."""
    whole = pc.datasets.icu_network(patients=260, seed=7)
    sizes = {"TSICU": 12, "SICU": 15, "CCU": 20}
    small = [pc.Site(s.name, s.counts().take(np.arange(sizes[s.name]))) for s in whole if s.name in sizes]
    sites = [*small, next(s for s in whole if s.name == "MICU")]
    gained = []
    for seed in range(3):
        common = {"rank": 6, "rounds": 40, "seed": seed, "sparsity": 0.0}
        balanced, energy = pc.DPFact(**common).fit(sites), pc.DPFact(**common, weights="energy").fit(sites)  # type: ignore[arg-type]
        assert balanced.params.balanced and not energy.params.balanced
        assert all((f >= 0).all() for f in balanced.factors_)
        gained.append(balanced.score(sites) - energy.score(sites))
    assert np.mean(gained) > 0
    assert not pc.DPFact(weighting="none").params.balanced  # the papers' average


def test_steps_may_follow_a_schedule() -> None:
    sites = example_sites()
    falling = pc.LocalTF(rank=2, rounds=4, zeros="missing", learning_rate={"start": 0.05, "decay": 1.0}).fit(sites)
    listed = pc.LocalTF(rank=2, rounds=4, zeros="missing", learning_rate=(0.05, 0.025, 0.05 / 3, 0.0125)).fit(sites)
    assert all(np.allclose(a, b) for a, b in zip(falling.factors_, listed.factors_))


def presence(model: object, sites: Sites) -> tuple[float, float, list[float]]:
    """Precision and recall of "site has phenotype" (norm above 1 % of the largest site's), and how much of a phenotype
    of one site is left elsewhere."""
    truth = sites.truth
    names = list(truth.memberships)
    norms = np.array([np.linalg.norm(model.memberships_[n], axis=0) for n in names])  # type: ignore[attr-defined]
    found = match(model.factors_, truth.factors)  # type: ignore[attr-defined]
    on = has = both = 0
    elsewhere = []
    for ours, theirs, likeness in zip(found.left, found.right, found.likeness):
        if likeness < 0.5:
            continue
        here, there = norms[:, ours] > 0.01 * norms[:, ours].max(), truth.prevalence[:, theirs]
        on, has, both = on + here.sum(), has + there.sum(), both + (here & there).sum()
        if there.sum() == 1:
            elsewhere.append(float(norms[~there, ours].max() / norms[:, ours].max()))
    return both / on, both / has, elsewhere


@pytest.mark.parametrize("cls", [pc.DPFact, pc.LocalTF])
def test_l21_turns_a_sites_own_phenotype_off_elsewhere(cls: type) -> None:
    sites = pc.datasets.icu_network(patients=3000, seed=1)
    m = cls(rank=sites.truth.rank + 2, seed=1, sparsity=2.0).fit(sites)
    precision, recall, elsewhere = presence(m, sites)
    assert precision >= 0.95 and recall >= 0.95
    assert elsewhere and max(elsewhere) < 0.01


def test_sparsity_may_differ_by_site() -> None:
    sites = example_sites()
    m = pc.LocalTF(rank=5, rounds=40, sparsity={"site0": 100.0}).fit(sites)
    assert not m.memberships_["site0"].any() and m.memberships_["site1"].any()


@pytest.mark.slow
def test_five_seeds_find_the_phenotypes_and_predict_the_outcome() -> None:
    """Mean FMS >= 0.85, AUC within 0.02 of pooled CPALS's, and heterogeneity, with default settings."""
    fms: dict[str, list[float]] = {}
    auc: dict[str, list[float]] = {}
    for seed in range(5):
        sites = pc.datasets.icu_network(patients=3000, seed=seed)
        rank = sites.truth.rank + 2
        for cls in (pc.TRIP, pc.DPFact, pc.LocalTF, pc.CPALS):
            m = cls(rank=rank, seed=seed)
            auc.setdefault(cls.__name__, []).append(outcome_auc(m, sites, 0.6, seed).auc)
            fms.setdefault(cls.__name__, []).append(
                pc.metrics.factor_match_score(sites.truth.factors, m.fit(sites).factors_)
            )
        auc.setdefault("random", []).append(random_factors_auc(sites, rank, 0.6, seed))
        for cls in (pc.DPFact, pc.LocalTF):
            for kappa in (1.0, 4.0):
                precision, recall, elsewhere = presence(cls(rank=rank, seed=seed, sparsity=kappa).fit(sites), sites)
                assert precision >= 0.95 and recall >= 0.95 and max(elsewhere, default=0.0) < 0.01
    for name in ("TRIP", "DPFact", "LocalTF"):
        print(name, "FMS", np.round(fms[name], 3), "AUC", np.round(auc[name], 3), "random", np.round(auc["random"], 3))
        assert np.mean(fms[name]) >= 0.85
        assert abs(np.mean(auc[name]) - np.mean(auc["CPALS"])) <= 0.02


@pytest.mark.parametrize("method", [pc.LocalTF, pc.DPFact, pc.TRIP])
def test_few_patients_a_site_do_not_blow_up(method: type) -> None:
    whole = pc.datasets.icu_network(patients=300, seed=0)
    for few in (2, 5, 15):
        sites = [pc.Site(s.name, s.counts().take(np.arange(few))) for s in whole[:3]]
        for seed in range(3):
            model = method(rank=3, rounds=12, seed=seed).fit(sites)
            assert all(np.isfinite(f).all() for f in model.factors_)
