"""The co-occurrence rule, against a count by hand and against brute force over all tuples of events."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.records.events import cooccurrence
from polyclinic.records.ingest import Ingested, ingest
from polyclinic.records.sites.rare_codes import floor

Row = tuple[str, str, datetime, str, str]
START = datetime(2020, 1, 1)


def write(folder: Path, rows: list[Row]) -> Node:
    with open(folder / "events.csv", "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["patient_id", "visit_id", "time", "kind", "code"])
        out.writerows(rows)
    values = {"site": {"name": "a"}, "source": {"kind": "files", "events": "events.csv"}}
    return Node.parse(values, folder=folder)


def run(folder: Path, rows: list[Row], **tensor: object) -> Ingested:
    study = Study.parse({"study": {"name": "s"}, "tensor": tensor}, folder=folder)
    return ingest(write(folder, rows), study, folder / "out")


def cells(made: Ingested) -> dict[tuple[str, ...], float]:
    t = made.site.counts()
    return {tuple(a.label(int(i)) for a, i in zip(t.axes, x)): v for x, v in zip(t.coords, t.values.tolist())}


def brute(
    rows: list[Row], modes: tuple[str, ...], window: str, width: timedelta | None, count: str
) -> dict[tuple[str, ...], float]:
    """Over all tuples of one event of each mode; visits (or days) are those of the tuple, where it has one, or else the
    fewest of any mode's events that take part."""
    ways: Counter[tuple[str, ...]] = Counter()
    ticks: dict[tuple[str, ...], list[set[object]]] = defaultdict(lambda: [set() for _ in modes])
    for chosen in product(*([r for r in rows if r[3] == m] for m in modes)):
        if len({r[0] for r in chosen}) > 1:
            continue
        if window == "visit":
            together = len({r[1] for r in chosen}) == 1
            together &= count != "days" or len({r[2].date() for r in chosen}) == 1
        elif window == "day":
            together = len({r[2].date() for r in chosen}) == 1
        else:
            together = width is None or max(r[2] for r in chosen) - min(r[2] for r in chosen) <= width
        if together:
            key = (chosen[0][0], *(r[4] for r in chosen))
            ways[key] += 1
            for seen, r in zip(ticks[key], chosen):
                day = r[2].date()
                seen.add(
                    day if window == "day" else r[1] if count != "days" else (r[1], day) if window == "visit" else day
                )
    value = {"product": lambda k: ways[k], "presence": lambda _: 1}.get(count, lambda k: min(map(len, ticks[k])))
    return {k: float(value(k)) for k in ways}  # type: ignore[no-untyped-call]


events = st.lists(
    st.tuples(
        st.sampled_from(["p1", "p2", "010"]),
        st.sampled_from(["v1", "v2"]),
        st.integers(0, 60).map(lambda h: START + timedelta(hours=h)),
        st.sampled_from(["drug", "diagnosis", "lab"]),
        st.sampled_from(["01", "1", "b"]),
    ),
    max_size=25,
)


@pytest.mark.parametrize(
    ("window", "width"), [("visit", None), ("day", None), ("6h", 6), ("1d", 24), ("patient", None)]
)
@pytest.mark.parametrize("modes", [("drug", "diagnosis"), ("drug", "diagnosis", "lab"), ("lab",)])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=events, count=st.sampled_from(["visits", "days", "presence", "product"]))
def test_the_tensor_is_the_count_over_all_tuples_of_events(
    tmp_path_factory: pytest.TempPathFactory,
    window: str,
    width: int | None,
    modes: tuple[str, ...],
    rows: list[Row],
    count: str,
) -> None:
    expected = brute(rows, modes, window, None if width is None else timedelta(hours=width), count)
    folder = tmp_path_factory.mktemp("t")
    if not expected:
        with pytest.raises(DataError):
            run(folder, rows, modes=modes, window=window, count=count)
        return
    assert cells(run(folder, rows, modes=modes, window=window, count=count)) == expected


@pytest.mark.parametrize(
    ("window", "count"),
    [
        pytest.param(w, c, marks=() if w in ("visit", "12h") or c == "product" else pytest.mark.slow)
        for w in ("visit", "day", "12h", "patient")
        for c in ("visits", "days", "presence", "product")
    ],
)
def test_slices_and_huge_axes_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: str, count: str
) -> None:
    rng = np.random.default_rng(5)
    rows: list[Row] = [
        (f"p{p}", f"v{p}-{rng.integers(3)}", at(int(rng.integers(60))), kind, str(rng.integers(4)))
        for p in range(12)
        for kind in ("drug", "diagnosis")
        for _ in range(6)
    ]
    whole = cells(run(tmp_path, rows, modes=["drug", "diagnosis"], window=window, count=count))
    assert whole == brute(rows, ("drug", "diagnosis"), window, timedelta(hours=12) if window == "12h" else None, count)
    monkeypatch.setattr(cooccurrence, "SLICE", 40)  # several patients a slice, several slices
    assert cells(run(tmp_path, rows, modes=["drug", "diagnosis"], window=window, count=count)) == whole
    monkeypatch.setattr(cooccurrence, "PACKED", 1)  # as if a number could not hold all combinations of codes
    assert cells(run(tmp_path, rows, modes=["drug", "diagnosis"], window=window, count=count)) == whole


def at(hour: int) -> datetime:
    return START + timedelta(hours=hour)


ROWS: list[Row] = [
    ("ann", "v1", at(8), "drug", "aspirin"),
    ("ann", "v1", at(20), "drug", "aspirin"),
    ("ann", "v1", at(9), "diagnosis", "4280"),
    ("ann", "v2", at(30), "diagnosis", "0389"),
    ("ann", "v2", at(31), "drug", "heparin"),
    ("bob", "v3", at(2), "drug", "heparin"),
    ("bob", "v3", at(3), "diagnosis", "4280"),
    ("cat", "v4", at(3), "diagnosis", "4280"),
]


