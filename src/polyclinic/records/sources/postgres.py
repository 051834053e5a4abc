"""Tables of a PostgreSQL database, staged in the site's own: columns that are asked for, rows that the cohort keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit, urlunsplit

from polyclinic.config import Node, secret
from polyclinic.errors import ConfigError, DataError, MissingExtra
from polyclinic.records.engine import Connection, identifier, literal
from polyclinic.records.sources.pushdown import WHOLE, DatabaseServer, Push
from polyclinic.records.sources.tables import OpenedTables, SourceTable, catalogue_of, fetched, listed_tables, stage
from polyclinic.util.database_errors import UNSAID

__all__ = ["address_of", "from_postgres"]


def from_postgres(
    con: Connection, node: Node, tables: Sequence[SourceTable], names: Mapping[str, str], push: Push | None
) -> OpenedTables:
    """Open the tables of a database server: only the columns that are needed, streamed."""
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        raise MissingExtra("adbc-driver-postgresql", "postgres", "reading PostgreSQL") from None
    url = address_of(node)
    out = OpenedTables()
    schema = node.source.db_schema or "public"
    try:
        with dbapi.connect(url) as link, link.cursor() as cursor:
            cursor.execute(
                "SELECT lower(table_name)::text, lower(column_name)::text, column_name::text, table_name::text, table_schema::text, data_type::text "
                f"FROM information_schema.columns WHERE lower(table_schema) = lower({literal(schema)})"
            )
            rows = fetched(con, cursor)
            if not rows:
                out.faults.append(f"schema {schema!r} has no table that this user may read")
                return out
            catalogue, real = catalogue_of(rows), {r[0]: r[3] for r in rows}
            # A date can be 'infinity' or lie outside what others can hold: as text one such cell costs one row only.
            dates = {(r[0], r[1]) for r in rows if r[5].startswith(("date", "timestamp"))}
            there = {t.name: names[t.name].lower() for t in tables if names[t.name].lower() in catalogue}
            types = {(r[0], r[1]): r[5] for r in rows}
            server = DatabaseServer(
                {n: f"{identifier(rows[0][4])}.{identifier(real[k])}" for n, k in there.items()},
                {n: catalogue[k] for n, k in there.items()},
                {(n, c): types[k, c] for n, k in there.items() for c in catalogue[k]},
            )
            pushable = all(
                server.types.get((t.name, t.keys.patient)) in WHOLE for t in tables if t.keys and t.name in there
            )
            last: bool | None = None
            for t in sorted(tables, key=lambda t: t.keys is not None):  # events last: the others tell who takes part
                key = names[t.name].lower()
                if push is not None and t.keys is not None and last is None:
                    last, push = True, push.decided(there) if pushable and not out.faults else push
                if listed_tables(con, t, key, catalogue, f"schema {schema}", out):
                    wanted = [c for c in t.columns if c in catalogue[key]]
                    columns = ", ".join(
                        f"t.{identifier(catalogue[key][c])}{'::text' if (key, c) in dates else ''} AS {identifier(c)}"
                        for c in wanted
                    )
                    fate = server.fate(t.name, t.keys, push) if push is not None and t.keys is not None else None
                    if push is not None and t.keys is not None and fate is not None:
                        cursor.execute(server.counted(t.name, t.keys, push, fate))
                        con.register("gone", cursor.fetch_arrow())
                        con.execute(f"INSERT INTO pushed SELECT {literal(t.name)}, patient_id, nth, empty, n FROM gone")
                        con.unregister("gone")
                    place, only = f"{server.names[t.name]} t", f"{fate} IS NULL" if fate is not None else ""
                    if push is not None and t.keys is not None and fate is not None:
                        place = server.rows(t.name, t.keys, push)
                    elif push is not None and t.patient is not None and pushable:
                        only = server.without(t.name, t.patient, push)
                    cursor.execute(f"SELECT {columns} FROM {place}{f' WHERE {only}' if only else ''}")
                    stage(con, t, cursor, wanted)
    except dbapi.Error as e:
        text = " ".join(str(e).split())[:300]
        if (e.sqlstate or "").startswith("22"):  # a data exception: its words quote the cell
            text = f"SQLSTATE {e.sqlstate} {UNSAID}"
        raise DataError(
            f"site {node.name!r}: the database cannot be read", faults=[text], hint="check url, password and rights"
        ) from None
    return out


def address_of(node: Node) -> str:
    """The connection string, with the password put in from where it is kept."""
    url = secret(node.source.url or "", node.folder)
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError(
            f"node {node.name!r}: [source] url is of kind {parts.scheme!r}",
            hint="postgresql://user@host/database; for any other database print the SQL (site init --sql) and export",
        )
    if node.source.password:
        user, _, host = parts.netloc.rpartition("@")
        hidden = quote(secret(node.source.password, node.folder), safe="")
        url = urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{hidden}@{host}"))
    return url
