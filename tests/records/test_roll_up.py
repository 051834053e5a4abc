"""Roll-up of OMOP standard concepts on a small invented vocabulary: equal to counts made by other SQL."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.records.ingest import Ingested, ingest

# 60 invented concepts. Drugs: 24 products, 8 ingredients, ATC groups of three levels. Conditions: 12 below 4 below 2. ICD codes.
PRODUCTS, INGREDIENTS = range(1000, 1024), range(1100, 1108)
CONDITIONS, MIDDLE, TOP = range(2000, 2012), range(2100, 2104), range(2200, 2202)
ATC = {3000: ("A", "1st"), 3001: ("C", "1st"), 3010: ("A10", "2nd"), 3011: ("C07", "2nd"), 3020: ("A10B", "3rd")}
ICD = {4000: "I50.9", 4001: "I50.1", 4002: "E11.9", 4003: "J45.909", 4004: "I10"}
UNMAPPED = {1023, 2011}  # in no hierarchy


def vocabulary() -> tuple[list[str], list[tuple[int, int]], list[tuple[int, int]]]:
    concept = [f"{c},product {c},RxNorm,{c},Clinical Drug" for c in PRODUCTS]
    concept += [f"{c},ingredient {c},RxNorm,{c},Ingredient" for c in INGREDIENTS]
    concept += [f"{c},condition {c},SNOMED,{c},Disorder" for c in (*CONDITIONS, *MIDDLE, *TOP)]
    concept += [f"{c},group {code},ATC,{code},ATC {level}" for c, (code, level) in ATC.items()]
    concept += [f"{c},icd {code},ICD10CM,{code},5-char billing code" for c, code in ICD.items()]
    pairs = []
    for p in PRODUCTS:
        if p not in UNMAPPED:
            pairs.append((INGREDIENTS[p % 8], p))
            pairs += [(INGREDIENTS[(p + 1) % 8], p)] if p % 6 == 0 else []  # two ingredients
            pairs += [(a, p) for a in ((3000, 3010, 3020) if p % 2 else (3001, 3011))]
    for c in CONDITIONS:
        if c not in UNMAPPED:
            pairs += [(MIDDLE[c % 4], c), (TOP[c % 2], c)]
    pairs += [(c, c) for c in (*PRODUCTS, *CONDITIONS)]  # every concept is its own ancestor, as in OMOP
    maps = [(4000, 2000), (4001, 2000), (4002, 2000), (4002, 2001), (4003, 2001), (4004, 2002)]
    return concept, pairs, maps


def omop(folder: Path, version: str = "5.4") -> None:
    concept, pairs, maps = vocabulary()
    assert len(concept) == 60
    people = range(1, 61)
    renamed = "admitted_from_concept_id" if version != "5.3" else "admitting_source_concept_id"
    tables = {
        "person": ["person_id,year_of_birth", *(f"{p},1950" for p in people)],
        "visit_occurrence": [
            f"visit_occurrence_id,person_id,visit_start_date,visit_end_date,visit_concept_id,{renamed}",
            *(f"{p},{p},2020-01-01,2020-01-05,9201,0" for p in people),
        ],
        "condition_occurrence": [
            "person_id,condition_concept_id,condition_start_date,visit_occurrence_id",
            *(f"{p},{CONDITIONS[p % 12]},2020-01-02,{p}" for p in people),
        ],
        "drug_exposure": [
            "person_id,drug_concept_id,drug_exposure_start_date,visit_occurrence_id",
            *(f"{p},{PRODUCTS[p % 24]},2020-01-02,{p}" for p in people),
        ],
        "concept": ["concept_id,concept_name,vocabulary_id,concept_code,concept_class_id", *concept],
        "concept_ancestor": [
            "ancestor_concept_id,descendant_concept_id,min_levels_of_separation",
            *(f"{a},{d},1" for a, d in pairs),
        ],
        "concept_relationship": [
            "concept_id_1,concept_id_2,relationship_id",
            *(f"{a},{b},Maps to" for a, b in maps),
            *(f"{b},{a},Mapped from" for a, b in maps),
        ],
        "cdm_source": ["cdm_source_name,cdm_version", f"invented,{version}"],
    }
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / "groups.csv").write_text("concept_id\n" + "".join(f"{c}\n" for c in TOP))


def read(folder: Path, skip_faulty: bool = True, **to: str) -> Ingested:
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", "folder": "."}}, folder=folder)
    codes = {mode: {"to": rule} for mode, rule in to.items()}
    sections = {"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"]}, "codes": codes}
    return ingest(node, Study.parse(sections, folder=folder), folder / "out", skip_faulty=skip_faulty)


def patients(result: Ingested, mode: int) -> dict[str, int]:
    """Patients by label of a mode."""
    tensor = result.site.counts()
    labels = tensor.axes[mode].labels or ()
    pairs = {(int(c[0]), labels[c[mode]]) for c in tensor.coords}
    return {x: sum(label == x for _, label in pairs) for x in labels}


def independent(folder: Path, table: str, column: str, condition: str, label: str) -> dict[str, int]:
    """The same by plain joins of the files, without any code of Polyclinic."""
    with duckdb.connect() as con:
        rows = con.execute(
            f"SELECT CAST(a.{label} AS VARCHAR), count(DISTINCT t.person_id) FROM '{folder}/{table}.csv' t "
            f"JOIN '{folder}/concept_ancestor.csv' n ON n.descendant_concept_id = t.{column} "
            f"JOIN '{folder}/concept.csv' a ON a.concept_id = n.ancestor_concept_id WHERE {condition} GROUP BY 1"
        ).fetchall()
    return dict(rows)


@pytest.mark.parametrize("version", ["5.3", "5.4", "5.5"])
@pytest.mark.parametrize(
    ("to", "condition", "label"),
    [
        ("ingredient", "a.concept_class_id = 'Ingredient'", "concept_id"),
        ("atc:1", "a.concept_class_id = 'ATC 1st'", "concept_code"),
        ("atc:2", "a.concept_class_id = 'ATC 2nd'", "concept_code"),
        ("atc:3", "a.concept_class_id = 'ATC 3rd'", "concept_code"),
    ],
)
def test_drugs_roll_up_to_ingredients_and_atc_levels(
    tmp_path: Path, version: str, to: str, condition: str, label: str
) -> None:
    omop(tmp_path, version)
    result = read(tmp_path, drug=to)
    expected = independent(tmp_path, "drug_exposure", "drug_concept_id", condition, label)
    assert patients(result, 1) == expected
    assert result.manifest["source"]["read"]["cdm_version"] == version


def test_conditions_roll_up_to_listed_ancestors_and_the_unmapped_are_counted(tmp_path: Path) -> None:
    omop(tmp_path)
    result = read(tmp_path, diagnosis="ancestors:groups.csv")
    condition = f"a.concept_id IN {tuple(TOP)}"
    expected = independent(tmp_path, "condition_occurrence", "condition_concept_id", condition, "concept_id")
    assert patients(result, 2) == expected
    coverage = next(m["coverage"] for m in result.manifest["modes"] if m["mode"] == "diagnosis")
    assert coverage["top_unmapped"] == [["2011", 5]]
    assert coverage["unmapped"] == 5


def test_a_drug_of_two_ingredients_counts_for_both(tmp_path: Path) -> None:
    omop(tmp_path)
    tensor = read(tmp_path, drug="ingredient").site.counts()
    labels = tensor.axes[1].labels or ()
    people = list(tensor.axes[0].labels or ())
    of_two = {labels[c[1]] for c in tensor.coords if people[c[0]] == "2"}  # product 1002
    assert of_two == {str(INGREDIENTS[1002 % 8]), str(INGREDIENTS[1003 % 8])}


def test_concepts_have_the_icd_chapter_of_most_codes_that_map_to_them(tmp_path: Path) -> None:
    omop(tmp_path)
    result = read(tmp_path, diagnosis="chapter")
    # 2000: two codes of I, one of E. 2001: one of E, one of J, so none. 2002: one of I. Others have no code.
    assert patients(result, 2) == {"ICD-10 I00-I99": 10}
    coverage = next(m["coverage"] for m in result.manifest["modes"] if m["mode"] == "diagnosis")
    assert coverage["unmapped"] == 50


def test_a_source_without_the_vocabulary_table_is_told_which(tmp_path: Path) -> None:
    omop(tmp_path)
    (tmp_path / "concept_ancestor.csv").unlink()
    with pytest.raises(DataError, match="no rows in table concept_ancestor"):
        read(tmp_path, skip_faulty=False, drug="ingredient")
    (tmp_path / "concept_relationship.csv").unlink()
    with pytest.raises(DataError, match="no rows in table concept_relationship"):
        read(tmp_path, skip_faulty=False, diagnosis="ccs")
