"""A real PostgreSQL: the same OMOP rows give the identical tensor from every kind of database."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.databases import copied

from polyclinic.cli import main
from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.records.databases.engine import session
from polyclinic.records.events.cohort import opt_out
from polyclinic.records.events.event_table import _early
from polyclinic.records.ingest import Ingested, ingest
from polyclinic.records.sources.base import open_source
from polyclinic.records.sources.pushdown import pushed_down

pytestmark = pytest.mark.e2e

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
pytest.importorskip("adbc_driver_postgresql", reason="the PostgreSQL driver is not installed")
Find = Callable[[str], Path]


@pytest.fixture(scope="module")
def cdm(data_path: Find, postgres: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Synthea's OMOP tables in five kinds of database; returns the ``[source]`` of each."""
    folder = data_path("synthea27nj_omop")
    here = tmp_path_factory.mktemp("cdm")
    (here / "parquet").mkdir()
    lite = sqlite3.connect(here / "cdm.sqlite")
    with duckdb.connect(str(here / "cdm.duckdb")) as con, psycopg.connect(postgres) as link:
        for name, columns in copied(folder, con, link, here).items():
            con.execute(f"COPY {name} TO '{here}/parquet/{name}.parquet'")
            lite.execute(f"CREATE TABLE {name} ({', '.join(c for c, _ in columns)})")
            texts = ", ".join(f"CAST({c} AS VARCHAR)" for c, _ in columns)
            rows = con.execute(f"SELECT {texts} FROM {name}").fetchall()
            lite.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' for _ in columns)})", rows)
    lite.commit()
    lite.close()
    return {
        "csv": {"folder": str(folder)},
        "parquet": {"folder": str(here / "parquet")},
        "duckdb": {"database": str(here / "cdm.duckdb")},
        "sqlite": {"database": str(here / "cdm.sqlite")},
        "postgresql": {"url": postgres, "schema": "cdm"},
    }


def made(source: dict[str, Any], out: Path, **more: Any) -> Ingested:
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", **source, **more}})
    study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis", "lab"], "window": "7d"}})
    return ingest(node, study, out)


@pytest.mark.parametrize("codes", ["standard", "source"])
def test_the_same_rows_give_the_identical_tensor_from_every_database(
    cdm: dict[str, dict[str, Any]], tmp_path: Path, codes: str
) -> None:
    found = {kind: made(source, tmp_path / kind, codes=codes).manifest for kind, source in cdm.items()}
    assert len({m["outputs"]["tensor.npz"] for m in found.values()}) == 1
    assert len({str(m["steps"]) for m in found.values()}) == 1
    assert len({str(m["labels"]) for m in found.values()}) == 1
    assert found["postgresql"]["tensor"]["nnz"] > 500


def test_only_needed_columns_are_asked_of_the_database(
    cdm: dict[str, dict[str, Any]], postgres: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres) as link:
        link.execute("CREATE ROLE reader LOGIN")
        link.execute("GRANT USAGE ON SCHEMA cdm TO reader")
        link.execute("GRANT SELECT ON ALL TABLES IN SCHEMA cdm TO reader")
        link.execute("REVOKE SELECT ON cdm.person FROM reader")
        link.execute("GRANT SELECT (person_id, care_site_id) ON cdm.person TO reader")  # no birth date, no name
        link.commit()
    url = postgres.replace("postgres:@", "reader@")
    assert made({"url": url, "schema": "cdm"}, tmp_path / "a").site.patients > 20


