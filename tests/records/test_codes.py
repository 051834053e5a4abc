"""Codes: one spelling, groupings, names, and a coverage report of what was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.config import CodeRule, Node, Study
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.events.codes import Code, group, normal, shape_fits
from polyclinic.records.ingest import ingest


def mapped(
    to: str, *codes: Code, kind: str = "diagnosis", folder: Path = Path(), **more: object
) -> list[tuple[str | None, str]]:
    rule = CodeRule.model_validate({"to": to, **more})
    return [(g.label, g.name) for g in group(codes, rule, kind=kind, folder=folder)]


@pytest.mark.parametrize(
    ("code", "system", "expected"),
    [
        ("428.0", "icd9cm", "4280"),
        ("0389", "icd9cm", "0389"),
        ("38.9", "icd9cm", "0389"),
        ("8", "icd9cm", "008"),
        ("v57", "icd9cm", "V57"),
        ("E950.9", "icd9cm", "E9509"),
        ("i50.9", "icd10cm", "I509"),
        ("3.9", "icd9proc", "039"),
        ("0.66", "icd9proc", "0066"),
        ("0066", "icd9proc", "0066"),
        (" Aspirin", None, " Aspirin"),
        ("428.0", "local", "428.0"),
    ],
)
def test_one_spelling(code: str, system: str | None, expected: str) -> None:
    assert normal(code, system) == expected


def test_shapes_tell_procedures_from_diagnoses() -> None:
    assert not any(shape_fits(c, "icd9proc") for c in ("25000", "V4581", "E8859"))
    assert all(shape_fits(c, "icd9cm") for c in ("25000", "V4581", "E8859", "401"))


def test_dotted_and_plain_codes_fall_into_one_ccs_group_with_its_name() -> None:
    found = mapped("ccs", Code("428.0", "icd9cm"), Code("4280", "icd9cm"), Code("I50.9", "icd10cm"))
    assert {label for label, _ in found} == {"CCS 108"}
    assert found[0][1] == "Congestive heart failure; nonhypertensive"


def test_a_heading_maps_where_all_its_codes_agree() -> None:
    assert mapped("ccs", Code("428", "icd9cm"))[0][0] == "CCS 108"
    assert mapped("ccs", Code("V1", "icd9cm"))[0][0] is None


def test_ccsr_chapters_blocks_and_rubrics() -> None:
    assert mapped("ccsr", Code("I509", "icd10cm"))[0][0] == "CCSR CIR019"
    assert mapped("ccsr", Code("4280", "icd9cm"))[0][0] == "CCSR CIR019"
    assert mapped("chapter", Code("4280", "icd9cm"))[0] == ("ICD-9 7", "Circulatory system")
    assert mapped("chapter", Code("I509", "icd10cm"))[0] == ("ICD-10 I00-I99", "Diseases of the circulatory system")
    assert mapped("block", Code("I509", "icd10cm"))[0] == ("ICD-10 I30-I5A", "Other forms of heart disease")
    assert mapped("rubric", Code("3722", "icd9proc"), kind="procedure")[0][0] == "37"
    assert mapped("rubric", Code("E9509", "icd9cm"))[0][0] == "E950"
    assert mapped("icd10", Code("4280", "icd9cm"))[0][0] == "I509"


def test_every_label_has_a_name() -> None:
    assert mapped("ccsr", Code("I509", "icd10cm"))[0][1] == "mostly Heart failure, unspecified"
    assert mapped("normal", Code("4280", "icd9cm"))[0][1] == "Congestive heart failure, unspecified"
    assert mapped("normal", Code("x", "local", "an x"))[0] == ("x", "an x")
    assert mapped("normal", Code("x", "local"))[0] == ("x", "x")


def test_mixed_versions_are_allowed_only_on_request() -> None:
    both = (Code("4280", "icd9cm"), Code("I509", "icd10cm"))
    with pytest.raises(DataError, match="mixes ICD-9 and ICD-10"):
        mapped("normal", *both)
    assert [label for label, _ in mapped("normal", *both, mixed=True)] == ["4280", "I509"]


def test_a_map_file_ignores_dots_case_and_blanks(tmp_path: Path) -> None:
    (tmp_path / "phecodes.csv").write_text(
        "code,group,name\n I50.9,428.2,Heart failure NOS\n250.00,250.2,Type 2 diabetes\n"
    )
    found = mapped("phecodes.csv", Code("i509", "icd10cm"), Code("25000", "icd9cm"), Code("zzz"), folder=tmp_path)
    assert found == [("428.2", "Heart failure NOS"), ("250.2", "Type 2 diabetes"), (None, "")]
    assert mapped("phecodes.csv", Code("zzz"), folder=tmp_path, unmapped="keep")[0][0] == "zzz"


def test_a_code_in_two_groups_of_a_map_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("code,group\nI50.9,a\nI509,b\n")
    with pytest.raises(DataError, match="several groups"):
        mapped("m.csv", Code("I509"), folder=tmp_path)
    with pytest.raises(ConfigError, match="neither a known grouping nor a file"):
        mapped("nowhere.csv", Code("I509"), folder=tmp_path)


def test_the_coverage_report_names_the_most_frequent_unmapped_codes(tmp_path: Path) -> None:
    rows = ["1,v,2020-01-01,drug,a"] + ["1,v,2020-01-01,diagnosis,4280"] * 3 + ["1,v,2020-01-01,diagnosis,ZZ"] * 2
    (tmp_path / "e.csv").write_text(
        "patient_id,visit_id,time,kind,code\n" + "\n".join([*rows, "1,v,2020-01-01,diagnosis,QQ"])
    )
    source = {"kind": "files", "events": "e.csv", "systems": {"diagnosis": "icd9cm"}}
    node = Node.parse({"site": {"name": "a"}, "source": source}, folder=tmp_path)
    rule = {"study": {"name": "s"}, "tensor": {"modes": ["drug", "diagnosis"]}, "codes": {"diagnosis": {"to": "ccs"}}}
    made = ingest(node, Study.parse(rule), tmp_path / "out")
    report = made.manifest["modes"][1]["coverage"]
    assert report == {
        "rows": 6,
        "unmapped": 3,
        "unmapped_share": 0.5,
        "top_unmapped": [["ZZ", 2], ["QQ", 1]],
        "patients_per_code_median": 1.0,
    }
    assert made.manifest["steps"][1]["dropped"] == {"diagnosis: code has no group": 3}


def test_codes_that_exist_in_both_versions_prove_nothing() -> None:
    shortened = (Code("250.83"), Code("E878"), Code("V57"), Code("428"))  # as in the UCI diabetes table
    assert [label for label, _ in mapped("normal", *shortened)] == ["250.83", "E878", "V57", "428"]


def test_codes_written_as_paths_are_rolled_up() -> None:
    codes = (Code("cardiovascular|arrhythmias|atrial fibrillation"), Code("cardiovascular|arrhythmias|flutter"))
    assert {label for label, _ in mapped("path:2", *codes)} == {"cardiovascular|arrhythmias"}
    assert {label for label, _ in mapped("path:1", *codes)} == {"cardiovascular"}
    assert mapped("path:2", Code("aspirin"))[0][0] == "aspirin"


def test_the_catalogues_own_phecode_file_and_a_drug_map_are_read(tmp_path: Path) -> None:
    (tmp_path / "phecode_icd9_rolled.csv").write_text(
        '"ICD9","ICD9 String","PheCode","Phenotype","Excl. Phecodes"\n'
        '"428.0","Congestive heart failure","428","Heart failure","420-429.99"\n'
        '"250.00","Diabetes","250.2","Type 2 diabetes","249-250.99"\n"250.00","Diabetes","250","Diabetes mellitus",""\n'
    )
    found = mapped("phecode_icd9_rolled.csv", Code("4280", "icd9cm"), Code("25000", "icd9cm"), folder=tmp_path)
    assert found == [("428", "Heart failure"), ("250.2", "Type 2 diabetes")]
    (tmp_path / "ingredients.csv").write_text(
        "drug_name,ingredient\nAspirin EC 81mg,aspirin\nAspirin 325 mg tab,aspirin\n"
    )
    found = mapped("ingredients.csv", Code("aspirin ec 81mg"), Code("Aspirin 325 mg tab"), folder=tmp_path)
    assert [label for label, _ in found] == ["aspirin", "aspirin"]


@pytest.mark.parametrize(
    "text",
    [
        "ICD,Flag,Phecode\nE878,9,979\nE87.8,10,276.1\nV57.0,9,1010\n",
        "code,vocabulary_id,phecode\nE878,ICD9CM,979\nE87.8,ICD10CM,276.1\nV57.0,ICD9CM,1010\n",
        "code,group,version\nE878,979,ICD-9\nE87.8,276.1,ICD-10\nV57.0,1010,9\n",
    ],
)
def test_a_code_of_both_icd_versions_gets_the_phecode_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.csv").write_text(text)
    codes = [Code("E878", "icd9cm"), Code("E878", "icd10cm"), Code("V570", "icd9cm"), Code("V570", "icd10cm")]
    assert [g for g, _ in mapped("m.csv", *codes, folder=tmp_path)] == ["979", "276.1", "1010", None]
    # Without a version: the other codes decide; where nothing does, a contradiction is no group.
    assert mapped("m.csv", Code("E878"), Code("I50.9", "icd10cm"), folder=tmp_path)[0][0] == "276.1"
    assert [g for g, _ in mapped("m.csv", Code("E878"), Code("V570"), folder=tmp_path)] == [None, "1010"]


def test_a_phecode_map_of_icd9_says_nothing_about_icd10(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("ICD9,PheCode\nE878,979\n")
    found = mapped("m.csv", Code("E878", "icd9cm"), Code("E878", "icd10cm"), folder=tmp_path)
    assert [g for g, _ in found] == ["979", None]


def test_codes_of_icd9_read_no_table_of_icd10(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.records.events import codes

    systems: list[object] = []
    read = codes._names.__wrapped__

    def note(system: str | None) -> dict[str, str]:
        systems.append(system)
        return dict(read(system))

    monkeypatch.setattr(codes, "_names", note)
    codes._mapper.cache_clear()
    codes._look.cache_clear()
    named = group([Code("428.0", "icd9cm")], CodeRule(to="ccs"), kind="diagnosis", folder=Path())
    unnamed = group([Code("42731"), Code("038")], CodeRule(to="ccs"), kind="diagnosis", folder=Path())
    assert [g.label for g in (*named, *unnamed)] == ["CCS 108", "CCS 106", "CCS 2"]
    assert set(systems) == {"icd9cm"}
    assert codes._mapper.cache_info().currsize == 1  # ICD-9 to CCS alone
