"""The contract of a source by somebody else: what every ``open_source`` must hold to (``pc.check_source``)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.plugins import plug
from polyclinic.records.databases.engine import Connection, reading, session
from polyclinic.records.events import read_events
from polyclinic.records.preflight import Checkup, check_node
from polyclinic.records.sources.base import OpenedSource, open_source

Opener = Callable[[Connection, Node, str | None], OpenedSource]
NAME: Final = "tried"
QUERIES: Final[dict[str, tuple[str, ...]]] = {  # what a source may offer beside its events, and their columns
    "visits": ("patient_id", "visit_id", "starts", "ends", "died", "site"),
    "labels": ("patient_id", "label"),
    "births": ("patient_id", "year"),
    "sexes": ("patient_id", "sex"),
    "deaths": ("patient_id", "day"),
    "observed": ("patient_id", "starts", "ends"),
    "cohort": ("definition", "patient_id", "starts", "ends"),
}


def check_source(
    opener: Opener,
    options: Mapping[str, object] | None = None,
    *,
    folder: str | Path = ".",
    study: Study | None = None,
) -> Checkup:
    """Check a source of records as ``polyclinic check`` does. Raises AssertionError with every fault.

    Its events have the eleven columns, every row of them is used or dropped for a reason and counted twice alike, and reading
    again gives the same; the queries that it offers have their columns; then everything that a checkup of a node looks at.

    Parameters
    ----------
    opener
        The function that an entry of ``polyclinic.sources`` names.
    options
        ``[source.options]`` of the node.
    folder
        Where relative paths of the options begin.
    study
        With it: codes, tensor and outcome of that study, too.

    Examples
    --------
    >>> import polyclinic as pc
    >>> from polyclinic.records.sources.base import OpenedSource
    >>> def wards(con, node, outcome):
    ...     _ = con.execute("CREATE VIEW t AS SELECT range AS who, 'a' AS what FROM range(40)")
    ...     empty = "NULL AS system, NULL AS value, NULL AS description, NULL AS site, NULL AS dropped"
    ...     columns = "who AS patient_id, who AS visit_id, DATE '2020-01-01' AS time, 'drug' AS kind, what AS code"
    ...     return OpenedSource(events=f"SELECT 'rows' AS origin, {columns}, {empty} FROM t", rows={"rows": "SELECT count(*) FROM t"})
    >>> pc.check_source(wards).ok
    True
    """
    if not callable(opener):
        raise ConfigError(
            f"check_source wants a function, got a {type(opener).__name__}",
            hint='e.g. pc.check_source(open_source, {"file": "wards.csv"}); docs/howto/new-source.md',
        )
    with plug("polyclinic.sources", NAME, opener), tempfile.TemporaryDirectory() as place:
        document = {"site": {"name": NAME, "folder": place}, "source": {"kind": NAME, "options": dict(options or {})}}
        node = Node.parse(document, folder=Path(folder))
        checkup = check_node(node, study)
        if checkup.ok:
            try:
                checkup.faults += _queries(node, study)
            except PolyclinicError as e:
                checkup.blame(e)
    if checkup.faults:
        name = f"{opener.__module__}:{opener.__qualname__}"
        lines = [*(f"  - {f}" for f in checkup.faults), *(f"  what to do: {a}" for a in dict.fromkeys(checkup.advice))]
        raise AssertionError("\n".join([f"source {name}", *lines]))
    return checkup


def _queries(node: Node, study: Study | None) -> list[str]:
    """What the further queries lack, and whether the events are the same twice."""
    faults, outcome = [], study.labels.outcome if study is not None and study.labels is not None else None
    bits = []
    for _ in range(2):
        with session(node.home) as (con, scratch):
            table, _source = read_events(con, node, scratch / "events.parquet", study)
            row = con.execute(f"SELECT count(*), bit_xor(hash(e::VARCHAR)) FROM {table.scan()} e").fetchone()
            bits.append(row)
    if bits[0] != bits[1]:
        faults.append("read twice, the events are not the same: does a query leave an order, or a time of day, open?")
    with session(node.home) as (con, _scratch):
        source = open_source(con, node, outcome)
        for name, columns in QUERIES.items():
            query = getattr(source, name)
            if query is None:
                continue
            with reading(f"the query {name}"):
                present = {str(d[0]) for d in con.execute(f"DESCRIBE {query}").fetchall()}
            required = (*columns, *(("type",) if name == "visits" and source.typed else ()))
            faults += [f"the query {name} lacks the column {c}" for c in required if c not in present]
    return faults
