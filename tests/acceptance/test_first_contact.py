"""What a newcomer must find in a report, on open data and with defaults only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.acceptance.first_contact import Contact, judge, kind_of, run

Find = Callable[[str], Path]


def test_mimic_demo_gives_names_the_outcome_and_reasons(data_path: Find, tmp_path: Path) -> None:
    assert kind_of(data_path("mimic3_demo")) == "mimic3"
    found = run(data_path("mimic3_demo"), tmp_path, method="sumals")
    assert not found.missing
    assert found.figures["named"] >= 4 and found.figures["outcome"] == "mortality"
    assert found.figures["shown"] >= 0.5
    # the judge can say no
    place = tmp_path / "run"
    spoilt = Path(shutil.copytree(place, tmp_path / "spoilt"))
    (spoilt / "findings.json").unlink()
    page = (spoilt / "report.html").read_text().replace("Who was left out", "").replace("cannot be named here", "")
    (spoilt / "report.html").write_text(page)
    (spoilt / "metrics.json").write_text(json.dumps({**json.loads((spoilt / "metrics.json").read_text()), "auc": None}))
    told = Contact(spoilt, spoilt)
    judge(spoilt, told)
    assert any("outcome" in m for m in told.missing)
    assert any("left out" in m for m in told.missing)
    assert found.figures["named"] == 10 or any("at the top" in m for m in told.missing)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("cms_desynpuf", 10), ("diabetes130", 10), ("mimic3_demo", 4)])
def test_open_data_are_named_by_default(data_path: Find, tmp_path: Path, name: str, least: int) -> None:
    found = run(data_path(name), tmp_path)
    assert not found.missing
    assert found.figures["named"] >= least and found.figures["shown"] >= 0.5


@pytest.mark.slow
def test_a_handful_of_patients_gives_a_report_that_says_why_it_is_empty(data_path: Find, tmp_path: Path) -> None:
    found = run(data_path("synthea27nj_omop"), tmp_path)
    assert not found.missing  # 26 patients: no name, no outcome, and a reason for both
