"""What a protocol takes out, told to the database: those rows do not travel, they are only counted there.

Pushed down are opt-out, cohort, age, washout, study period, observation period, visit types and look-back. An index date that
visits or the COHORT table decide is made by the engine first, from the small tables, and sent along; one that codes or the
owner's SQL decide needs the rows themselves, and then only opt-out is pushed. The judge stays the engine: the database
leaves out only what the engine would leave out, too, and what it leaves out comes back as a number of rows for each
patient and step.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from polyclinic.config import Node, Study
from polyclinic.records.databases.attrition import STEPS
from polyclinic.records.databases.engine import Connection, identifier, literal

# OMOP visit concepts; other sources write words.
TYPES: Final = {
    "inpatient": ("9201", "262", "8717", "inpatient"),
    "outpatient": ("9202", "5083", "outpatient"),
    "emergency": ("9203", "262", "emergency"),
}
WHOLE: Final = ("integer", "bigint", "smallint", "text", "character varying")
DAYS: Final = ("date", "timestamp without time zone")
WHY: Final = {
    "opt-out": "opted out",
    "cohort": "not in the cohort",
    "study period": "outside the study period",
    "observation period": "outside the observation period",
    "visit types": "not of a visit of these types",
    "look-back": "outside the look-back",
}
# Values of the session that hold who takes part, and their types.
MEMBER_SETTINGS: Final = {
    "polyclinic.member_patients": "text",
    "polyclinic.member_index_dates": "date",
    "polyclinic.member_seen_from": "date",
    "polyclinic.member_seen_to": "date",
}
MOST: Final = 200_000  # members whose index dates are sent to the database; more rows travel instead


@dataclass(frozen=True)
class Keys:
    """Columns of a table of events that a protocol asks about.

    Parameters
    ----------
    patient, visit
        Who, and in which visit.
    times
        When; the first that is not empty.
    code, text
        The standard concept, and the source's own code.
    via
        Table and column that give the visit's day, where ``times`` are empty or there are none (MIMIC: the admission).
    """

    patient: str
    visit: str
    times: tuple[str, ...]
    code: str
    text: str
    via: tuple[str, str] | None = None


@dataclass(frozen=True)
class Members:
    """Who takes part, by the engine: patient, index date, first and last day of the observation period around it.

    >>> Members((("7", "2020-01-02", None, None),)).settings()["polyclinic.member_patients"]
    '{"7"}'
    """

    rows: tuple[tuple[str, str, str | None, str | None], ...]

    def settings(self) -> dict[str, str]:
        """Return the columns as values of the session, which the database never reads as SQL."""
        columns: Sequence[tuple[str | None, ...]] = list(zip(*self.rows)) or [()] * len(MEMBER_SETTINGS)
        return {name: _array(c) for name, c in zip(MEMBER_SETTINGS, columns)}

    @staticmethod
    def relation() -> str:
        """As a relation of PostgreSQL: k, day0, seen_from, seen_to."""
        arrays = ", ".join(f"current_setting('{name}')::{kind}[]" for name, kind in MEMBER_SETTINGS.items())
        return f"(SELECT * FROM unnest({arrays}) AS u(k, day0, seen_from, seen_to))"


def _array(cells: Sequence[str | None]) -> str:
    def one(x: str | None) -> str:
        return "NULL" if x is None else '"' + x.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join(map(one, cells)) + "}"


def _one_of(name: str) -> str:
    """SQL: the texts of a value of the session, looked up once."""
    return f"(SELECT unnest(current_setting('polyclinic.{name}')::text[]))"


@dataclass(frozen=True)
class Push:
    """What the database is asked to leave out; all of it optional.

    Parameters
    ----------
    optout
        Patients.
    definition
        Number in the site's COHORT table.
    start, end
        First and last day, as ISO dates.
    observed
        Whether days outside every observation period go.
    types
        Visit types, in lower case.
    standard
        Whether a row's code is its standard concept.
    members
        Who takes part and from when, where an index date decides; then ``observed`` is about the period around it.
    low, high
        Look-back: days since the index date, from and to.
    late
        Makes ``members`` once the small tables (their names) are there; None: rows travel as they do without.
    """

    optout: tuple[str, ...] = ()
    definition: int | None = None
    start: str | None = None
    end: str | None = None
    observed: bool = False
    types: tuple[str, ...] = ()
    standard: bool = True
    members: Members | None = None
    low: int | None = None
    high: int | None = None
    late: Callable[[Container[str]], Push | None] | None = None

    def settings(self) -> dict[str, str]:
        """Return the texts of study and owner as values of the database's session: they are bound, never part of a statement."""
        lists = {"polyclinic.optout": _array(self.optout), "polyclinic.types": _array(self.types)}
        return lists | (self.members.settings() if self.members is not None else {})

    def decided(self, there: Container[str]) -> Push:
        """With the members, where an index date decides."""
        return (self.late(there) if self.late is not None else None) or self


