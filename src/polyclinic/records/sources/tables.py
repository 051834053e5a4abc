"""Named tables of a hospital's database or export, opened as views of the engine.

The same table may lie in a folder of CSV (also gzipped) or Parquet files, in a DuckDB file, or in a database that hands
out Arrow (streamed, only the columns that are needed). After :func:`open_tables` they all look the same, so one ``.sql``
file serves every kind of database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from polyclinic.config import Node
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.databases.drivers import DRIVERS, POSTGRESQL, address_of, opened
from polyclinic.records.databases.engine import IDENTIFIER, Connection, identifier, literal, reading
from polyclinic.records.sources.csv_files import csv_rows
from polyclinic.records.sources.pushdown import Keys, Push

CSV: Final = (".csv", ".csv.gz", ".csv.zst", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
PARQUET: Final = (".parquet", ".pq")


@dataclass(frozen=True)
class SourceTable:
    """A table a source reads: its columns, some of which it can do without.

    Parameters
    ----------
    name
        Standard name, lower case.
    need, may
        Columns, separated by spaces: required ones, and ones that count as empty where absent. ``in_folder`` is the
        name of the folder a file lies in (DE-SynPUF: one sample, one site).
    optional
        Whether the whole table may be absent (then it is empty).
    keys
        Of a table of events: the columns a protocol asks about, where a database may leave rows out by them.
    patient
        Of another table about people: whose row it is; those of who opted out stay in the database.
    visit
        Of another table about people: the visit that a row is about.
    """

    name: str
    need: str
    may: str = ""
    optional: bool = False
    keys: Keys | None = None
    patient: str | None = None
    visit: str | None = None

    @property
    def owner(self) -> str | None:
        """Column of the patient."""
        return self.patient if self.keys is None else self.keys.patient

    @property
    def own_visit(self) -> str | None:
        """Column of the visit."""
        return self.visit if self.keys is None else self.keys.visit

    def having(self, column: str, *, need: bool = False) -> SourceTable:
        """Return the table with one more column, required or not."""
        if column in self.columns:
            return self
        return replace(self, need=f"{self.need} {column}") if need else replace(self, may=f"{self.may} {column}")

    @property
    def columns(self) -> list[str]:
        """All columns of the view."""
        return [*self.need.split(), *self.may.split()]


@dataclass
class OpenedTables:
    """What opening found: faults, rows, and where from."""

    faults: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)

    def usable(
        self, con: Connection, t: SourceTable, present: Mapping[str, str], where: str, absent: str, origin: str
    ) -> bool:
        """Whether a table has the columns that are needed. One that is not there is ``absent``, or empty if optional."""
        if not present:
            if t.optional:
                columns = ", ".join(f"CAST(NULL AS VARCHAR) AS {identifier(c)}" for c in t.columns)
                con.execute(f"CREATE OR REPLACE VIEW {identifier(t.name)} AS SELECT {columns} WHERE false")
            else:
                self.faults.append(absent)
            return False
        self.origins[t.name] = origin
        if lacking := [c for c in t.need.split() if c not in present]:
            self.faults.append(f"{where}: column{'s' if len(lacking) > 1 else ''} {', '.join(lacking)} missing")
        return not lacking

    def has(
        self, con: Connection, t: SourceTable, key: str, present: Mapping[str, str], where: str, why: str = ""
    ) -> bool:
        """The same of a table of a database."""
        absent = f"{where}: no table {key}{f' ({why})' if why else ''}"
        return self.usable(con, t, present, f"{where}, table {key}", absent, key)


def open_tables(con: Connection, node: Node, tables: Sequence[SourceTable], push: Push | None = None) -> dict[str, str]:
    """Open every table as a view of its standard name; returns where each came from. All faults at once.

    The table ``pushed`` (origin, patient_id, nth, empty, n) says what PostgreSQL left out for ``push``, by step.
    """
    con.execute(
        "CREATE OR REPLACE TABLE pushed (origin VARCHAR, patient_id VARCHAR, nth INTEGER, empty BOOLEAN, n BIGINT)"
    )
    source = node.source
    ways = [k for k in ("folder", "database", "url") if getattr(source, k)]
    if len(ways) != 1:
        raise ConfigError(
            f"node {node.name!r}: [source] names {' and '.join(ways) or 'no place'}",
            hint="give one of folder (CSV or Parquet tables), database (SQLite or DuckDB file), url (postgresql://..., mssql://..., odbc:...)",
        )
    unknown = [
        f"tables.{k}: not a table of {source.kind}" for k in source.table_names if k not in {t.name for t in tables}
    ]
    if unknown:
        table_names = ", ".join(t.name for t in tables)
        raise ConfigError(f"node {node.name!r}: unknown tables", faults=unknown, hint=f"known: {table_names}")
    names = {t.name: source.table_names.get(t.name, t.name) for t in tables}
    odd = [n for n in (*names.values(), source.db_schema or "public") if not IDENTIFIER.fullmatch(n)]
    if odd:
        faults = [f"{n!r} is not the name of a table or column" for n in odd]
        raise DataError(
            f"node {node.name!r}: names of tables are refused", faults=faults, hint="correct [source] tables"
        )
    if source.folder:
        result = _from_folder(con, node, tables, names)
    elif source.database:
        result = _from_database(con, node, tables, names)
    elif DRIVERS[address_of(node)[0].scheme] is POSTGRESQL:
        from polyclinic.records.sources.postgres import from_postgres

        result = from_postgres(con, node, tables, names, push)
    else:
        result = _from_driver(con, node, tables, names)
    if result.faults:
        raise DataError(
            f"site {node.name!r}: the tables of source {source.kind!r} cannot be read",
            faults=result.faults,
            hint="correct [source] in the node file, or map names with tables = {standard = 'yours'}",
        )
    return result.origins


def open_file(con: Connection, path: Path, view: str, *, skip_faulty: bool = False) -> bool:
    """Open one file, folder or pattern of CSV or Parquet files as a view; True where rescans are cheap (Parquet)."""
    paths = sorted(path.parent.glob(path.name)) if any(c in path.name for c in "*?[") else [path]
    if path.is_dir():
        paths = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    parquet = [p for p in paths if p.name.lower().endswith(PARQUET)]
    csv = [p for p in paths if p.name.lower().endswith(CSV)]
    if not paths or not all(p.is_file() for p in paths):
        raise DataError(f"{path}: no such file", hint="check the path in the node file")
    if len(parquet) != len(paths) and len(csv) != len(paths):
        raise DataError(f"{path}: neither CSV nor Parquet", hint=f"known endings: {', '.join((*CSV, *PARQUET))}")
    with reading(str(path)):
        con.execute(f"CREATE OR REPLACE VIEW {identifier(view)} AS SELECT * FROM {_scan(con, paths, skip_faulty)}")
        con.execute(f"SELECT * FROM {identifier(view)} LIMIT 0")
    return bool(parquet)


def describe(con: Connection, view: str) -> dict[str, str]:
    """Columns of a view and their types."""
    with reading(view):
        return {str(r[0]): str(r[1]) for r in con.execute(f"DESCRIBE {identifier(view)}").fetchall()}


def hash_of(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    import hashlib

    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def quoted(column: str) -> str:
    """A column that a file has, quoted, whatever its name is."""
    return '"' + column.replace('"', '""') + '"'


def _scan(con: Connection, paths: Sequence[Path], skip_faulty: bool, *, named: bool = False) -> str:
    """Relation of all rows of the files; with ``named`` the column ``filename`` says which."""
    if paths[0].name.lower().endswith(PARQUET):
        literals = ", ".join(literal(str(p)) for p in paths)
        return f"read_parquet([{literals}], union_by_name = true{', filename = true' if named else ''})"
    scans = [csv_rows(con, p, skip_faulty=skip_faulty, named=named) for p in paths]
    return f"({' UNION ALL BY NAME '.join(f'SELECT * FROM {s}' for s in scans)})"


def make_view(
    con: Connection, table: SourceTable, relation: str, present: Mapping[str, str], own_visits: bool = False
) -> None:
    """A view with exactly the declared columns; ``present``: lower-case name -> name there.

    With ``own_visits`` the name of a visit contains its patient: a row that names the visit of another patient joins nothing.
    """

    def column(c: str) -> str:
        owner = present.get(table.owner or "")
        if own_visits and owner is not None and c == table.own_visit and c in present:
            patient, visit = (f"CAST({identifier(x)} AS VARCHAR)" for x in (owner, present[c]))
            return f"length({patient}) || ':' || {patient} || '/' || {visit} AS {identifier(c)}"
        if c in present:
            return f"{identifier(present[c])} AS {identifier(c)}"
        day = present.get(c.replace("_datetime", "_date"))
        if day is not None:  # no time of day: empty, of the date's own type, so that the date stands in for it
            return f"NULLIF({identifier(day)}, {identifier(day)}) AS {identifier(c)}"
        return f"CAST(NULL AS VARCHAR) AS {identifier(c)}"

    columns = [column(c) for c in table.columns]
    con.execute(f"CREATE OR REPLACE VIEW {identifier(table.name)} AS SELECT {', '.join(columns)} FROM {relation}")


def _files_of(folder: Path) -> dict[str, list[Path]]:
    """Table name -> its files: ``person.csv.gz`` anywhere below the folder, or every part in a folder ``person``."""
    files: dict[str, list[Path]] = {}
    parts: dict[str, list[Path]] = {}
    for p in sorted(folder.rglob("*")):
        ending = next((e for e in (*CSV, *PARQUET) if p.name.lower().endswith(e)), None)
        if ending and p.is_file() and not p.name.startswith("."):
            files.setdefault(p.name.lower().removesuffix(ending), []).append(p)
            if p.parent != folder:
                parts.setdefault(p.parent.name.lower().removesuffix(".parquet"), []).append(p)
    return {**parts, **files}


def _from_folder(con: Connection, node: Node, tables: Sequence[SourceTable], names: Mapping[str, str]) -> OpenedTables:
    out = OpenedTables()
    folder, skip = node.path(node.source.folder or ""), node.skip_faulty
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder", hint="check [source] folder")
    files = _files_of(folder)
    for t in tables:
        paths = files.get(names[t.name].lower(), [])
        if not paths:
            out.usable(con, t, {}, "", f"{folder}: no file {names[t.name]}.csv, .csv.gz or .parquet", "")
            continue
        # Files of one table in several folders are added up only where each folder is a sample (DE-SynPUF).
        in_named_folder = paths[0].parent.name.lower().removesuffix(".parquet") == names[t.name].lower()
        places = {p.parent for p in paths}
        if (not in_named_folder and len(places) < len(paths)) or (len(places) > 1 and "in_folder" not in t.columns):
            out.faults.append(
                f"{folder}: several files for table {t.name}: {', '.join(str(p.relative_to(folder)) for p in paths)}"
            )
            continue
        try:
            with reading(paths[0].name):
                scan = _scan(con, paths, skip, named="in_folder" in t.columns)
                described = con.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()
        except DataError as e:
            out.faults += [f"{e.what}: {f}" for f in e.faults]
            continue
        present = {str(r[0]).lower(): str(r[0]) for r in described}
        if "in_folder" in t.columns:
            scan = f"(SELECT *, split_part(filename, '/', -2) AS in_folder FROM {scan})"
            present["in_folder"] = "in_folder"
        origin = ", ".join(str(p.relative_to(folder)) for p in paths)
        if out.usable(con, t, present, paths[0].name, "", origin):
            make_view(con, t, scan, present, skip)
    return out


def _from_database(
    con: Connection, node: Node, tables: Sequence[SourceTable], names: Mapping[str, str]
) -> OpenedTables:
    path = node.path(node.source.database or "")
    if not path.is_file():
        raise DataError(f"{path}: no such file", hint="check [source] database")
    with open(path, "rb") as f:
        head = f.read(16)
    if head.startswith(b"SQLite format 3"):
        return _from_driver(con, node, tables, names)
    out, schema = OpenedTables(), node.source.db_schema or "main"
    with reading(str(path)):
        con.execute(f"ATTACH {literal(str(path))} AS hospital (READ_ONLY)")
        rows = con.execute(
            "SELECT lower(table_name), lower(column_name), column_name FROM duckdb_columns() "
            "WHERE database_name = 'hospital' AND lower(schema_name) = lower(?)",
            [schema],
        ).fetchall()
    catalogue = by_table(rows)
    for t in tables:
        key = names[t.name].lower()
        if out.has(con, t, key, catalogue.get(key, {}), path.name):
            relation = f"hospital.{identifier(schema)}.{identifier(key)}"
            make_view(con, t, relation, catalogue[key], node.skip_faulty)
    return out


def by_table(rows: Iterable[Sequence[str]]) -> dict[str, dict[str, str]]:
    """Rows of table, column in lower case and column there -> the columns of each table."""
    out: dict[str, dict[str, str]] = {}
    for table, column, original, *_ in rows:
        out.setdefault(table, {})[column] = original
    return out


def _from_driver(con: Connection, node: Node, tables: Sequence[SourceTable], names: Mapping[str, str]) -> OpenedTables:
    """Open the tables of a database that hands out Arrow: only the columns that are needed, streamed."""
    out, schema = OpenedTables(), node.source.db_schema
    with opened(node) as database:
        named, cell = database.driver.named, database.driver.cell
        where = f"{database.driver.title}{f', schema {schema}' if schema else ''}"
        for t in tables:
            key = names[t.name].lower()
            relation = ".".join(named(x) for x in (schema, names[t.name]) if x)
            present, why = database.columns(con, relation)
            if out.has(con, t, key, present, where, why):
                columns = [c for c in t.columns if c in present]
                cells = ", ".join(f"{cell.format(named(present[c]))} AS {named(c)}" for c in columns)
                with reading(f"{where}, table {key}"):
                    stage(con, t, database.read(f"SELECT {cells} FROM {relation}"), columns, node.skip_faulty)
    return out


def stage(
    con: Connection, table: SourceTable, streams: Iterable[object], columns: Sequence[str], own_visits: bool
) -> None:
    """Copy Arrow streams into the engine, and make the table's view of them."""
    staged = identifier(f"staged {table.name}")
    cells = {"VARCHAR": "NULLIF({0}, '') AS {0}", "BLOB": "NULLIF(TRY(decode({0})), '') AS {0}"}
    into = f"CREATE OR REPLACE TABLE {staged} AS"
    for stream in streams:
        con.register("incoming", stream)
        types = {str(r[0]).lower(): str(r[1]) for r in con.execute("DESCRIBE incoming").fetchall()}
        picked = ", ".join(cells.get(types[c.lower()], "{0}").format(identifier(c)) for c in columns)
        con.execute(f"{into} SELECT {picked} FROM incoming")
        con.unregister("incoming")
        into = f"INSERT INTO {staged}"
    make_view(con, table, staged, {c: c for c in columns}, own_visits)
