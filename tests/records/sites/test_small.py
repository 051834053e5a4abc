"""Small sites are joined, left out or refused as asked, and it is said which."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import DataError
from polyclinic.records.sites.people import People
from polyclinic.records.sites.small_sites import gather
from polyclinic.tensors.sparse import SparseTensor


def unit(name: str, people: list[str], labels: list[float] | None = None) -> pc.Site:
    n = len(people)
    coords = [(i, i % 3, i % 2) for i in range(n)]
    t = SparseTensor(coords, [1.0] * n, (n, 3, 2), ([f"{name}/{p}" for p in people], None, None))
    return pc.Site(name, t, None, labels)


def test_hundred_and_sixty_tiny_hospitals_become_sites_of_enough_patients() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 11, 160)
    units = [unit(f"h{k}", [f"p{k}-{i}" for i in range(n)]) for k, n in enumerate(sizes)]
    found = gather(units, 11, same_people=True)
    assert all(s.patients >= 11 for s in found.sites)
    assert sum(s.patients for s in found.sites) == sizes.sum()
    assert sorted(x for v in found.joined.values() for x in v) == sorted(u.name for u in units)
    again = gather(units[::-1], 11, same_people=True)  # the order of the list does not matter
    assert {k: set(v) for k, v in again.joined.items()} == {k: set(v) for k, v in found.joined.items()}
    assert sum(float(s.counts().values.sum()) for s in found.sites) == sizes.sum()


def test_largest_first_and_the_remainder_joins_the_one_before() -> None:
    units = [unit(n, [f"{n}{i}" for i in range(k)]) for n, k in (("a", 8), ("b", 7), ("c", 6), ("d", 5), ("e", 2))]
    found = gather(units, 11)
    assert found.joined == {"others 1": ("a", "b"), "others 2": ("c", "d", "e")}


def test_one_small_site_takes_the_smallest_other_in_and_nobody_is_misnamed() -> None:
    units = [unit(n, [f"{n}{i}" for i in range(k)]) for n, k in (("a", 40), ("b", 15), ("c", 4))]
    found = gather(units, 11)
    assert {s.name: s.patients for s in found.sites} == {"a": 40, "others 1": 19}


def test_a_patient_of_two_joined_units_is_one_patient_with_the_worse_outcome() -> None:
    units = [unit("a", ["x", "y"], [0, 0]), unit("b", ["x", "z"], [1, 0])]
    one = gather(units, 3, same_people=True).sites[0]
    assert one.patients == 3
    assert one.labels is not None and one.labels.tolist() == [1, 0, 0]
    assert gather(units, 3).sites[0].patients == 4  # two hospitals: number x of both are two people


def test_skip_counts_and_refuse_lists_all_at_once() -> None:
    units = [unit(n, [f"{n}{i}" for i in range(k)]) for n, k in (("a", 30), ("b", 8), ("c", 9))]
    left = gather(units, 11, "skip")
    assert left.skipped == ("b", "c") and left.left_out == 17 and left.to_json()["patients_left_out"] == 17
    assert gather(units[:2], 11, "skip").to_json()["patients_left_out"] is None  # 1 to 10 is a small count
    with pytest.raises(DataError) as e:
        gather(units, 11, "refuse")
    assert len(e.value.faults) == 2
    with pytest.raises(DataError, match="none is left"):
        gather(units[1:], 11, "skip")


def test_what_is_known_of_patients_goes_along_when_sites_are_joined() -> None:
    def unit(name: str, patients: list[str], ages: list[float]) -> pc.Site:
        axis = pc.Axis("patient", tuple(f"{name}/{p}" for p in patients))
        cells = [[k, 0, 0] for k in range(len(patients))]
        tensor = SparseTensor(
            cells, [1.0] * len(cells), (len(cells), 1, 1), (axis, pc.Axis("a", ("x",)), pc.Axis("b", ("y",)))
        )
        return pc.Site(name, tensor, people=People({"age": ages}))

    made = gather([unit("u", ["p", "q"], [50, 60]), unit("v", ["q", "r"], [60, 70])], 3, same_people=True)
    (site,) = made.sites
    assert site.patients == 3 and site.people is not None
    assert site.people.columns["age"].tolist() == [50.0, 60.0, 70.0]
