"""Databases that hand out Arrow: each driver takes a SELECT and gives its rows as streams that the engine stages.

One table, :data:`DRIVERS`, says how each is opened. A statement holds no values, only names of tables and columns, which are
checked. A plain name stands without quotation marks, so that every server finds it in the case that it keeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from polyclinic.config import Node, secret
from polyclinic.errors import ConfigError, DataError, MissingExtra, PolyclinicError
from polyclinic.records.databases.engine import Connection, DataAway, identifier
from polyclinic.util.database_errors import UNSAID

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection as DriverLink

Read: TypeAlias = Callable[[str], Iterable[object]]  # a SELECT in, Arrow streams of one schema out; at least one
PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ROWS: Final = 50_000  # of one batch, where a driver asks for a number
LONGEST: Final = 4_000  # bytes of a text, where a driver has to know before it reads
AWAY: Final = re.compile(
    "refused|timeout expired|timed out|unreachable|no route|could not translate host|starting up|shutting down|recovery mode|"
    "terminating connection|closed the connection|no such (file|host)|cannot connect|unable to establish connection",
    re.IGNORECASE,
)


class Driver(NamedTuple):
    """How one kind of database is read.

    Parameters
    ----------
    title
        What it is called.
    module, package
        What is imported, and the package that has it. Our extra that installs it has the name of the scheme.
    open
        Module, address and password -> an open connection, and how it is read.
    quote
        Quotation mark of a name that is not plain.
    cell
        SQL of a cell.
    """

    title: str
    module: str
    package: str
    open: Callable[[ModuleType, SplitResult, str], tuple[DriverLink, Read]]
    quote: str = '"'
    cell: str = "{0}"

    def named(self, name: str) -> str:
        """Return a name as it stands in a statement."""
        identifier(name)
        return name if PLAIN.fullmatch(name) else f"{self.quote}{name}{self.quote}"


def _adbc(link: DriverLink) -> tuple[DriverLink, Read]:
    cursor = link.cursor()

    def read(sql: str) -> Iterator[object]:
        cursor.execute(sql)
        yield cursor.fetch_arrow()

    return link, read


def _by_address(driver: ModuleType, at: SplitResult, password: str) -> tuple[DriverLink, Read]:
    whole = with_password(at, password)
    file, bare = f"file:{quote(at.path)}?mode=ro", whole.partition("://")[2]
    return _adbc(driver.connect({"sqlite": file, "snowflake": bare}.get(at.scheme, whole)))


def _bigquery(driver: ModuleType, at: SplitResult, password: str) -> tuple[DriverLink, Read]:
    values = {"project_id": at.hostname or "", "dataset_id": at.path.strip("/")}
    if password:  # the JSON key of a service account
        values |= {"auth_type": "adbc.bigquery.sql.auth_type.json_credential_string", "auth_credentials": password}
    return _adbc(driver.connect(db_kwargs={f"adbc.bigquery.sql.{k}": v for k, v in values.items()}))


def _sql_server(driver: ModuleType, at: SplitResult, password: str) -> tuple[DriverLink, Read]:
    words = {"Server": f"{at.hostname},{at.port or 1433}", "Database": at.path.strip("/")}
    words |= {"UID": unquote(at.username or ""), "PWD": password, "ApplicationIntent": "ReadOnly"}
    words |= dict(parse_qsl(at.query))
    link = driver.connect(";".join(f"{k}={{{v.replace('}', '}}')}}}" for k, v in words.items() if v))
    cursor = link.cursor()

    def read(sql: str) -> Iterator[object]:
        cursor.execute(sql)
        yield cursor.arrow_reader(batch_size=ROWS)

    return link, read


def _oracle(driver: ModuleType, at: SplitResult, password: str) -> tuple[DriverLink, Read]:
    place = f"{at.hostname}:{at.port or 1521}/{at.path.strip('/')}"
    link = driver.connect(user=unquote(at.username or ""), password=password, dsn=place)
    link.cursor().execute("SET TRANSACTION READ ONLY")
    # Without decimals a NUMBER(38), as the keys of OMOP are, becomes a float.
    return link, lambda sql: link.fetch_df_batches(statement=sql, size=ROWS, fetch_decimals=True)


def _databricks(driver: ModuleType, at: SplitResult, password: str) -> tuple[DriverLink, Read]:
    options = dict(parse_qsl(at.query))
    link = driver.connect(server_hostname=at.hostname, http_path=at.path, access_token=password or None, **options)
    cursor = link.cursor()

    def read(sql: str) -> Iterator[object]:
        cursor.execute(sql)
        rows = ROWS
        while rows:  # the last batch is empty
            batch = cursor.fetchmany_arrow(ROWS)
            rows = batch.num_rows
            yield batch

    return link, read


def _odbc(driver: ModuleType, at: SplitResult, password: str) -> tuple[DriverLink, Read]:
    import pyarrow as pa

    def microseconds(schema: pa.Schema) -> pa.Schema:
        """Nanoseconds end in 2262, and one later date would end the table."""
        return pa.schema([f.with_type(pa.timestamp("us")) if f.type == pa.timestamp("ns") else f for f in schema])

    link = driver.connect(at.geturl().partition(":")[2], password=password or None)

    def read(sql: str) -> Iterator[object]:
        reader = link.read_arrow_batches(sql, batch_size=ROWS, max_text_size=LONGEST, map_schema=microseconds)
        yield reader.into_pyarrow_record_batch_reader()

    return link, read


# SQLite has no column types to rely on: everything is text, as in a CSV file. It travels as bytes, because SQLite does not
# check that a text is one; NULL as none, because the driver takes a column's type from its first rows.
BYTES: Final = "CAST(COALESCE(CAST({0} AS TEXT), '') AS BLOB)"
POSTGRESQL: Final = Driver("PostgreSQL", "adbc_driver_postgresql.dbapi", "adbc-driver-postgresql", _by_address)
DRIVERS: Final = {
    "postgres": POSTGRESQL,
    "postgresql": POSTGRESQL,
    "sqlite": Driver("SQLite", "adbc_driver_sqlite.dbapi", "adbc-driver-sqlite", _by_address, cell=BYTES),
    "mssql": Driver("SQL Server", "mssql_python", "mssql-python", _sql_server),
    "oracle": Driver("Oracle", "oracledb", "oracledb", _oracle),
    "snowflake": Driver("Snowflake", "adbc_driver_snowflake.dbapi", "adbc-driver-snowflake", _by_address),
    "bigquery": Driver("BigQuery", "adbc_driver_bigquery.dbapi", "adbc-driver-bigquery", _bigquery, "`"),
    "databricks": Driver("Databricks", "databricks.sql", "databricks-sql-connector", _databricks, "`"),
    "odbc": Driver("ODBC", "arrow_odbc", "arrow-odbc", _odbc),
}


class Database(NamedTuple):
    """An open database."""

    driver: Driver
    link: DriverLink
    read: Read
    password: str

    def columns(self, con: Connection, table: str) -> tuple[dict[str, str], str]:
        """Lower-case name of each column -> its name there. Of a table that cannot be read: nothing, and the driver's words."""
        try:
            for stream in self.read(f"SELECT * FROM {table} WHERE 1 = 0"):
                con.register("incoming", stream)
            names = [str(r[0]) for r in con.execute("DESCRIBE incoming").fetchall()]
        except Exception as e:  # every driver has classes of its own
            if AWAY.search(str(e)):
                raise
            return {}, words(e, self.password, cells=False)
        con.unregister("incoming")
        return {n.lower(): n for n in names}, ""