@dataclass(frozen=True)
class DatabaseServer:
    """Tables of a PostgreSQL schema: their real names there, and the types of their columns.

    Parameters
    ----------
    names
        Standard name -> qualified name, quoted.
    columns
        Standard name -> column, in lower case -> column there.
    types
        Standard name and column -> type.
    """

    names: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]
    types: Mapping[tuple[str, str], str]

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table has these columns."""
        return table in self.names and all(c in self.columns[table] for c in columns)

    def at(self, table: str, column: str, alias: str) -> str:
        """A column, quoted, of an alias."""
        return f"{alias}.{identifier(self.columns[table][column])}"

    def same(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether two columns are there and can be compared as they are."""
        return self.has(*one) and self.has(*other) and self.types[one] == self.types[other] in WHOLE

    def fate(self, table: str, keys: Keys, push: Push) -> str | None:
        """SQL of the step (a number) that takes a row of the table, named ``t``, out; NULL where it must travel."""
        if not self.has(table, keys.patient) or self.types[table, keys.patient] not in WHOLE:
            return None
        patient = self.at(table, keys.patient, "t")
        cases = [f"WHEN {patient}::text IN {_one_of('optout')} THEN 0"] if push.optout else []
        if push.members is not None:
            cases.append("WHEN m.k IS NULL THEN 1")  # why, the engine knows
        elif push.definition is not None and self.same(("cohort", "subject_id"), (table, keys.patient)):
            definition = self.at("cohort", "cohort_definition_id", "c")
            cases.append(
                f"WHEN NOT EXISTS (SELECT 1 FROM {self.names['cohort']} c WHERE {definition}::text = '{push.definition}' "
                f"AND {self.at('cohort', 'subject_id', 'c')} = {patient}) THEN 1"
            )
        cases += self._by_day(table, keys, push, patient)
        return f"CASE WHEN {patient} IS NULL THEN NULL {' '.join(cases)} END" if cases else None

    def _by_day(self, table: str, keys: Keys, push: Push, who: str) -> list[str]:
        times = [c for c in keys.times if self.has(table, c)]
        conditions = (push.start, push.end, push.observed, push.types, push.low is not None, push.high is not None)
        day = self._day(table, keys, times)
        if not any(conditions) or day is None:
            return []
        # No day, or an impossible one, has a reason of its own.
        cases = [f"WHEN {day} IS NULL OR NOT {day} BETWEEN '1800-01-01' AND '2300-12-31' THEN NULL"]
        cases += [f"WHEN {day} < {literal(push.start)} THEN 4"] if push.start else []
        cases += [f"WHEN {day} > {literal(push.end)} THEN 4"] if push.end else []
        if push.members is not None:
            if push.observed:
                cases.append(f"WHEN NOT COALESCE({day} BETWEEN m.seen_from AND m.seen_to, false) THEN 5")
            kinds = self._by_type(table, keys, push, who)
            if push.types and not kinds:
                return cases  # a step that the engine takes comes before the look-back
            ends = [f"{day} - m.day0 >= {push.low}"] if push.low is not None else []
            ends += [f"{day} - m.day0 <= {push.high}"] if push.high is not None else []
            return cases + kinds + ([f"WHEN NOT ({' AND '.join(ends)}) THEN 7"] if ends else [])
        if push.observed and self.has("observation_period", "person_id"):
            spans = ("observation_period_start_date", "observation_period_end_date")
            if not self.same(("observation_period", "person_id"), (table, keys.patient)) or any(
                self.types["observation_period", c] not in DAYS for c in spans
            ):
                return cases
            low, high = (f"{self.at('observation_period', c, 'n')}::date" for c in spans)
            cases.append(
                f"WHEN NOT EXISTS (SELECT 1 FROM {self.names['observation_period']} n WHERE "
                f"{self.at('observation_period', 'person_id', 'n')} = {who} AND {day} BETWEEN {low} AND {high}) THEN 5"
            )
        return cases + self._by_type(table, keys, push, who)

    def _day(self, table: str, keys: Keys, times: Sequence[str]) -> str | None:
        """SQL of a row's day; None where the engine has to make it, out of a text or a time zone."""
        days = [f"{self.at(table, c, 't')}::date" for c in times]
        if any(self.types[table, c] not in DAYS for c in times):
            return None
        if keys.via is not None:
            stays, column = keys.via
            joined = (keys.visit, keys.patient)
            if not all(self.same((stays, c), (table, c)) for c in joined) or self.types.get(keys.via) not in DAYS:
                return None
            days.append(
                f"(SELECT min({self.at(stays, column, 'a')}::date) FROM {self.names[stays]} a WHERE "
                f"{self.at(stays, keys.visit, 'a')} = {self.at(table, keys.visit, 't')} AND "
                f"{self.at(stays, keys.patient, 'a')} = {self.at(table, keys.patient, 't')})"
            )
        return f"COALESCE({', '.join(days)})" if days else None

    def rows(self, table: str, keys: Keys, push: Push) -> str:
        """The table, named ``t``, and who takes part, ``m``, where an index date decides."""
        if push.members is None:
            return f"{self.names[table]} t"
        patient = self.at(table, keys.patient, "t")
        return f"{self.names[table]} t LEFT JOIN {push.members.relation()} m ON m.k = {patient}::text"

    def without(self, table: str, patient: str, push: Push) -> str:
        """SQL: a row of a table of people, named ``t``, is not about somebody who opted out."""
        if not push.optout or not self.has(table, patient) or self.types[table, patient] not in WHOLE:
            return ""
        patient_text = f"{self.at(table, patient, 't')}::text"
        return f"({patient_text} IS NULL OR {patient_text} NOT IN {_one_of('optout')})"

    def _by_type(self, table: str, keys: Keys, push: Push, who: str) -> list[str]:
        visits = "visit_occurrence"
        if not (
            push.types
            and self.same((visits, "visit_occurrence_id"), (table, keys.visit))
            and self.same((visits, "person_id"), (table, keys.patient))
            and self.types.get((visits, "visit_concept_id")) in WHOLE
        ):
            return []
        kind = f"lower(trim({self.at(visits, 'visit_concept_id', 'v')}::text))"
        types = _one_of("types")
        descendants = ""
        if self.has("concept_ancestor", "ancestor_concept_id", "descendant_concept_id"):
            descendants = (
                f" OR {kind} IN (SELECT {self.at('concept_ancestor', 'descendant_concept_id', 'a')}::text FROM "
                f"{self.names['concept_ancestor']} a WHERE {self.at('concept_ancestor', 'ancestor_concept_id', 'a')}::text IN {types})"
            )
        return [
            (
                f"WHEN NOT EXISTS (SELECT 1 FROM {self.names[visits]} v WHERE "
                f"{self.at(visits, 'visit_occurrence_id', 'v')} = {self.at(table, keys.visit, 't')} AND "
                f"{self.at(visits, 'person_id', 'v')} = {who} AND ({kind} IN {types}{descendants})) THEN 6"
            )
        ]

    def counted(self, table: str, keys: Keys, push: Push, fate: str) -> str:
        """Query: patient, step, whether the row has no code, rows; of what the table's rows left behind."""
        column = keys.code if push.standard else keys.text
        code = f"{self.at(table, column, 't')}::text" if self.has(table, column) else "''"
        empty_codes = "'', '0'" if push.standard else "''"
        empty = f"trim(COALESCE({code}, '')) IN ({empty_codes})"
        return (
            f"SELECT {self.at(table, keys.patient, 't')}::text AS patient_id, {fate} AS nth, {empty} AS empty, "
            f"count(*)::bigint AS n FROM {self.rows(table, keys, push)} WHERE {fate} IS NOT NULL GROUP BY 1, 2, 3"
        )


