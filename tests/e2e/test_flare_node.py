"""A node in trouble against FLARE's own server: papers that ended and are renewed, a study that really fails, a full disk, a database away."""

from __future__ import annotations

import hashlib
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.e2e.flare_federation import At, Federation, running, same
from tests.e2e.test_flare_doctor import _expired
from tests.waiting import wait_until

from polyclinic.cli import main
from polyclinic.node.enrolment.authority import Authority
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.node.flare import coordinator_service as coordinator
from polyclinic.node.flare import site_service as site

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

TRIP = 'name = "trip"\nrank = 3\ntol = 0\nrounds = 25\naggregation = "masked"'


def _command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    """Run a command with --json: exit code and answer."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments), "--json"])
    said = capsys.readouterr().out.strip().splitlines()
    return int(stop.value.code or 0), json.loads(said[-1]) if said else {}


def _status(capsys: pytest.CaptureFixture[str], folder: SiteFolder) -> tuple[int, dict[str, Any]]:
    return _command(capsys, "site", "status", "--node", folder.node_path)


def _connected(made: Any) -> bool:
    """Wait for all sites: this machine may be slow."""
    return wait_until(lambda: not coordinator.status(made.coordinator)["waiting_for"], 120)


def _owned(folder: SiteFolder) -> dict[str, str]:
    """What must not change when a certificate does: keys, pins, book."""
    book = [p for p in folder.node_path.parent.glob("*.ledger.jsonl*") if p.suffix != ".lock"]
    files = [*folder.path.rglob("*.key"), folder.pins, *book]
    assert len(book) >= 3
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_papers_that_ended_are_renewed_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Federation(tmp_path, enrol=True, rehearsal=True)
    home, north = made.coordinator, made.sites["north"]
    key = Authority.read(home.authority).key
    with running(made):
        assert _connected(made)
        status = made.follow(
            made.order(made.study("before", 'name = "trip"\nrank = 3\nrounds = 2\naggregation = "plain"'))
        )
        assert status["state"] == "finished", status
        before, paper = _owned(north), north.workspace / "startup" / "client.crt"
        site.stop(north)
        paper.write_bytes(_expired(paper.read_bytes(), key))  # type: ignore[arg-type]
        (home.path / "approvals" / "north.approval.json").unlink()  # the one on file would have ended, too
        site.start(north)
        code, value = _status(capsys, north)
        assert (code, value["state"]) == (5, "not accepted")
        assert "expired on" in value["problems"][0]["sentence"]
        assert "polyclinic site renew" in value["problems"][0]["what_to_do"]
        code, value = _command(capsys, "site", "renew", "--node", north.node_path, "--wait", 0)
        assert (code, value["state"]) == (5, "waiting")
        code, value = _command(capsys, "coordinator", "requests", home.path)
        assert value["requests"]["north"]["asks_for_new_certificate"]
        assert not value["requests"]["south"]["asks_for_new_certificate"]
        assert _command(capsys, "coordinator", "renew", home.path, "north")[0] == 0
        code, value = _command(capsys, "site", "renew", "--node", north.node_path, "--wait", 0)
        assert (code, value["state"], value["restart"]) == (0, "renewed", True)
        site.stop(north)
        site.start(north)
        assert wait_until(lambda: _status(capsys, north)[0] == 0), _status(capsys, north)
        assert _owned(north) == before
        assert not _command(capsys, "coordinator", "requests", home.path)[1]["requests"]["north"][
            "asks_for_new_certificate"
        ]

        paper = home.server / "startup" / "server.crt"
        coordinator.stop(home)
        good = paper.read_bytes()
        paper.write_bytes(_expired(good, key))  # type: ignore[arg-type]
        code, value = _command(capsys, "coordinator", "doctor", home.path)
        assert code != 0
        assert any("coordinator renew" in p["what_to_do"] for p in value["probes"] if p["name"] == "certificate")
        code, value = _command(capsys, "coordinator", "renew", home.path)
        assert code == 0
        coordinator.start(home)
        for folder in made.sites.values():  # they come back by themselves: authority and name are the same
            assert wait_until(lambda f=folder: _status(capsys, f)[0] == 0), folder.node.name  # type: ignore[misc]
        assert _connected(made)
        order = made.order(made.study("after", 'name = "trip"\nrank = 3\nrounds = 2\naggregation = "plain"'))
        status = made.follow(order)
        assert status["state"] == "finished", (status, made.events(order))

        coordinator.revoke(home, "south")
        assert _command(capsys, "coordinator", "renew", home.path, "south")[0] == 2
        code, value = _command(capsys, "site", "renew", "--node", made.sites["south"].node_path, "--wait", 0)
        assert code == 4, value


def test_a_study_that_really_fails_here_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle of a study the records of one hospital turn to rubbish, and its node is started anew: it cannot read them."""
    made = Federation(tmp_path, rehearsal=True)
    north = made.sites["north"]
    records = north.node.path("events.parquet")
    good = records.read_bytes()

    def breaks() -> None:
        records.write_bytes(b"PAR1" + bytes(500) + b"PAR1")
        made.restart("north")

    with running(made):
        study = made.study("breaks", TRIP, head="deadline = 90\n")
        assert _connected(made)
        order = made.order(study)
        status = made.follow(order, At(4, breaks))
        assert status["state"] == "stopped", (status, made.events(order))
        assert status["exit"] in (4, 5)
        wait_until(lambda: _status(capsys, north)[0] != 0, 60)
        code, value = _status(capsys, north)
        assert (code, value["state"]) == (5, "study failed"), value
        told = [p["sentence"] for p in value["problems"] if p["name"] == "study"]
        assert told
        assert order.id in told[0]
        assert "events.parquet" in told[0], told
        for other in ("east", "south"):
            assert _status(capsys, made.sites[other])[0] == 0
        records.write_bytes(good)
        status = made.follow(order)
        assert status["state"] == "finished", (status, made.events(order))
        assert same(made.outcome(order).public, made.in_process(study).public)
        code, value = _status(capsys, north)
        assert (code, value["state"]) == (0, "running"), value


