"""The owner's commands: check, site init, site erase; and that the SQL ships with the package."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from polyclinic.cli import main
from polyclinic.cli.node.erasing import erase
from polyclinic.cli.node.site_init import command
from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError
from polyclinic.records.databases.engine import statement
from polyclinic.records.ingest import ingest
from polyclinic.tensors.sparse import SparseTensor

EVENTS = "patient_id,visit_id,time,kind,code\n1,v,2020-01-01,drug,a\n1,v,2020-01-02,diagnosis,4280\n2,w,,drug,a\n"
NODE = '[site]\nname = "north"\n[source]\nkind = "files"\nevents = "events.csv"\n'
STUDY = '[study]\nname = "s"\n[tensor]\nmodes = ["drug", "diagnosis"]\n'


def check(folder: Path, capsys: Any, node: str = NODE, *more: str) -> tuple[int, dict[str, Any]]:
    (folder / "events.csv").write_text(EVENTS)
    (folder / "study.toml").write_text(STUDY)
    (folder / "node.toml").write_text(node)
    with pytest.raises(SystemExit) as e:
        main(["check", str(folder / "node.toml"), "--json", *more])
    assert isinstance(e.value.code, int)
    return e.value.code, json.loads(capsys.readouterr().out)


def test_check_reports_counts_and_sizes_and_writes_nothing(tmp_path: Path, capsys: Any) -> None:
    code, found = check(tmp_path, capsys, NODE, "--study", str(tmp_path / "study.toml"))
    assert code == 0
    assert found["ok"]
    assert found["patients"] == 2
    assert found["kinds"] == {"diagnosis": 1, "drug": 2}
    assert found["shape"] == [1, 1, 1]
    assert set(found["vocabulary"]) == {"drug", "diagnosis"}
    assert "1 events without time" in found["remarks"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["events.csv", "node.toml", "study.toml"]


def test_check_remarks_on_events_of_the_future_and_on_two_spellings_of_a_site(tmp_path: Path, capsys: Any) -> None:
    head = "patient_id,visit_id,time,kind,code,site\n"
    rows = [(1, "2020-01-01", "Hospital A"), (2, "2020-01-02", "hospital  a "), (3, "2020-01-03", "Hospital B")]
    node = tmp_path / "node.toml"
    node.write_text(NODE)

    def remarks(*more: tuple[int, str, str]) -> list[str]:
        lines = [f"{p},v{p},{day},{k},c,{site}\n" for p, day, site in (*rows[1:], *more) for k in ("drug", "diagnosis")]
        (tmp_path / "events.csv").write_text(head + "".join(lines))
        with pytest.raises(SystemExit) as e:
            main(["check", str(node), "--json"])
        assert e.value.code == 0  # a remark, no fault
        return [str(r) for r in json.loads(capsys.readouterr().out)["remarks"]]

    assert not [r for r in remarks() if "dated after" in r or "case or blanks" in r]
    found = remarks(rows[0], (4, "2199-05-01", "Hospital B"), (5, date.today().isoformat(), "Hospital B"))
    (ahead,) = [r for r in found if "dated after" in r]
    assert ahead.startswith("2 events of 1 patients are dated after today") and "the last 2199-05-01" in ahead
    (spelled,) = [r for r in found if "case or blanks" in r]
    assert "'Hospital A' and 'hospital  a '" in spelled


def test_check_finds_all_faults_at_once(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "labels.csv").write_text("patient_id,label\n1,1\n1,0\n")
    node = NODE + 'labels = "labels.csv"\n[policy]\nmin_patients = 0.5\ncolour = "red"\n'
    code, found = check(tmp_path, capsys, node, "--study", str(tmp_path / "study.toml"))
    assert code == 3
    text = "\n".join(found["faults"])
    assert all(x in text for x in ("policy.colour", "policy.min_patients", "1 patients have more than one row"))


def test_check_compares_with_the_owners_minimum(tmp_path: Path, capsys: Any) -> None:
    code, found = check(
        tmp_path, capsys, NODE + "[policy]\nmin_patients = 5\n", "--study", str(tmp_path / "study.toml")
    )
    assert code == 3
    assert "1 patients, fewer than the policy's minimum of 5" in found["faults"]


def test_site_init_hides_the_password_and_its_file_is_valid(tmp_path: Path) -> None:
    command(omop="postgresql://reader:secret@db.hospital:5432/cdm", out=tmp_path / "node.toml", name="north")
    text = (tmp_path / "node.toml").read_text()
    assert "secret" not in text
    node = Node.read(tmp_path / "node.toml")
    assert node.source.url == "postgresql://reader@db.hospital:5432/cdm"
    command(omop="odbc:DSN=hospital;UID=reader;PWD=secret", out=tmp_path / "odbc.toml", name="south")
    assert Node.read(tmp_path / "odbc.toml").source.url == "odbc:DSN=hospital;UID=reader"
    assert "secret" not in (tmp_path / "odbc.toml").read_text()
    assert node.source.password == "env:POLYCLINIC_DB_PASSWORD"
    from polyclinic.privacy.policy.policy import Policy

    assert Policy.model_validate(node.policy).min_sites == 3
    with pytest.raises(ConfigError, match="exists already"):
        command(out=tmp_path / "node.toml")


@pytest.mark.parametrize("kind", ["files", "omop", "mimic3", "mimic4", "eicu", "synpuf", "fhir", "meds", "matrix"])
def test_site_init_writes_a_valid_file_for_every_kind(kind: str, tmp_path: Path) -> None:
    command(kind=kind, out=tmp_path / "node.toml")
    assert Node.read(tmp_path / "node.toml").source.kind == kind


def test_site_erase_removes_the_site_folder_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tensor.npz").write_text("x")
    (tmp_path / "site" / "identity.key").write_text("x")
    erase(tmp_path / "node.toml", yes=True)
    assert (tmp_path / "site" / "identity.key").exists(), "data go by default, keys stay"
    assert not (tmp_path / "site" / "tensor.npz").exists()
    erase(tmp_path / "node.toml", all_=True, yes=True)
    assert not (tmp_path / "site").exists()
    assert {"events.csv", "node.toml"} < {p.name for p in tmp_path.iterdir()}, "and the ledger"
    for wrong in (".", "..", "/tmp"):
        (tmp_path / "node.toml").write_text(NODE.replace('"north"', f'"north"\nfolder = "{wrong}"'))
        with pytest.raises(ConfigError, match="not a folder of its own"):
            erase(tmp_path / "node.toml", yes=True)


def test_site_init_and_erase_answer_machines(tmp_path: Path, capsys: Any) -> None:
    def said(*arguments: str) -> dict[str, Any]:
        with pytest.raises(SystemExit, match="0"):
            main(["site", *arguments, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    node = tmp_path / "node.toml"
    assert said("init", "--name", "north", "--out", str(node)) == {"site": "north", "node": str(node)}
    assert said("init", "--name", "north")["text"] == node.read_text()
    assert "SELECT" in said("init", "--kind", "omop", "--sql")["sql"].upper()
    home = tmp_path / "site"
    assert said("erase", str(node), "--yes") == {"site": "north", "folder": str(home), "erased": False}
    home.mkdir()
    assert said("erase", str(node), "--all", "--yes")["erased"] is True
    assert not home.exists()


def test_secrets_come_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.config import secret

    monkeypatch.setenv("PC_SECRET", "abc")
    (tmp_path / "pw").write_text("def\n")
    assert secret("env:PC_SECRET", tmp_path) == "abc"
    assert secret("file:pw", tmp_path) == "def"
    with pytest.raises(ConfigError, match="PC_NOTHING"):
        secret("env:PC_NOTHING", tmp_path)


def test_a_study_keeps_its_digest_through_json_and_the_order_of_keys() -> None:
    a = Study.parse({"study": {"name": "s", "seed": 1}, "tensor": {"modes": ["a", "b"], "top": {"a": 2, "b": 3}}})
    b = Study.parse({"tensor": {"top": {"b": 3, "a": 2}, "modes": ["a", "b"]}, "study": {"seed": 1, "name": "s"}})
    assert a.digest() == b.digest() == Study.parse(a.to_json()).digest()
    assert a.digest() != Study.parse({**a.to_json(), "study": {"name": "s", "seed": 2}}).digest()


def test_a_federated_study_must_name_its_aggregation() -> None:
    with pytest.raises(ConfigError, match=r"method\.aggregation is missing"):
        Study.parse({"study": {"name": "s"}, "method": {"name": "trip", "rank": 3}})
    assert Study.parse({"study": {"name": "s"}, "method": {"name": "cpals", "rank": 3}}).chosen().parameters == {
        "rank": 3
    }


def test_the_sql_ships_with_the_package(tmp_path: Path) -> None:
    script = "from polyclinic.records.databases.engine import statement; print(len(statement('omop')))"
    out = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(out.stdout) == len(statement("omop"))


def test_the_reference_page_is_what_the_models_say() -> None:
    script = Path(__file__).resolve().parents[2] / "docs" / "reference" / "files.py"
    made = runpy.run_path(str(script))["reference"]()
    assert script.with_suffix(".md").read_text(encoding="utf-8") == made, (
        "write it again: python docs/reference/files.py"
    )


def test_faults_between_sections_are_found_beside_faults_within() -> None:
    wrong = {
        "study": {"name": "s", "seed": -1},
        "tensor": {"modes": ["a", "b"]},
        "codes": {"c": {}},
        "method": {"name": "trip"},
        "data": {"dataset": "icu_network"},
        "sites": {"nodes": ["a.toml"]},
    }
    with pytest.raises(ConfigError) as e:
        Study.parse(wrong)
    assert len(e.value.faults) == 4


@pytest.mark.parametrize(
    ("kind", "path", "place"),
    [
        ("files", "e.csv", "events"),
        ("meds", "data", "events"),
        ("matrix", "x.csv", "features"),
        ("mimic3", "tables", "folder"),
        ("omop", "cdm.duckdb", "database"),
        ("omop", "postgresql://u@h/db", "url"),
    ],
)
def test_path_stands_for_what_the_kind_needs(kind: str, path: str, place: str) -> None:
    source = Node.parse({"site": {"name": "a"}, "source": {"kind": kind, "path": path}}).source
    assert getattr(source, place) == path
    with pytest.raises(ConfigError, match="both given"):
        Node.parse({"site": {"name": "a"}, "source": {"kind": kind, "path": path, place: "other"}})


def test_a_study_between_hosts_keeps_no_second_copy_of_the_records(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text(EVENTS)
    (tmp_path / "node.toml").write_text(NODE)
    made = ingest(Node.read(tmp_path / "node.toml"), Study.parse(tomllib.loads(STUDY)), tmp_path / "out", events=False)
    left = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert left == ["labels.parquet", "manifest.json", "tensor.npz"]
    assert set(made.manifest["outputs"]) == {"labels.parquet", "tensor.npz"}
    assert SparseTensor.load(tmp_path / "out" / "tensor.npz") == made.site.counts()


def units(folder: Path, capsys: Any, sizes: dict[str, int], sites: str) -> tuple[int, dict[str, Any]]:
    """Check of one source whose units have so many patients."""
    rows = [
        f"{unit}{p},v{unit}{p},2020-01-01,{kind},{kind[:2]},{unit}"
        for unit, n in sizes.items()
        for p in range(n)
        for kind in ("drug", "diagnosis")
    ]
    (folder / "e.csv").write_text("patient_id,visit_id,time,kind,code,site\n" + "\n".join(rows) + "\n")
    (folder / "n.toml").write_text(NODE.replace("events.csv", "e.csv"))
    (folder / "s.toml").write_text(f"{STUDY}[sites]\nnodes = ['n.toml']\nsplit = true\n{sites}")
    with pytest.raises(SystemExit) as e:
        main(["check", str(folder / "n.toml"), "--json", "--study", str(folder / "s.toml")])
    assert isinstance(e.value.code, int)
    return e.value.code, json.loads(capsys.readouterr().out)


def test_check_lists_all_small_units_and_says_what_becomes_of_them(tmp_path: Path, capsys: Any) -> None:
    sizes = {"a": 30, "b": 25, "c": 20, "d": 6, "e": 3, "f": 4}
    code, found = units(tmp_path, capsys, sizes, "min_patients = 11\n")
    assert code == 0
    assert found["small"] == ["d", "e", "f"]
    text = "\n".join(found["remarks"])
    assert "3 of 6 units have fewer than 11 patients: 'd', 'e', 'f'" in text
    assert "'others 1' will be made of 'd', 'f', 'e'" in text
    code, found = units(tmp_path, capsys, sizes, "min_patients = 11\nsmall = 'refuse'\n")
    assert code == 3
    assert sum("has fewer than 11 patients" in f for f in found["faults"]) == 3


def test_check_says_what_happens_where_every_unit_is_small(tmp_path: Path, capsys: Any) -> None:
    sizes = dict.fromkeys("abcdef", 4)
    code, found = units(tmp_path, capsys, sizes, "min_patients = 11\n")
    assert code == 0
    text = "\n".join(found["remarks"])
    assert "every one of the 6 units has fewer than 11 patients" in text
    assert "2 sites are left: a masked sum needs 3" in text
    code, found = units(tmp_path, capsys, sizes, "min_patients = 11\nsmall = 'skip'\n")
    assert code == 3
    assert any("none is left" in f for f in found["faults"])