def test_a_table_that_may_not_be_read_is_named_and_nothing_is_left(postgres: str, cdm: Any, tmp_path: Path) -> None:
    with psycopg.connect(postgres) as link:
        link.execute("CREATE ROLE nobody_special LOGIN")
        link.commit()
    url = postgres.replace("postgres:@", "nobody_special@")
    with pytest.raises(DataError, match="is there, but this user may not read it"):
        made({"url": url, "schema": "cdm"}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_server_that_is_down_is_one_message_without_the_password(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "node.toml").write_text(
        '[site]\nname = "a"\n[source]\nkind = "omop"\nurl = "postgresql://u:hunter2@127.0.0.1:9/db?connect_timeout=2"\n'
    )
    with pytest.raises(SystemExit) as e:
        main(["check", str(tmp_path / "node.toml")])
    assert e.value.code == 3
    text = capsys.readouterr()
    assert "the database cannot be read" in text.out
    assert "hunter2" not in text.out + text.err


def test_site_init_and_check_work_against_the_server(postgres: str, cdm: Any, tmp_path: Path, capsys: Any) -> None:
    from polyclinic.cli.node.site_init import command

    command(omop=postgres, out=tmp_path / "node.toml", name="north")
    text = (tmp_path / "node.toml").read_text()
    (tmp_path / "node.toml").write_text(text.replace('# schema = "cdm"', 'schema = "cdm"'))
    with pytest.raises(SystemExit) as e:
        main(["check", str(tmp_path / "node.toml"), "--json"])
    assert e.value.code == 0
    assert '"ok": true' in capsys.readouterr().out


@pytest.mark.slow
def test_streaming_brings_every_row(postgres: str, tmp_path: Path) -> None:
    rows = 2_000_000
    with psycopg.connect(postgres) as link:
        link.execute("CREATE SCHEMA big")
        link.execute("CREATE TABLE big.person AS SELECT g AS person_id FROM generate_series(1, 100000) g")
        link.execute(
            "CREATE TABLE big.concept AS SELECT g AS concept_id, 'c' || g AS concept_name, 'SNOMED' AS vocabulary_id, g::text AS concept_code FROM generate_series(1, 500) g"
        )
        link.execute(
            "CREATE TABLE big.visit_occurrence AS SELECT g AS visit_occurrence_id, g AS person_id, DATE '2020-01-01' AS visit_start_date, DATE '2020-01-03' AS visit_end_date FROM generate_series(1, 100000) g"
        )
        for table, column, date in (
            ("condition_occurrence", "condition", "condition_start_date"),
            ("drug_exposure", "drug", "drug_exposure_start_date"),
        ):
            link.execute(
                f"CREATE TABLE big.{table} AS SELECT 1 + g % 100000 AS person_id, 1 + (g::bigint * 7919) % 500 AS {column}_concept_id, "
                f"DATE '2020-01-01' + (g % 3)::int AS {date}, 1 + g % 100000 AS visit_occurrence_id FROM generate_series(1, {rows // 2}) g"
            )
        link.commit()
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", "url": postgres, "schema": "big"}})
    from polyclinic.records.databases.engine import session
    from polyclinic.records.sources.omop import OMOP
    from polyclinic.records.sources.tables import open_tables

    with session(tmp_path / "s") as (con, _):
        open_tables(con, node, OMOP.tables)
        assert con.execute("SELECT count(*) FROM condition_occurrence").fetchone() == (rows // 2,)


def test_one_infinite_date_costs_one_row(cdm: dict[str, dict[str, Any]], postgres: str, tmp_path: Path) -> None:
    before = made(cdm["postgresql"], tmp_path / "before").manifest
    with psycopg.connect(postgres) as link:
        for day in ("infinity", "-infinity", "20000-01-01", "4000-01-01 BC"):
            link.execute(
                "INSERT INTO cdm.condition_occurrence (condition_occurrence_id, person_id, condition_concept_id, "
                "condition_start_date, visit_occurrence_id) SELECT 990000, person_id, condition_concept_id, %s::date, "
                "visit_occurrence_id FROM cdm.condition_occurrence WHERE condition_concept_id <> 0 LIMIT 1",
                [day],
            )
        link.commit()
    try:
        after = made(cdm["postgresql"], tmp_path / "after").manifest
    finally:
        with psycopg.connect(postgres) as link:
            link.execute("DELETE FROM cdm.condition_occurrence WHERE condition_occurrence_id = 990000")
            link.commit()
    assert after["outputs"]["tensor.npz"] == before["outputs"]["tensor.npz"]
    step = next(s for s in after["steps"] if s["step"] == "read condition_occurrence")
    lost = next(s for s in before["steps"] if s["step"] == "read condition_occurrence")["dropped"]
    new = {k: n - lost.get(k, 0) for k, n in step["dropped"].items() if n != lost.get(k, 0)}
    assert sum(new.values()) == 4
    assert set(new) <= {"impossible date", "time is not a date"}


@pytest.mark.parametrize("codes", ["standard", "source"])
def test_rows_that_a_protocol_leaves_out_stay_in_the_database_and_are_counted_there(
    cdm: dict[str, dict[str, Any]], tmp_path: Path, codes: str
) -> None:
    (tmp_path / "optout.csv").write_text("patient\n1\n2\n")
    asked = Study.parse(
        {
            "study": {"name": "s"},
            "tensor": {"modes": ["drug", "diagnosis"]},
            "time": {"start": date(2010, 1, 1), "end": date(2016, 1, 1)},
            "visits": {"types": ["outpatient"]},
        }
    )
    manifests, travelled = [], []
    for kind in ("duckdb", "postgresql"):
        values = {"site": {"name": "a"}, "source": {"kind": "omop", **cdm[kind], "codes": codes}}
        node = Node.parse({**values, "exclude": {"patients": "optout.csv"}}, folder=tmp_path)
        manifests.append(ingest(node, asked, tmp_path / kind).manifest)
        with session(tmp_path / f"{kind}-open") as (con, _):
            opt_out(con, node)
            opened = open_source(con, node, None, pushed_down(con, node, asked))
            travelled.append(sum((con.execute(q).fetchone() or (0,))[0] for q in opened.rows.values()))
            mine = con.execute("SELECT count(*) FROM condition_occurrence WHERE person_id IN (1, 2)").fetchone()
            assert (mine == (0,)) is (kind == "postgresql")
    assert manifests[0]["outputs"]["tensor.npz"] == manifests[1]["outputs"]["tensor.npz"]
    assert manifests[0]["attrition"] == manifests[1]["attrition"]
    assert manifests[0]["steps"] == manifests[1]["steps"]
    # What travelled is what the protocol keeps, and rows with a reason of their own to be dropped.
    assert manifests[1]["attrition"][-2]["rows"] <= travelled[1] < travelled[0] / 2


RELATIVE = [
    {
        "cohort": {"first": {"visits": ["outpatient"]}, "age": [2, 80]},
        "time": {"before": 2000, "after": 3000},
    },
    {"time": {"start": date(2011, 1, 1), "before": 100, "after": 900}, "visits": {"types": ["outpatient"]}},
    {"cohort": {"definition": 5, "age": [0, 90]}, "time": {"before": 1000, "after": 365}},
]


@pytest.mark.parametrize("protocol", RELATIVE, ids=["first visit", "period and types", "COHORT table"])
def test_an_index_date_is_sent_to_the_database_and_the_rows_around_it_travel(
    cdm: dict[str, dict[str, Any]], postgres: str, tmp_path: Path, protocol: dict[str, Any]
) -> None:
    rows = "SELECT 5, person_id, min(visit_start_date), max(visit_end_date) FROM {} WHERE person_id % 2 = 0 GROUP BY person_id"
    names = "(cohort_definition_id INTEGER, subject_id BIGINT, cohort_start_date DATE, cohort_end_date DATE)"
    with psycopg.connect(postgres) as link, duckdb.connect(cdm["duckdb"]["database"]) as con:
        for db, place in ((link, "cdm."), (con, "")):
            db.execute(f"DROP TABLE IF EXISTS {place}cohort")
            db.execute(f"CREATE TABLE {place}cohort {names}")
            db.execute(f"INSERT INTO {place}cohort {rows.format(f'{place}visit_occurrence')}")
        link.commit()
    (tmp_path / "optout.csv").write_text("patient\n1\n2\n")
    asked = Study.parse(
        {"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"], "window": "patient"}, **protocol}
    )
    manifests, travelled = [], []
    for kind in ("duckdb", "postgresql"):
        node = Node.parse(
            {
                "site": {"name": "a"},
                "source": {"kind": "omop", **cdm[kind]},
                "exclude": {"patients": "optout.csv"},
            },
            folder=tmp_path,
        )
        manifests.append(ingest(node, asked, tmp_path / kind).manifest)
        with session(tmp_path / f"{kind}-open") as (con, _):
            opt_out(con, node)
            opened = open_source(con, node, None, pushed_down(con, node, asked, _early(con, node, asked)))
            travelled.append(sum((con.execute(q).fetchone() or (0,))[0] for q in opened.rows.values()))
            for table in ("person", "visit_occurrence", "observation_period"):
                mine = con.execute(f"SELECT count(*) FROM {table} WHERE person_id IN (1, 2)").fetchone()
                assert (mine == (0,)) is (kind == "postgresql")
    for key in ("attrition", "steps", "labels"):
        assert manifests[0][key] == manifests[1][key]
    assert manifests[0]["outputs"]["tensor.npz"] == manifests[1]["outputs"]["tensor.npz"]
    read = [s for s in manifests[1]["steps"] if s["step"].startswith("read ")]
    dirty = sum(sum(s["dropped"].values()) for s in read)
    assert manifests[1]["attrition"][-2]["rows"] <= travelled[1] <= manifests[1]["attrition"][-2]["rows"] + dirty
    assert travelled[1] < travelled[0]


