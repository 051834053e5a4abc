"""From files to a run, and from its model to a hospital that was not in the study; nothing of it leaves."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import anndata
import duckdb
import numpy as np
import pytest

import polyclinic as pc
from polyclinic.cli import main
from polyclinic.config import Node
from polyclinic.errors import ConfigError
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.signed_head import SignedHead
from polyclinic.records.preflight import check
from polyclinic.util.table import Table

GROUPS = {"cardiac": (("d1", "d2", "d3"), ("t1", "t2")), "renal": (("d4", "d5"), ("t3", "t4", "t5"))}
NEW = {"burns": (("d8", "d9"), ("t8", "t9"))}


def hospital(folder: Path, name: str, groups: dict[str, Any], seed: int, patients: int = 90) -> Path:
    """Event files and the node file of one hospital."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    kinds = list(groups.values())
    with open(folder / "events.csv", "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["patient_id", "visit_id", "time", "kind", "code"])
        for p in range(patients):
            diagnoses, drugs = kinds[int(rng.integers(len(kinds)))]
            for visit in range(4):
                for kind, codes in (("diagnosis", diagnoses), ("drug", drugs)):
                    for code in rng.choice(codes, 2, replace=False):
                        w.writerow([f"{name}-{p}", f"{p}.{visit}", f"2020-01-{visit + 1:02d}T08:00:00", kind, code])
    node = folder / "node.toml"
    node.write_text(f'[site]\nname = "{name}"\n[source]\nkind = "files"\nevents = "events.csv"\n')
    return node


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hospitals, a study of two of them in two versions, and both runs."""
    home = tmp_path_factory.mktemp("world")
    hospital(home / "north", "north", GROUPS, 1)
    hospital(home / "south", "south", GROUPS, 2)
    hospital(home / "east", "east", {"cardiac": GROUPS["cardiac"], **NEW}, 3, patients=120)
    for run, rank in (("one", 2), ("two", 3)):
        study = home / f"{run}.toml"
        study.write_text(
            f'[study]\nname = "pilot"\nseed = 0\nreplicate = 0\n[tensor]\nmodes = ["diagnosis", "drug"]\n[codes.diagnosis]\nto = "as-is"\n'
            f'[method]\nname = "trip"\nrank = {rank}\nrounds = 40\naggregation = "plain"\n'
            '[[site]]\nnode = "north/node.toml"\n[[site]]\nnode = "south/node.toml"\n'
        )
        call("simulate", study, "--out", home / run)
    return home


def call(*args: Any) -> int:
    with pytest.raises(SystemExit) as e:
        main([str(a) for a in args])
    assert e.value.code == 0, args
    return 0


def said(capsys: pytest.CaptureFixture[str], *args: Any) -> dict[str, Any]:
    capsys.readouterr()
    call(*args, "--json")
    value: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return value


def test_a_run_keeps_its_model_with_rule_and_receipts(world: Path) -> None:
    m = pc.load(world / "one")
    assert isinstance(m, pc.Phenotypes)
    assert m == pc.load(world / "one" / "model.phenotypes")
    assert m.origin.rule["tensor"]["modes"] == ["diagnosis", "drug"]
    assert m.origin.rule["codes"] == {"diagnosis": m.origin.rule["codes"]["diagnosis"]}
    for site in ("north", "south"):  # whose real ledgers lie beside their node files
        node = pc.Node.read(world / site / "node.toml")
        written, now = SignedHead.from_json(m.origin.receipts[site]), ledger_of(node).head  # type: ignore[arg-type]
        assert written.valid
        assert (written.site, written.key) == (site, now.key)
        assert 0 < written.count <= now.count  # the second run went on in the same book
    assert pc.load(world / "two").origin.receipts["north"]["count"] > m.origin.receipts["north"]["count"]  # type: ignore[index]
    data = (world / "one" / "model.phenotypes").read_bytes()
    assert b"north-1" not in data  # no patient
    run = pc.Run.read(world / "one")
    assert run.model == m
    assert run.study["sites"] == ["north", "south"]
    with pytest.raises(ConfigError, match="0 model files"):
        pc.load(world / "north")


def test_model_show_diff_verify(world: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = said(capsys, "model", "show", world / "one")
    assert shown["kind"] == "phenotypes"
    assert shown["read_first"].startswith("Privacy: ")
    assert "taken from records" in shown["read_first"]
    assert {r["code"] for r in shown["table"]} >= {"d1", "t1"}
    same = said(capsys, "model", "diff", world / "one", world / "one")
    assert same["same"] is True
    assert same["match"] == pytest.approx(1.0)
    other = said(capsys, "model", "diff", world / "one", world / "two")
    assert other["same"] is False
    assert len(other["phenotypes"]) == 3
    assert [r for r in other["settings"] if r["what"] == "rank"] == [{"what": "rank", "first": "2", "second": "3"}]
    checked = said(capsys, "model", "verify", world / "one" / "model.phenotypes")
    assert checked["whole"] is True
    assert checked["digest"] == pc.load(world / "one").digest()
    data = bytearray((world / "one" / "model.phenotypes").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.phenotypes").write_bytes(bytes(data))
    with pytest.raises(SystemExit) as e:
        main(["model", "verify", str(tmp_path / "bad.phenotypes")])
    assert e.value.code == 3
    for verb in (("show", world / "one"), ("diff", world / "one", world / "two"), ("verify", world / "one")):
        call("model", *verb)  # for people


def test_compare_tells_what_differs_in_study_and_figures(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "compare", world / "one", world / "two")
    assert ["study.method.rank", "2", "3"] in found["study"]
    assert any(row[0] == "rmse_full" for row in found["figures"])
    assert all(r["distance"] is None or 0 <= r["distance"] <= 1 for r in found["phenotypes"])
    call("compare", world / "one", world / "two")


def check_meds(folder: Path, weights: dict[tuple[str, int], float]) -> None:
    """The folder is read by our own reader of MEDS, and has the memberships."""
    with open(folder / "subjects.csv") as f:
        names = {r["subject_id"]: r["patient_id"] for r in csv.DictReader(f)}
    source = {"kind": "meds", "events": "data"}
    report = check(Node.parse({"site": {"name": "a"}, "source": source}, folder=folder))
    assert not report.faults
    assert report.figures["kinds"] == {"phenotype": sum(w != 0 for w in weights.values())}
    rows = duckdb.sql(f"SELECT * FROM '{folder}/data/*.parquet'").fetchall()
    assert {(names[str(s)], int(code.removeprefix("PHENOTYPE//"))): v for s, _, code, v in rows} == pytest.approx(
        {k: w for k, w in weights.items() if w}
    )
    assert duckdb.sql(f"SELECT count(*) FROM '{folder}/metadata/codes.parquet'").fetchall() == [(2,)]


def test_memberships_come_as_an_array_or_as_a_table_with_patients() -> None:
    site = pc.datasets.icu_network(patients=300, seed=0)[0]
    fitted = pc.CPALS(rank=3, seed=0).fit([site])
    array, table = fitted.memberships(site), fitted.memberships(site, frame=True)
    assert isinstance(table, Table) and not isinstance(array, Table)
    assert table.columns == ("patient_id", "phenotype 1", "phenotype 2", "phenotype 3")
    assert table["patient_id"] == list(site.counts().axes[0].labels or map(str, range(site.patients)))
    assert [list(r.values())[1:] for r in table] == array.tolist()


def test_apply_places_a_hospital_that_was_not_in_the_study(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = world / "applied"
    told = said(
        capsys,
        "apply",
        world / "one",
        "--node",
        world / "east" / "node.toml",
        "--out",
        out,
        "--cohort",
        "--meds",
        "--anndata",
        "--min-coverage",
        "0.1",
    )
    with open(world / "east" / "events.csv") as f:
        rows = list(csv.DictReader(f))
    new = {r["visit_id"] for r in rows if r["code"] in ("d8", "d9")}
    visits = {r["visit_id"] for r in rows}
    # a visit has 2 diagnoses x 2 drugs: four cells, of one kind of patient
    assert told["total"] == 4 * len(visits)
    assert told["read"] == 4 * (len(visits) - len(new))
    assert set(told["unseen"]["diagnosis"]) == {"d8", "d9"}
    with open(out / "memberships.csv") as f:
        placed = list(csv.DictReader(f))
    assert len(placed) == 120
    assert (out / "memberships.csv").stat().st_mode & 0o777 == 0o600
    with open(out / "cohort.csv") as f:
        cohort = list(csv.DictReader(f))
    cardiac = {r["patient_id"] for r in rows if r["code"] in ("d1", "d2", "d3")}
    assert {r["subject_id"] for r in cohort} == cardiac
    assert all(r["cohort_start_date"] == "2020-01-01" for r in cohort)
    assert (out / "cohort_definition.csv").is_file()
    weights = {(r["patient_id"], r_): float(r[f"phenotype {r_}"]) for r in placed for r_ in (1, 2)}
    check_meds(out / "meds", weights)
    table = anndata.read_h5ad(out / "memberships.h5ad")
    assert {(p, r_): float(table[p].X[0, r_ - 1]) for p, r_ in weights} == pytest.approx(weights)
    assert set(table.obs["last_day"]) == {"2020-01-04"}
    assert sorted(p.name for p in (world / "east").iterdir()) == ["events.csv", "node.toml"]  # nothing is left behind
    with pytest.raises(SystemExit) as e:
        main(["apply", str(world / "one"), "--node", str(world / "east" / "node.toml"), "--out", str(out)])
    assert e.value.code == 2


def test_adapt_gives_the_hospital_a_page_about_itself(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = world / "adapted"
    told = said(
        capsys, "adapt", world / "one", "--node", world / "east" / "node.toml", "--out", out, "--min-coverage", "0.1"
    )
    assert told["own"] == 1
    assert told["fit"]["adapted"] > told["fit"]["here"] + 0.1
    own = [r for r in told["phenotypes"] if r["whose"] == "own"]
    assert {c.strip() for c in own[0]["codes"].split(",")} == {"d8", "d9", "t8", "t9"}
    page = (out / "adapted.html").read_text()
    assert "east beside the network" in page
    assert "was not sent anywhere" in page
    assert "east-1" not in page
    assert {r["code"] for r in told["codes_changed"]} == {"d8", "d9", "t8", "t9"}  # the model does not know them
    north = ("--before", world / "north" / "node.toml", "--min-coverage", "0.1")
    moved = said(
        capsys, "adapt", world / "one", "--node", world / "east" / "node.toml", *north, "--out", world / "moved"
    )
    assert {r["code"]: r["patients now"] for r in moved["codes_changed"]}["d4"] == "0"
    both = pc.load(out / "adapted.phenotypes")
    assert both.rank == 3


def test_people_read_phenotypes_counted_from_one(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*args: Any) -> list[str]:
        capsys.readouterr()
        call(*args)
        return capsys.readouterr().out.splitlines()

    def first_cells(lines: list[str]) -> set[str]:
        """What stands in the first column of a table of the terminal."""
        rows = [line.replace("\u2502", " ").replace("|", " ").split() for line in lines]
        return {r[0] for r in rows if r and r[0].isdigit()}

    east = ("--node", world / "east" / "node.toml", "--min-coverage", "0.1")
    assert first_cells(printed("model", "show", world / "one")) == {"1", "2"}
    assert first_cells(printed("model", "diff", world / "one", world / "two")) >= {"1", "2"}
    assert "0" not in first_cells(printed("model", "diff", world / "one", world / "two"))
    lines = printed("adapt", world / "one", *east, "--out", world / "numbered")
    assert first_cells(lines) == {"1", "2", "3"}
    page = (world / "numbered" / "adapted.html").read_text()
    assert "<tr><td>3</td><td>own</td>" in page
    text = "\n".join(printed("apply", world / "one", *east, "--out", world / "placed"))
    told = json.loads((world / "placed" / "coverage.json").read_text())
    weakest = int(np.argmin(told["weight_seen"]))
    with open(world / "placed" / "memberships.csv") as f:
        columns = (csv.DictReader(f).fieldnames or ())[1:]
    assert columns == ["phenotype 1", "phenotype 2"]
    assert f"  {columns[weakest]}\n" in text  # the same phenotype by the same name in words and in the file
    m = pc.load(world / "one")
    assert {r["phenotype"] for r in m.table()} == {0, 1}  # an index stays one
    import zipfile

    with zipfile.ZipFile(world / "one" / "model.phenotypes") as z:
        card = z.read(next(n for n in z.namelist() if n.endswith("README.md"))).decode()
    assert "| 2 | " in card
    assert "| 0 | " not in card


def test_one_writer_for_every_kind(tmp_path: Path, fitted: Any) -> None:
    from tests.models.conftest import TENSORS

    for name in ("TRIP", "GaussianMixture", "FederatedPCA"):
        m = fitted(name)
        place = tmp_path / name
        pc.Run.write(place, m, TENSORS if name == "TRIP" else (), metrics={"fit": 1.0})
        assert pc.load(place).to_bytes() == m.result_.to_bytes()
    assert (tmp_path / "TRIP" / "sites" / "site0" / "memberships.npz").is_file()
