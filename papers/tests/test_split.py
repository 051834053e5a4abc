"""Dealing patients out anew changes where they are and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Sites, pooled


@pytest.fixture(scope="module")
def units() -> Sites:
    return pc.datasets.icu_network(patients=300, seed=4)


@pytest.mark.parametrize("number", range(1, 11))
def test_equal_sites_differ_by_at_most_one_patient(units: Sites, number: int) -> None:
    sizes = [s.patients for s in pc.datasets.split(units, number)]
    assert len(sizes) == number
    assert sum(sizes) == 300
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("skew", [1 / 3, 0.5, 0.7, 0.9])
def test_skew_is_the_share_of_the_first_site(units: Sites, skew: float) -> None:
    sizes = [s.patients for s in pc.datasets.split(units, 3, skew=skew)]
    assert sizes[0] == pytest.approx(300 * skew, abs=1)
    assert abs(sizes[1] - sizes[2]) <= 1


def test_every_patient_keeps_counts_label_and_membership(units: Sites) -> None:
    dealt = pc.datasets.split(units, sizes=[200, 70, 30], names=["b", "c", "a"], seed=9)

    def rows(sites: Sites) -> list[tuple[bytes, int, bytes]]:
        out = []
        for s in sites:
            t = s.tensor
            for i in range(s.patients):
                assert t is not None
                one = t.take([i])
                counts = np.column_stack([*one.codes, one.values]).astype(float).tobytes()
                out.append((counts, int(s.labels[i]), sites.truth.memberships[s.name][i].tobytes()))  # type: ignore[index]
        return sorted(out)

    assert rows(dealt) == rows(units)
    assert pooled(dealt).tensor.nnz == pooled(units).tensor.nnz  # type: ignore[union-attr]
    assert dealt.truth.prevalence.shape == (3, units.truth.rank)
    assert dealt.truth.prevalence[0].all()  # newborns are everywhere now


def test_seed_decides_who_goes_where(units: Sites) -> None:
    one, two, other = (pc.datasets.split(units, 3, seed=k) for k in (1, 1, 2))
    assert one[0].tensor == two[0].tensor
    assert one[0].tensor != other[0].tensor


@pytest.mark.parametrize(
    "options",
    [{}, {"number": 2, "shares": [0.5, 0.5]}, {"number": 400}, {"shares": [0.5, 0.6]}, {"sizes": [10]}],
)
def test_impossible_splits_are_refused(units: Sites, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        pc.datasets.split(units, **options)
