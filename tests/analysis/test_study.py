"""A study with ``[evaluate]``: the fit and its findings as one method, on every engine the same."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.pipelines.evaluate import AnalysisPlan
from polyclinic.analysis.pipelines.pipeline import StudyPipeline
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.methods.estimators.factorization import Factorization
from polyclinic.studies.analyses import plan_of
from polyclinic.studies.halvings import halvings, resolved
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study, sites_of

BASE = {
    "study": {"name": "icu", "seed": 0},
    "data": {"dataset": "icu_network", "patients": 400},
    "method": {"name": "sumals", "rank": 4, "rounds": 8, "aggregation": "masked"},
    "evaluate": {},
}


def test_a_simulated_study_ends_with_its_findings(tmp_path: Path) -> None:
    study = Study.parse(BASE)
    figures = run_study(study, make(study), RunFolder.create(tmp_path / "run"), threads=1)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert figures["phenotypes_replicable"] == found["replicable"]
    assert set(found["missing"]) == {"people", "survival"}
    assert len(found["prevalence"]["rows"]) == 4
    assert found["outcome"]["auc"][1] <= found["outcome"]["auc"][0] <= found["outcome"]["auc"][2]
    assert found["traffic"]["rounds"] <= 15
    model = np.load(tmp_path / "run" / "outcome.npz")
    assert model["factor1"].shape[1] == 4


def test_phenotypes_of_the_findings_are_those_of_the_model() -> None:
    sites = example_sites(patients=120)
    m = StudyPipeline(pc.SumALS(rank=3, rounds=6), AnalysisPlan(("carriers",)), 1)
    from polyclinic.protocol.loop import run

    m.publish(run(m, sites))
    again = pc.evaluate(m.model_, sites, what="carriers")
    assert m.findings_.prevalence is not None and again.prevalence is not None
    assert m.findings_.prevalence["patients"] == again.prevalence["patients"]
    assert isinstance(m.model_, Factorization)
    for s in sites:
        assert m.memberships_[s.name] == pytest.approx(np.abs(m.model_.transform(s)), abs=1e-6)


@pytest.mark.protocol
def test_a_whole_study_passes_the_battery() -> None:
    plan = AnalysisPlan(("carriers", "completion"))
    pc.check_protocol(StudyPipeline(pc.SumALS(rank=2, rounds=3), plan, 1), example_sites(patients=60))


def test_what_a_study_cannot_evaluate_is_said_before_anything_is_read() -> None:
    study = Study.parse({**BASE, "evaluate": {"what": ["survival", "people"], "adjust": ["insurance"]}})
    with pytest.raises(ConfigError) as e:
        plan_of(study)
    assert len(e.value.faults) == 3


PLAIN = {k: v for k, v in BASE.items() if k != "evaluate"}
ONE = {"name": "icu"}
LOCAL = {"name": "localtf", "rank": 2, "aggregation": "plain"}


@pytest.mark.parametrize(
    ("change", "number", "told"),
    [
        ({}, 1, "about 2 times the work"),
        ({"evaluate": {}}, 1, "two halves"),
        ({"evaluate": {"what": ["carriers"]}}, 0, "what does not name it"),
        ({"study": {**ONE, "replicate": 0}}, 0, "replicate = 0"),
        ({"study": {**ONE, "replicate": 3}}, 3, "6 halves"),
        ({"privacy": {"epsilon": 1.0}, "method": {**LOCAL, "name": "dpem"}}, 0, "half of the patients"),
        ({"privacy": {"epsilon": 1.0}, "study": {**ONE, "replicate": 1}}, 1, "budget of one fit"),
        ({"method": {**LOCAL, "aggregation": "median"}}, 0, "gives no sums"),
        ({"method": {**LOCAL, "variant": "paper"}}, 0, "paper"),
        ({"method": {**LOCAL, "name": "sumals", "rank": "auto"}}, 0, "auto"),
        ({"method": {**LOCAL, "name": "localmodel"}}, 0, "its own factors"),
        ({"method": {**LOCAL, "name": "parafac2"}}, 0, "one kind of codes"),
        ({"method": {"name": "cpals", "rank": 2}}, 0, "no phenotypes by sums"),
        ({"method": {"name": "gaussianmixture", "aggregation": "masked"}}, 0, "no phenotypes by sums"),
        ({"data": None, "tensor": {"modes": ["drug"]}, "method": LOCAL}, 0, "one kind of codes"),
    ],
)
def test_a_study_that_does_not_say_has_one_halving_where_it_can_be_had(
    change: dict[str, Any], number: int, told: str
) -> None:
    study = Study.parse({k: v for k, v in {**PLAIN, **change}.items() if v is not None})
    found = halvings(study)
    assert found.number == number and told in found.words
    method = make(study)
    assert (method.repeats if isinstance(method, StudyPipeline) else 0) == number
    signed = resolved(study)  # what hospitals read says it, and is run the same
    assert signed.study.replicate == (number or study.study.replicate) and halvings(signed).number == number


def test_an_exact_study_is_evaluated_unless_it_says_otherwise() -> None:
    assert set(make(Study.parse(PLAIN)).plan.what) == {"carriers", "outcome", "completion", "flow"}
    paid = Study.parse({**PLAIN, "method": {**LOCAL, "name": "dpem"}, "privacy": {"epsilon": 1.0}})
    assert not isinstance(make(paid), StudyPipeline), "with [privacy] the fit has the whole budget"


def test_a_study_that_asks_for_replication_alone_counts_nobody(tmp_path: Path) -> None:
    study = Study.parse({**PLAIN, "evaluate": {"what": ["replicate"]}})
    method = make(study)
    figures = run_study(study, method, RunFolder.create(tmp_path / "run"), threads=1)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert figures["phenotypes_replicable"] == found["replicable"] and len(found["replicability"]["rows"]) == 4
    assert found["prevalence"] is None and found["outcome"] is None
    assert set(found["missing"]) == {"carriers", "people", "outcome", "survival", "completion"}
    told = json.loads((tmp_path / "run" / "study.json").read_text())
    assert "replicate = 0 fits once" in told["replication"] and told["study"]["study"].get("replicate") is None


def test_a_people_column_that_no_site_has_is_an_error_that_names_it(tmp_path: Path) -> None:
    study = Study.parse({**PLAIN, "people": {"age": [0, 50, 120], "columns": {"insurance": ["public"]}}})
    with pytest.raises(ConfigError, match="do not have") as e:
        run_study(study, make(study), RunFolder.create(tmp_path / "run"))
    assert any("'insurance'" in f for f in e.value.faults)


def test_advice_names_no_column_that_the_source_may_lack() -> None:
    missing = plan_of(Study.parse({**BASE, "evaluate": {"what": ["carriers"]}})).missing
    assert missing["outcome"] == '[evaluate] what = [..., "outcome"]', "the study has an outcome"
    assert not any("COLUMN" in line for line in missing.values())
    added = tomllib.loads(
        "\n".join(re.findall(r"\[people\] (.*)", f"{missing['people']}\n{missing['survival']}")).replace(
            ", sex", "\nsex"
        )
    )
    asked = {**BASE, "data": {**BASE["data"], "people": True}, "people": added}
    assert {*added} == {"age", "sex", "survival"} and sites_of(Study.parse(asked))
    assert {"people", "survival"} <= {*plan_of(Study.parse(asked)).what}
    sources = {
        "mimic3": {"kind": "mimic3", "folder": "x"},
        "files": {"kind": "files", "events": "x", "columns": {"sex": "gender"}},
    }
    for kind, line in (("mimic3", "age = [0, 50, 70, 120], sex = true"), ("files", "sex = true")):
        study = {k: v for k, v in BASE.items() if k != "data"} | {
            "tensor": {"modes": ["a", "b"]},
            "sites": {"source": sources[kind]},
        }
        assert plan_of(Study.parse(study)).missing["people"] == f"[people] {line}"


def test_people_are_read_beside_the_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    events, labels = ["patient_id,visit_id,time,kind,code"], ["patient_id,label,age,sex,insurance,days,died"]
    for i in range(240):
        group = i % 3
        for v in range(2):
            for _ in range(3):
                events.append(f"p{i},{i}-{v},2020-01-01,procedure,a{group}{rng.integers(3)}")
                events.append(f"p{i},{i}-{v},2020-01-01,diagnosis,b{group}{rng.integers(3)}")
        y = int(rng.random() < (0.6 if group == 0 else 0.2))
        age = "" if i % 20 == 0 else str(rng.integers(30, 90))
        labels.append(
            f"p{i},{y if i % 11 else ''},{age},{'female' if i % 2 else 'm'},{'public' if i % 3 else 'odd'},{i % 300},{y}"
        )
    (tmp_path / "events.csv").write_text("\n".join(events))
    (tmp_path / "labels.csv").write_text("\n".join(labels))
    for name in ("north", "south", "west"):
        (tmp_path / f"{name}.toml").write_text(
            f'[site]\nname = "{name}"\n[source]\nkind = "files"\nevents = "events.csv"\nlabels = "labels.csv"\n'
        )
    study = Study.parse(
        {
            "study": {"name": "cov", "key": "k"},
            "tensor": {"modes": ["procedure", "diagnosis"], "alignment": "union"},
            "people": {
                "outcome": "label",
                "age": [0, 50, 70, 120],
                "sex": True,
                "columns": {"insurance": ["public", "private"]},
                "survival": {"time": "days", "event": "died"},
            },
            "method": {"name": "sumals", "rank": 3, "rounds": 6, "aggregation": "plain"},
            "evaluate": {},
            "sites": {"nodes": ["north.toml", "south.toml", "west.toml"]},
        },
        folder=tmp_path,
    )
    run_study(study, make(study), RunFolder.create(tmp_path / "run"), threads=1)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert found["missing"] == {}
    everybody = {(r[0], r[1]): r[3] for r in found["people"]["rows"] if r[2] is None}
    assert everybody["sex", "F"] == 360
    assert everybody["insurance", "missing"] == 240
    assert found["outcome"]["name"] == "label"
    assert found["outcome"]["unknown"] == 3 * len({i for i in range(240) if i % 11 == 0 or i % 20 == 0})
    assert found["survival"]


def test_the_report_has_every_section_or_the_line_that_adds_it(tmp_path: Path) -> None:
    from polyclinic.cli import main
    from polyclinic.report.findings import SECTIONS, sections
    from polyclinic.report.html import write_report
    from polyclinic.report.replication import first_words

    study = Study.parse(BASE)
    folder = RunFolder.create(tmp_path / "run")
    run_study(study, make(study), folder, threads=1)
    found = json.loads((folder.path / "findings.json").read_text())
    made = {s.id: s for s in sections(found)}
    assert list(made) == list(SECTIONS)
    assert "[people]" in made["people"].missing and "[people]" in made["survival"].missing
    assert all(made[i].tables for i in ("replicate", "carriers", "outcome", "completion"))
    page = write_report(folder).read_text()
    assert "This line adds it" in page and "hidden codes" in page
    n = found["replicable"]
    failed = page.count('class="card failed"')
    assert failed == page.count('<tr class="failed">')
    assert page.index(first_words(found).split(" when ")[0]) < page.index("All phenotypes"), "before anything else"
    assert ("Phenotypes that did not replicate" in page) == (failed > 0)
    _failing_ones_stand_last_and_unnamed(folder, found)
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "again"\n[data]\ndataset = "icu_network"\npatients = 400\n[method]\nname = "sumals"\nrank = 4\n'
        'aggregation = "plain"\n[evaluate]\nwhat = ["carriers", "outcome"]\n'
    )
    with pytest.raises(SystemExit) as done:
        main(["evaluate", str(folder.path), str(tmp_path / "study.toml"), "--json"])
    assert done.value.code == 0
    again = json.loads((folder.path / "findings.json").read_text())
    assert again["prevalence"]["rows"] == found["prevalence"]["rows"]
    assert again["replicable"] == n


def _failing_ones_stand_last_and_unnamed(folder: RunFolder, found: dict[str, Any]) -> None:
    """A phenotype that did not replicate stands last, after an uncertain one, and nothing on the page names it."""
    from dataclasses import replace

    from polyclinic.report.cards import cards
    from polyclinic.report.contents import RunContents
    from polyclinic.report.html import render
    from polyclinic.report.replication import by_grade

    run = RunContents.read(folder)
    table = found["replicability"]
    rows = [dict(zip(table["columns"], r)) for r in table["rows"]]
    for i, row in enumerate(rows):
        row |= {"halves": 0.2 if i == 0 else 0.9, "low": 0.1 if i < 2 else 0.8, "rho": 0.4, "replicable": i > 1}
        row["grade"] = ("not replicated", "uncertain", "replicated")[min(i, 2)]
    judged = {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]}
    named = cards(replace(run, findings={}))
    failing = replace(run, findings={**found, "replicability": judged, "replicable": len(rows) - 2})
    shown = cards(failing)
    assert shown[0].name == "Phenotype 1" and [c.reason for c in shown[:2]] == ["failed", ""]
    assert [c.number for c in by_grade(failing.findings, shown)] == [*range(3, len(rows) + 1), 2, 1]
    page = render(failing)
    assert named[0].named and named[0].name not in page
    forest = page.split('aria-label="Forest plot"')[1].split("</figure>")[0]
    assert "Phenotype 1" not in forest and "(uncertain)" in forest


def test_an_owner_who_did_not_name_the_outcome_is_not_asked_for_it() -> None:
    from polyclinic.errors import PolicyRefusal
    from polyclinic.privacy.policy.policy import Policy
    from polyclinic.studies.analyses import refused

    refused({"north": Policy(methods=("trip",))}, ("carriers", "people", "completion"))
    with pytest.raises(PolicyRefusal) as e:
        refused({"north": Policy(methods=("trip",)), "south": Policy()}, ("outcome", "survival"))
    assert len(e.value.faults) == 2


def test_ranks_are_compared_in_one_run_and_none_is_chosen(tmp_path: Path) -> None:
    study = Study.parse({**BASE, "evaluate": {"what": ["carriers", "completion"], "ranks": [2, 4, 6]}})
    run_study(study, make(study), RunFolder.create(tmp_path / "run"), threads=1)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    table = [dict(zip(found["ranks"]["columns"], r)) for r in found["ranks"]["rows"]]
    assert [r["rank"] for r in table] == [2, 4, 6]
    assert sum(r["suggested"] for r in table) <= 1
    assert len(found["prevalence"]["rows"]) == 4  # the method's own rank is published
    assert next(r for r in table if r["rank"] == 4)["replicable"] == found["replicable"]
    assert {r["to_best"] for r in table} >= {0.0} and len(found["completion"]["rows"]) == 3
    from polyclinic.report.findings import sections

    last = next(s for s in sections(found) if s.id == "completion")
    assert [t for t, _ in last.tables] == ["Hidden codes", "Ranks"]
    with pytest.raises(ConfigError) as e:
        plan_of(Study.parse({**BASE, "privacy": {"epsilon": 1.0}, "evaluate": {"what": ["carriers"], "ranks": [0]}}))
    assert len(e.value.faults) == 3


def test_a_baseline_that_predicts_better_is_said_and_a_tiny_gain_is_called_so() -> None:
    from polyclinic.report.findings import sections

    rows = [
        ["covariates and phenotypes", 0.64, 0.63, 0.65, None, None, None],
        ["covariates alone", 0.54, 0.53, 0.55, 0.1, 0.09, 0.11],
    ]
    rows.append(["record size", 0.76, 0.75, 0.77, -0.12, -0.13, -0.11])
    columns = ["model", "auc", "low", "high", "gain", "gain_low", "gain_high"]
    outcome = {
        "name": "x",
        "note": "",
        "adds": [0.1, 0.09, 0.11],
        "auc": [0.64, 0.63, 0.65],
        "patients": 9,
        "events": 5,
        "unknown": 0,
    }
    outcome |= {"adjusted_for": [], "cross_fitted": True, "baselines": {"columns": columns, "rows": rows}}
    outcome |= {"effects": {"columns": ["phenotype"], "rows": []}, "calibration": []}
    hidden = {
        "columns": ["model", "nats", "low", "high", "events", "patients"],
        "rows": [["rank 2", 0.006, 0.003, 0.01, 9, 9]],
    }
    found = {"patients": 9, "outcome": outcome, "completion": hidden, "predicts_unseen_codes": True, "missing": {}}
    made = {s.id: " ".join(s.words) for s in sections(found)}
    assert "they predict worse than record size (0.76)" in made["outcome"]
    assert '"size"' in made["outcome"] and "covariates alone (" not in made["outcome"]
    assert "hardly predicts hidden codes. The right code is 1.01 times as probable (0.006 nats" in made["completion"]


def test_findings_are_exported_and_written_for_ohdsi(tmp_path: Path) -> None:
    import csv

    from polyclinic.report.export.ohdsi import SPECIFICATION, write_ohdsi
    from polyclinic.report.export.tables import export

    study = Study.parse({**BASE, "evaluate": {"what": ["carriers", "outcome", "completion"]}})
    folder = RunFolder.create(tmp_path / "run")
    run_study(study, make(study), folder, threads=1)
    names = {p.name for p in export(folder)}
    assert {
        "findings_carriers_prevalence.csv",
        "findings_outcome_odds_ratios.csv",
        "findings_completion_hidden_codes.csv",
    } <= names
    found = json.loads((folder.path / "findings.json").read_text())
    found["prevalence"]["rows"][1][1:5] = [None] * 4  # a count that may not be shown
    found["outcome"]["unknown"] = 3
    folder.write_json(folder.path / "findings.json", found)
    written = {p.name: p for p in write_ohdsi(folder, tmp_path / "ohdsi")}
    model = list(csv.DictReader(written[SPECIFICATION].read_text().splitlines()))
    for name, path in written.items():
        if name == SPECIFICATION:
            continue
        rows = list(csv.DictReader(path.read_text().splitlines()))
        fields = [f for f in model if f["table_name"] == path.stem]
        assert rows and [f["column_name"] for f in fields] == list(rows[0])
        keys = [f["column_name"] for f in fields if f["primary_key"] == "yes"]
        assert len({tuple(r[k] for k in keys) for r in rows}) == len(rows)
        for f in fields:
            values = [r[f["column_name"]] for r in rows]
            assert f["is_required"] == "no" or all(v != "" for v in values) or f["column_name"] == "cohort_name"
            if f["min_cell_count"] == "yes":
                assert all(int(v) <= -11 or int(v) == 0 or int(v) >= 11 for v in values)
    counts = list(csv.DictReader(written["pc_cohort_count.csv"].read_text().splitlines()))
    assert counts[1]["cohort_subjects"] == "-11" and counts[1]["proportion"] == ""
    assert next(iter(csv.DictReader(written["pc_outcome.csv"].read_text().splitlines())))["unknown_subjects"] == "-11"


@pytest.mark.parametrize("folds", [0, 1])
def test_an_interrupted_run_goes_on_with_the_halvings_it_began_with(tmp_path: Path, folds: int) -> None:
    """A study that does not say how many, begun where the default was another one."""
    study = Study.parse(PLAIN)
    begun = make(Study.parse({**PLAIN, "study": {**PLAIN["study"], "replicate": folds}}))
    folder = RunFolder.create(tmp_path / "run")

    def stop(event: Any) -> None:
        if event.round >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, begun, folder, threads=1, progress=stop)
    assert folder.read_json(folder.study)["halvings"] == folds
    run_study(study, make(study), folder, resume=True, threads=1)
    found = json.loads((tmp_path / "run" / "findings.json").read_text())
    assert (found["replicability"] is not None) is bool(folds)
    alone = tmp_path / "alone"
    asked = Study.parse({**PLAIN, "study": {**PLAIN["study"], "replicate": folds}})
    run_study(asked, make(asked), RunFolder.create(alone), threads=1)
    a, b = (np.load(p / "outcome.npz") for p in (tmp_path / "run", alone))
    assert np.array_equal(a["factor1"], b["factor1"])
