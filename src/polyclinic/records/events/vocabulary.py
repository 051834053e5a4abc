"""Which codes a tensor has: every distinct code becomes a label of its mode, then a list, the top k, or all are kept.

Texts are looked at once a distinct code. What is counted afterwards are integers: the table ``fact`` (p, w, mode, code,
t, s) holds a patient, a place (visit, day), a mode, a label, a time and a site of every event that a label was found for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.config import CodeRule, Study, TensorRule
from polyclinic.errors import DataError
from polyclinic.records.databases.attrition import Stage
from polyclinic.records.databases.engine import Connection, literal, note_skipped, reading
from polyclinic.records.events.codes import Code, Group, group
from polyclinic.records.events.roll_up import is_roll_up, roll_up
from polyclinic.records.events.window_sql import lacks, tick
from polyclinic.tensors.axis import Axis, read_public_axis

TOP: Final = 20  # codes listed in a coverage report
PATIENTS: Final = "SELECT mode, code, count(DISTINCT p) FROM fact GROUP BY 1, 2"
MATCH: Final = "events e JOIN codemap c ON c.kind = e.kind AND c.code = e.code AND c.system = coalesce(e.system, '')"
Distinct = tuple[str, str, str | None]  # kind, code, system


@dataclass(frozen=True)
class ModeCoverage:
    """How much of a mode found its place: rows, rows without a group, and the most frequent of those.

    ``patients`` is the median number of patients of a label: the finer the codes, the fewer come back.
    """

    mode: str
    rows: int
    unmapped: int
    top_unmapped: tuple[tuple[str, int], ...] = ()
    patients: float = 0.0

    @property
    def share(self) -> float:
        """Share of rows without a group."""
        return self.unmapped / self.rows if self.rows else 0.0

    def to_json(self) -> dict[str, object]:
        """Plain values for the manifest."""
        return {
            "rows": self.rows,
            "unmapped": self.unmapped,
            "unmapped_share": round(self.share, 6),
            "top_unmapped": [list(x) for x in self.top_unmapped],
            "patients_per_code_median": self.patients,
        }


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The codes of every feature mode, and the row accounting of how they came about.

    Parameters
    ----------
    axes
        Labels that were kept, and their names.
    coverage
        One a mode.
    step
        Row accounting.
    fixed
        Whether an axis stays as it is (a list, or top k), or loses codes that never occur together with another.
    people
        Patient of every number p of ``fact``, in order of name.
    sites
        Site of every number s.
    """

    axes: tuple[Axis, ...]
    coverage: tuple[ModeCoverage, ...]
    step: Stage
    fixed: tuple[bool, ...]
    people: NDArray[np.object_]
    sites: tuple[str, ...] = ()


