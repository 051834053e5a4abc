"""Floor: one sum of patients by code over all sites, the same codes dropped everywhere, and nothing else changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.config import Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.estimators.factorization import Factorization, FittedFactorization
from polyclinic.protocol.loop import Simulation, run
from polyclinic.protocol.minimum_patients import SUPPORT, MinimumPatients
from polyclinic.records.sites.rare_codes import carriers, floor, without_cells
from polyclinic.studies.registry import federated, make
from polyclinic.tensors.sparse import SparseTensor

METHODS: dict[str, Callable[..., FittedFactorization[Any, Any, Any]]] = {
    "trip": lambda **k: pc.TRIP(rank=3, rounds=12, **k),
    "sumals": lambda **k: pc.SumALS(rank=3, rounds=8, **k),
    "dpfact": lambda **k: pc.DPFact(rank=3, rounds=14, **k),
    "localtf": lambda **k: pc.LocalTF(rank=3, rounds=14, **k),
}


def brute(sites: list[pc.Site], mode: int) -> np.ndarray:
    """Patients of every code, by sets."""
    size = sites[0].counts().shape[mode]
    people: list[set[tuple[str, int]]] = [set() for _ in range(size)]
    for s in sites:
        for c in s.counts().coords.tolist():
            people[c[mode]].add((s.name, c[0]))
    return np.array([len(p) for p in people])


@pytest.fixture(scope="module")
def sites() -> list[pc.Site]:
    return list(pc.datasets.icu_network(patients=150, seed=5))


@pytest.mark.parametrize("aggregation", ["plain", "masked", "subspace"])
def test_codes_of_few_patients_over_all_sites_are_dropped_whatever_one_site_has(
    sites: list[pc.Site], aggregation: str
) -> None:
    minimum = 12
    public = run(MinimumPatients(pc.TRIP(rank=3, rounds=4, aggregation=aggregation), minimum), sites).public
    for mode, kept in enumerate(public.kept, start=1):
        total = brute(sites, mode)
        assert np.array_equal(kept, total >= minimum)
        at_one = np.max([brute([s], mode) for s in sites], axis=0)
        assert ((at_one < minimum) & kept).any()  # thinly spread codes stay


def test_a_code_of_one_hospital_stays_if_enough_of_its_patients_have_it() -> None:
    def site(name: str, codes: list[int]) -> pc.Site:
        cells = [[p, c, 0] for p, c in enumerate(codes)]
        return pc.Site(name, SparseTensor(cells, [1.0] * len(cells), (len(cells), 3, 1)))

    three = [site("a", [0] * 11 + [1] * 3), site("b", [1] * 3 + [2] * 10), site("c", [1] * 5)]
    public = run(MinimumPatients(pc.SumALS(rank=1, rounds=2, aggregation="masked"), 11), three).public
    assert [k.tolist() for k in public.kept] == [[True, True, False], [True]]


@pytest.mark.parametrize("name", METHODS)
def test_the_model_is_that_of_sites_that_never_had_the_codes(sites: list[pc.Site], name: str) -> None:
    minimum = 20
    floored = MinimumPatients(METHODS[name](), minimum)
    outcome = run(floored, sites)
    kept = [brute(sites, m) >= minimum for m in (1, 2)]
    alone = METHODS[name]().fit([without_cells(s, kept) for s in sites])
    floored.publish(outcome)
    model = floored.model_
    assert isinstance(model, Factorization)
    assert all(np.array_equal(a, b) for a, b in zip(model.factors_, alone.factors_))
    assert all(np.array_equal(model.memberships_[s.name], alone.memberships_[s.name]) for s in sites)
    for f, k in zip(model.factors_, kept):
        assert not k.all() and f[~k].max() < 0.01 * f.max()  # what is left of a random start
    assert model.factors_[0].shape[0] == sites[0].counts().shape[1]  # axes stay


def test_the_card_and_the_first_release_say_what_was_counted(sites: list[pc.Site]) -> None:
    floored = MinimumPatients(pc.SumALS(rank=2, rounds=2, aggregation="masked"), 15)
    outcome = run(floored, sites)
    first = outcome.releases[0].step
    assert (first.name, first.round) == (SUPPORT, 0)
    assert "how many patients have each code" in floored.facts.meaning(SUPPORT).what  # type: ignore[union-attr]
    floored.publish(outcome)
    assert floored.model_.facts.meaning(SUPPORT) is not None
    assert "how many patients have each code over all sites, 1 to 10 of them too" in str(floored.model_.privacy_)
    assert floored.model_.traffic_.rounds == pc.SumALS(rank=2, rounds=2).fit(sites).traffic_.rounds


def test_a_run_that_stops_goes_on_to_the_same_model(sites: list[pc.Site]) -> None:
    whole = run(MinimumPatients(pc.TRIP(rank=2, rounds=4), 15), sites)
    again = Simulation(MinimumPatients(pc.TRIP(rank=2, rounds=4), 15), list(reversed(sites))).run()
    assert all(np.array_equal(a, b) for a, b in zip(whole.public.inner.factors, again.public.inner.factors))


def test_no_code_left_is_an_error_that_names_the_modes(sites: list[pc.Site]) -> None:
    with pytest.raises(DataError, match="no code is left") as e:
        run(MinimumPatients(pc.TRIP(rank=2, rounds=2), 10_000, ("drug", "diagnosis")), sites)
    assert len(e.value.faults) == 2 and "mode 'drug'" in e.value.faults[0] and "10000" in e.value.faults[0]


def study(**tensor: object) -> Study:
    values = {
        "study": {"name": "x", "replicate": 0},
        "tensor": {"modes": ["drug", "diagnosis"], **tensor},
        "method": {"name": "trip", "rank": 2, "aggregation": "masked"},
    }
    return Study.parse(values)


def test_between_hosts_it_is_on_by_default_and_off_where_it_cannot_be_counted() -> None:
    assert isinstance(federated(study()), MinimumPatients)
    assert federated(study()).minimum == 11
    assert isinstance(federated(study(minimum_patients=1)), pc.TRIP)
    assert isinstance(make(study()), pc.TRIP)  # a simulation counts on the union itself
    private = {"name": "dpem", "rank": 2, "aggregation": "masked"}
    paid = study().to_json() | {"privacy": {"epsilon": 1.0, "delta": 1e-5}, "method": private}
    assert isinstance(federated(Study.parse(paid)), pc.DPEM)
    robust = study().to_json() | {"method": {"name": "dpfact", "rank": 2, "aggregation": "median"}}
    assert isinstance(federated(Study.parse(robust)), pc.DPFact)
    with pytest.raises(ConfigError, match="floor"):
        MinimumPatients(pc.DPEM(rank=2, privacy=pc.Privacy(1.0, 1e-5)), 11)


def test_carriers_count_patients_not_cells() -> None:
    t = SparseTensor([[0, 0, 0], [0, 0, 1], [1, 0, 0]], [5.0, 1.0, 1.0], (2, 1, 2))
    assert carriers(t, 1).tolist() == [2] and carriers(t, 2).tolist() == [2, 1]
    assert [len(c) for c in MinimumPatients(pc.TRIP(rank=1), 2).counted(example_sites())]


def test_in_a_simulation_a_code_of_a_public_list_keeps_its_place_and_loses_its_cells() -> None:
    public, data = (pc.Axis("drug", ("a", "b", "c"), vocabulary="public"), pc.Axis("diagnosis", ("x", "y")))
    cells = [[p, 0, 0] for p in range(6)] + [[6, 1, 1], [7, 0, 1]]
    one = pc.Site("one", SparseTensor(cells, [1.0] * 8, (8, 3, 2), (pc.Axis("patient"), public, data)))
    left = floor([one], 3)[0].counts()
    assert left.axes[1].labels == ("a", "b", "c") and left.axes[2].labels == ("x",)
    assert left.patients == 6 and left.shape == (6, 3, 1) and carriers(left, 1).tolist() == [6, 0, 0]
