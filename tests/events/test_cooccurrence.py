"""The co-occurrence rule, against a count by hand and against brute force over all tuples of events."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyclinic.errors import DataError
from polyclinic.study import Node, Study
from polyclinic.tensors.ingest import Ingested, ingest

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
    rows: list[Row], modes: tuple[str, ...], window: str, width: timedelta | None
) -> dict[tuple[str, ...], float]:
    found: Counter[tuple[str, ...]] = Counter()
    for chosen in product(*([r for r in rows if r[3] == m] for m in modes)):
        if len({r[0] for r in chosen}) > 1:
            continue
        if window == "visit":
            together = len({r[1] for r in chosen}) == 1
        elif window == "day":
            together = len({r[2].date() for r in chosen}) == 1
        else:
            assert width is not None
            together = max(r[2] for r in chosen) - min(r[2] for r in chosen) <= width
        if together:
            found[chosen[0][0], *(r[4] for r in chosen)] += 1
    return {k: float(v) for k, v in found.items()}


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


@pytest.mark.parametrize(("window", "width"), [("visit", None), ("day", None), ("6h", 6), ("1d", 24)])
@pytest.mark.parametrize("modes", [("drug", "diagnosis"), ("drug", "diagnosis", "lab"), ("lab",)])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=events)
def test_the_tensor_is_the_count_over_all_tuples_of_events(
    tmp_path_factory: pytest.TempPathFactory, window: str, width: int | None, modes: tuple[str, ...], rows: list[Row]
) -> None:
    expected = brute(rows, modes, window, None if width is None else timedelta(hours=width))
    folder = tmp_path_factory.mktemp("t")
    if not expected:
        with pytest.raises(DataError):
            run(folder, rows, modes=modes, window=window)
        return
    assert cells(run(folder, rows, modes=modes, window=window)) == expected


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
    assert max(cells(run(tmp_path, ROWS, modes=["drug", "diagnosis"], cap=1)).values()) == 1.0
    assert max(cells(run(tmp_path, ROWS, modes=["drug", "diagnosis"])).values()) == 2.0


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


def test_a_code_of_too_few_patients_is_dropped_and_counted(tmp_path: Path) -> None:
    made = run(tmp_path, ROWS, modes=["drug", "diagnosis"], minimum_patients=2)
    assert made.site.counts().axes[1].labels == ("heparin",)
    dropped = made.manifest["steps"][1]["dropped"]
    assert dropped == {"drug: not among the chosen codes": 2, "diagnosis: not among the chosen codes": 1}


def test_a_range_file_tells_abnormal_labs_and_every_abnormal_lab_is_a_lab(tmp_path: Path) -> None:
    (tmp_path / "ranges.csv").write_text("code,low,high\nglucose,70,100\n")
    text = "patient_id,visit_id,time,kind,code,value\n"
    text += "a,v,2020-01-01,lab,glucose,200\na,v,2020-01-01,lab,glucose,80\na,v,2020-01-01,drug,insulin,\n"
    (tmp_path / "e.csv").write_text(text)
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": "e.csv"}}, folder=tmp_path)

    def value(mode: str) -> list[float]:
        rule = {"modes": ["drug", mode], "ranges": "ranges.csv"}
        study = Study.parse({"study": {"name": "s"}, "tensor": rule}, folder=tmp_path)
        return ingest(node, study, tmp_path / mode).site.counts().values.tolist()

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
