"""The whole way of the data: a node's records and a study's rule -> tensor, events, labels and a manifest."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic import __version__
from polyclinic.config import FeatureRule, Node, Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.databases.attrition import Attrition, added
from polyclinic.records.databases.engine import COUNTING, Connection, literal, numbers, session, skipped
from polyclinic.records.events import EventTable, Stage, read_events
from polyclinic.records.events.cooccurrence import Vocabulary, choose_codes, count_together, repeats
from polyclinic.records.events.labels import Labels, read_labels
from polyclinic.records.events.matrix import Matrix, read_matrix
from polyclinic.records.sites.covariates import make_persons, read_people
from polyclinic.records.sites.people import People
from polyclinic.records.sites.rare_codes import floor
from polyclinic.records.sites.site import Site, Sites, one_order, with_overlap
from polyclinic.records.source_units import tensors_by_unit
from polyclinic.records.sources.tables import hash_of
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.skew import skew
from polyclinic.tensors.sparse import SparseTensor


@dataclass(frozen=True)
class Ingested:
    """A site's data as a study needs them, and the manifest that accounts for every row."""

    site: Site
    manifest: dict[str, Any]
    attrition: tuple[Attrition, ...] = ()
    patients: tuple[str, ...] = ()  # names of a matrix's rows, which the site itself does not have
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason -> number, for the owner's eyes only


