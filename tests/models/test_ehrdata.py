"""A hospital's patients for ehrdata: the package itself where it is there, an error that names it where it is not."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError


def fitted() -> tuple[pc.Phenotypes, pc.Site]:
    sites = pc.datasets.icu_network(patients=300, seed=0)
    value = pc.CPALS(rank=3, seed=0).fit(sites).result_
    assert isinstance(value, pc.Phenotypes)
    return value, sites[0]


def test_patients_codes_and_memberships_stand_side_by_side() -> None:
    ehrdata = pytest.importorskip("ehrdata", reason="ehrdata is not installed (extra ehrdata)")
    p, site = fitted()
    e = p.to_ehrdata(site)
    assert isinstance(e, ehrdata.EHRData)
    tensor = site.counts()
    dense = np.zeros(tensor.shape)
    dense[tuple(tensor.coords.T)] = tensor.values
    expected = np.concatenate([dense.sum(2), dense.sum(1)], axis=1)
    np.testing.assert_allclose(e.X.toarray(), expected)
    np.testing.assert_array_equal(e.obsm["phenotypes"], p.transform(site))
    np.testing.assert_array_equal(e.varm["phenotypes"], np.concatenate(p.factors))
    np.testing.assert_array_equal(e.obs["outcome"], site.labels)
    assert list(e.var["code"][:3]) == [p.axes[0].label(i) for i in range(3)]
    assert e.uns["polyclinic"]["digest"] == p.digest()


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    p, site = fitted()
    monkeypatch.setitem(sys.modules, "ehrdata", None)
    with pytest.raises(ConfigError, match="needs the package ehrdata"):
        p.to_ehrdata(site)


def test_an_empty_choice_of_patients_keeps_what_a_site_has() -> None:
    _, site = fitted()
    none = site.take([])
    assert none.patients == 0
    assert none.labels is not None
    assert none.labels.shape == (0,)


def test_private_phenotypes_refuse_what_is_below_zero_and_warn_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(pc.errors.DataError, match="not positive"):
        pc.DPEM(rank=2, rounds=2).fit(pc.SparseTensor([[0, 0, 0], [1, 1, 1]], [1.0, -2.5], (2, 2, 2)))
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]
    with pytest.warns(UserWarning, match="not whole numbers") as told:
        pc.DPEM(rank=2, rounds=2).fit(pc.SparseTensor([[0, 0, 0], [1, 1, 1]], [1.0, 2.5], (2, 2, 2)))
    assert not [w for w in told if "nonnegative=False" in str(w.message)]
