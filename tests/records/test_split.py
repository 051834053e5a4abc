"""One source divided into the hospitals of a simulation, by any of its columns; a fresh node file stops no simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.cli import main
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.records.ingest import read_sites
from polyclinic.studies.simulate import gathered

OMOP = {
    "person.csv": "person_id,year_of_birth,care_site_id,gender_concept_id\n"
    + "".join(f"{p},1950,{p % 2},{8507 + 25 * (p % 3 == 0)}\n" for p in range(1, 31)),
    "visit_occurrence.csv": "visit_occurrence_id,person_id,visit_start_date,visit_end_date,visit_concept_id,provider_id\n"
    + "".join(f"{p}0,{p},2020-01-01,2020-01-05,9201,{p % 5}\n" for p in range(1, 31)),
    "condition_occurrence.csv": "person_id,condition_concept_id,condition_start_date,visit_occurrence_id\n"
    + "".join(f"{p},100,2020-01-02,{p}0\n" for p in range(1, 31)),
    "drug_exposure.csv": "person_id,drug_concept_id,drug_exposure_start_date,visit_occurrence_id\n"
    + "".join(f"{p},200,2020-01-02,{p}0\n" for p in range(1, 31)),
    "concept.csv": "concept_id,concept_name,vocabulary_id,concept_code\n100,a,SNOMED,1\n200,b,RxNorm,2\n",
}


def study(folder: Path, split: object) -> Study:
    for name, text in OMOP.items():
        (folder / name).write_text(text)
    values = {
        "study": {"name": "s"},
        "tensor": {"modes": ["drug", "diagnosis"]},
        "sites": {"source": {"kind": "omop", "folder": "."}, "split": split},
    }
    return Study.parse(values, folder=folder)


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        (True, {"0": 15, "1": 15}),
        ("provider_id", dict.fromkeys("01234", 6)),
        ("gender_concept_id", {"8507": 20, "8532": 10}),
    ],
)
def test_patients_are_divided_by_any_column_of_visits_or_people(
    tmp_path: Path, split: object, sizes: dict[str, Any]
) -> None:
    assert {s.name: s.patients for s in read_sites(study(tmp_path, split))} == sizes


def test_units_below_eleven_patients_are_joined_where_no_owner_wrote_a_policy(tmp_path: Path) -> None:
    found = gathered(study(tmp_path, "provider_id"))
    assert found.minimum == 11
    assert {s.name: s.patients for s in found.sites} == {"others 1": 12, "others 2": 18}
    assert sorted(x for names in found.joined.values() for x in names) == list("01234")


def test_the_column_asked_for_goes_before_the_site_column_of_a_file(tmp_path: Path) -> None:
    rows = "".join(f"p{p},v{p},{k},{k}1,w{p % 2},s{p % 3}\n" for p in range(30) for k in ("drug", "diagnosis"))
    (tmp_path / "e.csv").write_text("patient_id,visit_id,kind,code,ward,service\n" + rows)
    source = {"kind": "files", "events": "e.csv", "columns": {"site": "ward", "time": ""}}
    tensor = {"modes": ["drug", "diagnosis"]}
    for split, names in ((True, ["w0", "w1"]), ("service", ["s0", "s1", "s2"])):
        asked = {"study": {"name": "s"}, "tensor": tensor, "sites": {"source": source, "split": split}}
        assert sorted(s.name for s in read_sites(Study.parse(asked, folder=tmp_path))) == names


def test_a_column_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'moon' with values in visit_occurrence and person"):
        read_sites(study(tmp_path, "moon"))


def test_defaults_of_a_new_node_file_do_not_stop_a_simulation(tmp_path: Path) -> None:
    rows = "".join(
        f"{{n}}{p},v{p},2020-01-01,{kind},{kind[:2]}{(p + k) % 4}\n"
        for p in range(25)
        for kind in ("drug", "diagnosis")
        for k in range(2)
    )
    nodes = []
    for name in ("east", "west"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.csv").write_text("patient_id,visit_id,time,kind,code\n" + rows.replace("{n}", name))
        nodes.append(str(tmp_path / name / "node.toml"))
        with pytest.raises(SystemExit) as ended:
            main(["site", "init", "--kind", "files", "--place", "events.csv", "--name", name, "--out", nodes[-1]])
        assert ended.value.code == 0
    path = tmp_path / "study.toml"
    path.write_text(
        '[study]\nname = "s"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\n'
        '[method]\nname = "trip"\nrank = 2\nrounds = 2\naggregation = "plain"\n'
        f"[sites]\nnodes = {json.dumps(nodes)}\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["simulate", str(path), "--out", str(tmp_path / "run")])
    assert ended.value.code == 0
    attrition = json.loads((tmp_path / "run" / "study.json").read_text())["attrition"]
    assert attrition[0] == {"step": "in the source", "patients": 50}
    assert attrition[-1]["patients"] == 50
    # ... and its patients go back to OMOP as cohorts, at their owner's place.
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "run"), "--cohort", "east"])
    assert ended.value.code == 0
    lines = (tmp_path / "run" / "sites" / "east" / "cohort" / "cohort.csv").read_text().splitlines()
    subjects = {x.split(",")[1] for x in lines[1:]}
    assert subjects
    assert subjects <= {f"east{p}" for p in range(25)}
    assert {tuple(x.split(",")[2:]) for x in lines[1:]} == {("2020-01-01", "2020-01-01")}


def test_check_names_every_fault_of_the_method_and_an_outcome_that_nobody_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"p{p},v{p},2020-01-01,{k},{k}{p % 3}\n" for p in range(30) for k in ("drug", "diagnosis"))
    (tmp_path / "events.csv").write_text("patient_id,visit_id,time,kind,code\n" + rows)
    (tmp_path / "labels.csv").write_text("patient_id,label\n" + "".join(f"p{p},\n" for p in range(30)))
    (tmp_path / "node.toml").write_text(
        '[site]\nname = "n"\n[source]\nkind = "files"\nevents = "events.csv"\nlabels = "labels.csv"\n'
    )
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "s"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\n[labels]\noutcome = "label"\n'
        '[method]\nname = "trip"\nrank = -3\naggregation = "maskd"\n'
    )
    with pytest.raises(SystemExit) as ended:
        main(["check", str(tmp_path / "node.toml"), "--study", str(tmp_path / "study.toml"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert ended.value.code == 2
    assert [f for f in told["faults"] if "rank" in f] and [
        f for f in told["faults"] if "'maskd'; did you mean 'masked'? known: plain" in f
    ]
    assert len(told["faults"]) == 2  # each once
    assert [r for r in told["remarks"] if r.startswith("outcome label: known of none of 30 patients")]
    assert [r for r in told["remarks"] if "[codes.drug] to = a file drug_name,ingredient" in r]


def test_a_cohort_of_joined_units_starts_at_the_index_date_of_the_study(tmp_path: Path) -> None:
    rows = ["patient_id,visit_id,time,kind,code,site"]
    for p in range(30):
        for visit, day in (("a", f"2020-01-{1 + p % 28:02d}"), ("b", f"2020-06-{1 + p % 28:02d}")):
            rows += [f"p{p},p{p}{visit},{day},{k},{k[:2]}{visit},u{p % 6}" for k in ("drug", "diagnosis")]
    (tmp_path / "events.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "s"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\n[cohort]\nfirst = {drug = ["drb"]}\n'
        '[sites]\nsplit = true\n[sites.source]\nkind = "files"\nevents = "events.csv"\n'
        '[method]\nname = "trip"\nrank = 1\nrounds = 2\naggregation = "plain"\n'
    )
    for command in (["simulate", "study.toml", "--out", "run"], ["report", "run", "--cohort", "others 1"]):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path / c) if c in ("study.toml", "run") else c for c in command])
        assert ended.value.code == 0
    place = tmp_path / "run" / "sites" / "others 1"
    lines = (place / "cohort" / "cohort.csv").read_text().splitlines()[1:]
    assert len(lines) >= 11
    for line in lines:
        _, subject, start, end = line.split(",")
        assert start == end == f"2020-06-{1 + int(subject[1:]) % 28:02d}"
    assert (place / "memberships.npz").stat().st_mode & 0o077 == 0
    page = (tmp_path / "run" / "study.json").read_text() + (tmp_path / "run" / "outcome.json").read_text()
    assert "2020-06" not in page  # days are the owner's own


def test_a_divided_source_accounts_for_events_without_partner_and_for_codes_of_few(tmp_path: Path) -> None:
    rows = [f"p{p},v{p},{k},{k}1,w{p % 3}" for p in range(60) for k in ("drug", "diagnosis")]
    rows += [f"q{p},u{p},drug,drug1,w1" for p in range(20)]  # no diagnosis
    rows += [f"r{p},x{p},{k},rare{p},w2" for p in range(12) for k in ("drug", "diagnosis")]  # codes of one patient
    rows += [f"p{p},v{p},drug,drug1,moon" for p in range(15)]  # a unit where nothing occurs together
    rows += ["p1,v1,drug,drug1,"] * 11  # of no site
    rows += [f"t{p},y{p},{k},{k}1,tiny" for p in range(3) for k in ("drug", "diagnosis")]
    (tmp_path / "e.csv").write_text("patient_id,visit_id,kind,code,ward\n" + "\n".join(rows) + "\n")
    path = tmp_path / "study.toml"
    path.write_text(
        '[study]\nname = "s"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\n[sites]\nsplit = "ward"\n'
        '[sites.source]\nkind = "files"\nevents = "e.csv"\ncolumns = {time = ""}\n'
        '[method]\nname = "trip"\nrank = 1\nrounds = 2\naggregation = "plain"\n'
    )
    for arguments in (["simulate", str(path), "--out", str(tmp_path / "run")], ["report", str(tmp_path / "run")]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    (steps,) = json.loads((tmp_path / "run" / "attrition.json").read_text()).values()
    assert steps[-1]["step"] == "count together"
    assert steps[-1]["dropped"] == {"names no site": 11, "no partner in the same visit": 35}
    assert steps[-1]["rows_in"] == steps[-1]["rows_out"] + 46 == len(rows)
    left = json.loads((tmp_path / "run" / "study.json").read_text())["attrition"]
    assert [a["patients"] for a in left] == [95 + 15, 75, 63]  # 15 of the 95 patients count at two units
    page = (tmp_path / "run" / "report.html").read_text()
    assert "2 sites were joined into one (others 1), so that none has fewer than 11 patients" in page
    flow = json.loads((tmp_path / "run" / "study.json").read_text())["flow"]
    assert [b["patients"] for b in flow] == [110, 75, 63], "the same numbers in both"
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["patients_left_out"] == 47
