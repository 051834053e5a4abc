"""Outcomes of patients: death in hospital, readmission, or any yes/no column of the visit table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from polyclinic.config import LabelRule
from polyclinic.errors import DataError
from polyclinic.records.databases.engine import Connection, identifier, note_skipped, numbers, reading
from polyclinic.records.sources.base import OpenedSource

YES: Final = "('1', '1.0', 'true', 't', 'yes', 'y')"
NO: Final = "('0', '0.0', 'false', 'f', 'no', 'n')"


@dataclass(frozen=True)
class Labels:
    """The outcome in words, and how often it occurred; the table ``labels`` (patient_id, label) holds it."""

    outcome: str
    counts: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Plain values for the manifest."""
        return {"outcome": self.outcome, **self.counts}

    def need_two_levels(self) -> None:
        """Refuse an outcome that is the same for everybody."""
        known, positive = self.counts.get("patients", 0), self.counts.get("patients positive", 0)
        if known and positive in (0, known):
            raise DataError(
                f"outcome {self.outcome!r} is {int(positive > 0)} for all {known} patients",
                hint="0 and 1 must both occur: [source] positive = [...] names the values that mean yes",
            )

    def words(self) -> str:
        """For people: what it is, and of how many patients and visits it is known.

        >>> Labels("mortality", {"visits": 9, "visits positive": 2, "patients": 5, "patients positive": 1}).words()
        'mortality: 1 of 5 patients; 2 of 9 visits'
        """
        n = dict(self.counts)
        parts = [
            f"{n.pop(f'{k} positive'):,} of {n.pop(k):,} {k}" for k in ("patients", "visits") if f"{k} positive" in n
        ]
        return f"{self.outcome}: " + "; ".join([*parts, *(f"{v:,} {k}" for k, v in n.items() if v)])


def read_labels(
    con: Connection,
    opened: OpenedSource,
    rule: LabelRule | None,
    column: str | None = None,
    *,
    skip_faulty: bool = False,
) -> Labels | None:
    """Make the table ``labels`` of the engine; None where the source has no outcome.

    With ``skip_faulty`` a label that cannot be read is unknown, and nobody else's changes.

    A patient's label is 1 if it holds for any of the patient's visits. Readmission: another visit starts after, and
    within ``days`` of, the end of a visit that the patient survived; a patient without such a visit has no label.
    """
    con.execute("CREATE OR REPLACE TABLE labels (patient_id VARCHAR, label INTEGER)")
    if opened.labels is not None and (rule is None or rule.outcome == "label" or opened.visits is None):
        return _given(con, opened.labels, rule.outcome if rule else "label", skip_faulty)
    outcome = rule.outcome if rule else column or "mortality"
    if opened.visits is None:
        if rule is None:
            return None
        raise DataError(
            f"outcome {outcome!r}: this source has no visit table",
            hint="give [source] labels or label, or drop [labels]",
        )
    with reading("visits"):
        con.execute(f"CREATE OR REPLACE TEMP TABLE visits AS {opened.visits}")
        names = {str(r[0]) for r in con.execute("DESCRIBE visits").fetchall()}
    if outcome == "readmission":
        return _readmission(con, rule.days if rule else 30)
    visit_column = "died" if outcome == "mortality" else outcome
    if visit_column not in names:
        column_note = f" (that is {visit_column!r})" if visit_column != outcome else ""
        raise DataError(
            f"outcome {outcome!r}{column_note} is no column of the visits", hint=f"there are {', '.join(sorted(names))}"
        )
    text = f"lower(trim(CAST({identifier(visit_column)} AS VARCHAR)))"
    unreadable = _one(
        con, f"SELECT count(*) FROM visits WHERE {text} IS NOT NULL AND {text} NOT IN {YES} AND {text} NOT IN {NO}"
    )
    if unreadable and skip_faulty:
        note_skipped(con, f"outcome {outcome!r}: visits are neither yes nor no", unreadable)
        text = f"CASE WHEN {text} IN {YES} OR {text} IN {NO} THEN {text} END"
    elif unreadable:
        raise DataError(
            f"outcome {outcome!r}: {unreadable} visits are neither yes nor no{_which(con, 'visits', text)}",
            hint="name the values that mean yes: [source] positive = [...]",
        )
    visits, labelled_visits, yes = numbers(
        con, f"SELECT count(*), count({text}), count(*) FILTER ({text} IN {YES}) FROM visits"
    )
    if outcome == "mortality" and not labelled_visits and rule is None:
        return None
    con.execute(
        f"INSERT INTO labels SELECT CAST(patient_id AS VARCHAR), CAST(bool_or({text} IN {YES}) AS INTEGER) FROM visits "
        f"WHERE patient_id IS NOT NULL AND {text} IS NOT NULL GROUP BY 1"
    )
    return Labels(
        outcome,
        {"visits": visits, "visits positive": yes, "visits unknown": visits - labelled_visits, **_patients(con)},
    )


