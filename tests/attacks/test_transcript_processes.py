"""The same attacks against real processes: a database server that reads an order's text, and sites behind FLARE."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.records.ingest import ingest

pytestmark = [pytest.mark.attack, pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture
def postgres() -> Iterator[str]:
    """Address of a server of our own: temporary folder, its own socket, stopped and removed at the end."""
    pytest.importorskip("adbc_driver_postgresql", reason="the PostgreSQL driver is not installed")
    pgserver = pytest.importorskip("pgserver", reason="no PostgreSQL to start: pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pc-pg-"))
    try:
        server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    except Exception as e:  # whatever keeps a server from starting is the reason to skip
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot start here: {e}")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def test_transcript_of_a_study_is_not_read_as_sql_by_postgresql(
    postgres: str, data_path: Callable[[str], Path], tmp_path: Path
) -> None:
    psycopg: Any = pytest.importorskip("psycopg", reason="psycopg is not installed")
    with duckdb.connect() as con, psycopg.connect(postgres) as link:
        link.execute("CREATE SCHEMA cdm")
        for file in sorted(data_path("synthea27nj_omop").glob("*.csv.gz")):
            name = file.name.partition(".")[0].lower()
            con.execute(f"CREATE TABLE {name} AS SELECT * FROM read_csv('{file}')")
            con.execute(f"COPY {name} TO '{tmp_path}/{name}.csv' (HEADER)")
            typed = ", ".join(
                f'"{r[0]}" {r[1].replace("DOUBLE", "NUMERIC")}' for r in con.execute(f"DESCRIBE {name}").fetchall()
            )
            link.execute(f"CREATE TABLE cdm.{name} ({typed})")
            with link.cursor().copy(f"COPY cdm.{name} FROM STDIN (FORMAT csv, HEADER)") as copy:
                copy.write((tmp_path / f"{name}.csv").read_bytes())
        link.execute("ALTER DATABASE postgres SET standard_conforming_strings = off")
        link.commit()
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", "url": postgres, "schema": "cdm"}})
    tensor = {"modes": ["drug", "diagnosis"], "window": "7d"}
    study = Study.parse({"study": {"name": "s"}, "tensor": tensor, "visits": {"types": ["\\') or true --"]}})
    with pytest.raises(DataError) as refusal:  # nobody has such a visit
        ingest(node, study, tmp_path / "out")
    assert "syntax error" not in str(refusal.value)  # of PostgreSQL: it read the order's text as a statement


DPEM = 'name = "dpem"\nplanning_size = 1000\nrank = 2\nrounds = 2\naggregation = "masked"'


@pytest.mark.slow
def test_transcript_between_processes_does_not_tell_who_has_a_patient(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from tests.e2e.flare_federation import Federation, running

    federation = Federation(tmp_path, codes=31, policy="max_epsilon_total = 1.0")  # nobody has DI30, but ...
    events = tmp_path / "north" / "events.parquet"
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE events AS SELECT * FROM '{events}'")
        for kind, code in (("drug", "DR01"), ("diagnosis", "DI30")):
            con.execute("INSERT INTO events VALUES ('north-7', 'north-7-9', '2023-05-17 08:00:00', ?, ?)", [kind, code])
        con.execute(f"COPY events TO '{events}' (FORMAT parquet)")
    heard = {}
    with running(federation):
        for name, end in (("with", "2023-05-17"), ("without", "2023-05-16")):
            tail = (
                f'[cohort]\nfirst = {{diagnosis = ["DI30"]}}\n[time]\nstart = 2023-01-01\nend = {end}\n'
                "[privacy]\nepsilon = 0.001\n"
            )
            order = federation.order(federation.study(name, DPEM, tail=tail))
            federation.follow(order)
            words = {(e["site"], e["event"]) for e in federation.events(order) if e["event"] in ("ready", "refused")}
            heard[name] = sorted(words)
    assert heard["with"] == heard["without"], heard
    assert {word for words in heard.values() for _, word in words} == {"ready"}
