"""Cohort definitions of ATLAS on open OMOP data: the members are those that other SQL counts by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.node.dossier.sources import Sources
from polyclinic.node.dossier.study_protocol import cohort
from polyclinic.node.signed_study import make_order, read_order
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.records.events import atlas
from polyclinic.records.ingest import Ingested, ingest

pytest.importorskip("circe", reason="the extra atlas is not installed")
Find = Callable[[str], Path]
SINUSITIS, FEMALE, AMOXICILLIN = 40481087, 8532, 1713671
WEIGHT = 3025315  # body weight, in kg
FIRST = {"Type": "First"}


def concepts(number: int, concept: int, descendants: bool = True) -> dict[str, Any]:
    item = {"concept": {"CONCEPT_ID": concept, "CONCEPT_NAME": f"concept {concept}"}, "includeDescendants": descendants}
    return {"id": number, "name": f"set {number}", "expression": {"items": [item]}}


def definition(criteria: dict[str, Any], sets: list[dict[str, Any]], prior: int = 0, rules: Any = ()) -> dict[str, Any]:
    return {
        "ConceptSets": sets,
        "PrimaryCriteria": {
            "CriteriaList": [criteria],
            "ObservationWindow": {"PriorDays": prior, "PostDays": 0},
            "PrimaryCriteriaLimit": FIRST,
        },
        "QualifiedLimit": FIRST,
        "ExpressionLimit": FIRST,
        "InclusionRules": list(rules),
        "CensoringCriteria": [],
        "CollapseSettings": {"CollapseType": "ERA", "EraPad": 0},
        "CensorWindow": {},
        "cdmVersionRange": ">=5.0.0",
    }


def followed_by_a_drug(days: int) -> dict[str, Any]:
    window = {"Start": {"Days": 0, "Coeff": -1}, "End": {"Days": days, "Coeff": 1}, "UseEventEnd": False}
    drug = {"Criteria": {"DrugExposure": {}}, "StartWindow": window, "Occurrence": {"Type": 2, "Count": 1}}
    group = {"Type": "ALL", "CriteriaList": [drug], "DemographicCriteriaList": [], "Groups": []}
    return {"name": "a drug soon after", "expression": group}


OBSERVED = "o.person_id = f.person_id AND f.d BETWEEN o.observation_period_start_date AND o.observation_period_end_date"
SICK = f"(SELECT person_id, min(condition_start_date) AS d FROM condition_occurrence WHERE condition_concept_id = {SINUSITIS} GROUP BY 1) f"
BY_HAND: dict[str, tuple[dict[str, Any], str]] = {
    "first condition, observed for a year": (
        definition({"ConditionOccurrence": {"CodesetId": 0, "First": True}}, [concepts(0, SINUSITIS)], prior=365),
        (
            f"SELECT f.person_id, d FROM {SICK} JOIN observation_period o ON {OBSERVED} "
            "AND f.d >= o.observation_period_start_date + INTERVAL 365 DAY"
        ),
    ),
    "women of 18 and more": (
        definition(
            {
                "ConditionOccurrence": {
                    "CodesetId": 0,
                    "First": True,
                    "Age": {"Value": 18, "Op": "gte"},
                    "Gender": [{"CONCEPT_ID": FEMALE, "CONCEPT_NAME": "FEMALE"}],
                }
            },
            [concepts(0, SINUSITIS)],
        ),
        (
            f"SELECT f.person_id, d FROM {SICK} JOIN person p USING (person_id) JOIN observation_period o ON {OBSERVED} "
            f"WHERE gender_concept_id = {FEMALE} AND year(d) - year_of_birth >= 18"
        ),
    ),
    "followed by any drug within 30 days": (
        definition(
            {"ConditionOccurrence": {"CodesetId": 0, "First": True}},
            [concepts(0, SINUSITIS)],
            rules=[followed_by_a_drug(30)],
        ),
        (
            f"SELECT f.person_id, d FROM {SICK} JOIN observation_period o ON {OBSERVED} WHERE EXISTS (FROM drug_exposure x WHERE "
            "x.person_id = f.person_id AND drug_exposure_start_date BETWEEN d AND d + INTERVAL 30 DAY)"
        ),
    ),
    "first weight above 80": (
        definition(
            {"Measurement": {"CodesetId": 0, "ValueAsNumber": {"Value": 80, "Op": "gt"}}}, [concepts(0, WEIGHT, False)]
        ),
        (
            "SELECT f.person_id, min(d) AS d FROM (SELECT person_id, measurement_date AS d FROM measurement WHERE "
            f"measurement_concept_id = {WEIGHT} AND value_as_number > 80) f JOIN observation_period o ON {OBSERVED} GROUP BY 1"
        ),
    ),
    "below an ancestor": (
        definition({"ConditionOccurrence": {"CodesetId": 0, "First": True}}, [concepts(0, 1)]),
        (
            "SELECT f.person_id, d FROM (SELECT person_id, min(condition_start_date) AS d FROM condition_occurrence WHERE "
            f"condition_concept_id IN (SELECT descendant_concept_id FROM concept_ancestor WHERE ancestor_concept_id = 1) GROUP BY 1) f "
            f"JOIN observation_period o ON {OBSERVED}"
        ),
    ),
}


@pytest.fixture(scope="module")
def cdm(data_path: Find, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The open tables in a database; the folder has no concept_ancestor, so every concept is below itself, and three below 1."""
    path = tmp_path_factory.mktemp("cdm") / "cdm.duckdb"
    with duckdb.connect(str(path)) as con:
        for file in sorted(data_path("synthea27nj_omop").glob("*.csv.gz")):
            con.execute(f"CREATE TABLE {file.name.partition('.')[0].lower()} AS SELECT * FROM read_csv('{file}')")
        con.execute(
            "CREATE TABLE concept_ancestor AS SELECT concept_id AS ancestor_concept_id, concept_id AS descendant_concept_id FROM concept"
        )
        con.execute("INSERT INTO concept VALUES (1, 'made up', 'Condition', 'SNOMED', '', 'S', '1', NULL, NULL, NULL)")
        con.execute(
            "INSERT INTO concept_ancestor SELECT 1, concept_id FROM (SELECT condition_concept_id AS concept_id FROM "
            "condition_occurrence GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 3)"
        )
    return path


