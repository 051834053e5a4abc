"""A study of a feature matrix: columns mean the same at every site, the class is no feature, faults say where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, DataError, ProtocolMismatch
from polyclinic.methods.moments.standardizing import Standardizer
from polyclinic.node.admission.admission import _setting
from polyclinic.records.ingest import ingest, read_sites

HEADER = ("patient_id", "sbp", "age", "hr", "died")


def written(
    folder: Path, name: str, columns: tuple[str, ...] = HEADER, cells: dict[tuple[int, str], str] | None = None
) -> Node:
    """A hospital of twenty patients whose table has these columns in this order; ``cells`` replaces some."""
    rng = np.random.default_rng(len(name))
    patient = [
        {"patient_id": str(i), "sbp": f"{rng.normal(120, 9):.1f}", "age": str(40 + i), "hr": f"{rng.normal(70, 5):.1f}",
         "died": str(i % 2)} for i in range(20)
    ]  # fmt: skip
    for (row, column), text in (cells or {}).items():
        patient[row][column] = text
    known = [c if c in HEADER else "hr" for c in columns]  # a column of another name is the heart rate
    lines = [",".join(columns), *(",".join(p[c] for c in known) for p in patient)]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    source = {"kind": "matrix", "features": f"{name}.csv", "columns": {"patient_id": "patient_id"}}
    node = {"site": {"name": name}, "source": source}
    (folder / f"{name}.toml").write_text(
        f'[site]\nname = "{name}"\n[source]\nkind = "matrix"\nfeatures = "{name}.csv"\n'
        'columns = {patient_id = "patient_id"}\n'
    )
    return Node.parse(node, folder=folder)


def asked(folder: Path, nodes: tuple[str, ...] = (), **features: Any) -> Study:
    sites = {"sites": {"nodes": [f"{n}.toml" for n in nodes]}} if nodes else {}
    return Study.parse({"study": {"name": "s"}, "features": features, **sites}, folder=folder)


def test_without_a_list_columns_stand_by_name_whatever_order_a_hospital_wrote(tmp_path: Path) -> None:
    written(tmp_path, "a")
    written(tmp_path, "b", ("hr", "died", "age", "patient_id", "sbp"))
    sites = read_sites(asked(tmp_path, ("a", "b"), label="died"))
    assert [s.columns for s in sites] == [("age", "hr", "sbp")] * 2
    assert all(s.matrix()[:, 0].tolist() == list(range(40, 60)) for s in sites)
    assert Standardizer().fit(sites).feature_names_in_.tolist() == ["age", "hr", "sbp"]


def test_a_simulation_keeps_the_names_of_its_columns(tmp_path: Path) -> None:
    from polyclinic.cli import main

    written(tmp_path, "a")
    written(tmp_path, "b", ("hr", "died", "age", "patient_id", "sbp"))
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "s"\n[features]\nlabel = "died"\n[sites]\nnodes = ["a.toml", "b.toml"]\n'
        '[method]\nname = "gaussianmixture"\nn_components = 1\nrounds = 1\naggregation = "plain"\n'
    )
    with pytest.raises(SystemExit) as e:
        main(["simulate", str(tmp_path / "study.toml"), "--out", str(tmp_path / "run")])
    assert e.value.code in (0, None)
    assert json.loads((tmp_path / "run" / "outcome.json").read_text())["columns"] == ["age", "hr", "sbp"]
    means = np.load(tmp_path / "run" / "outcome.npz")["means_"]  # no pickles in it
    np.testing.assert_allclose(means[0, 0], 49.5)


def test_a_list_of_columns_is_the_order(tmp_path: Path) -> None:
    site = ingest(written(tmp_path, "a"), asked(tmp_path, columns=["sbp", "age"], label="died"), tmp_path / "o").site
    assert site.columns == ("sbp", "age")
    assert site.matrix()[:, 1].tolist() == list(range(40, 60))


def test_hospitals_with_other_columns_are_refused_and_told_apart(tmp_path: Path) -> None:
    written(tmp_path, "a")
    written(tmp_path, "b", ("patient_id", "sbp", "age", "pulse", "died"))
    with pytest.raises(ProtocolMismatch, match=r"'b' lacks 'hr'; has besides 'pulse'"):
        read_sites(asked(tmp_path, ("a", "b"), label="died"))


def test_between_hosts_a_digest_of_the_columns_travels_and_no_name(tmp_path: Path) -> None:
    found = []
    for name, columns in (
        ("a", HEADER),
        ("b", ("hr", "died", "age", "patient_id", "sbp")),
        ("c", ("patient_id", "sbp", "age", "pulse", "died")),
    ):
        site = ingest(written(tmp_path, name, columns), asked(tmp_path, label="died"), tmp_path / name).site
        found.append(_setting(None, Standardizer(), site))  # type: ignore[arg-type]
    assert found[0] == found[1]
    assert found[0]["shape"] == found[2]["shape"]
    assert found[0] != found[2]
    assert "hr" not in str(found[0])


def test_the_class_is_no_feature(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'died'"):
        asked(tmp_path, columns=["age", "sbp", "died"], label="died")
    node = written(tmp_path, "a")
    own = Node.parse(
        {
            "site": {"name": "a"},
            "source": {**node.source.model_dump(exclude_none=True, by_alias=True), "label": "died"},
        },
        folder=tmp_path,
    )
    with pytest.raises(ConfigError, match="'died' is the class"):
        ingest(own, asked(tmp_path, columns=["age", "died"]), tmp_path / "o")
    with pytest.raises(ConfigError, match="'patient_id' identifies"):
        ingest(node, asked(tmp_path, columns=["age", "patient_id"]), tmp_path / "o")


@pytest.mark.parametrize("features", [{"label": "died"}, {"label": "died", "columns": ["age", "hr"]}])
def test_empty_cells_are_called_empty_with_row_and_number(tmp_path: Path, features: dict[str, Any]) -> None:
    node = written(tmp_path, "a", cells={(3, "hr"): "", (7, "hr"): " "})
    with pytest.raises(DataError, match=r"column 'hr': 2 of 20 cells are empty, the first in row 4"):
        ingest(node, asked(tmp_path, **features), tmp_path / "o")


def test_a_patient_without_a_class_is_a_fault_and_no_class_of_its_own(tmp_path: Path) -> None:
    node = written(tmp_path, "a", cells={(2, "died"): ""})
    with pytest.raises(DataError, match=r"column 'died': 1 of 20 cells are empty \(the class\), the first in row 3"):
        ingest(node, asked(tmp_path, label="died"), tmp_path / "o")


def test_texts_are_counted_and_never_quoted(tmp_path: Path) -> None:
    node = written(tmp_path, "a", cells={(5, "hr"): "Mr Smith"})
    with pytest.raises(DataError, match=r"column 'hr': 1 of 20 cells are no numbers, the first in row 6") as e:
        ingest(node, asked(tmp_path, columns=["hr"], label="died"), tmp_path / "o")
    assert "Smith" not in str(e.value)


def test_who_opted_out_is_no_row_of_the_matrix(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("patient_id,x,status\nann,1,0\nbob,2,1\ncat,3,1\n")
    (tmp_path / "optout.csv").write_text("patient\nbob\n")
    values = {
        "site": {"name": "a"},
        "source": {"kind": "matrix", "features": "m.csv", "label": "status"},
        "exclude": {"patients": "optout.csv"},
    }
    study = Study.parse({"study": {"name": "s"}, "features": {}})
    made = ingest(Node.parse(values, folder=tmp_path), study, tmp_path / "out")
    assert made.site.matrix().tolist() == [[1.0], [3.0]]
    assert np.asarray(made.site.labels).tolist() == [0, 1]
    assert made.manifest["steps"][0]["dropped"] == {"opted out": 1}
