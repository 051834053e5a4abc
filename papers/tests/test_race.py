"""A run is measured round by round without a second fit, and a race is fair."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.datasets import icu_network
from polyclinic.errors import ConfigError
from polyclinic.methods.central.als import CPALS
from polyclinic.methods.central.sgd import CPSGD
from polyclinic.methods.phenotypes import DPFact, LocalTF, SumALS
from polyclinic.records.sites.site import pooled
from polyclinic_papers.cohorts import cohort
from polyclinic_papers.experiment import Lab
from polyclinic_papers.race import Finish, Pooled, Runner, cheaper, race
from polyclinic_papers.reach import rmse_of, trace

SITES = icu_network(patients=120, seed=0)


def test_a_traced_method_is_the_fitted_one() -> None:
    found = trace(DPFact(rank=4, rounds=3, seed=0, sparsity=0.0, weighting="none"), SITES)
    fitted = DPFact(rank=4, rounds=3, seed=0, sparsity=0.0, weighting="none").fit(SITES)
    for a, b in zip(found.model.factors_, fitted.factors_):
        np.testing.assert_array_equal(a, b)
    assert len(found.full) == len(found.observed) == len(found.bytes) == 3
    # the last round as a fresh solve of the memberships would judge it
    assert found.full[-1] == pytest.approx(rmse_of(pooled(SITES).counts(), fitted.factors_), rel=1e-3)
    assert found.observed[-1] == pytest.approx(fitted.quality(SITES)["rmse_observed"], rel=1e-2)
    assert found.bytes == sorted(found.bytes)


def test_cpals_is_traced_by_its_federated_twin() -> None:
    central = CPALS(rank=4, rounds=25, tol=0.0, seed=0, weighting="none").fit(SITES).quality(SITES)
    found = trace(SumALS(rank=4, rounds=25, start="random", warmup=20, tol=0.0, seed=0, weighting="none"), SITES)
    assert found.full[-1] == pytest.approx(central["rmse_full"], rel=1e-4)
    assert found.observed[-1] == pytest.approx(central["rmse_observed"], rel=1e-3)


def test_pooled_sgd_is_traced_as_localtf_with_one_site() -> None:
    options = {"rank": 3, "rounds": 4, "seed": 0, "zeros": "missing", "learning_rate": 0.01}
    found = trace(LocalTF(**options), [pooled(SITES)])
    central = CPSGD(**options).fit(SITES)
    for a, b in zip(found.model.factors_, central.factors_):
        np.testing.assert_allclose(a, b)


def test_literal_methods_are_judged_by_their_own_factors() -> None:
    model = DPFact(rank=3, rounds=2, seed=0, zeros="missing", variant="paper", elastic=5.0, sparsity=0.0)
    found = trace(model, SITES)
    assert found.full[-1] > found.observed[-1] / 10 and np.isfinite(found.full).all()
    assert found.observed[-1] < found.observed[0]


def test_a_race_needs_equal_tuning_budgets() -> None:
    lab = Lab("dpfact-cost", "quick")
    runners = [
        Runner("a", LocalTF, [{"local_passes": 1}]),
        Runner("b", LocalTF, [{"local_passes": 1}, {"local_passes": 2}]),
    ]
    with pytest.raises(ValueError, match="unequal tuning budgets"):
        race(lab, "icu", runners)


def test_who_does_not_arrive_is_not_cheaper() -> None:
    near = Finish({}, [{"rounds": 2.0, "bytes": 10.0}] * 3, [1.0] * 3, [10.0] * 3)
    never = Finish({}, [None] * 3, [2.0] * 3, [5.0] * 3)
    assert cheaper(never, near) == (cheaper(never, near)[0], False)
    far = Finish({}, [{"rounds": 8.0, "bytes": b} for b in (40.0, 41.0, 42.0)], [1.0] * 3, [42.0] * 3)
    assert cheaper(near, far)[1] and not cheaper(far, near)[1]


def test_a_race_ends_at_the_goal() -> None:
    lab = Lab("dpfact-cost", "quick")
    lab.parameters |= {"patients": 200, "rank": 4, "share": 0.5}
    found = race(lab, "icu", [Runner("LocalTF", LocalTF, [{"local_passes": 4}])])
    hit = found["LocalTF"].hits[0]
    assert hit is not None and 1 <= hit["rounds"] <= lab["rounds"] and found["LocalTF"].arrived == "1 of 1"


def test_the_goal_is_a_share_of_what_the_pooled_model_explains() -> None:
    known = Pooled(full=3.0, observed=1.0, zero=5.0)
    assert known.explained == pytest.approx(1 - 9 / 25)
    assert known.share(known.goal(0.7)) == pytest.approx(0.7)
    assert known.goal(1.0) == pytest.approx(3.0) and known.goal(0.0) == pytest.approx(5.0)
    assert Pooled.of(Lab("dpfact-cost", "quick"), "icu", 0).truth > 0.5  # type: ignore[operator]


def test_unknown_cohorts_are_refused() -> None:
    with pytest.raises(ConfigError, match="no cohort"):
        cohort("mimic", 0, 100)