def ingest(node: Node, study: Study, out: str | Path, *, events: bool = True, skip_faulty: bool = False) -> Ingested:
    """Turn a hospital's records into a tensor: ``tensor.npz``, ``events.parquet``, ``labels.parquet``, ``manifest.json``.

    A study of a feature matrix (``[features]``, no ``[tensor]``) writes ``features.parquet`` and the manifest. All are made in a scratch folder and moved at the end, the manifest last: after a fault nothing new is there.

    Parameters
    ----------
    node
        The hospital's node: where its records are.
    study
        The study: modes, codes, cohort, outcome.
    out
        The folder for the files.
    events
        Whether ``events.parquet`` stays. A study between hosts needs only the tensor, and keeps no second copy of records.
    skip_faulty
        A study with a formal guarantee: a fault in a patient's records leaves out these rows or this patient, changes nobody
        else and is counted in ``skipped``. Only a source without a single usable patient is refused.

    See Also
    --------
    check : the same checks without writing anything.

    Examples
    --------
    >>> import tempfile, polyclinic as pc
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = [f"{p},{p},2020-01-01,{k},{c}" for p in range(30) for k, c in (("drug", "a"), ("diagnosis", "x"))]
    >>> _ = (folder / "events.csv").write_text("\\n".join(["patient_id,visit_id,time,kind,code", *rows]))
    >>> node = pc.Node.parse({"site": {"name": "north", "folder": str(folder / "site")},
    ...                       "source": {"kind": "files", "events": str(folder / "events.csv")}})
    >>> study = pc.Study.parse({"study": {"name": "demo"}, "tensor": {"modes": ["drug", "diagnosis"]}})
    >>> pc.ingest(node, study, folder / "tensor").site
    <Site north: 30 patients, 30 nonzeros>
    """
    folder = Path(out)
    node = node.skipping_faulty() if skip_faulty else node
    with session(folder) as (con, scratch):
        result = _make_matrix(con, scratch, node, study) if _is_matrix(study) else _make(con, scratch, node, study)
        if result.site.tensor is None:
            names: tuple[str, ...] = ("features.parquet",)
        else:
            result.site.tensor.save(scratch / "tensor.npz")
            _write_labels(con, result.site.tensor, scratch / "labels.parquet")
            names = ("tensor.npz", *(("events.parquet",) if events else ()), "labels.parquet")
        left_out = skipped(con)
        manifest = {**result.manifest, "outputs": {n: hash_of(scratch / n) for n in names}}
        manifest |= {"skipped": left_out} if skip_faulty else {}
        (scratch / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for name in (*names, "manifest.json"):
            with open(scratch / name, "rb") as f:
                os.fsync(f.fileno())
            os.chmod(scratch / name, 0o600)  # patient identifiers: for the owner's eyes only
            os.replace(scratch / name, folder / name)
    return Ingested(result.site, manifest, result.attrition, result.patients, left_out)


def read_sites(study: Study) -> Sites:
    """The hospitals of a simulation: every node of the study ingested in its own folder, nothing written.

    With ``[sites] split = true`` one node's patients are divided by the source's site column (ICU type, hospital ...).
    """
    inline_sites = study.inline()
    nodes = study.nodes() if inline_sites is None else (inline_sites,)
    if not nodes:
        raise ConfigError(f"study {study.name!r} names no sites", hint="add [[site]] node = 'north.toml', or [data]")
    all_sites: list[Site] = []
    steps: dict[str, list[dict[str, object]]] = {}
    tables: list[tuple[Attrition, ...]] = []
    periods: dict[str, tuple[str, str]] = {}
    for node in nodes:
        first = len(all_sites)
        with session(node.home) as (con, scratch):
            split = study.sites is not None and bool(study.sites.split)
            if _is_matrix(study):
                all_sites += _matrix_sites(node, read_matrix(con, node, study.features or FeatureRule()), split)
            elif split:
                sites, steps[node.name], attrition = _split(con, scratch, node, study)
                all_sites += sites
                tables.append(attrition)
                periods |= _periods(con, study, scratch / "events.parquet")
            else:
                result = _make(con, scratch, node, study)
                all_sites.append(result.site)
                steps[node.name] = result.manifest["steps"]
                tables.append(result.attrition)
                days = _periods(con, study, scratch / "events.parquet")
                periods |= {f"{node.name}/{p}": when for p, when in days.items()}
        if (elsewhere := node.source.elsewhere) is not None:
            all_sites[first:] = [replace(s, several=max(s.several, elsewhere + 1)) for s in all_sites[first:]]
    if _is_matrix(study):
        return Sites(one_order(all_sites))
    # Under [privacy] a floor counted from the data would itself have to be paid for.
    minimum = study.minimum_patients
    together = sum(s.patients for s in all_sites)
    out = floor([_distinct(s) for s in all_sites], minimum)
    flow = [*added(tables), Attrition("have codes together", together, 0)] if minimum > 1 else added(tables)
    last = Attrition("code rules", sum(s.patients for s in out), 0)
    sites_read = Sites(out, steps=steps, attrition=(*flow, last))
    sites_read.periods = periods
    return sites_read


def _periods(con: Connection, study: Study, events: Path) -> dict[str, tuple[str, str]]:
    """First day (the index date, where the protocol has one) and last day of every patient with times."""
    relative = study.cohort is not None or (study.time is not None and study.time.relative)
    index = "LEFT JOIN member m USING (patient_id)" if relative else ""
    first = "coalesce(any_value(m.index_date), min(CAST(e.time AS DATE)))" if relative else "min(CAST(e.time AS DATE))"
    rows = con.execute(
        f"SELECT CAST(e.patient_id AS VARCHAR), CAST({first} AS VARCHAR), CAST(max(CAST(e.time AS DATE)) AS VARCHAR) "
        f"FROM read_parquet({literal(str(events))}) e {index} WHERE e.time IS NOT NULL GROUP BY 1"
    ).fetchall()
    return {p: (a, max(a, b)) for p, a, b in rows}


def _is_matrix(study: Study) -> bool:
    return study.tensor is None and study.features is not None


def _matrix_sites(node: Node, matrix: Matrix, split: bool) -> list[Site]:
    all_rows = Site(node.name, None, matrix.values, matrix.labels, matrix.columns)
    if not split:
        return [all_rows]
    if matrix.sites is None:
        raise ConfigError(f"node {node.name!r}: nothing to split by", hint="[source] split = 'column'")
    site_names, patients = np.array(matrix.sites), np.array(matrix.patients, object)
    units = np.unique(site_names)
    sites = [replace(all_rows.take(site_names == n), name=str(n)) for n in units]
    return with_overlap(sites, [patients[site_names == n] for n in units])


def _make_matrix(con: Connection, scratch: Path, node: Node, study: Study) -> Ingested:
    import duckdb

    matrix = read_matrix(con, node, study.features or FeatureRule())
    table: dict[str, object] = {f"c{k}": np.ascontiguousarray(x) for k, x in enumerate(matrix.values.T)}
    table["p"] = np.array(matrix.patients, dtype=object)
    columns = ", ".join(f'c{k} AS "{c.replace(chr(34), chr(34) * 2)}"' for k, c in enumerate(matrix.columns))
    if matrix.labels is not None:
        table["l"] = matrix.labels if matrix.labels.dtype.kind != "U" else matrix.labels.astype(object)
    con.register("rows", table)
    con.execute(
        f"COPY (SELECT p AS patient_id, {'l AS label, ' if matrix.labels is not None else ''}{columns} FROM rows) "
        f"TO {literal(str(scratch / 'features.parquet'))} (FORMAT parquet)"
    )
    con.unregister("rows")
    manifest = {
        "polyclinic": __version__,
        "duckdb": duckdb.__version__,
        "python": platform.python_version(),
        "study": {"name": study.name, "sha256": study.digest()},
        "site": node.name,
        "source": {"kind": node.source.kind, "read": {"features": Path(node.source.features or "").name}},
        "steps": [matrix.step.to_json()],
        "features": {"shape": list(matrix.values.shape), "columns": list(matrix.columns)},
    }
    return Ingested(_matrix_sites(node, matrix, False)[0], manifest, patients=matrix.patients)


def _make(con: Connection, scratch: Path, node: Node, study: Study) -> Ingested:
    table, vocabulary, labels = _read(con, scratch, node, study)
    repeat_share = repeats(con, study.rule())
    tensor, step = count_together(con, study.rule(), vocabulary, each_alone=node.skip_faulty)
    manifest = _manifest(con, node, study, table, vocabulary, tensor, labels, [vocabulary.step, step])
    manifest["skew"] = skew(tensor, repeat_share).to_json()
    source = (table.attrition[0].patients, tensor.patients)
    people = _people(con, node, study, tensor)
    site = Site(node.name, tensor, None, _aligned(con, tensor), people=people, source=source)
    return Ingested(site, manifest, table.attrition)


def _read(con: Connection, scratch: Path, node: Node, study: Study) -> tuple[EventTable, Vocabulary, Labels | None]:
    rule = study.labels
    table, source = read_events(con, node, scratch / "events.parquet", study)
    labels = read_labels(con, source, rule, node.source.label, skip_faulty=node.skip_faulty)
    if study.people is not None:
        make_persons(con, source, table.scan())
    con.execute(f"SET memory_limit = {literal(COUNTING)}")
    vocabulary = choose_codes(con, table.scan(), study, each_alone=node.skip_faulty)
    if not table.attrition:  # no protocol: everybody is in
        table = replace(table, attrition=(Attrition("in the source", len(vocabulary.people), table.rows),))
    return table, vocabulary, labels


def _split(
    con: Connection, scratch: Path, node: Node, study: Study
) -> tuple[list[Site], list[dict[str, object]], tuple[Attrition, ...]]:
    """One site for every value of the site column, and what was left out on the way to all of them: rows, and patients.

    Every count is of patients at hospitals, as between hosts: a patient of two hospitals counts at both, also in the source.
    """
    table, vocabulary, _ = _read(con, scratch, node, study)
    if not vocabulary.sites:
        raise DataError(f"node {node.name!r}: no event names a site", hint="map it: columns = {site = 'their_column'}")
    tensors, step = tensors_by_unit(con, study, vocabulary)
    out = [
        Site(name, tensor, None, _aligned(con, tensor), people=_people(con, node, study, tensor))
        for name, tensor in tensors
    ]
    out = with_overlap(out, [s.counts().axes[0].labels or () for s in out])
    again = con.execute(
        f"SELECT count(DISTINCT (patient_id, site)) - count(DISTINCT patient_id) FROM {table.scan()} WHERE site IS NOT NULL"
    ).fetchone()
    extra = int(again[0]) if again else 0
    attrition = tuple(replace(a, patients=a.patients + extra) for a in table.attrition)
    if out:  # of all units together; a sum over them must count the source once
        out[0] = replace(out[0], source=(attrition[0].patients, sum(s.patients for s in out)))
        out[1:] = [replace(s, source=(0, 0)) for s in out[1:]]
    return out, [s.to_json() for s in (*table.steps, vocabulary.step, step)], attrition


def _people(con: Connection, node: Node, study: Study, tensor: SparseTensor) -> People | None:
    patients, source = tensor.axes[0].labels or (), node.source
    return read_people(con, study.people, patients, source.columns, source.missing, skip_faulty=node.skip_faulty)


def _distinct(site: Site) -> Site:
    """Patients named after their site, too: number 1 of two hospitals, or a patient of two units, is two rows."""
    if site.tensor is None:
        return site
    patients = Axis("patient", tuple(f"{site.name}/{p}" for p in site.tensor.axes[0].labels or ()))
    return replace(site, tensor=site.tensor.with_axes((patients, *site.tensor.axes[1:])))


def _aligned(con: Connection, tensor: SparseTensor) -> NDArray[np.float64] | None:
    """Labels in the order of the tensor's patients, NaN where unknown; None where nobody's is known."""
    label_of = dict(con.execute("SELECT patient_id, label FROM labels WHERE label IS NOT NULL").fetchall())
    labels = np.array([label_of.get(p, np.nan) for p in tensor.axes[0].labels or ()], np.float64)
    return None if np.isnan(labels).all() else labels


def _write_labels(con: Connection, tensor: SparseTensor, path: Path) -> None:
    patients = np.array(tensor.axes[0].labels or (), dtype=object)
    con.register("axis", {"patient_id": patients, "place": np.arange(len(patients))})
    con.execute(
        "COPY (SELECT a.patient_id, l.label FROM axis a LEFT JOIN labels l USING (patient_id) ORDER BY a.place) "
        f"TO {literal(str(path))} (FORMAT parquet)"
    )
    con.unregister("axis")


def _manifest(
    con: Connection,
    node: Node,
    study: Study,
    table: EventTable,
    vocabulary: Vocabulary,
    tensor: SparseTensor,
    labels: Labels | None,
    steps: Sequence[Stage],
) -> dict[str, object]:
    import duckdb

    rule = study.rule()
    modes = []
    for axis, coverage in zip(vocabulary.axes if rule.side_by_side else tensor.axes[1:], vocabulary.coverage):
        if axis.name in rule.vocabulary:
            origin = f"public list {Path(rule.vocabulary[axis.name]).name}"
        elif axis.name in rule.top:
            origin = f"top {rule.top[axis.name]} by number of {rule.top_by}, chosen from the data"
        else:
            origin = "every code that occurs together with another, chosen from the data"
        modes.append(
            {
                "mode": axis.name,
                "codes": len(axis.labels or ()),
                "vocabulary": axis.vocabulary,
                "chosen": origin,
                "sha256": axis.digest(),
                "coverage": coverage.to_json(),
            }
        )
    return {
        "polyclinic": __version__,
        "duckdb": duckdb.__version__,
        "python": platform.python_version(),
        "study": {"name": study.name, "sha256": study.digest()},
        "site": node.name,
        "extracted": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": {"kind": node.source.kind, "read": dict(table.inputs)},
        "steps": [s.to_json() for s in (*table.steps, *steps)],
        "attrition": [
            *(a.to_json() for a in table.attrition),
            {"step": "code rules", "patients": tensor.patients, "rows": steps[-1].rows_out},
        ],
        "notes": dict(table.notes),
        "rule": {
            "modes": list(rule.modes),
            "side_by_side": rule.side_by_side,
            "window": rule.window,
            "count": rule.count,
            "cap": rule.cap,
            "top_by": rule.top_by,
            "minimum_patients": f"{rule.minimum_patients}, over all sites: not applied here",
        },
        "tensor": {"shape": list(tensor.shape), "nnz": tensor.nnz, "largest": float(tensor.values.max())},
        "modes": modes,
        "labels": None if labels is None else {**labels.to_json(), **_labelled(con, tensor)},
        "sites": _sites(con),
    }


def _labelled(con: Connection, tensor: SparseTensor) -> dict[str, int]:
    """Of the tensor's patients: how many have a label, and how many a positive one."""
    label_of = dict(con.execute("SELECT patient_id, label FROM labels WHERE label IS NOT NULL").fetchall())
    labels = [label_of[p] for p in tensor.axes[0].labels or () if p in label_of]
    return {"known": len(labels), "positive": sum(x == 1 for x in labels), "unknown": tensor.patients - len(labels)}


def _sites(con: Connection) -> dict[str, object]:
    """Patients by value of the site column, and how many occur at more than one."""
    site_rows = con.execute(
        "SELECT site, count(DISTINCT patient_id) FROM events WHERE site IS NOT NULL GROUP BY 1 ORDER BY 1"
    ).fetchall()
    shared = "SELECT count(*) FROM (SELECT patient_id FROM events WHERE site IS NOT NULL GROUP BY 1 HAVING count(DISTINCT site) > 1)"
    return {"patients": {str(k): int(n) for k, n in site_rows}, "patients_at_several": numbers(con, shared)[0]}