def test_mimic_in_a_database_leaves_out_who_opted_out_and_other_years(
    data_path: Find, postgres: str, tmp_path: Path
) -> None:
    folder = data_path("mimic3_demo")
    tables = [
        "patients",
        "admissions",
        "icustays",
        "diagnoses_icd",
        "procedures_icd",
        "prescriptions",
        "d_icd_diagnoses",
        "d_icd_procedures",
    ]
    with duckdb.connect() as con, psycopg.connect(postgres) as link:
        link.execute("DROP SCHEMA IF EXISTS mimic CASCADE")
        link.execute("CREATE SCHEMA mimic")
        for name in tables:
            con.execute(f"CREATE TABLE {name} AS SELECT * FROM read_csv('{folder / name.upper()}.csv.gz')")
            if name.endswith("_icd"):  # codes are texts: 0389 keeps its zero
                con.execute(
                    f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM read_csv('{folder / name.upper()}.csv.gz', "
                    "types = {'icd9_code': 'VARCHAR'})"
                )
            if name.startswith("d_icd"):
                con.execute(
                    f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM read_csv('{folder / name.upper()}.csv.gz', all_varchar = true)"
                )
            con.execute(f"COPY {name} TO '{tmp_path}/{name}.csv' (HEADER)")
            typed = ", ".join(
                f'"{c[0]}" {c[1].replace("DOUBLE", "NUMERIC")}' for c in con.execute(f"DESCRIBE {name}").fetchall()
            )
            link.execute(f"CREATE TABLE mimic.{name} ({typed})")
            with link.cursor().copy(f"COPY mimic.{name} FROM STDIN (FORMAT csv, HEADER)") as copy:
                copy.write((tmp_path / f"{name}.csv").read_bytes())
        someone = [
            r[0] for r in con.execute("SELECT DISTINCT subject_id FROM admissions ORDER BY 1 LIMIT 3").fetchall()
        ]
        link.commit()
    (tmp_path / "optout.csv").write_text("patient\n" + "".join(f"{p}\n" for p in someone))
    asked = Study.parse(
        {
            "study": {"name": "s"},
            "tensor": {"modes": ["drug", "diagnosis"], "count": "product"},
            "time": {"start": date(2130, 1, 1), "end": date(2170, 12, 31)},
            "labels": {"outcome": "mortality"},
        }
    )
    (tmp_path / "few").mkdir()
    for name in tables:
        shutil.copy(tmp_path / f"{name}.csv", tmp_path / "few" / f"{name}.csv")
    manifests, travelled = [], []  # type: ignore[var-annotated]
    for place in ({"folder": "few"}, {"url": postgres, "schema": "mimic"}):
        node = Node.parse(
            {"site": {"name": "a"}, "source": {"kind": "mimic3", **place}, "exclude": {"patients": "optout.csv"}},
            folder=tmp_path,
        )
        manifests.append(ingest(node, asked, tmp_path / f"out-{len(manifests)}").manifest)
        with session(tmp_path / f"open-{len(manifests)}") as (con, _):
            opt_out(con, node)
            opened = open_source(con, node, None, pushed_down(con, node, asked))
            travelled.append(sum((con.execute(q).fetchone() or (0,))[0] for q in opened.rows.values()))
            if "url" in place:
                listed = ", ".join(map(str, someone))
                for table in ("admissions", "patients", "diagnoses_icd", "prescriptions"):
                    assert con.execute(f"SELECT count(*) FROM {table} WHERE subject_id IN ({listed})").fetchone() == (
                        0,
                    )
    for key in ("attrition", "steps", "labels"):
        assert manifests[0][key] == manifests[1][key], key
    assert manifests[0]["outputs"]["tensor.npz"] == manifests[1]["outputs"]["tensor.npz"]
    assert manifests[1]["attrition"][-2]["rows"] <= travelled[1] < travelled[0]


HOSTILE = """
INSERT INTO hostile.person SELECT * FROM hostile.person LIMIT 1;
UPDATE hostile.person SET person_id = -7, year_of_birth = 99999 WHERE ctid = (SELECT max(ctid) FROM hostile.person);
INSERT INTO hostile.visit_occurrence (visit_occurrence_id, person_id, visit_start_date, visit_end_date)
    SELECT visit_occurrence_id, -7, '-infinity', '5874897-12-31' FROM cdm.visit_occurrence;
INSERT INTO hostile.condition_occurrence (person_id, condition_concept_id, condition_start_date, visit_occurrence_id)
    SELECT -7, condition_concept_id, 'infinity', visit_occurrence_id FROM cdm.condition_occurrence;
INSERT INTO hostile.drug_exposure (person_id, drug_concept_id, drug_exposure_start_date, visit_occurrence_id)
    SELECT -7, -1, '4713-01-01 BC', visit_occurrence_id FROM cdm.drug_exposure;
INSERT INTO hostile.measurement (person_id, measurement_concept_id, measurement_date, value_as_number)
    SELECT -7, measurement_concept_id, measurement_date, 'NaN' FROM cdm.measurement LIMIT 50;
INSERT INTO hostile.death (person_id, death_date) VALUES (-7, '-infinity'), (-7, 'infinity');
"""


@pytest.mark.parametrize("protocol", [{}, {"time": {"start": date(2000, 1, 1), "before": 4000}}])
def test_one_hostile_patient_changes_nobody_else_in_postgresql(
    postgres: str, cdm: Any, tmp_path: Path, protocol: dict[str, Any]
) -> None:
    with psycopg.connect(postgres) as link:
        link.execute("DROP SCHEMA IF EXISTS hostile CASCADE; CREATE SCHEMA hostile")
        names = link.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'cdm'").fetchall()
        for (name,) in names:
            link.execute(f'CREATE TABLE hostile."{name}" AS SELECT * FROM cdm."{name}"')
        for statement in HOSTILE.split(";\n")[:-1]:
            link.execute(statement)
        link.commit()
    sections = {"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"], "window": "visit"}, **protocol}
    values = {}
    for schema in ("cdm", "hostile"):
        source = {"kind": "omop", "url": postgres, "schema": schema}
        node = Node.parse({"site": {"name": "a"}, "source": source})
        tensor = ingest(node, Study.parse(sections), tmp_path / schema, skip_faulty=True).site.counts()
        label = [a.labels or () for a in tensor.axes]
        cells = ((*(x[i] for x, i in zip(label, c)), v) for c, v in zip(tensor.coords.tolist(), tensor.values.tolist()))
        values[schema] = sorted(c for c in cells if c[0] != "-7")
    assert values["cdm"]
    assert values["hostile"] == values["cdm"]
