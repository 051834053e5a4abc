"""The dossier that a board signs names every kind of step that the study releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.cli import main
from polyclinic.node.dossier.sources import gather
from polyclinic.node.dossier.study_protocol import protocol
from polyclinic.privacy.facts import is_step, step_names
from polyclinic.privacy.ledger.ledger import Ledger

STUDY = """[study]
name = "steps"
replicate = 1
[data]
dataset = "planted_counts"
patients = 240
procedures = 8
diagnoses = 9
phenotypes = 2
codes = [3, 3]
sites = 3
[tensor]
modes = ["procedure", "diagnosis"]
minimum_patients = 2
[method]
name = "{method}"
rank = 3
aggregation = "masked"
"""
PAID = "planning_size = 240\n[evaluate]\n[privacy]\nepsilon = 8.0\ndelta = 1e-5\n"
SLOW = [pytest.param(m, "[evaluate]\n", marks=pytest.mark.slow) for m in ("sumals", "localtf", "distributedsgd")]
CASES = [("trip", "[evaluate]\n"), ("dpfact", "[evaluate]\n"), ("dpem", PAID), *SLOW]


@pytest.mark.parametrize(("method", "more"), CASES)
def test_every_release_of_a_study_is_in_its_dossier(tmp_path: Path, method: str, more: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(method=method) + more)
    with pytest.raises(SystemExit) as ended:
        main(["simulate", str(path), "--out", str(tmp_path / "run"), "--json"])
    assert ended.value.code == 0
    books = [Ledger(p) for p in (tmp_path / "run").rglob("*.jsonl") if p.with_name(p.name + ".head").exists()]
    released = {name for b in books for c in b.charges() for name in step_names(c.step)}
    assert released
    sources = gather(str(path))
    (leaves,) = [line for line in protocol(sources).lines if line.key == "leaves"]
    told = [text.split("'")[1] for text in leaves.text if text.startswith("Step '")]
    assert [s for s in sorted(released) if not any(is_step(s, t) for t in told)] == []