def choose_codes(con: Connection, events: str, study: Study, *, each_alone: bool = False) -> Vocabulary:
    """Map every distinct code to a label of its mode, then keep the public list, the top k, or all.

    Parameters
    ----------
    events
        Relation of events (``EventTable.scan()``).
    study
        Its ``[tensor]`` and ``[codes]`` sections.
    each_alone
        A formal study: the label of a code follows from this code only.
    """
    rule = study.rule()
    _view(con, events, rule, study)
    with reading("events"):
        rows: list[Any] = con.execute(
            f"SELECT kind, code, system, any_value(description), count(*), count(*) FILTER ({tick(rule)} IS NULL) "
            "FROM events GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ).fetchall()
    by_mode = {m: [r for r in rows if r[0] in _kinds(m)] for m in rule.modes}
    if not each_alone:  # in a formal study one patient must not decide whether the others are counted
        _need_events(by_mode, rows)
    fate: dict[Distinct, str] = {}
    labelled: list[tuple[int, Distinct, str]] = []
    names: list[dict[str, str]] = []
    unmapped: list[dict[str, int]] = []
    for m, mode in enumerate(rule.modes):
        codes = [Code(r[1], r[2], r[3], r[4]) for r in by_mode[mode]]
        groups = _groups(con, codes, study, mode, each_alone)
        unmapped.append(defaultdict(int))
        for r, targets in zip(by_mode[mode], groups):
            if not targets:
                unmapped[m][r[1]] += r[4]
                fate.setdefault(r[:3], f"{mode}: code has no group")
            labelled += [(m, r[:3], label) for label in targets]
        names.append({label: name for targets in groups for label, name in targets.items()})
    every = [sorted(titles) for titles in names]
    number = {(m, x): i for m, labels in enumerate(every) for i, x in enumerate(labels)}
    people, sites = _integers(con, rule, [(m, d, number[m, x]) for m, d, x in labelled])
    # Exactly only where it decides; elsewhere it is a figure of the report.
    patients = _frequency(
        con, PATIENTS if rule.top else PATIENTS.replace("count(DISTINCT p)", "approx_count_distinct(p)"), every
    )
    frequency = patients if rule.top_by == "patients" or not rule.top else _frequency(con, _visits(rule), every)
    axes, fixed = _kept(rule, study, names, every, frequency, each_alone)
    coverage = tuple(map(_coverage, rule.modes, by_mode.values(), unmapped, patients))
    index = [{x: i for i, x in enumerate(a.labels or ())} for a in axes]
    _choose(con, every, index)
    counted = {d for m, d, label in labelled if label in index[m]}
    for m, d, label in labelled:
        if label not in index[m]:
            reason = "not in the public list" if rule.modes[m] in rule.vocabulary else "not among the chosen codes"
            fate.setdefault(d, f"{rule.modes[m]}: {reason}")
    return Vocabulary(tuple(axes), coverage, _account(rows, counted, fate, rule), tuple(fixed), people, sites)


def _groups(con: Connection, codes: Sequence[Code], study: Study, mode: str, each_alone: bool) -> list[dict[str, str]]:
    """Return label -> name for every code: none, one, or several (a drug of two ingredients)."""
    rule = study.codes.get(mode, CodeRule())
    targets = _targets(con, codes, study, mode, each_alone)
    keep = rule.unmapped == "keep"
    return [
        {g.label: g.name for g in targets[c] if g.label is not None}
        or ({c.code: c.description or c.code} if keep else {})
        for c in codes
    ]


def _targets(
    con: Connection, codes: Sequence[Code], study: Study, mode: str, each_alone: bool
) -> dict[Code, list[Group]]:
    """Return the groups of every code. Its own system says how it is grouped, whatever other codes there are."""
    rule = study.codes.get(mode, CodeRule())
    concepts = [c for c in codes if is_roll_up(rule.to, c)]
    texts = [c for c in codes if not is_roll_up(rule.to, c)]
    grouped = group(texts, rule, kind=mode, folder=study.folder, each_alone=each_alone) if texts else []
    rolled = _rolled(con, concepts, study, rule, each_alone)
    return dict(zip(concepts, rolled)) | {c: [g] for c, g in zip(texts, grouped)}


def _rolled(
    con: Connection, codes: Sequence[Code], study: Study, rule: CodeRule, each_alone: bool
) -> Sequence[list[Group]]:
    try:
        return roll_up(con, codes, rule.to, study.folder) if codes else []
    except DataError as e:
        if not each_alone:
            raise
        # one patient's concept must not end the part of patients with other codes
        note_skipped(con, e.what, sum(c.rows for c in codes))
        return [[] for _ in codes]


def _need_events(by_mode: Mapping[str, Sequence[Any]], rows: Sequence[Any]) -> None:
    """Refuse a mode without events."""
    absent = [m for m, found in by_mode.items() if not found]
    if absent:
        raise DataError(
            "no events for some modes",
            faults=[f"mode {m!r}: no event of this kind" for m in absent],
            hint=f"the kinds there are: {', '.join(sorted({str(r[0]) for r in rows})) or 'none'}",
        )


def _coverage(mode: str, rows: Sequence[Any], unmapped: Mapping[str, int], patients: NDArray[np.int64]) -> ModeCoverage:
    ranked = tuple(sorted(unmapped.items(), key=lambda x: (-x[1], x[0]))[:TOP])
    median = float(np.median(patients)) if len(patients) else 0.0
    return ModeCoverage(mode, sum(r[4] for r in rows), sum(unmapped.values()), ranked, median)


def _account(found: Sequence[Any], used: set[Distinct], fate: Mapping[Distinct, str], rule: TensorRule) -> Stage:
    dropped: dict[str, int] = defaultdict(int)
    total = out = 0
    for r in found:
        total += r[4]
        if r[:3] in used:
            out += r[4] - r[5]
            dropped[lacks(rule)] += r[5]
        else:
            dropped[fate.get(r[:3]) or f"kind {r[0]!r} is not in the study"] += r[4]
    return Stage("choose codes", total, out, {k: v for k, v in dropped.items() if v})


def _view(con: Connection, events: str, rule: TensorRule, study: Study) -> None:
    """The view ``events`` that everything below reads; a range file decides what is abnormal."""
    if rule.ranges:
        path = study.path(rule.ranges)
        with reading(str(path)):
            con.execute(
                "CREATE OR REPLACE TEMP TABLE ranges AS SELECT CAST(code AS VARCHAR) AS code, CAST(low AS DOUBLE) AS low, "
                f"CAST(high AS DOUBLE) AS high FROM read_csv({literal(str(path))}, all_varchar = true, header = true)"
            )
        kind = "CASE WHEN e.kind = 'lab' AND (e.value < r.low OR e.value > r.high) THEN 'abnormal_lab' ELSE e.kind END AS kind"
        source = f"{events} e LEFT JOIN ranges r ON r.code = e.code"
    else:
        kind, source = "e.kind", f"{events} e"
    query = f"SELECT e.patient_id, e.visit_id, e.time, {kind}, e.code, e.system, e.description, e.site FROM {source}"
    con.execute(f"CREATE OR REPLACE TEMP VIEW events AS {_timed(query, study) if 'time' in rule.modes else query}")


def _timed(query: str, study: Study) -> str:
    """Events and, for every visit and day of theirs, an event of the kind ``time``: its bin of days since the index date.

    A visit that lies in two bins is two places, so that codes meet the bin in which they occurred.
    """
    edges = study.time.bins if study.time is not None else ()
    names = study.time.labels if study.time is not None else ()
    since = "(CAST(q.time AS DATE) - m.index_date)"
    cases = " ".join(
        f"WHEN {since} >= {a} AND {since} {'<=' if n == len(names) else '<'} {b} THEN {literal(x)}"
        for n, ((a, b), x) in enumerate(zip(pairwise(edges), names, strict=True), start=1)
    )
    binned = (
        f"SELECT q.* REPLACE (q.visit_id || ' in ' || (CASE {cases} END) AS visit_id), CASE {cases} END AS bin "
        f"FROM ({query}) q JOIN member m USING (patient_id)"
    )
    return (
        f"SELECT * EXCLUDE (bin) FROM ({binned}) UNION ALL SELECT DISTINCT patient_id, visit_id, "
        "CAST(CAST(time AS DATE) AS TIMESTAMP), 'time', bin, NULL, NULL, site "
        f"FROM ({binned}) WHERE bin IS NOT NULL"
    )


def _kinds(mode: str) -> tuple[str, ...]:
    return ("lab", "abnormal_lab") if mode == "lab" else (mode,)  # every abnormal result is also a result


def _integers(
    con: Connection, rule: TensorRule, labelled: Sequence[tuple[int, Distinct, int]]
) -> tuple[NDArray[np.object_], tuple[str, ...]]:
    """Make ``fact``; returns the patients by number, in order of name, and the sites by number."""
    con.execute(
        "CREATE OR REPLACE TEMP TABLE codemap (mode UTINYINT, kind VARCHAR, code VARCHAR, system VARCHAR, label UINTEGER)"
    )
    if labelled:
        texts = [np.array([d[k] or "" for _, d, _ in labelled], dtype=object) for k in range(3)]
        rows = {
            "m": np.array([m for m, _, _ in labelled], np.uint8),
            **dict(zip("kcs", texts)),
            "l": np.array([x for _, _, x in labelled], np.uint32),
        }
        con.register("incoming", rows)
        con.execute("INSERT INTO codemap SELECT m, k, c, s, l FROM incoming")
        con.unregister("incoming")
    time = "epoch_us(e.time)" if rule.hours is not None else "CAST(NULL AS BIGINT)"
    with reading("events"):
        con.execute(
            "CREATE OR REPLACE TEMP TABLE people AS SELECT patient_id, CAST(row_number() OVER (ORDER BY patient_id) - 1 AS "
            "INTEGER) AS p FROM (SELECT DISTINCT patient_id FROM events)"
        )
        con.execute(
            "CREATE OR REPLACE TEMP TABLE places AS SELECT patient_id, tick, p, CAST(row_number() OVER (ORDER BY p) - 1 AS "
            f"INTEGER) AS w FROM (SELECT DISTINCT patient_id, {tick(rule)} AS tick FROM events) JOIN people USING (patient_id) "
            "WHERE tick IS NOT NULL"
        )
        con.execute(
            "CREATE OR REPLACE TEMP TABLE houses AS SELECT site, CAST(row_number() OVER (ORDER BY site) - 1 AS INTEGER) AS s "
            "FROM (SELECT DISTINCT site FROM events WHERE site IS NOT NULL)"
        )
        con.execute(
            "CREATE OR REPLACE TEMP TABLE fact AS SELECT d.p, d.w, c.mode, c.label AS code, "
            f"{time} AS t, h.s FROM {MATCH} JOIN places d ON d.patient_id = e.patient_id AND d.tick = {tick(rule, 'e.')} "
            "LEFT JOIN houses h ON h.site = e.site"
        )
        people = con.execute("SELECT patient_id FROM people ORDER BY p").fetchnumpy()["patient_id"]
        sites = tuple(str(r[0]) for r in con.execute("SELECT site FROM houses ORDER BY s").fetchall())
        for table in ("people", "places", "houses"):
            con.execute(f"DROP TABLE {table}")
    return np.asarray(people, dtype=object), sites


def _frequency(con: Connection, query: str, every: Sequence[Sequence[str]]) -> list[NDArray[np.int64]]:
    """How many patients (or visits) have each label of each mode."""
    out = [np.zeros(len(labels), np.int64) for labels in every]
    for m, code, n in con.execute(query).fetchall():
        out[m][code] = n
    return out


def _visits(rule: TensorRule) -> str:
    return (
        f"SELECT c.mode, c.label, count(DISTINCT (e.patient_id, e.visit_id)) FROM {MATCH} "
        f"WHERE {tick(rule, 'e.')} IS NOT NULL GROUP BY 1, 2"
    )


def _refuse_other_spelling(mode: str, file: str, listed: Sequence[str], titles: Mapping[str, str]) -> None:
    """A public list that writes codes with dots, or of which no code occurs, would drop most rows of its mode."""
    dotted = {x: x.replace(".", "").upper() for x in listed if x not in titles}
    respelled = sorted(x for x, plain in dotted.items() if plain in titles)
    if respelled:
        what = f"{len(respelled)} codes of {file} are spelled otherwise here"
        pair = respelled[0], dotted[respelled[0]]
    elif titles and not any(x in titles for x in listed):
        what, pair = f"no code of {file} occurs here", (min(listed), min(titles))
    else:
        return
    raise DataError(
        f"mode {mode!r}: {what}",
        faults=[f"the list has {pair[0]!r}, the tensor {pair[1]!r}"],
        hint=f"spell the list as the tensor does (no dots), or [codes.{mode}] to = 'as-is'",
    )


def _kept(
    rule: TensorRule,
    study: Study,
    names: Sequence[Mapping[str, str]],
    every: Sequence[Sequence[str]],
    counted: Sequence[NDArray[np.int64]],
    each_alone: bool,
) -> tuple[list[Axis], list[bool]]:
    """Every axis, its labels sorted; and whether it is fixed (a list or top k) or only what co-occurs."""
    axes: list[Axis] = []
    fixed = []
    for mode, titles, labels, often in zip(rule.modes, names, every, counted):
        if mode == "time" and study.time is not None and study.time.bins:
            axes.append(Axis(mode, study.time.labels, vocabulary="public"))  # in order, known before any record is read
        elif mode in rule.vocabulary:
            axis = read_public_axis(mode, study.path(rule.vocabulary[mode]))
            if not each_alone:  # in a formal study nothing that is sent depends on the codes that occur
                _refuse_other_spelling(mode, rule.vocabulary[mode], axis.labels or (), titles)
            axes.append(axis)
        else:
            often_first = np.lexsort((np.arange(len(labels)), -often))[: rule.top.get(mode)]
            top_labels = tuple(labels[i] for i in sorted(often_first.tolist()))
            axes.append(Axis(mode, top_labels, tuple(titles[x] for x in top_labels), "data"))
        fixed.append(mode in rule.vocabulary or mode in rule.top or axes[-1].vocabulary == "public")
    empty = [a.name for a in axes if not a.labels]
    if empty:
        raise DataError(
            "no codes are left",
            faults=[f"mode {m!r}: every code was dropped" for m in empty],
            hint="see [codes]",
        )
    return axes, fixed


def _choose(con: Connection, every: Sequence[Sequence[str]], index: Sequence[Mapping[str, int]]) -> None:
    """The table ``chosen``: mode, label of ``fact`` -> index of the axis."""
    rows = [(m, i, index[m][x]) for m, labels in enumerate(every) for i, x in enumerate(labels) if x in index[m]]
    con.execute("CREATE OR REPLACE TEMP TABLE chosen (mode UTINYINT, label UINTEGER, code INTEGER)")
    table = np.array(rows, np.int64).reshape(-1, 3)
    con.register("incoming", {k: np.ascontiguousarray(table[:, n]) for n, k in enumerate("mlc")})
    con.execute("INSERT INTO chosen SELECT m, l, c FROM incoming")
    con.unregister("incoming")
