"""``polyclinic report`` writes what it says, and refuses wrong options before it writes anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.cli import main
from polyclinic.studies.run_folder import RunFolder


def _call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["report", *arguments])
    return int(end.value.code or 0), capsys.readouterr().out


def test_report_exports_and_sheets(
    plain_run: RunFolder, copied: Callable[[RunFolder], RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(plain_run)
    code, out = _call(capsys, str(run.path), "--export", "--sheet", "anna", "--sheet", "ben", "--json")
    made = json.loads(out)
    assert code == 0 and Path(made["report"]) == run.report
    assert all(Path(p).is_file() for p in [*made["exports"], *made["sheets"]])
    assert (run.path / "exports" / "citation.bib").read_text().startswith("@software{polyclinic")
    sheets = [Path(p) for p in made["sheets"]]
    for sheet in sheets:
        sheet.write_text(sheet.read_text().replace(",,\n", ",yes,a name\n"))
    code, out = _call(capsys, str(run.path), *(x for s in sheets for x in ("--reviewed", str(s))))
    assert code == 0 and "2 sheets" in out and "100% meaningful" in out
    assert "a name, a name" in run.report.read_text(encoding="utf-8")


def test_wrong_options_are_all_named(plain_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "r.html"
    code, out = _call(capsys, str(plain_run.path), "--out", str(target), "--sheet", "a/b", "--sheet", "../x", "--json")
    assert code == 2 and len(json.loads(out)["faults"]) == 2 and not target.exists()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _call(capsys, str(tmp_path), "--json")[0] == 2
