"""The privacy officer's commands."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import numpy as np
import pytest
from tests.gates import door_of

from polyclinic.cli import main
from polyclinic.config import Node
from polyclinic.privacy.accounting.accountant import Gaussian, Unbounded
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.gate.owner_rules import outbox_of
from polyclinic.privacy.ledger.ledger import Charge, Ledger
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Contribution, Step


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = 0
    try:
        main([str(w) for w in words])
    except SystemExit as e:
        code = int(e.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "north" / "ledger.jsonl", site="north")
    for n in range(3):
        made.charge(Charge("icu", "dpem", n, "statistics", 0, Gaussian(10.0)))
    made.charge(Charge("old", "trip", 1, "factors", 0, Unbounded()))
    return made


def test_show_names_adjacency_and_delta_beside_every_epsilon(
    capsys: pytest.CaptureFixture[str], ledger: Ledger
) -> None:
    code, out, _ = run(capsys, "ledger", "show", ledger.path, "--json")
    assert code == 0
    studies = json.loads(out)["ledgers"][0]["studies"]
    icu = next(s for s in studies if s["study"] == "icu")
    assert icu["epsilon"] == pytest.approx(ledger.epsilon(1e-6, study="icu"))
    assert (icu["delta"], icu["adjacency"], icu["without_patient_level_bound"]) == (1e-6, "patient", 0)
    old = next(s for s in studies if s["study"] == "old")
    assert (old["epsilon"], old["without_patient_level_bound"]) == (None, 1)
    assert ledger.path is not None
    code, out, _ = run(capsys, "ledger", "show", ledger.path.parent)
    assert code == 0
    bounded = [s for s in studies if s["without_patient_level_bound"] < s["releases"]]
    assert out.count("patient-level epsilon") == out.count("at delta 1e-06") == len(bounded) == len(studies) - 1
    assert "study old, cohort all: 1 releases, none with a patient-level bound" in out


def test_verify_exits_4_when_a_line_was_edited(capsys: pytest.CaptureFixture[str], ledger: Ledger) -> None:
    assert run(capsys, "ledger", "verify", ledger.path)[0] == 0
    assert ledger.path is not None
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"multiplier":10.0', b'"multiplier":99.0', 1))
    code, _, err = run(capsys, "ledger", "verify", ledger.path)
    assert code == 4
    assert "line 2" in err
    code, out, _ = run(capsys, "ledger", "verify", ledger.path, "--json")
    assert code == 4
    assert json.loads(out)["whole"] is False


def test_verify_does_not_repair_what_it_shows(capsys: pytest.CaptureFixture[str], ledger: Ledger) -> None:
    with open(ledger.path, "ab") as f:  # type: ignore[arg-type]
        f.write(b'{"half')
    assert ledger.path is not None
    before = ledger.path.read_bytes()
    assert run(capsys, "ledger", "verify", ledger.path)[0] == 4
    assert ledger.path.read_bytes() == before


def test_an_export_kept_elsewhere_finds_a_ledger_that_was_put_back(
    capsys: pytest.CaptureFixture[str], ledger: Ledger, tmp_path: Path
) -> None:
    assert ledger.path is not None
    old = {p: p.read_bytes() for p in ledger.path.parent.iterdir()}
    ledger.charge(Charge("icu", "dpem", 9, "statistics", 0, Gaussian(10.0)))
    kept = tmp_path / "kept.json"
    assert run(capsys, "ledger", "export", ledger.path, "--out", kept)[0] == 0
    assert len(json.loads(kept.read_text())["ledgers"][0]["entries"]) == 6  # the first begins the book
    assert run(capsys, "ledger", "verify", ledger.path, "--against", kept)[0] == 0
    for p, data in old.items():
        p.write_bytes(data)
    assert run(capsys, "ledger", "verify", ledger.path)[0] == 0
    assert run(capsys, "ledger", "verify", ledger.path, "--against", kept)[0] == 4


def test_a_removed_ledger_is_found_by_its_head(capsys: pytest.CaptureFixture[str], ledger: Ledger) -> None:
    assert ledger.path is not None
    ledger.path.unlink()
    assert run(capsys, "ledger", "verify", ledger.path.parent)[0] == 4


def test_a_missing_ledger_is_a_configuration_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "ledger", "show", tmp_path / "none.jsonl")[0] == 2
    assert run(capsys, "ledger", "verify", tmp_path)[0] == 2


def test_the_owner_reads_and_approves(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    door = ReleaseGate("north", policy=Policy(review="each"), study="icu", store=tmp_path)
    step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    with pytest.raises(Exception, match="waits"):
        door.release(step, Contribution({"x": np.ones(3)}))
    box = tmp_path / "outbox"
    (waiting,) = Outbox(box).all()
    id = waiting.id
    file = tmp_path / "node.toml"
    file.write_text(f'[site]\nname = "north"\nfolder = "{tmp_path}"\n[source]\nkind = "files"\nevents = "e.csv"\n')
    assert outbox_of(Node.read(file)) == box
    values = json.loads(run(capsys, "ledger", "read", file, id, "--json")[1])["arrays"]["x"]
    assert run(capsys, "site", "review", "--node", file, "--accept", id)[0] == 0
    assert door.release(step, Contribution({"x": np.ones(3)})).arrays["x"].tolist() == values
    assert Outbox(box).get(id).decided_by == pwd.getpwuid(os.getuid()).pw_name
    assert run(capsys, "site", "review", "--node", file, "--accept", "nothing")[0] == 2


def test_a_node_file_names_its_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[site]\nname = "north"\n[source]\nkind = "files"\nevents = "e.csv"\n')
    step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    door_of(Node.read(file), study="icu", exact=False).release(step, Contribution({"x": np.ones(3)}))
    code, out, _ = run(capsys, "ledger", "show", file, "--json")
    assert code == 0
    assert json.loads(out)["ledgers"][0]["studies"][0]["study"] == "icu"


def test_audit_command_passes_dpem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(
        capsys,
        "audit",
        "--out",
        tmp_path,
        "--epsilon",
        4,
        "--rounds",
        3,
        "--canaries",
        200,
        "--patients",
        300,
        "--json",
    )
    result = json.loads(out)
    assert result["verdict"] in ("passed", "no power")
    assert code == (0 if result["passed"] else 1)
    assert result["adjacency"] == "patient"
    assert json.loads((tmp_path / "audit.json").read_text())["verdict"] == result["verdict"]


def test_audit_of_a_method_without_privacy_is_a_configuration_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, "audit", "--method", "nothing")[0] == 2
