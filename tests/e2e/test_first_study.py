"""The deployment guide from nothing to a report: three hospitals, 20 commands, one decision each, the numbers of one process."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("psycopg")

from tests.e2e import first_study_hospitals as hospitals
from tests.waiting import wait_until

from polyclinic.config import Study
from polyclinic.node.admission.membership import studies
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder
from polyclinic.node.enrolment.invitation import entries
from polyclinic.node.enrolment.processes import free_port
from polyclinic.node.flare import coordinator_service, site_service
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.entries import Accept, Approve
from polyclinic.studies.registry import make
from polyclinic.studies.run_folder import RunFolder
from polyclinic.studies.simulate import run_study

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

NAMES = ("north", "south", "east")
MOST = 20  # commands of all four parties together
COST = ("bytes_up", "bytes_down", "payload_bytes_up", "seconds_at_15_MB_per_s")


def guide() -> list[tuple[str, str]]:
    """The commands of the guide: who types, and what."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "first-study.md").read_text(encoding="utf-8")
    return re.findall(r"^(coordinator|north|south|east)\$ (polyclinic .*)$", page, re.M)


class Desk:
    """Four people at their keyboards: they type the commands of the guide, in its order, and nothing else."""

    def __init__(self, root: Path, names: dict[str, str]) -> None:
        self.root, self.names, self.typed = root, names, list[str]()
        self.home = CoordinatorFolder(root / "coordinator" / "hub")
        for name in ("coordinator", *NAMES):
            (root / name).mkdir()

    def type(self, *answers: str) -> subprocess.Popen[str]:
        """Type the next command of the guide, and the answers to what it asks."""
        who, line = guide()[len(self.typed)]
        self.typed.append(f"{who}$ {line}")
        for example, here in self.names.items():
            line = line.replace(example, here)
        master, keyboard = os.openpty()
        argv = [sys.executable, "-m", "polyclinic.cli", *shlex.split(line)[1:]]
        log = open(self.root / f"{len(self.typed)}.log", "w")  # noqa: SIM115
        made = subprocess.Popen(
            argv, cwd=self.root / who, stdin=keyboard, stdout=log, stderr=subprocess.STDOUT, text=True
        )
        os.close(keyboard)
        os.write(master, "".join(f"{a}\n" for a in answers).encode())
        return made

    def done(self, *running: subprocess.Popen[str]) -> None:
        for process in running:
            assert process.wait(1200) == 0, self.said()

    def said(self) -> str:
        """What every command printed."""
        logs = (f"{line}\n{(self.root / f'{n}.log').read_text()[-2500:]}" for n, line in enumerate(self.typed, 1))
        return "\n".join(logs)

    def site(self, name: str) -> SiteFolder:
        return SiteFolder.of(self.root / name / "node.toml")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Desk]:
    """The whole way, typed."""
    os.umask(0o077)
    ports = f"--port {free_port()} --admin-port {free_port()} --enrol-port {free_port()}"  # a test beside others
    names = {
        "--host study.example.org --port 443": f"--host localhost {ports}",
        "postgresql://reader@db.north.example/cdm": shlex.quote(postgres),
    }
    desk = Desk(tmp_path_factory.mktemp("first"), names)
    hospitals.write_omop(postgres, "cdm", hospitals.patients("north"))
    hospitals.write_csv(desk.root / "south", hospitals.patients("south"))
    hospitals.write_fhir(desk.root / "east" / "fhir", hospitals.patients("east"))
    hospitals.write_study(desk.root / "coordinator")
    try:
        _first_study(desk)
        yield desk
    finally:
        for name in NAMES:
            site_service.stop(desk.site(name))
        coordinator_service.stop(desk.home)


