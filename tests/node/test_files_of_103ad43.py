"""Folders that version 103ad43 wrote are refused in one sentence that says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import polyclinic as pc
from polyclinic.cli import main
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.node.admission import membership, renewal
from polyclinic.node.dossier.sources import gather
from polyclinic.node.enrolment import federation, invitation
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder
from polyclinic.node.flare import coordinator_service, site_service
from polyclinic.report.contents import RunContents
from polyclinic.studies.run_folder import Run, RunFolder
from polyclinic.studies.simulate import run_study
from polyclinic.web.server import create_app

OLD = Path(__file__).parents[1] / "fixtures" / "103ad43"
RUNS = [
    "simulated/finished",
    "simulated/interrupted",
    "flare/coordinator-run-finished",
    "flare/coordinator-run-stopped",
]
SENTENCE = "was written by version 103ad43 or earlier: "


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the fixtures: a refusal must not depend on a folder that cannot be written."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def one_sentence(error: ConfigError, todo: str) -> None:
    assert SENTENCE in error.what
    assert todo in error.what
    assert not error.faults
    assert not error.hint


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("read", [Run.read, RunContents.read, pc.load], ids=["Run.read", "report", "load"])
def test_a_run_folder_is_refused(old: Path, name: str, read: Callable[[Path], object]) -> None:
    if name == "simulated/interrupted" or name.endswith("stopped"):  # never finished: the study alone is there
        with pytest.raises(ConfigError) as refused:
            RunFolder(old / name).read_json(old / name / "study.json")
    else:
        with pytest.raises(ConfigError) as refused:
            read(old / name)
    one_sentence(refused.value, "run the study again")


def test_the_model_file_inside_is_named_and_still_read(old: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        pc.load(old / "simulated" / "finished")
    file = old / "simulated" / "finished" / "model.phenotypes"
    one_sentence(refused.value, f"its model can still be read: {file}")
    assert isinstance(pc.load(file), pc.Phenotypes)


def test_an_interrupted_run_is_not_resumed(old: Path) -> None:
    study = Study.read(old / "simulated" / "interrupted.toml")
    with pytest.raises(ConfigError) as refused:
        run_study(study, None, RunFolder(old / "simulated" / "interrupted"), resume=True)
    one_sentence(refused.value, "run the study again")


@pytest.mark.parametrize("command", [["report"], ["evaluate", "finished.toml"], ["compare"], ["dossier"]])
def test_commands_say_it_and_end_with_the_exit_code_of_a_configuration(
    old: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, (verb, *options) = old / "simulated" / "finished", command
    more = [str(old / "simulated" / o) if o.endswith(".toml") else o for o in options]
    more += [str(run)] if verb == "compare" else []
    more += ["--out", str(old / "dossier")] if verb == "dossier" else []
    with pytest.raises(SystemExit) as ended:
        main([verb, str(run), *more])
    assert ended.value.code == 2
    assert SENTENCE in capsys.readouterr().err


def test_a_dossier_is_not_made_of_it(old: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        gather(str(old / "simulated" / "finished"))
    one_sentence(refused.value, "run the study again")


def test_the_page_lists_it_with_the_sentence_and_shows_no_report(old: Path) -> None:
    client = TestClient(
        create_app(old / "simulated", token="t" * 24), base_url="http://127.0.0.1", cookies={"polyclinic": "t" * 24}
    )
    runs = {r["id"]: r for r in client.get("/api/runs").json()}
    assert set(runs) == {"finished", "interrupted"}
    assert all(SENTENCE in r["headline"] and not r["has_report"] for r in runs.values())
    answer = client.get("/report", params={"id": "finished"})
    assert answer.status_code == 409
    assert SENTENCE in answer.json()["what"]


def test_a_coordinators_folder_is_refused(old: Path) -> None:
    home = CoordinatorFolder(old / "flare" / "coordinator")
    study = Study.read(old / "simulated" / "finished.toml")
    for act in (
        coordinator_service.start,
        coordinator_service.status,
        renewal.renew_server,
        lambda h: coordinator_service.order_of(h, "done"),
        lambda h: federation.sign_study(h, study),
        lambda h: invitation.invite(h, "west"),
    ):
        with pytest.raises(ConfigError) as refused:
            act(home)
        one_sentence(refused.value, "polyclinic coordinator init")
    coordinator_service.stop(home)  # what runs can still be ended


def test_a_sites_kit_is_refused_until_the_site_has_left(old: Path) -> None:
    site = SiteFolder.of(old / "flare" / "site" / "node.toml")
    invite = old / "flare" / "coordinator" / "invites" / "north.invite.json"
    value = json.loads(invite.read_text())
    invite.write_text(json.dumps({**value, "ends": 2**40}))
    for act in (
        site_service.start,
        site_service.status,
        renewal.renew,
        lambda s: membership.request(s, invite),
        lambda s: membership.pin(s, {}),
    ):
        with pytest.raises(ConfigError) as refused:
            act(site)
        one_sentence(refused.value, f"polyclinic site leave --node {site.node_path}")
    site_service.stop(site)
    aside, _ = membership.leave(site)
    assert aside.is_dir()
    assert not site.path.exists()
    membership.request(site, invite)  # and joins again
    assert site.read_invite()["site"] == "north"
    assert site_service.status(site)["state"] == "waiting for the coordinator's approval"


def test_a_later_format_asks_for_an_update(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_json(folder.study, {"study": {}})
    assert folder.read_json(folder.study)["format"] == 1
    folder.study.write_text(json.dumps({"study": {}, "format": 2}))
    with pytest.raises(ConfigError, match="has format 2, and this version reads format 1: update Polyclinic"):
        folder.read_json(folder.study)