@contextmanager
def opened(node: Node) -> Iterator[Database]:
    """Open the database of a node for reading. An error of its driver becomes one of ours, without password and cells."""
    at, password = address_of(node)
    driver = DRIVERS[at.scheme]
    try:
        module = import_module(driver.module)
    except ModuleNotFoundError:
        raise MissingExtra(driver.package, extra_of(at.scheme), f"reading {driver.title}") from None
    link: DriverLink | None = None
    try:
        link, read = driver.open(module, at, password)
        yield Database(driver, link, read, password)
    except PolyclinicError:
        raise
    except Exception as e:  # every driver has classes of its own
        text = words(e, password, cells=link is not None)
        raise (DataAway if AWAY.search(text) else DataError)(
            f"site {node.name!r}: the database cannot be read", faults=[text], hint="check url, password and rights"
        ) from None
    finally:
        with suppress(Exception):  # a connection that broke, or ODBC's, which is closed when it is forgotten
            if link is not None:
                link.close()


def words(e: Exception, password: str, *, cells: bool) -> str:
    """What may be said of a driver's error. ``cells``: rows were being read, so the words may quote one."""
    text, state = " ".join(str(e).split())[:300], getattr(e, "sqlstate", None)
    if state.startswith("22") if state else cells and not AWAY.search(text):
        return f"{f'SQLSTATE {state}' if state else type(e).__name__} {UNSAID}"
    return text.replace(password, "...") if password else text


def extra_of(scheme: str) -> str:
    """Our extra that installs the driver."""
    return "postgres" if scheme == "postgresql" else scheme


def address_of(node: Node) -> tuple[SplitResult, str]:
    """The address of a node's database, and its password from where it is kept."""
    source = node.source
    if source.database:
        return SplitResult("sqlite", "", str(node.path(source.database)), "", ""), ""
    parts = urlsplit(secret(source.url or "", node.folder))
    if parts.scheme not in DRIVERS:
        raise ConfigError(
            f"node {node.name!r}: [source] url is of kind {parts.scheme!r}",
            hint=f"known: {', '.join(DRIVERS)}; for any other database print the SQL (site init --sql) and export",
        )
    return parts, secret(source.password, node.folder) if source.password else unquote(parts.password or "")


def with_password(parts: SplitResult, password: str) -> str:
    """The URL with a password in it.

    >>> with_password(urlsplit("postgresql://me@db/cdm"), "p@w")
    'postgresql://me:p%40w@db/cdm'
    """
    user, _, host = parts.netloc.rpartition("@")
    login = f"{user.partition(':')[0]}:{quote(password, safe='')}@" if password else f"{user}@" if user else ""
    return f"{parts.scheme}://{login}{host}{parts.path}{'?' if parts.query else ''}{parts.query}"