def run(cdm: Path, folder: Path, cohort: dict[str, Any], text: str, **options: Any) -> Ingested:
    folder.mkdir(exist_ok=True)
    (folder / "cohort.json").write_text(text)
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", **cohort}}, folder=folder)
    tensor = {"modes": ["diagnosis", "procedure"], "window": "patient"}
    sections = {"study": {"name": "s"}, "tensor": tensor, "cohort": {"atlas": "cohort.json"}}
    return ingest(node, Study.parse(sections, folder=folder), folder / "out", **options)


def members(folder: Path) -> int:
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    return int(next(a["patients"] for a in manifest["attrition"] if a["step"] == "cohort"))


@pytest.mark.parametrize(
    ("name", "formal"), [*((n, False) for n in BY_HAND), ("followed by any drug within 30 days", True)]
)
def test_members_are_those_counted_by_hand(cdm: Path, tmp_path: Path, name: str, formal: bool) -> None:
    expression, sql = BY_HAND[name]
    run(cdm, tmp_path, {"database": str(cdm)}, json.dumps(expression), skip_faulty=formal)
    with duckdb.connect(str(cdm), read_only=True) as con:
        expected = dict(con.execute(sql).fetchall())
    assert 1 < len(expected) < 28
    assert members(tmp_path) == len(expected)
    with duckdb.connect() as con:
        events = str(tmp_path / "out" / "events.parquet")
        read = {int(p) for (p,) in con.execute("SELECT DISTINCT patient_id FROM read_parquet(?)", [events]).fetchall()}
    assert read <= set(expected)


def test_a_folder_of_texts_gives_the_same_members(cdm: Path, tmp_path: Path) -> None:
    expression, sql = BY_HAND["first weight above 80"]
    folder = tmp_path / "csv"
    folder.mkdir()
    with duckdb.connect(str(cdm), read_only=True) as con:
        for (table,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            con.execute(f"COPY {table} TO '{folder / table}.csv'")
        expected = len(con.execute(sql).fetchall())
    run(cdm, tmp_path, {"folder": "csv"}, json.dumps({"name": "exported with its name", "expression": expression}))
    assert members(tmp_path) == expected


HOSTILE = (
    "INSERT INTO main.found SELECT 1, person_id, DATE '2020-01-01', NULL FROM read_csv('{secret}')",
    "COPY cdm.condition_occurrence TO '{secret}'",
    "ATTACH '{secret}' AS other",
    "SET enable_external_access = true",
)


@pytest.mark.parametrize("statement", HOSTILE)
def test_no_statement_of_a_cohort_reaches_a_file(
    cdm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """The SQL is made from a text that a stranger wrote: whatever it becomes, it can reach these tables only."""
    secret = tmp_path / "secret.csv"
    secret.write_text("person_id\n1\n")
    made = [statement.format(secret=secret), "SELECT condition_concept_id FROM cdm.condition_occurrence"]
    monkeypatch.setattr(atlas, "_compiled", lambda text: made)
    with pytest.raises(DataError, match=r"the cohort cohort\.json"):
        run(cdm, tmp_path, {"database": str(cdm)}, "{}")
    assert secret.read_text() == "person_id\n1\n"


def test_the_definition_travels_in_the_order_and_is_shown_in_plain_language(cdm: Path, tmp_path: Path) -> None:
    text = json.dumps(BY_HAND["women of 18 and more"][0])
    (tmp_path / "hf.json").write_text(text)
    (tmp_path / "d.csv").write_text("code,name\n1,a\n")
    sections = {
        "study": {"name": "s", "description": "?"},
        "tensor": {"modes": ["diagnosis"], "vocabulary": {"diagnosis": "d.csv"}, "side_by_side": True},
        "cohort": {"atlas": "hf.json"},
        "method": {"name": "dpem", "rank": 2, "aggregation": "plain"},
    }
    key, coordinator = Identity.generate("a"), Identity.generate("coordinator")
    order = make_order(Study.parse(sections, folder=tmp_path), "s", {"a": key.public.hex()}, coordinator)
    read = read_order(order.encode(), coordinator.public)
    sha = hashlib.sha256(text.encode()).hexdigest()
    assert read.files[f"{sha}.json"] == text
    (tmp_path / "laid").mkdir()
    study = read.parsed(tmp_path / "laid")
    assert study.cohort is not None
    assert study.path(str(study.cohort.atlas)).read_text() == text
    shown = " ".join(cohort(Sources(read.study, read)))
    assert sha in shown
    assert "condition occurrence of 'set 0'" in shown
    assert "who are female >= 18 years old" in shown


def test_what_is_no_definition_and_a_table_that_lacks_are_named(cdm: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a cohort definition of ATLAS"):
        run(cdm, tmp_path, {"database": str(cdm)}, "[1]")
    expression = definition({"DrugEra": {"CodesetId": 0}}, [concepts(0, AMOXICILLIN)])
    with pytest.raises(DataError, match="no table drug_era"):
        run(cdm, tmp_path, {"database": str(cdm)}, json.dumps(expression))
