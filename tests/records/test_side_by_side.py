"""Modes side by side: one mode of all codes, from a frame and from a study file, split by mode again where people read."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.ingest import ingest

ROWS = {  # two visits of one patient, one of another; a row may leave a mode empty
    "pid": ["1", "1", "1", "2"],
    "visit": ["a", "a", "b", "c"],
    "drug": ["D1", None, "D1", "D2"],
    "dx": ["X", "Y", None, "X"],
}
LABELS = ("drug:D1", "drug:D2", "dx:X", "dx:Y")


def counts(tensor: pc.SparseTensor) -> np.ndarray:
    dense = np.zeros(tensor.shape)
    np.add.at(dense, tuple(tensor.coords.T), tensor.values)
    return dense


@pytest.mark.parametrize("visit", [None, "visit"])
def test_a_frame_counts_every_code_by_itself(visit: str | None) -> None:
    (site,) = pc.from_frame(ROWS, patient="pid", modes=["drug", "dx"], visit=visit, side_by_side=True)
    tensor = site.counts()
    assert tensor.axes[1].name == "drug+dx" and tensor.axes[1].labels == LABELS
    assert counts(tensor).tolist() == [[2, 0, 1, 1], [0, 1, 1, 0]]


def test_visits_in_order_cannot_stand_side_by_side() -> None:
    with pytest.raises(DataError, match="side_by_side and time"):
        pc.from_frame({**ROWS, "t": [1, 1, 2, 3]}, patient="pid", modes=["drug", "dx"], time="t", side_by_side=True)


def test_a_study_file_counts_the_visits_of_every_code(tmp_path: Path) -> None:
    with open(tmp_path / "events.csv", "w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["patient_id", "visit_id", "time", "kind", "code"])
        for pid, visit, *codes in zip(*ROWS.values()):
            out.writerows([pid, visit, "2020-01-01", kind, c] for kind, c in zip(("drug", "dx"), codes) if c)
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": "events.csv"}}, folder=tmp_path)
    rule = {"modes": ["drug", "dx"], "side_by_side": True}
    study = Study.parse({"study": {"name": "s"}, "tensor": rule}, folder=tmp_path)
    made = ingest(node, study, tmp_path / "out")
    assert made.site.counts().axes[1].labels == LABELS
    assert counts(made.site.counts()).tolist() == [[2, 0, 1, 1], [0, 1, 1, 0]]
    assert [m["mode"] for m in made.manifest["modes"]] == ["drug", "dx"]


def test_the_mode_of_time_cannot_stand_side_by_side() -> None:
    rule = {"modes": ["drug", "time"], "side_by_side": True}
    with pytest.raises(ConfigError, match="time"):
        Study.parse({"study": {"name": "s"}, "tensor": rule, "time": {"bins": ["0d", "30d"], "anchor": "first"}})


@pytest.mark.parametrize("method", [pc.SumALS, pc.DPEM])
def test_components_are_split_by_mode_again(method: type[pc.SumALS] | type[pc.DPEM]) -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 400)
    codes = rng.integers(0, 3, (400, 2)) + 3 * group[:, None]
    frame = {"pid": np.arange(400) // 2, "drug": codes[:, 0].astype(str), "dx": codes[:, 1].astype(str)}
    sites = pc.from_frame(frame, patient="pid", modes=["drug", "dx"], side_by_side=True)
    table = method(rank=2, seed=0).fit(sites).result_.top(3)
    assert set(table["mode"]) == {"drug", "dx"} and not any(":" in c for c in table["code"])
    for r in range(2):
        shares = [row["share"] for row in table if row["phenotype"] == r and row["mode"] == "dx"]
        assert 0.5 < sum(shares) <= 1 + 1e-9
