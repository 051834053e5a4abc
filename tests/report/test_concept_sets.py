"""Concept sets for ATLAS: shown codes only, and none where the codes are no concepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.cli import main


def simulated(folder: Path, drug: str) -> Path:
    rows = ["patient_id,visit_id,time,kind,code,ward"]
    for p in range(60):
        rows += [
            f"p{p},v{p},2020-01-01,{k},{c},w{p % 3}" for k, c in (("drug", drug), ("diagnosis", str(201826 + p % 2)))
        ]
    rows += [f"p{p},v{p},2020-01-01,diagnosis,319835,w0" for p in range(0, 30, 2)]
    (folder / "e.csv").write_text("\n".join(rows) + "\n")
    (folder / "s.toml").write_text(
        '[study]\nname = "s"\n[tensor]\nmodes = ["drug", "diagnosis"]\n[codes.drug]\nto = "as-is"\n[codes.diagnosis]\nto = "as-is"\n'
        '[sites]\nsplit = "ward"\n[sites.source]\nkind = "files"\nevents = "e.csv"\n'
        '[method]\nname = "sumals"\nrank = 2\nrounds = 10\naggregation = "plain"\n'
    )
    call("simulate", folder / "s.toml", "--out", folder / "run")
    return folder / "run"


def call(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def test_shown_codes_become_concept_sets(tmp_path: Path) -> None:
    run = simulated(tmp_path, "1308216")
    assert call("report", run, "--concept-sets") == 0
    every = json.loads((run / "concept_sets" / "all.json").read_text())
    ids = {i["concept"]["CONCEPT_ID"] for s in every for i in s["expression"]["items"]}
    assert {1308216, 201826} <= ids <= {1308216, 201826, 201827, 319835}
    one = json.loads((run / "concept_sets" / "01-diagnosis.json").read_text())
    assert one["items"][0]["includeDescendants"] and every[0]["name"].startswith("phenotype 1: ")


def test_codes_that_are_no_concepts_are_refused(tmp_path: Path, capsys: Any) -> None:
    run = simulated(tmp_path, "aspirin")
    assert call("report", run, "--concept-sets") == 2
    text = capsys.readouterr().err
    assert "mode drug: 1 of 1 codes are no concept_id, e.g. 'aspirin'" in " ".join(text.split())
