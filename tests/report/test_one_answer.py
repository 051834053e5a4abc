"""One figure per question on every screen: one AUC, one number of patients, and no phenotype that failed in the figure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.report.answer import _associations, answer, prediction
from polyclinic.report.cards import cards
from polyclinic.report.charts.rows import effect_rows, flow_boxes
from polyclinic.report.contents import RunContents
from polyclinic.report.html import render
from polyclinic.studies.run_folder import RunFolder

SOURCE = Path(pc.__file__).parent


def test_a_run_has_one_auc_and_no_ratio_per_standard_deviation(plain_run: RunFolder) -> None:
    found, figures = (json.loads((plain_run.path / f"{n}.json").read_text()) for n in ("findings", "metrics"))
    area = found["outcome"]["auc"][0]
    assert figures["auc"] == area
    assert [k for k in figures if "auc" in k] == ["auc", "auc_interval", "auc_best_baseline"]
    assert f"AUC {area:.2f}" in prediction(found)
    old = re.compile("per sd|association[.]json")
    assert [p for p in SOURCE.rglob("*.py") if old.search(p.read_text(encoding="utf-8"))] == []


def test_every_number_of_patients_is_a_box_of_the_flow(plain_run: RunFolder) -> None:
    run = RunContents.read(plain_run)
    boxes = {b.patients for b in flow_boxes(run.study, run.findings)}
    text = re.sub(r"<[^>]*>", " ", render(run))
    said = [int(n.replace(",", "")) for n in re.findall(r"\bN\s*=\s*([0-9,]*[0-9])", text)]
    said += [int(n.replace(",", "")) for n in re.findall(r"from ([0-9,]+) patients", text)]
    assert len(said) >= 2 and set(said) <= boxes


def test_a_phenotype_that_failed_a_gate_is_not_in_the_figure(plain_run: RunFolder) -> None:
    run = RunContents.read(plain_run)
    columns = ["phenotype", "halves", "low", "high", "rho", "carried", "sites"]
    sizes = [(0.95, 0.3), (0.95, 0.05), (0.7, 0.3), (0.99, 0.4)]
    rows = [[k, sizes[k % 4][0], 0.6, 0.99, sizes[k % 4][1], 5, 6] for k in range(run.rank)]
    tested = replace(run, findings={**run.findings, "replicability": {"columns": columns, "rows": rows}})
    phenotypes = cards(tested)
    made = answer(tested, phenotypes)
    assert made is not None
    drawn = {k for k, c in enumerate(phenotypes) if str(c.name)[:40] in made.forest.replace("&#39;", "'")}
    passed = {k for k in range(run.rank) if k % 4 in (0, 3)}
    assert drawn and drawn <= passed
    assert "holds together" not in render(tested)


def turned_around(found: Any, page: str) -> None:
    """The crude ratio is on the adjusted one's side of 1, or the adjusted interval contains 1, or the page says so."""
    for row in effect_rows(found, [f"phenotype {k + 1}" for k in range(100)]):
        if row.ratio is not None and row.crude is not None and (row.crude > 1) != (row.ratio[0] > 1):
            assert row.ratio[1] <= 1 <= row.ratio[2] or "adjustment reverses" in page.lower()


def test_adjustment_that_turns_a_ratio_around_is_said(plain_run: RunFolder) -> None:
    run = RunContents.read(plain_run)
    turned_around(run.findings, render(run))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diabetes130", "cms_desynpuf"])
def test_adjustment_that_turns_a_ratio_around_is_said_on_open_records(
    name: str, data_path: Callable[[str], Path], tmp_path: Path
) -> None:
    data_path(name)
    sites = pc.datasets.load_diabetes130() if name == "diabetes130" else pc.datasets.load_synpuf()
    model = pc.TRIP(rank=8, seed=0).fit(sites)
    findings = pc.evaluate(model, sites, what=("carriers", "outcome"))
    pc.write_report(model, sites, tmp_path / "report.html", findings=findings)
    found: Any = findings.to_json()
    turned_around(found, (tmp_path / "report.html").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_an_outcome_without_any_relation_is_rarely_called_associated() -> None:
    """60 permuted outcomes (seeds 0 to 59): "associated" in at most 10 % of the sentences, "better than" in at most 5 %."""
    sites = pc.datasets.icu_network(patients=900, seed=3)
    model = pc.SumALS(rank=6, rounds=10, seed=0).fit(sites)
    associated = better = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        null = [replace(s, labels=rng.permutation(np.asarray(s.labels))) for s in sites]
        found: Any = pc.evaluate(model, null, what=("carriers", "outcome"), key=f"null {seed}").to_json()
        rows = effect_rows(found, [f"phenotype {k + 1}" for k in range(6)])
        associated += "associated" in " ".join(_associations(rows, found["outcome"])).replace("No association", "")
        better += "better than every comparison" in prediction(found)
    assert associated <= 6 and better <= 3, (associated, better)
