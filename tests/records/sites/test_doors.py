"""Tables and matrices become hospitals; what cannot be counted is refused with its place."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import polyclinic as pc
from polyclinic.errors import DataError


def rows(n: int = 3000, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    out = pd.DataFrame(
        {
            "pid": rng.integers(0, 200, n),
            "procedure": rng.choice([f"p{i}" for i in range(12)], n),
            "diagnosis": rng.choice(["428.0", "428", "401.9", "250.00"], n),
            "stay": rng.integers(0, 4, n),
            "n": rng.integers(0, 4, n),
        }
    )
    out["hospital"] = np.where(out.pid < 80, "north", "south")
    out["died"] = (out.pid % 3 == 0).astype(int)
    return out


def test_a_row_is_a_visit_and_sites_are_aligned() -> None:
    df = rows()
    sites = pc.from_frame(df, patient="pid", modes=["procedure", "diagnosis"], site="hospital", outcome="died")
    assert [s.name for s in sites] == ["north", "south"]
    for s in sites:
        mine = df[df.hospital == s.name]
        t = s.counts()
        assert t.axes[2].labels == ("250.00", "401.9", "428", "428.0")  # texts stay texts
        assert t.values.sum() == len(mine)
        expected = mine.groupby(["pid", "procedure", "diagnosis"]).size()
        ids = [int(x) for x in t.axes[0].labels or ()]
        got = {(ids[i], t.axes[1].label(j), t.axes[2].label(k)): v for (i, j, k), v in zip(t.coords.tolist(), t.values)}
        assert got == expected.to_dict()
        assert s.labels is not None
        assert s.labels.tolist() == [int(i % 3 == 0) for i in ids]
    assert pc.CPALS(rank=2, rounds=3).fit(sites).result_.rank == 2


def test_covariates_and_unknown_outcomes() -> None:
    df = rows()
    df["age"], df["sex"] = 40.0 + df.pid % 50, np.where(df.pid % 2, "F", "M")
    df.loc[df.pid < 5, "age"] = np.nan
    df.loc[df.pid == 7, "sex"] = None
    df["died"] = df.died.astype(float).where(df.pid != 9)
    (site,) = pc.from_frame(df, patient="pid", modes=["diagnosis"], outcome="died", covariates=["age", "sex"])
    ids = np.array([int(x) for x in site.counts().axes[0].labels or ()])
    assert site.people is not None
    assert site.labels is not None
    age, sex = site.people.columns["age"], site.people.columns["sex"]
    np.testing.assert_array_equal(age, np.where(ids < 5, np.nan, 40.0 + ids % 50))
    assert sex.tolist() == ["" if i == 7 else "F" if i % 2 else "M" for i in ids]
    assert np.isnan(site.labels).sum() == 1
    df.loc[df.index[0], "sex"] = "X"
    with pytest.raises(DataError, match="sex, site 'hospital': 1 patients have several values"):
        pc.from_frame(df, patient="pid", modes=["diagnosis"], covariates=["sex"])


def test_with_a_visit_a_cell_is_the_number_of_visits() -> None:
    df = rows(800)
    df.loc[::7, "procedure"] = None  # rows of a visit may leave modes empty
    (site,) = pc.from_frame(df, patient="pid", modes=["procedure", "diagnosis"], visit="stay")
    t = site.counts()
    ids = [int(x) for x in t.axes[0].labels or ()]
    expected: dict[Any, int] = {}
    for (pid, _), g in df.groupby(["pid", "stay"]):
        for a in set(g.procedure.dropna()):
            for b in set(g.diagnosis):
                expected[pid, a, b] = expected.get((pid, a, b), 0) + 1
    got = {(ids[i], t.axes[1].label(j), t.axes[2].label(k)): v for (i, j, k), v in zip(t.coords.tolist(), t.values)}
    assert got == expected


def test_counts_are_added_and_missing_codes_are_told() -> None:
    df = rows()
    (site,) = pc.from_frame(df, patient="pid", modes=["diagnosis"], count="n")
    assert site.counts().values.sum() == df.n.sum()
    df.loc[:9, "diagnosis"] = ["", " ", None, np.nan, "", None, None, "", None, None]
    with pytest.warns(UserWarning, match="10 of 3000 rows lack a code"):
        (site,) = pc.from_frame(df, patient="pid", modes=["diagnosis"], count="n")
    assert site.counts().values.sum() == df.n[10:].sum()
    assert site.patients == df.pid.nunique()  # nobody is dropped


@pytest.mark.parametrize("library", ["pandas", "mapping", "pyarrow", "polars", "categorical", "nullable"])
def test_frames_of_any_library(library: str) -> None:
    df = rows(300)
    want = pc.from_frame(df, patient="pid", modes=["procedure", "diagnosis"], count="n", site="hospital")
    given: Any = df
    if library == "mapping":
        given = {c: df[c].tolist() for c in df}
    elif library == "pyarrow":
        given = pytest.importorskip("pyarrow").Table.from_pandas(df)
    elif library == "polars":
        given = pytest.importorskip("polars").from_pandas(df)
    elif library == "categorical":
        given = df.astype({"procedure": "category", "hospital": "category"})
    elif library == "nullable":
        given = df.convert_dtypes()
    found = pc.from_frame(given, patient="pid", modes=["procedure", "diagnosis"], count="n", site="hospital")
    assert [s.counts() == w.counts() for s, w in zip(found, want)] == [True, True]


def long_rows(df: pd.DataFrame) -> pd.DataFrame:
    """The same events with one code in each row."""
    return df.melt(["pid", "stay", "hospital"], ["procedure", "diagnosis"], var_name="kind", value_name="code")


@pytest.mark.parametrize("layout", [{"visit": "stay"}, {"side_by_side": True}])
def test_a_long_table_gives_the_same_sites_as_a_wide_one(layout: dict[str, Any]) -> None:
    df = rows()
    modes = ["diagnosis", "procedure"]  # in order of their names, as the kinds of a long table are
    wide = pc.from_frame(df, patient="pid", modes=modes, site="hospital", **layout)
    long = pc.from_frame(long_rows(df), patient="pid", modes={"kind": "code"}, site="hospital", **layout)
    assert [s.counts() == w.counts() for s, w in zip(long, wide, strict=True)] == [True, True]
    assert [a.name for a in long[0].counts().axes] == [a.name for a in wide[0].counts().axes]


def test_a_long_table_says_which_rows_belong_together() -> None:
    df = long_rows(rows())
    with pytest.raises(DataError, match="which rows belong together"):
        pc.from_frame(df, patient="pid", modes={"kind": "code"})
    one_kind = df[df.kind == "diagnosis"]
    (site,) = pc.from_frame(one_kind, patient="pid", modes={"kind": "code"})
    assert site.counts().axes[1].name == "diagnosis"
    assert site.counts().values.sum() == len(one_kind)
    df.loc[:4, "kind"] = None
    with pytest.raises(DataError, match="kind: 5 of 6000 rows are empty"):
        pc.from_frame(df, patient="pid", modes={"kind": "code"}, visit="stay")


def test_rows_without_a_site_are_left_out_on_request() -> None:
    df = rows()
    df["hospital"] = df.hospital.astype(object)
    df.loc[:9, "hospital"] = None
    columns: dict[str, Any] = {"patient": "pid", "modes": ["diagnosis"], "site": "hospital", "outcome": "died"}
    with pytest.raises(DataError, match=r'hospital: 10 of 3000 rows are empty(.|\n)*without_site="leave out"'):
        pc.from_frame(df, **columns)
    with pytest.warns(UserWarning, match="hospital: 10 of 3000 rows are empty: left out"):
        sites = pc.from_frame(df, without_site="leave out", **columns)
    want = pc.from_frame(df[10:], **columns)
    assert [s.counts() == w.counts() for s, w in zip(sites, want, strict=True)] == [True, True]
    for s, w in zip(sites, want, strict=True):
        np.testing.assert_array_equal(s.labels, w.labels)
        assert s.labels is not None


@pytest.mark.parametrize("matrix", [np.asarray, sparse.csr_matrix])
def test_an_anndata_is_a_table(matrix: Any) -> None:
    anndata = pytest.importorskip("anndata")
    counts = np.array([[0, 2, 1], [0, 0, 0], [3, 0, 0], [0, 0, 4]], float)
    obs = pd.DataFrame({"hospital": ["n", "n", "s", "s"], "died": [0, 1, 1, 0]}, index=[f"p{i}" for i in range(4)])
    data = anndata.AnnData(matrix(counts), obs=obs, var=pd.DataFrame(index=["a", "b", "c"]))
    with pytest.warns(UserWarning, match="1 of 5 rows lack a code"):  # the patient without counts stays
        north, south = pc.from_frame(data, patient="id", modes=["drug"], site="hospital", outcome="died")
    assert north.counts().axes[0].labels == ("p0", "p1")
    assert north.counts().axes[1].name == "drug"
    assert north.labels is not None and north.labels.tolist() == [0, 1]
    for site, want in ((north, counts[:2]), (south, counts[2:])):
        dense = np.zeros_like(want)
        dense[tuple(site.counts().coords.T)] = site.counts().values
        np.testing.assert_array_equal(dense, want)
    with pytest.raises(DataError, match="an AnnData has one mode"):
        pc.from_frame(data, patient="id", modes=["drug", "dose"])


@pytest.mark.parametrize(
    ("change", "call", "told"),
    [
        ({"n": -1}, {"count": "n"}, "n: 3000 are negative, e.g. row 0: -1"),
        ({"n": 0.5}, {"count": "n"}, "not whole numbers"),
        ({"n": np.nan}, {"count": "n"}, "are empty"),
        ({"n": "many"}, {"count": "n"}, "not numbers"),
        ({"pid": None}, {}, "pid: 3000 of 3000 rows are empty"),
        ({"died": "perhaps"}, {"outcome": "died"}, "which of 'perhaps' is the event"),
        ({"died": [0, 1] * 1500}, {"outcome": "died"}, "patients have 0 and 1"),
        ({"diagnosis": 428.1}, {}, "codes are texts, not numbers such as 428.1"),
        ({}, {"patient": "pdi"}, "no column 'pdi'; did you mean 'pid'"),
        ({}, {"count": "n", "visit": "stay"}, "count and visit are both given"),
        ({}, {"modes": "diagnosis"}, "modes = 'diagnosis'"),
        ({}, {"modes": ["pid"]}, "used twice"),
    ],
)
def test_what_cannot_be_counted_is_refused(change: dict[str, Any], call: dict[str, Any], told: str) -> None:
    df = rows().assign(**change)
    with pytest.raises(DataError, match=told):
        pc.from_frame(df, **{"patient": "pid", "modes": ["diagnosis"], **call})


def test_matrices_and_arrays_are_tensors() -> None:
    dense = np.random.default_rng(0).poisson(0.4, (30, 5, 6)).astype(float)
    t = pc.from_numpy(dense, axes=["drug", [f"d{i}" for i in range(6)]])
    assert t.axes[1].name == "drug"
    back = np.zeros_like(dense)
    back[tuple(t.coords.T)] = t.values
    np.testing.assert_array_equal(back, dense)
    for kind in (sparse.csr_matrix, sparse.coo_array, sparse.csc_matrix):
        m = pc.from_scipy(kind(dense[:, 0]), columns=[f"d{i}" for i in range(6)])
        assert m == pc.from_numpy(dense[:, 0], axes=[pc.Axis("code", tuple(f"d{i}" for i in range(6)))])
    with pytest.raises(DataError, match="shape"):
        pc.from_numpy(np.zeros(3))
    with pytest.raises(DataError, match="from_numpy"):
        pc.from_scipy(dense)


@pytest.mark.parametrize(
    ("given", "door"),
    [
        (np.ones((3, 2)), "pc.from_numpy"),
        (sparse.csr_matrix(np.ones((3, 2))), "pc.from_scipy"),
        (pd.DataFrame({"a": [1]}), "pc.from_frame"),
        (3, "pc.from_frame"),
    ],
)
def test_a_wrong_input_is_told_which_door_to_take(given: Any, door: str) -> None:
    for use in (
        lambda: pc.Site("a", tensor=given),
        lambda: pc.TRIP(rank=2).fit(given),
        lambda: pc.CPALS(rank=2).fit(given),
        lambda: pc.DPEM(rank=2).fit([given]),
    ):
        with pytest.raises(DataError, match=door):
            use()


def test_negative_counts_are_refused_by_dpem_and_told_by_the_others() -> None:
    dense = np.random.default_rng(0).poisson(1.0, (30, 5, 6)).astype(float)
    dense[0, 0, 0], dense[1, 1, 1] = -1.0, 0.5
    sites = [pc.Site("a", pc.from_numpy(dense))]
    with pytest.raises(DataError, match="not positive"):
        pc.DPEM(rank=2, rounds=2).fit(sites)
    with pytest.warns(UserWarning, match="1 of .* cells are negative"):
        pc.CPALS(rank=2, rounds=2).fit(sites)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.CPALS(rank=2, rounds=2, nonnegative=False).fit(sites)


def test_a_table_is_read_by_arrow() -> None:
    pyarrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    from polyclinic.util.table import Table

    t = Table(["code", "weight", "drift"], [["428.0", 0.9, None], ["401.9", 0.1, 0.5]])
    assert pyarrow.table(t).to_pydict() == {"code": ["428.0", "401.9"], "weight": [0.9, 0.1], "drift": [None, 0.5]}
    assert polars.DataFrame(t)["weight"].to_list() == [0.9, 0.1]
    assert pyarrow.table(Table(["a"], [])).num_rows == 0


def test_codes_have_words_where_they_are_given() -> None:
    rows = {"pid": [1, 2, 3], "dx": ["428", "250", "401"]}
    (site,) = pc.from_frame(
        rows, patient="pid", modes=["dx"], names={"dx": {"428": "heart failure", "250": "diabetes"}}
    )
    axis = site.counts().axes[1]
    assert (axis.labels, axis.names) == (("250", "401", "428"), ("diabetes", "401", "heart failure"))
    with pytest.raises(DataError, match="no mode") as e:
        pc.from_frame(rows, patient="pid", modes=["dx"], names={"diagnosis": {}, "dx": ["a"]})  # type: ignore[dict-item]
    assert "'diagnosis'" in str(e.value) and "'dx': list" in str(e.value)


def test_a_table_without_rows_says_so() -> None:
    with pytest.raises(DataError, match="the table has no rows"):
        pc.from_frame({"pid": [], "dx": []}, patient="pid", modes=["dx"])