def test_full_disk_and_database_away_with_the_server_there(
    tmp_path: Path, small_disk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    pgserver = pytest.importorskip("pgserver", reason="no PostgreSQL to start: pgserver is not installed")
    fill, free = small_disk(tmp_path / "south", 300)  # more than the 200 MB below which a node says so
    made = Federation(tmp_path, rehearsal=True)
    south, east = made.sites["south"], made.sites["east"]
    place = Path(tempfile.mkdtemp(prefix="pc-pg-"))
    try:
        base = pgserver.get_server(place, cleanup_mode="stop")
    except Exception as e:  # whatever keeps a server from starting is the reason to skip
        pytest.skip(f"PostgreSQL cannot start here: {e}")
    with running(made):
        try:
            code, value = _status(capsys, south)
            assert (code, value["state"]) == (0, "running"), value
            fill()
            code, value = _status(capsys, south)
            assert (code, value["state"]) == (5, "no room on the disk"), value
            assert "No space left" in value["problems"][0]["sentence"]
            free()
            assert _status(capsys, south)[0] == 0

            with psycopg.connect(base.get_uri()) as link:
                link.execute("CREATE SCHEMA cdm")
            text = east.node_path.read_text()
            own = text[text.index("[source]") : text.index("[policy]")]
            secret = "WORD-1234"
            url = base.get_uri().replace("postgres:@", f"postgres:{secret}@")
            east.node_path.write_text(text.replace(own, f'[source]\nkind = "omop"\nurl = "{url}"\nschema = "cdm"\n'))
            code, value = _status(capsys, east)
            assert (code, value["state"]) == (0, "running"), value
            base.cleanup()
            code, value = _status(capsys, east)
            assert (code, value["state"]) == (3, "data away"), value
            assert "the database is away" in value["problems"][0]["sentence"]
            assert secret not in json.dumps(value)

            study = made.study("away", TRIP, head="deadline = 20\n")  # and a study that meets it
            assert _connected(made)
            order = made.order(study)
            status = made.follow(order)
            assert status["state"] == "stopped", (status, made.events(order))
            code, value = _status(capsys, east)
            assert code != 0
            assert value["state"] == "data away"
            assert any(p["name"] == "study" for p in value["problems"]), value
            assert secret not in json.dumps(value)
        finally:
            with suppress(Exception):
                base.cleanup()
