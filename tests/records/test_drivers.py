"""Databases that hand out Arrow: ODBC and SQLite are real, every other driver is a fake of its documented interface."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.records.test_roll_up import omop

from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, DataError, MissingExtra
from polyclinic.records.databases.drivers import DRIVERS
from polyclinic.records.databases.engine import DataAway
from polyclinic.records.ingest import ingest
from polyclinic.records.preflight import check_node

STUDY = {"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"], "minimum_patients": 1}}


class Stream:
    """Nothing but the Arrow stream of the C data interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Server:
    """A database with the tables, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.con = duckdb.connect()
        self.asked: list[str] = []
        self.opened: dict[str, Any] = {}
        for file in sorted(folder.glob("*.csv")):
            self.con.execute(f"CREATE TABLE {file.stem} AS SELECT * FROM read_csv('{file}')")

    def table(self, sql: str) -> pa.Table:
        self.asked.append(sql)
        return self.con.sql(sql).to_arrow_table()

    def connect(self, **words: Any) -> None:
        if "right" not in str(words):
            raise RuntimeError(f"login failed for {words}")
        self.opened = words


def sql_server(server: Server) -> ModuleType:
    """connect(connection_str) -> connection.cursor() -> execute(sql), arrow_reader(batch_size=...)."""

    class Cursor:
        def execute(self, sql: str) -> Cursor:
            self.rows = server.table(sql)
            return self

        def arrow_reader(self, batch_size: int = 8192) -> pa.RecordBatchReader:
            return self.rows.to_reader(batch_size)

    def connect(connection_str: str = "", autocommit: bool = False, timeout: int = 0) -> SimpleNamespace:
        server.connect(connection_str=connection_str)
        return SimpleNamespace(cursor=Cursor, close=lambda: None)

    return _module("mssql_python", connect=connect)


def oracle(server: Server) -> ModuleType:
    """connect(user=, password=, dsn=); fetch_df_batches gives data frames, an empty one if there are no rows."""

    def connect(*, user: str, password: str, dsn: str) -> SimpleNamespace:
        server.connect(user=user, password=password, dsn=dsn)

        def fetch_df_batches(
            statement: str, parameters: object = None, size: int | None = None, *, fetch_decimals: bool | None = None
        ) -> Iterator[Stream]:
            assert fetch_decimals and size
            rows = server.table(statement)
            rows = rows.rename_columns([c.upper() for c in rows.column_names])
            whole = [pa.decimal128(38, 0) if pa.types.is_integer(f.type) else f.type for f in rows.schema]
            rows = rows.cast(pa.schema(list(zip(rows.column_names, whole))))
            yield Stream(rows.slice(0, 20))
            for start in range(20, len(rows), 20):  # several batches, as a table of many rows has
                yield Stream(rows.slice(start, 20))

        cursor = SimpleNamespace(execute=server.asked.append)
        return SimpleNamespace(cursor=lambda: cursor, fetch_df_batches=fetch_df_batches, close=lambda: None)

    return _module("oracledb", connect=connect)


def adbc(server: Server, name: str) -> ModuleType:
    """connect(uri, db_kwargs=...) -> connection.cursor() -> execute(sql), fetch_arrow()."""

    class Cursor:
        def execute(self, sql: str) -> None:
            self.rows = server.table(sql)

        def fetch_arrow(self) -> Stream:
            return Stream(self.rows)

    def connect(uri: str | None = None, db_kwargs: dict[str, str] | None = None) -> SimpleNamespace:
        server.connect(uri=uri, db_kwargs=db_kwargs)
        return SimpleNamespace(cursor=Cursor, close=lambda: None)

    return _module(name, connect=connect)


def databricks(server: Server) -> ModuleType:
    """connect(server_hostname, http_path, access_token, catalog=...); fetchmany_arrow gives tables, in the end empty ones."""

    class Cursor:
        def execute(self, sql: str) -> None:
            self.rows, self.at = server.table(sql), 0

        def fetchmany_arrow(self, size: int) -> pa.Table:
            size = min(size, 25)
            self.at += size
            return self.rows.slice(self.at - size, size)

    def connect(server_hostname: str, http_path: str, access_token: str | None = None, **more: str) -> SimpleNamespace:
        server.connect(server_hostname=server_hostname, http_path=http_path, access_token=access_token, **more)
        return SimpleNamespace(cursor=Cursor, close=lambda: None)

    return _module("databricks.sql", connect=connect)


def _module(name: str, **has: Callable[..., Any]) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(has)
    return module


FAKES: dict[str, tuple[Callable[[Server], ModuleType], str, dict[str, Any]]] = {
    "mssql": (
        sql_server,
        "mssql://reader@db.hospital/cdm?Encrypt=yes",
        {
            "connection_str": "Server={db.hospital,1433};Database={cdm};UID={reader};PWD={right;}}};ApplicationIntent={ReadOnly};Encrypt={yes}"
        },
    ),
    "oracle": (
        oracle,
        "oracle://reader@db.hospital/cdm",
        {"user": "reader", "password": "right;}", "dsn": "db.hospital:1521/cdm"},
    ),
    "snowflake": (
        lambda server: adbc(server, "adbc_driver_snowflake.dbapi"),
        "snowflake://reader@account/cdm/public?warehouse=w",
        {"uri": "reader:right%3B%7D@account/cdm/public?warehouse=w", "db_kwargs": None},
    ),
    "bigquery": (
        lambda server: adbc(server, "adbc_driver_bigquery.dbapi"),
        "bigquery://project/cdm",
        {
            "uri": None,
            "db_kwargs": {
                "adbc.bigquery.sql.project_id": "project",
                "adbc.bigquery.sql.dataset_id": "cdm",
                "adbc.bigquery.sql.auth_type": "adbc.bigquery.sql.auth_type.json_credential_string",
                "adbc.bigquery.sql.auth_credentials": "right;}",
            },
        },
    ),
    "databricks": (
        databricks,
        "databricks://db.hospital/sql/1.0/warehouses/w?catalog=main",
        {
            "server_hostname": "db.hospital",
            "http_path": "/sql/1.0/warehouses/w",
            "access_token": "right;}",
            "catalog": "main",
        },
    ),
}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    omop(folder)
    (folder / "groups.csv").unlink()
    return folder


@pytest.fixture
def expected(tables: Path, tmp_path: Path) -> str:
    return made(node(folder=str(tables)), tmp_path / "csv")


def node(**source: Any) -> Node:
    return Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", **source}})


def made(node: Node, out: Path) -> str:
    """Digest of the tensor."""
    return str(ingest(node, Study.parse(STUDY), out).manifest["outputs"]["tensor.npz"])


def served(monkeypatch: pytest.MonkeyPatch, kind: str, tables: Path) -> tuple[Server, str]:
    """A server behind the fake of a driver, and its address."""
    server = Server(tables)
    make, url, _ = FAKES[kind]
    package, _, inner = DRIVERS[kind].module.partition(".")
    if inner:
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, DRIVERS[kind].module, make(server))
    monkeypatch.setenv("PASSWORD", "right;}")
    return server, url


@pytest.mark.parametrize("kind", FAKES)
def test_the_same_rows_give_the_identical_tensor(
    monkeypatch: pytest.MonkeyPatch, kind: str, tables: Path, tmp_path: Path, expected: str
) -> None:
    server, url = served(monkeypatch, kind, tables)
    assert made(node(url=url, password="env:PASSWORD"), tmp_path / kind) == expected
    assert server.opened == FAKES[kind][2]
    rows = [sql for sql in server.asked if "WHERE 1 = 0" not in sql]
    assert all(sql.startswith(("SELECT ", "SET TRANSACTION READ ONLY")) and "*" not in sql for sql in rows)
    assert ("SET TRANSACTION READ ONLY" in rows) is (kind == "oracle")
    assert not any("concept_relationship" in sql for sql in server.asked), "a large table that nothing here needs"


@pytest.mark.parametrize("kind", FAKES)
def test_a_wrong_password_and_a_missing_table_are_named_and_the_password_is_not(
    monkeypatch: pytest.MonkeyPatch, kind: str, tables: Path
) -> None:
    server, url = served(monkeypatch, kind, tables)
    monkeypatch.setenv("PASSWORD", "hunter2")
    faults = " ".join(check_node(node(url=url, password="env:PASSWORD")).faults)
    assert "login failed" in faults and "hunter2" not in faults
    monkeypatch.setenv("PASSWORD", "right;}")
    server.con.execute("DROP TABLE condition_occurrence; DROP TABLE drug_exposure")
    faults = " ".join(check_node(node(url=url, password="env:PASSWORD")).faults)
    assert f"{DRIVERS[kind].title}: no table condition_occurrence (Catalog Error" in faults
    assert "drug_exposure" not in faults, "an optional table"
    server.con.execute("ALTER TABLE concept DROP COLUMN concept_code")
    faults = " ".join(check_node(node(url=url, password="env:PASSWORD")).faults)
    assert "table concept: column concept_code missing" in faults


def test_a_driver_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, driver in DRIVERS.items():
        monkeypatch.setitem(sys.modules, driver.module, None)
        source = {"database": __file__} if kind == "sqlite" else {"url": f"{kind}://reader@db/cdm"}
        if kind == "sqlite":
            continue  # opened by what is in the file, see test_sources
        with pytest.raises(MissingExtra, match=driver.package) as e:
            made(node(**source), Path("nowhere"))
        extra = "postgres" if kind == "postgresql" else kind
        assert e.value.hint == f"pip install 'polyclinic[{extra}]'"
    extras = _extras()
    assert {e for e in DRIVERS if e != "postgresql"} <= extras


def _extras() -> set[str]:
    import tomllib

    file = Path(__file__).parents[2] / "pyproject.toml"
    return set(tomllib.loads(file.read_text())["project"]["optional-dependencies"])


def test_an_unknown_kind_of_database_lists_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="'mysql'") as e:
        made(node(url="mysql://db/cdm"), Path("nowhere"))
    assert "odbc" in str(e.value)


def test_words_that_may_quote_a_cell_are_not_passed_on(
    monkeypatch: pytest.MonkeyPatch, tables: Path, tmp_path: Path
) -> None:
    _, url = served(monkeypatch, "oracle", tables)
    whole, words = Server.table, [""]

    def broken(self: Server, sql: str) -> pa.Table:
        if "drug_concept_id" in sql:
            raise RuntimeError(words[0])
        return whole(self, sql)

    monkeypatch.setattr(Server, "table", broken)
    for words[0], kind in (("ORA-01722: 'Smith' is no number", DataError), ("DPY-6005: cannot connect", DataAway)):
        with pytest.raises(DataError) as e:
            made(node(url=url, password="env:PASSWORD"), tmp_path / "out")
        assert type(e.value) is kind and "Smith" not in str(e.value)


@pytest.mark.parametrize("kind", ["mssql", "bigquery"])
def test_a_name_that_is_not_plain_stands_in_quotation_marks(kind: str) -> None:
    mark = DRIVERS[kind].quote
    assert DRIVERS[kind].named("person") == "person"
    assert DRIVERS[kind].named("our persons") == f"{mark}our persons{mark}"
    with pytest.raises(DataError):
        DRIVERS[kind].named(f"person{mark}; DROP TABLE person")


def lite(tables: Path, file: Path) -> None:
    """The tables in an SQLite file, each column with its type."""
    con = sqlite3.connect(file)
    for csv in tables.glob("*.csv"):
        header, *lines = (line.split(",") for line in csv.read_text().splitlines())
        kinds = [("date" if c.endswith("date") else "integer" if c.endswith("_id") else "varchar(99)") for c in header]
        con.execute(f"CREATE TABLE {csv.stem} ({', '.join(map(' '.join, zip(header, kinds)))})")
        con.executemany(f"INSERT INTO {csv.stem} VALUES ({', '.join('?' for _ in header)})", lines)
    con.commit()
    con.close()


def has_odbc() -> bool:
    tool = shutil.which("odbcinst")
    return tool is not None and "[SQLite3]" in subprocess.run([tool, "-q", "-d"], capture_output=True, text=True).stdout


@pytest.mark.skipif(not has_odbc(), reason="no ODBC driver for SQLite: apt-get install unixodbc libsqliteodbc")
def test_a_real_odbc_driver_gives_the_identical_tensor(tables: Path, tmp_path: Path, expected: str) -> None:
    pytest.importorskip("arrow_odbc", reason="arrow-odbc is not installed")
    lite(tables, tmp_path / "cdm.db")
    assert made(node(database=str(tmp_path / "cdm.db")), tmp_path / "sqlite") == expected
    url = f"odbc:Driver=SQLite3;Database={tmp_path / 'cdm.db'}"
    assert made(node(url=url), tmp_path / "odbc") == expected
    con = sqlite3.connect(tmp_path / "cdm.db")
    con.execute("UPDATE condition_occurrence SET condition_start_date = '9999-12-31' WHERE person_id = 7")
    con.commit()
    steps = ingest(node(url=url), Study.parse(STUDY), tmp_path / "late").manifest["steps"]
    assert steps[0]["dropped"] == {"impossible date": 1}, "an impossible day costs its row"
    con.execute("DROP TABLE person")
    con.close()
    with pytest.raises(DataError, match=r"ODBC: no table person .*no such table"):
        made(node(url=url), tmp_path / "none")
    with pytest.raises(DataError, match="the database cannot be read"):
        made(node(url="odbc:Driver=NoSuchDriver"), tmp_path / "none")
