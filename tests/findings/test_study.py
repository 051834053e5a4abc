"""A study with ``[evaluate]``: the fit and its findings as one method, on every engine the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.engines.acts import folds_of, plan_of
from polyclinic.engines.registry import make
from polyclinic.errors import ConfigError
from polyclinic.federation.battery import example_sites
from polyclinic.findings.evaluate import Plan
from polyclinic.findings.whole import Whole
from polyclinic.run import RunFolder
from polyclinic.simulation import run_study
from polyclinic.study import Study

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
    m = Whole(pc.SumALS(rank=3, rounds=6), Plan(("carriers",)), 1)
    from polyclinic.federation.fold import run

    m.publish(run(m, sites))
    again = pc.evaluate(m.model_, sites, what="carriers")
    assert m.findings_.prevalence is not None and again.prevalence is not None
    assert m.findings_.prevalence["patients"] == again.prevalence["patients"]
    for s in sites:
        assert m.memberships_[s.name] == pytest.approx(np.abs(m.model_.transform(s)), abs=1e-6)


@pytest.mark.protocol
def test_a_whole_study_passes_the_battery() -> None:
    plan = Plan(("carriers", "completion"))
    pc.check_protocol(Whole(pc.SumALS(rank=2, rounds=3), plan, 1), example_sites(patients=60))


def test_what_a_study_cannot_evaluate_is_said_before_anything_is_read() -> None:
    study = Study.parse({**BASE, "evaluate": {"what": ["survival", "people"], "adjust": ["insurance"]}})
    with pytest.raises(ConfigError) as e:
        plan_of(study)
    assert len(e.value.faults) == 3


def test_halves_are_off_unless_asked_for() -> None:
    assert folds_of(Study.parse({k: v for k, v in BASE.items() if k != "evaluate"})) == 0
    assert folds_of(Study.parse(BASE)) == 1
    assert folds_of(Study.parse({**BASE, "study": {"name": "icu", "replicate": 0}})) == 0


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
    from polyclinic.report.findings import SECTIONS, first_words, sections
    from polyclinic.report.html import write_report

    study = Study.parse(BASE)
    folder = RunFolder.create(tmp_path / "run")
    run_study(study, make(study), folder, threads=1)
    found = json.loads((folder.path / "findings.json").read_text())
    made = {s.id: s for s in sections(found)}
    assert list(made) == list(SECTIONS)
    assert "[people]" in made["people"].missing and "[people]" in made["survival"].missing
    assert all(made[i].tables for i in ("replicate", "carriers", "outcome", "completion"))
    page = write_report(folder).read_text()
    assert "this line adds it" in page and "Predicts codes the patient has not shown" in page
    n, of = found["replicable"], len(found["replicability"]["rows"])
    assert page.count('class="card failed"') == of - n
    assert ("Phenotypes that did not pass" in page) == (n < of)
    _failing_ones_stand_last_and_unnamed(folder, found)
    nothing = {**found, "replicable": 0}
    assert first_words(nothing).startswith(f"None of the {of} phenotypes comes back")
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
    """With the first phenotype passing nothing and the second one test only, nothing on the page names either."""
    from dataclasses import replace

    from polyclinic.report.cards import cards
    from polyclinic.report.contents import RunContents
    from polyclinic.report.findings import by_flags
    from polyclinic.report.html import render

    run = RunContents.read(folder)
    table = found["replicability"]
    rows = [dict(zip(table["columns"], r)) for r in table["rows"]]
    for i, row in enumerate(rows):
        row |= {"comes_back": "no" if i == 0 else "yes", "holds_together": i > 1, "replicable": i > 1}
    judged = {**table, "rows": [[row[c] for c in table["columns"]] for row in rows]}
    named = cards(replace(run, findings={}))
    failing = replace(run, findings={**found, "replicability": judged, "replicable": len(rows) - 2})
    shown = cards(failing)
    assert [c.name for c in shown[:2]] == ["Phenotype 1", "Phenotype 2"] and {c.reason for c in shown[:2]} == {"failed"}
    assert [c.number for c in by_flags(failing.findings, shown)] == [*range(3, len(rows) + 1), 2, 1]
    page = render(failing)
    for c in named[:2]:
        assert c.named and f"<td>{c.name}</td>" not in page and f"<h3>{c.name}</h3>" not in page
    glance = page.split("The phenotypes at a glance")[1].split("</table>")[0]
    assert glance.index("<td>Phenotype 2</td>") < glance.index("<td>Phenotype 1</td>")


def test_an_owner_who_did_not_name_the_outcome_is_not_asked_for_it() -> None:
    from polyclinic.engines.acts import refused
    from polyclinic.errors import PolicyRefusal
    from polyclinic.privacy.policy import Policy

    refused({"north": Policy(methods=("trip",))}, ("carriers", "people", "completion"))
    with pytest.raises(PolicyRefusal) as e:
        refused({"north": Policy(methods=("trip",)), "south": Policy()}, ("outcome", "survival"))
    assert len(e.value.faults) == 2
