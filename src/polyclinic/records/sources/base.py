"""What a source is: tables, the ``.sql`` that turns them into events, and the ``.sql`` of visits."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

from polyclinic.config import Node
from polyclinic.config.source import BUILT_IN
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.plugins import plugged
from polyclinic.records.databases.engine import Connection, identifier, reading, statement
from polyclinic.records.sources.pushdown import Push
from polyclinic.records.sources.tables import SourceTable, open_tables

COLUMNS: Final = ("patient_id", "visit_id", "time", "kind", "code", "system", "value", "description", "site")
PUSHED: Final = ("omop", "mimic3", "mimic4")  # kinds whose databases can be asked to leave rows out
ICD: Final = ("icd9cm", "icd9proc", "icd10", "icd10cm", "icd10pcs")
SYSTEMS: Final = frozenset(
    (*ICD, "cpt", "hcpcs", "snomed", "loinc", "rxnorm", "ndc", "atc", "omop", "phecode", "local")
)


@dataclass(frozen=True)
class OpenedSource:
    """A source that has been opened.

    Parameters
    ----------
    events
        Query: ``origin``, the canonical columns, ``dropped`` (a reason or NULL), one row for every row read.
    rows
        Origin -> query that counts the rows there are, independently of ``events``.
    visits
        Query: ``patient_id, visit_id, starts, ends, died, site`` and any outcome column; None if there are none.
    cheap
        Whether the events can be scanned twice at little cost.
    inputs
        Name -> what it was read from.
    labels
        Query: ``patient_id, label`` where the source brings labels of patients; None otherwise.
    typed
        Whether ``visits`` has the column ``type``.
    births
        Query: ``patient_id, year`` of birth.
    sexes
        Query: ``patient_id, sex``, a text that begins with F or M in any case. Other texts are unknown.
    deaths
        Query: ``patient_id, day`` of death.
    observed
        Query: ``patient_id, starts, ends`` of observation periods.
    cohort
        Query: ``definition, patient_id, starts, ends`` of the site's cohorts.
    pushed
        Whether the database itself may have left rows out: the table ``pushed`` has their numbers.
    repeated
        Remark -> number of rows of dictionaries, patients and visits that repeat a key and are not used.
    """

    events: str
    rows: Mapping[str, str]
    visits: str | None = None
    cheap: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    labels: str | None = None
    typed: bool = False
    births: str | None = None
    sexes: str | None = None
    deaths: str | None = None
    observed: str | None = None
    cohort: str | None = None
    pushed: bool = False
    repeated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Tabular:
    """A source of named tables whose SQL is ``sql/<name>.sql`` and ``sql/<name>_visits.sql``.

    Parameters
    ----------
    name
        Of the source and its SQL files.
    tables
        Tables that are opened.
    events
        Those whose rows are events (their rows are counted).
    visits
        Table and column that identify a visit; any boolean column of that table can be an outcome.
    unique
        Table -> column that must not repeat, the visit's own aside.
    typed
        Whether the visits have a type.
    people
        Table and column that identify a patient, where there is one: its columns can divide the patients into sites, too.
    within
        Column of the visit table that events call their visit, where that is not its key (eICU: the hospital stay).
    row
        Column of the visits' SQL that is the key of the visit table.
    """

    name: str
    tables: tuple[SourceTable, ...]
    events: tuple[str, ...]
    visits: tuple[str, str]
    unique: Mapping[str, str] = field(default_factory=dict)
    typed: bool = False
    people: tuple[str, str] | None = None
    within: str | None = None
    row: str = "visit_id"

    def open(self, con: Connection, node: Node, outcome: str | None, push: Push | None = None) -> OpenedSource:
        """Open the tables; ``outcome`` names a further column of the visit table."""
        table, key = self.visits
        extra = outcome if outcome and outcome not in ("mortality", "readmission") else None
        split, tables = node.source.split, self.tables
        if extra:
            tables = tuple(t.having(extra.lower(), need=True) if t.name == table else t for t in tables)
        if split:
            divided = (identifier(split) and table, self.people and self.people[0])
            tables = tuple(t.having(split.lower()) if t.name in divided else t for t in tables)
        origins = open_tables(con, node, tables, push)
        repeated = self._once(con, node)
        visits = forgiving(statement(f"{self.name}_visits"))
        if extra:
            column = identifier(extra.lower())
            owner = next((t.owner for t in tables if t.name == table and t.owner is not None), key)
            patient = "patient_id" if owner != key else identifier(self.row)
            visits = (
                f"SELECT v.*, x.{column} AS {identifier(extra)} FROM ({visits}) v "
                f"JOIN {identifier(table)} x ON x.{identifier(key)} = v.{identifier(self.row)} AND x.{identifier(owner)} = v.{patient}"
            )
        events = self.events_sql(con, node)
        if split:
            visits = self._divided(con, node, visits, split.lower(), self.row, key)
        return OpenedSource(
            events=events,
            rows={t: f"SELECT count(*) FROM {identifier(t)}" for t in self.events},
            visits=visits,
            inputs=origins,
            typed=self.typed,
            pushed=push is not None and node.source.url is not None,
            repeated=repeated,
        )

    def events_sql(self, con: Connection, node: Node, name: str | None = None) -> str:
        """The query of the events, by the SQL file ``name`` (the source's own), divided as the node says."""
        events, split = forgiving(statement(name or self.name)), node.source.split
        if not split:
            return events
        return self._divided(con, node, events, split.lower(), "visit_id", self.within or self.visits[1])

    def _divided(self, con: Connection, node: Node, query: str, split: str, mine: str, key: str) -> str:
        """The query with another column of the visit table, or else of the patients' table, as its site.

        ``mine`` of the query is ``key`` of the visit table.
        """
        for place in ((self.visits[0], key), self.people):
            if place is None:
                continue
            table, key = place
            mine = "patient_id" if place == self.people else mine
            with reading(f"site {node.name!r}, table {table}"):
                row = con.execute(f"SELECT count({identifier(split)}) FROM {identifier(table)}").fetchone()
            if row and row[0]:
                # a hospital stay of several rows is at the place of the first by name
                return (
                    f"SELECT q.* REPLACE (x.place AS site) FROM ({query}) q LEFT JOIN (SELECT CAST({identifier(key)} AS VARCHAR) "
                    f"AS k, min(CAST({identifier(split)} AS VARCHAR)) AS place FROM {identifier(table)} GROUP BY 1) x "
                    f"ON x.k = CAST(q.{identifier(mine)} AS VARCHAR)"
                )
        table_names = " and ".join(p[0] for p in (self.visits, self.people) if p)
        raise ConfigError(
            f"node {node.name!r}: nothing to split by: no column {split!r} with values in {table_names}",
            hint="[sites] split names a column of these tables",
        )

    def _once(self, con: Connection, node: Node) -> dict[str, int]:
        """One row of every key that repeats, the first by its cells, and how many rows were too many; of no event table."""
        out = {}
        for table, column in [self.visits, *self.unique.items()]:
            name, key, original = identifier(table), identifier(column), identifier(f"{table} as it is")
            owner = next((t.owner for t in self.tables if t.name == table), None)
            # A formal study never asks which of two patients a visit belongs to: each patient has one of that name.
            group = f"{key}, {identifier(owner)}" if node.skip_faulty and owner else key
            with reading(f"site {node.name!r}, table {table}"):
                row = con.execute(
                    f"SELECT count({key}) - count(DISTINCT ({group})) FILTER ({key} IS NOT NULL) FROM {name}"
                ).fetchone()
                if not row or not row[0]:
                    continue
                con.execute(f"ALTER VIEW {name} RENAME TO {original}")
                con.execute(
                    f"CREATE VIEW {name} AS SELECT * EXCLUDE (nth) FROM (SELECT *, row_number() OVER (PARTITION BY {group} "
                    f"ORDER BY t::VARCHAR) AS nth FROM {original} t) WHERE nth = 1 OR {key} IS NULL"
                )
            out[f"rows of {table} repeat a {column}: one of each is used"] = int(row[0])
        return out


def forgiving(sql: str) -> str:
    """The same SQL for the engine: a cell that is no number or date becomes a reason to drop its row, not an error.

    The files of SQL are plain, for any database; there a column of numbers has a type and holds nothing else.
    """
    concept = re.compile(r"CASE WHEN COALESCE\(CAST\((t\.\w+_concept_id) AS BIGINT\), 0\) = 0")
    sql = concept.sub(
        r"CASE WHEN \1 IS NOT NULL AND CAST(\1 AS BIGINT) IS NULL THEN 'concept_id is not a number' "
        r"WHEN COALESCE(CAST(\1 AS BIGINT), 0) = 0",
        sql,
    )
    value = "CAST(t.value_as_number AS DOUBLE PRECISION), c.concept_name"
    sql = sql.replace(value, "CAST(t.value_as_number AS VARCHAR), c.concept_name")
    return re.sub(r"(?<!TRY_)\bCAST\(", "TRY_CAST(", sql)


def open_source(con: Connection, node: Node, outcome: str | None = None, push: Push | None = None) -> OpenedSource:
    """Open whatever ``[source] kind`` names; ``push``: what an OMOP database in PostgreSQL is asked to leave out itself."""
    if node.source.split and node.source.kind in ("fhir", "meds"):
        raise ConfigError(
            f"node {node.name!r}: a source of kind {node.source.kind!r} cannot be split by a column",
            hint="split = true takes the site from the source; or export events as files",
        )
    if node.source.kind not in BUILT_IN:
        return _plugged_source(con, node, outcome)
    folder = "events" if node.source.kind == "matrix" else "sources"  # a matrix has columns instead of events
    module = import_module(f"polyclinic.records.{folder}.{node.source.kind}")
    opener: Callable[..., OpenedSource] | None = vars(module).get("open_source")
    if opener is None:
        raise ConfigError(f"source {node.source.kind!r} has no events", hint="it is for a study with [features]")
    return opener(con, node, outcome, push) if node.source.kind in PUSHED else opener(con, node, outcome)


def source_of(node: Node) -> str:
    """Which source is meant, in an error's first words: the site, the kind and, of another package, where that defines it."""
    kind = node.source.kind
    entry = None if kind in BUILT_IN else plugged("polyclinic.sources").get(kind)
    return f"site {node.name!r}, source {kind!r}" + (f" ({entry.value})" if entry is not None else "")


def _plugged_source(con: Connection, node: Node, outcome: str | None) -> OpenedSource:
    """A source of another distribution (``polyclinic.sources``): a function like every ``open_source`` here."""
    entry = plugged("polyclinic.sources")[node.source.kind]
    source, options = source_of(node), node.source.options
    opener = entry.load()
    if not callable(opener):
        raise ConfigError(
            f"source {node.source.kind!r} of {entry.package} is no function: {entry.value}",
            hint="docs/howto/new-source.md",
        )
    try:
        with reading(source):
            opened_source = opener(con, node, outcome)
    except PolyclinicError:
        raise
    except OSError as e:
        raise DataError(
            f"{source}: {e.filename or 'a file'}: {e.strerror or type(e).__name__}",
            hint="is the file there, whole, and may it be read? [source.options] names it from the node file's folder",
        ) from e
    except Exception as e:  # another's code; its words may quote a cell, so they stay in the traceback
        key = e.args[0] if isinstance(e, KeyError) and e.args else None
        if isinstance(key, str) and key not in options:
            raise ConfigError(
                f"{source}: [source.options] lacks {key!r}",
                faults=[f"there are: {', '.join(options) or 'none'}"],
                hint=f"write {key} = ... under [source.options]",
            ) from e
        stack = traceback.extract_tb(e.__traceback__)
        source_file = inspect.unwrap(opener).__code__.co_filename if inspect.isfunction(opener) else ""
        frame = next(
            (f for f in reversed(stack) if f.filename == source_file), stack[-1]
        )  # its own line, not a library's
        raise DataError(
            f"{source}: failed ({type(e).__name__}, {Path(frame.filename).name} line {frame.lineno}, in {frame.name})",
            hint=f"it is not a part of Polyclinic: ask the authors of {entry.package}",
        ) from e
    if not isinstance(opened_source, OpenedSource):
        raise ConfigError(
            f"source {node.source.kind!r}: {entry.value} gave a {type(opened_source).__name__}, not an OpenedSource",
            hint="docs/howto/new-source.md",
        )
    return opened_source


def sql_of(kind: str) -> str:
    """The SQL of a source as an owner can run it in any tool; its result, exported as Parquet, is a ``files`` source."""
    try:
        return statement(kind)
    except FileNotFoundError:
        raise ConfigError(
            f"source {kind!r} has no SQL of its own",
            hint="omop, mimic3, mimic4, eicu, synpuf, fhir, meds have",
        ) from None