def _which(con: Connection, table: str, text: str) -> str:
    """Ask which level is the event, where there are few."""
    levels = [
        str(r[0])
        for r in con.execute(f"SELECT DISTINCT {text} FROM {table} WHERE {text} <> '' ORDER BY 1 LIMIT 6").fetchall()
    ]
    return f": which of {', '.join(levels)} is the event?" if len(levels) < 6 else ""


def _given(con: Connection, query: str, outcome: str, skip_faulty: bool) -> Labels:
    with reading("labels"):
        con.execute(
            "CREATE OR REPLACE TEMP TABLE given AS SELECT CAST(patient_id AS VARCHAR) AS patient_id, "
            f"lower(trim(CAST(label AS VARCHAR))) AS label FROM ({query})"
        )
    rows = _one(con, "SELECT count(*) FROM given")
    repeated = _one(con, "SELECT count(*) FROM (SELECT patient_id FROM given GROUP BY 1 HAVING count(*) > 1)")
    nobody = _one(con, "SELECT count(*) FROM given WHERE patient_id IS NULL")
    number = f"CASE WHEN label IN {YES} THEN 1 WHEN label IN {NO} THEN 0 END"
    unreadable = _one(con, f"SELECT count(*) FROM given WHERE label IS NOT NULL AND label <> '' AND ({number}) IS NULL")
    faults = []
    if repeated:
        faults.append(f"{repeated} patients have more than one row")
    if nobody:
        faults.append(f"{nobody} rows have no patient_id")
    if unreadable:
        faults.append(f"{unreadable} labels are neither yes nor no{_which(con, 'given', 'label')}")
    if not rows:
        faults.append("the table is empty")
    if skip_faulty:
        note_skipped(con, "labels: patients with more than one row", repeated)
        note_skipped(con, "labels: neither yes nor no", unreadable)
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE given AS SELECT patient_id, any_value(label) AS label FROM given "
            f"WHERE patient_id IS NOT NULL GROUP BY 1 HAVING count(*) = 1 AND any_value({number}) IS NOT NULL"
        )
    elif faults:
        unknown = (
            '; [source] positive = ["2"] says what means yes, missing = ["", "NA"] what means unknown'
            if unreadable
            else ""
        )
        hint = f"one row a patient: patient_id, label (0 or 1){unknown}"
        raise DataError("the label table is not usable", faults=faults, hint=hint)
    con.execute(f"INSERT INTO labels SELECT patient_id, {number} FROM given WHERE label IS NOT NULL AND label <> ''")
    return Labels(
        outcome, {"rows": rows, "rows without label": rows - _one(con, "SELECT count(*) FROM labels"), **_patients(con)}
    )


def _readmission(con: Connection, days: int) -> Labels:
    text = "lower(CAST(died AS VARCHAR))"
    con.execute(
        "CREATE OR REPLACE TEMP TABLE stays AS SELECT CAST(patient_id AS VARCHAR) AS patient_id, "
        f"TRY_CAST(starts AS TIMESTAMP) AS starts, TRY_CAST(ends AS TIMESTAMP) AS ends, coalesce({text} IN {YES}, false) "
        "AS died FROM visits"
    )
    con.execute(
        "CREATE OR REPLACE TEMP TABLE judged AS SELECT patient_id, "
        f"coalesce(next >= ends AND next <= ends + INTERVAL {int(days)} DAY, false) AS back FROM (SELECT *, lead(starts) OVER "
        "(PARTITION BY patient_id ORDER BY starts, ends) AS next FROM stays) "
        "WHERE NOT died AND ends IS NOT NULL AND patient_id IS NOT NULL"
    )
    con.execute("INSERT INTO labels SELECT patient_id, CAST(bool_or(back) AS INTEGER) FROM judged GROUP BY 1")
    total, deaths, undated = numbers(
        con, "SELECT count(*), count(*) FILTER (died), count(*) FILTER (NOT died AND ends IS NULL) FROM stays"
    )
    readmitted = _one(con, "SELECT count(*) FILTER (back) FROM judged")
    return Labels(
        f"readmission within {days} days",
        {
            "visits": total,
            "visits positive": readmitted,
            "visits ended by death": deaths,
            "visits without end": undated,
            **_patients(con),
        },
    )


def _patients(con: Connection) -> dict[str, int]:
    n, yes = numbers(con, "SELECT count(*), count(*) FILTER (label = 1) FROM labels")
    return {"patients": n, "patients positive": yes}


def _one(con: Connection, sql: str) -> int:
    return numbers(con, sql)[0]
