"""Tables of a PostgreSQL database, staged in the site's own: columns that are asked for, rows that the cohort keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from polyclinic.config import Node
from polyclinic.records.databases.drivers import opened
from polyclinic.records.databases.engine import Connection, identifier, literal
from polyclinic.records.sources.pushdown import WHOLE, DatabaseServer, Push
from polyclinic.records.sources.tables import OpenedTables, SourceTable, by_table, stage

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Cursor

# Whatever a database or role has set: texts end at their quote, dates are ISO, only the system's functions are called by
# their bare name, and nothing is written.
SESSION: Final = {
    "standard_conforming_strings": "on",
    "datestyle": "ISO, YMD",
    "search_path": "pg_catalog",
    "default_transaction_read_only": "on",
}


def from_postgres(
    con: Connection, node: Node, tables: Sequence[SourceTable], names: Mapping[str, str], push: Push | None
) -> OpenedTables:
    """Open the tables of a database server: only the columns that are needed, streamed."""
    with opened(node) as database, database.link.cursor() as cursor:
        _set(cursor, SESSION)
        database.link.commit()
        return _stage_tables(con, cursor, node, tables, names, push)


def _set(cursor: Cursor, values: Mapping[str, str]) -> None:
    """Set values of the session by bound parameters."""
    import duckdb

    for name, value in values.items():
        with duckdb.connect() as bound:  # an Arrow stream: no pyarrow needed
            cursor.execute("SELECT set_config($1, $2, false)", bound.sql("SELECT ? AS a, ? AS b", params=[name, value]))
            cursor.fetchall()


def fetched(con: Connection, cursor: Cursor) -> list[tuple[str, ...]]:
    return list(con.from_arrow(cursor.fetch_arrow()).fetchall())  # a capsule: no pyarrow needed


def _stage_tables(
    con: Connection,
    cursor: Cursor,
    node: Node,
    tables: Sequence[SourceTable],
    names: Mapping[str, str],
    push: Push | None,
) -> OpenedTables:
    """Copy the tables of a schema. Tables of events come last, because the others decide who takes part."""
    schema = node.source.db_schema or "public"
    _set(cursor, {"polyclinic.schema": schema})
    cursor.execute(
        "SELECT lower(table_name)::text, lower(column_name)::text, column_name::text, table_name::text, table_schema::text, data_type::text "
        "FROM information_schema.columns WHERE lower(table_schema) = lower(current_setting('polyclinic.schema'))"
    )
    rows = fetched(con, cursor)
    out = OpenedTables()
    cursor.execute(
        "SELECT lower(c.relname)::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND lower(n.nspname) = lower(current_setting('polyclinic.schema'))"
    )
    present, readable = {r[0] for r in fetched(con, cursor)}, {r[0] for r in rows}
    unreadable = sorted({names[t.name].lower() for t in tables} & (present - readable))
    out.faults += [f"schema {schema}: table {name} is there, but this user may not read it" for name in unreadable]
    if not present:
        out.faults.append(f"there is no schema {schema!r}, or it has no table ([source] schema)")
    if out.faults:
        return out
    database = _Database.of(con, cursor, rows, {t.name: names[t.name].lower() for t in tables}, node.skip_faulty)
    _set(cursor, push.settings() if push is not None else {})
    patient_types = [
        database.server.types.get((t.name, t.keys.patient))
        for t in tables
        if t.keys and t.name in database.server.names
    ]
    pushable = all(kind in WHOLE for kind in patient_types)
    decided = False
    for t in sorted(tables, key=lambda t: t.keys is not None):
        if push is not None and t.keys is not None and not decided:
            decided, push = True, push.decided(database.server.names) if pushable and not out.faults else push
            _set(cursor, push.settings())
        if out.has(con, t, key := names[t.name].lower(), database.catalogue.get(key, {}), f"schema {schema}"):
            database.stage(t, key, push, pushable)
    return out


@dataclass(frozen=True)
class _Database:
    """An open database: its tables, their columns, and which columns hold dates."""

    con: Connection
    cursor: Cursor
    server: DatabaseServer
    catalogue: Mapping[str, Mapping[str, str]]
    dates: frozenset[tuple[str, str]]
    own_visits: bool

    @classmethod
    def of(
        cls,
        con: Connection,
        cursor: Cursor,
        rows: Sequence[tuple[str, ...]],
        keys: Mapping[str, str],
        own_visits: bool,
    ) -> _Database:
        """Make it from the rows of the catalogue. ``keys``: standard name of a table -> name there, in lower case."""
        catalogue, real = by_table(rows), {r[0]: r[3] for r in rows}
        types = {(r[0], r[1]): r[5] for r in rows}
        present = {name: key for name, key in keys.items() if key in catalogue}
        server = DatabaseServer(
            {n: f"{identifier(rows[0][4])}.{identifier(real[k])}" for n, k in present.items()},
            {n: catalogue[k] for n, k in present.items()},
            {(n, c): types[k, c] for n, k in present.items() for c in catalogue[k]},
        )
        # A date can be 'infinity' or lie outside what others can hold: as text one such cell costs one row only.
        dates = frozenset(place for place, kind in types.items() if kind.startswith(("date", "timestamp")))
        return cls(con, cursor, server, catalogue, dates, own_visits)

    def stage(self, table: SourceTable, key: str, push: Push | None, pushable: bool) -> None:
        """Copy the needed columns of a table, without the rows that the database may leave out."""
        present = self.catalogue[key]
        columns = [c for c in table.columns if c in present]
        cells = ", ".join(
            f"t.{identifier(present[c])}{'::text' if (key, c) in self.dates else ''} AS {identifier(c)}"
            for c in columns
        )
        rows, condition = self._rows(table, push, pushable)
        self.cursor.execute(f"SELECT {cells} FROM {rows}{f' WHERE {condition}' if condition else ''}")
        stage(self.con, table, [self.cursor.fetch_arrow()], columns, self.own_visits)

    def _rows(self, table: SourceTable, push: Push | None, pushable: bool) -> tuple[str, str]:
        """Return the relation and the condition of the rows to copy. Rows that stay there are counted."""
        name = table.name
        if push is None:
            return f"{self.server.names[name]} t", ""
        fate = None if table.keys is None else self.server.fate(name, table.keys, push)
        if table.keys is not None and fate is not None:
            self.cursor.execute(self.server.counted(name, table.keys, push, fate))
            self.con.register("gone", self.cursor.fetch_arrow())
            self.con.execute(f"INSERT INTO pushed SELECT {literal(name)}, patient_id, nth, empty, n FROM gone")
            self.con.unregister("gone")
            return self.server.rows(name, table.keys, push), f"{fate} IS NULL"
        condition = self.server.without(name, table.patient, push) if table.patient is not None and pushable else ""
        return f"{self.server.names[name]} t", condition