def why(nth: str) -> str:
    """SQL: the reason that belongs to the number of a step."""
    return f"CASE {nth} {' '.join(f'WHEN {STEPS.index(s)} THEN {literal(w)}' for s, w in WHY.items())} END"


def pushed_down(
    con: Connection, node: Node, study: Study | None, members: Callable[[Container[str]], Members | None] | None = None
) -> Push | None:
    """What a database can leave out so that everything else stays as it is; None where nothing.

    An index date comes before observation period, visit types and look-back. ``members`` makes it from the small tables;
    where it cannot (codes or the owner's SQL decide), only opt-out and COHORT table are pushed down.
    """
    optouts = tuple(
        str(r[0])
        for r in con.execute("SELECT patient_id FROM optout WHERE patient_id IS NOT NULL ORDER BY 1").fetchall()
    )
    standard = node.source.kind == "omop" and node.source.codes != "source"
    push = Push(optouts, standard=standard)
    if study is not None:
        push = _of_study(push, study, members)
    return push if push != Push(standard=standard) else None


def _of_study(push: Push, study: Study, members: Callable[[Container[str]], Members | None] | None) -> Push:
    """Add what the study's protocol leaves out."""
    cohort, time, types = study.cohort, study.time, _visit_types(study)
    relative = cohort is not None or bool(time and time.relative)
    by_code = cohort is not None and bool(cohort.sql or cohort.atlas or set(cohort.first) - {"visits"})
    if cohort is not None:
        push = replace(push, definition=cohort.definition)
    if time is not None and not by_code:
        push = replace(push, start=str(time.start) if time.start else None, end=str(time.end) if time.end else None)
    if not relative:
        return replace(push, observed=time is not None, types=types)
    if by_code or members is None:
        return push
    low, high = (None, None) if time is None else time.window
    out = push

    def late(tables: Container[str]) -> Push | None:
        patients = members(tables)
        if patients is None or len(patients.rows) > MOST:
            return None
        observed = "observation_period" in tables
        return replace(out, members=patients, observed=observed, types=types, low=low, high=high)

    return replace(out, late=late)


def _visit_types(study: Study) -> tuple[str, ...]:
    """Return the visit types of a study, in lower case, with the concepts that they stand for."""
    types = [k.strip().lower() for k in study.visits.types] if study.visits is not None else []
    return tuple(sorted({x for k in types for x in TYPES.get(k, (k,))}))