def test_values_above_the_cap_become_the_cap(tmp_path: Path) -> None:
    rule = {"modes": ["drug", "diagnosis"], "count": "product"}
    assert max(cells(run(tmp_path, ROWS, cap=1, **rule)).values()) == 1.0
    assert max(cells(run(tmp_path, ROWS, **rule)).values()) == 2.0
    assert max(cells(run(tmp_path, ROWS, modes=["drug", "diagnosis"])).values()) == 1.0  # one visit, said twice


def test_top_codes_are_those_of_most_patients_and_the_manifest_says_chosen_from_data(tmp_path: Path) -> None:
    made = run(tmp_path, ROWS, modes=["drug", "diagnosis"], top={"diagnosis": 1, "drug": 1})
    assert made.site.counts().axes[2].labels == ("4280",)
    assert made.site.counts().axes[1].labels == ("heparin",)
    assert [m["vocabulary"] for m in made.manifest["modes"]] == ["data", "data"]
    assert "chosen from the data" in made.manifest["modes"][0]["chosen"]
    assert cells(made) == {("bob", "heparin", "4280"): 1.0}


def test_top_by_visits_counts_visits(tmp_path: Path) -> None:
    rows = [*ROWS, *(("ann", f"w{k}", at(40 + k), "drug", "aspirin") for k in range(3))]
    made = run(tmp_path, rows, modes=["drug", "diagnosis"], top={"drug": 1}, top_by="visits")
    assert made.site.counts().axes[1].labels == ("aspirin",)


def test_a_public_list_fixes_the_axis_and_its_names(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("code,name\n4280,heart failure\n9999,never seen here\n")
    made = run(tmp_path, ROWS, modes=["drug", "diagnosis"], vocabulary={"diagnosis": "codes.csv"})
    axis = made.site.counts().axes[2]
    assert axis.labels == ("4280", "9999")
    assert axis.names == ("heart failure", "never seen here")
    assert axis.vocabulary == "public"
    assert made.manifest["steps"][1]["dropped"] == {"diagnosis: not in the public list": 1}


def test_a_public_list_with_dots_is_refused_although_one_of_its_codes_occurs(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("code\n0389\n428.0\n")
    with pytest.raises(DataError, match=r"mode 'diagnosis': 1 codes of codes.csv are spelled otherwise here") as e:
        run(tmp_path, ROWS, modes=["drug", "diagnosis"], vocabulary={"diagnosis": "codes.csv"})
    assert list(e.value.faults) == ["the list has '428.0', the tensor '4280'"]
    assert "no dots" in str(e.value.hint)


def test_a_code_of_too_few_patients_over_all_sites_is_left_out(tmp_path: Path) -> None:
    one = run(tmp_path, ROWS, modes=["drug", "diagnosis"]).site
    assert one.counts().axes[1].labels == ("aspirin", "heparin")  # one hospital alone decides nothing
    other = run(
        tmp_path,
        [*ROWS[5:7], ("dan", "v", at(1), "drug", "aspirin"), ("dan", "v", at(1), "diagnosis", "0389")],
        modes=["drug", "diagnosis"],
    ).site
    left = floor([one, replace(other, name="b")], 3)
    assert [s.counts().axes[1].labels for s in left] == [("heparin",), ("heparin",)]
    assert [s.counts().axes[2].labels for s in left] == [("4280",), ("4280",)]
    assert [s.counts().axes[0].labels for s in left] == [("bob",), ("bob",)]  # ann has no cell left
    assert floor([one], 1)[0] is one
    with pytest.raises(DataError, match="none of 2 codes has 9 patients over all sites"):
        floor([one], 9)


def test_a_range_file_tells_abnormal_labs_and_every_abnormal_lab_is_a_lab(tmp_path: Path) -> None:
    (tmp_path / "ranges.csv").write_text("code,low,high\nglucose,70,100\n")
    text = "patient_id,visit_id,time,kind,code,value\n"
    text += "a,v,2020-01-01,lab,glucose,200\na,v,2020-01-01,lab,glucose,80\na,v,2020-01-01,drug,insulin,\n"
    (tmp_path / "e.csv").write_text(text)
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": "e.csv"}}, folder=tmp_path)

    def value(mode: str) -> list[float]:
        rule = {"modes": ["drug", mode], "ranges": "ranges.csv", "count": "product"}
        study = Study.parse({"study": {"name": "s"}, "tensor": rule}, folder=tmp_path)
        return ingest(node, study, tmp_path / mode).site.counts().values.tolist()  # type: ignore[no-any-return]

    assert value("abnormal_lab") == [1.0]
    assert value("lab") == [2.0]


def test_axes_are_sorted_and_text_so_that_leading_zeros_survive(tmp_path: Path) -> None:
    t = run(tmp_path, ROWS, modes=["drug", "diagnosis"]).site.counts()
    assert t.axes[0].labels == ("ann", "bob")
    assert t.axes[2].labels == ("0389", "4280")
    assert np.all(t.values > 0)


def test_two_runs_write_the_same_tensor_byte_for_byte(tmp_path: Path) -> None:
    first = run(tmp_path, ROWS, modes=["drug", "diagnosis"], window="7d").manifest["outputs"]["tensor.npz"]
    second = run(tmp_path, ROWS[::-1], modes=["drug", "diagnosis"], window="7d").manifest["outputs"]["tensor.npz"]
    assert first == second