def _first_study(desk: Desk) -> None:
    root = desk.root
    for _ in ("init", "start", "north", "south", "east"):
        desk.done(desk.type())
    _edit(root / "north" / "node.toml", '# schema = "cdm"', 'schema = "cdm"')
    _edit(root / "south" / "node.toml", 'events = "events.csv"', 'events = "events.csv"\nlabels = "people.csv"')
    for name in NAMES:  # the coordinator sends the invites
        shutil.copy(desk.home.path / "invites" / f"{name}.invite.json", root / name)
    joining = [desk.type() for _ in NAMES]
    asked = wait_until(lambda: [e.state for e in entries(desk.home).values()] == ["waiting"] * 3, 600, every=1.0)
    assert asked, desk.said()
    desk.done(desk.type("y", "y", "y"))
    desk.done(*joining)
    desk.done(*[desk.type("y") for _ in NAMES])
    desk.done(*[desk.type() for _ in NAMES])
    study = desk.type()
    for name in NAMES:  # a person hears of it by [monitor] notify, by mail or by telephone
        assert wait_until(lambda name=name: _waits(desk, name), 900, every=1.0), desk.said()  # type: ignore[misc]
        desk.done(desk.type("accept"))
    desk.done(study)
    desk.names["first-study-1a2b3c4d"] = _run(desk).name
    desk.done(desk.type())


def _waits(desk: Desk, name: str) -> bool:
    return [s["state"] for s in studies(desk.site(name))] == ["waiting"]


def _edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


def _run(desk: Desk) -> Path:
    (run,) = (desk.home.path / "runs").glob("first-study-*/metrics.json")
    return run.parent


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def _without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k not in names}


def test_twenty_commands_and_one_decision_a_hospital(desk: Desk) -> None:
    print("\n".join(desk.typed))
    assert len(desk.typed) == len(guide()) <= MOST
    user = pwd.getpwuid(os.getuid()).pw_name
    for name in NAMES:
        bodies = [e.body for e in ledger_of(desk.site(name).node).entries]
        accepted = [b for b in bodies if isinstance(b, Accept)]
        assert [b.by for b in accepted] == [user]  # one decision, under the account that took it
        approved = [b for b in bodies if isinstance(b, Approve)]
        assert all(b.note.startswith("shown ") for b in approved)  # written by that one decision, none by hand
        assert not ledger_of(desk.site(name).node).verify()


def test_the_report_has_table_one_adjusted_odds_ratios_and_replication(desk: Desk) -> None:
    found = _read(_run(desk), "findings.json")
    assert set(found["missing"]) == {"survival"}  # the study does not ask for it
    assert found["patients"] == 720
    assert {"age", "sex: M", "hospital"} <= set(found["outcome"]["adjusted_for"])
    effects = found["outcome"]["effects"]
    assert len(effects["rows"]) == 3
    assert all(r[effects["columns"].index("odds_ratio")] > 0 for r in effects["rows"])
    assert found["people"] and found["replicability"]
    text = (_run(desk) / "report.html").read_text()
    for word in ("Table 1", "odds ratio", "replicat"):
        assert word in text, word


def test_federation_and_one_process_publish_the_same_report(desk: Desk, tmp_path: Path) -> None:
    nodes = json.dumps([str(desk.site(n).node_path) for n in NAMES])
    alone = desk.root / "coordinator" / "alone.toml"
    alone.write_text((desk.root / "coordinator" / "first-study.toml").read_text() + f"[sites]\nnodes = {nodes}\n")
    study = Study.read(alone)
    one, hosts = tmp_path / "run", _run(desk)
    run_study(study, make(study), RunFolder.create(one), threads=1)
    subprocess.run([sys.executable, "-m", "polyclinic.cli", "report", one], check=True, capture_output=True)
    assert _without(_read(hosts, "findings.json"), "traffic") == _without(_read(one, "findings.json"), "traffic")
    assert _without(_read(hosts, "metrics.json"), *COST) == _without(_read(one, "metrics.json"), *COST)
    assert _read(hosts, "study.json")["flow"] == _read(one, "study.json")["flow"]
    assert _sections(hosts) == _sections(one)


def _sections(run: Path) -> list[str]:
    text = (run / "report.html").read_text(encoding="utf-8")
    return [re.sub(r"<[^>]+>", "", x).strip() for x in re.findall(r"<h2[^>]*>(.*?)</h2>", text, re.S)]
