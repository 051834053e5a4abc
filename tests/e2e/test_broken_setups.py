"""Thirteen broken set-ups: the commands name the fault with the right advice and exit code. Real PostgreSQL, TLS and ports."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("psycopg")
pytest.importorskip("adbc_driver_postgresql")

from ssl import TLSVersion

import psycopg
from tests.e2e import first_study_hospitals as hospitals
from tests.node.test_flare_doctor import Hub
from tests.node.test_flare_halves import TRIP, World
from tests.waiting import wait_until

import polyclinic
from polyclinic.cli import main
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment import handshake, joining
from polyclinic.node.enrolment.folders import SiteFolder, write_json
from polyclinic.node.enrolment.handshake import Papers, certificate
from polyclinic.node.flare import coordinator_service, site_service
from polyclinic.privacy.gate.owner_rules import ledger_of, witness_of
from polyclinic.privacy.ledger.entries import Refuse
from polyclinic.privacy.ledger.signed_head import Known, vouch_words

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DAY = datetime.timedelta(days=1)
PASSWORD = "geheim-4711"
Say = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def database() -> Iterator[tuple[Any, str]]:
    """A server that asks the reader for a password; the address for the reader, without it."""
    pgserver = pytest.importorskip("pgserver", reason="no PostgreSQL to start: pgserver is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pc-broken-"))
    server = pgserver.get_server(folder / "data", cleanup_mode=None)
    try:
        uri = server.get_uri()
        people = hospitals.patients("north", 60)
        for schema in ("cdm", "short", "closed"):
            hospitals.write_omop(uri, schema, people)
        with psycopg.connect(uri) as link:
            link.execute(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
            link.execute("DROP TABLE short.procedure_occurrence")
            for schema in ("cdm", "short", "closed"):
                link.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
                link.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
            link.execute("REVOKE SELECT ON closed.condition_occurrence FROM reader")
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text("local all reader scram-sha-256\n" + rules.read_text())
        with psycopg.connect(uri) as link:
            link.execute("SELECT pg_reload_conf()")
        yield server, uri.replace("postgres:@", "reader@").replace("postgres@", "reader@")
    finally:
        server.cleanup()
        _stop(server.pgdata, check=False)  # a test may have stopped it already
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path, TLSVersion.TLSv1_3)
    with made.open():
        yield made


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Type a command; its exit code, and what it said."""

    def typed(*arguments: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments), "--json"])
        out = capsys.readouterr()
        text = out.out.strip() or out.err.strip()
        value = json.loads(text.splitlines()[-1]) if text else {}
        if "probes" in value:
            value |= {p["name"]: p for p in value["probes"]}
        return int(stop.value.code or 0), value

    return typed


def _omop(site: SiteFolder, address: str, schema: str = "cdm") -> SiteFolder:
    """The same hospital with its records in PostgreSQL."""
    text = site.node_path.read_text().replace('kind = "files"\nevents = "events.csv"', "[SOURCE]")
    source = f'kind = "omop"\nurl = "{address}"\nschema = "{schema}"\npassword = "env:BROKEN_PASSWORD"'
    site.node_path.write_text(text.replace("[SOURCE]", source))
    site.node_path.chmod(0o600)
    return SiteFolder.of(site.node_path)


def test_1_a_wrong_password_and_none(
    hub: Hub, tmp_path: Path, database: tuple[Any, str], say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = _omop(hub.site(tmp_path / "north"), database[1])
    monkeypatch.delenv("BROKEN_PASSWORD", raising=False)
    code, value = say("check", site.node_path)
    assert code == 2 and "BROKEN_PASSWORD" in json.dumps(value)
    code, value = say("site", "status", "--node", site.node_path)
    assert (code, value["state"]) == (0, "running"), "the shell of a person has no password, the service may have it"
    _, value = say("site", "doctor", "--node", site.node_path)
    assert value["data"]["state"] == "warning" and "BROKEN_PASSWORD" in value["data"]["sentence"]
    monkeypatch.setenv("BROKEN_PASSWORD", "wrong")
    code, value = say("site", "doctor", "--node", site.node_path)
    assert code == 3 and "password authentication failed" in value["data"]["sentence"]
    assert "password" in value["data"]["what_to_do"]
    monkeypatch.setenv("BROKEN_PASSWORD", PASSWORD)
    code, value = say("site", "doctor", "--node", site.node_path)
    assert value["data"]["state"] != "fault" and "events (diagnosis, procedure), readable" in value["data"]["sentence"]
    assert PASSWORD not in json.dumps(value)


def test_2_a_table_of_events_is_missing(
    hub: Hub, tmp_path: Path, database: tuple[Any, str], say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN_PASSWORD", PASSWORD)
    site = _omop(hub.site(tmp_path / "north"), database[1], "short")
    _, value = say("site", "doctor", "--node", site.node_path)
    assert value["data"]["state"] == "warning" and "procedure_occurrence" in value["data"]["sentence"]
    study = hospitals.write_study(tmp_path)
    code, value = say("site", "doctor", "--node", site.node_path, "--study", study)
    assert code == 3 and "'procedure'" in value["data of first-study"]["sentence"]
    code, value = say("check", site.node_path)
    assert any("procedure_occurrence" in r for r in value["remarks"])


def test_3_no_right_on_a_table_and_a_wrong_schema(
    hub: Hub, tmp_path: Path, database: tuple[Any, str], say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN_PASSWORD", PASSWORD)
    closed = _omop(hub.site(tmp_path / "north"), database[1], "closed")
    code, value = say("site", "doctor", "--node", closed.node_path)
    said = value["data"]["sentence"]
    assert code == 3 and "table condition_occurrence is there, but this user may not read it" in said
    shutil.rmtree(tmp_path / "north")
    wrong = _omop(hub.site(tmp_path / "north"), database[1], "cdn")
    code, value = say("site", "doctor", "--node", wrong.node_path)
    assert code == 3 and "there is no schema 'cdn'" in value["data"]["sentence"]


def test_4_an_expired_certificate(hub: Hub, tmp_path: Path, say: Say) -> None:
    site = hub.site(tmp_path / "north", days=-3.0)
    code, value = say("site", "doctor", "--node", site.node_path)
    assert code == 5 and "expired on" in value["certificate"]["sentence"]
    assert value["certificate"]["what_to_do"].startswith("polyclinic site renew")


@pytest.mark.parametrize(("days", "said"), [(1, "ahead of"), (-1, "behind")])
def test_5_a_clock_that_is_wrong_by_a_day(hub: Hub, tmp_path: Path, days: int, said: str) -> None:
    found = handshake.clock(days * 86_400.0)
    assert found.state == "fault" and said in found.sentence and "NTP" in found.todo
    if days < 0:  # a certificate made now begins tomorrow for this clock: renewing it would not help
        kit = hub.folder.server / "startup"
        now = datetime.datetime.now(datetime.UTC) - DAY
        paper = certificate(Papers.of(kit, "server"), "localhost", now=now)
        assert paper.state == "fault" and f"this clock shows {now:%Y-%m-%d}" in paper.sentence
        assert "NTP" in paper.todo and "Renew nothing" in paper.todo


def test_6_a_full_disk(hub: Hub, tmp_path: Path, small_disk: Any, say: Say) -> None:
    site = hub.site(tmp_path / "north")
    home = site.node.home
    home.rename(tmp_path / "kept")
    fill, _ = small_disk(home, 4)
    shutil.copytree(tmp_path / "kept", home, dirs_exist_ok=True)
    fill()
    code, value = say("site", "doctor", "--node", site.node_path)
    assert code == 2 and "nothing can be written (No space left on device)" in value["disk"]["sentence"]
    assert "no room" in value["data"]["sentence"]
    code, value = say("site", "status", "--node", site.node_path)
    assert (code, value["state"]) == (5, "no room on the disk"), value
    with pytest.raises(ConfigError, match="cannot start") as e:
        site_service.start(site)
    assert "free some space" in str(e.value.hint) or "free space" in str(e.value.hint)


def test_7_the_coordinators_ports_are_taken(hub: Hub) -> None:
    with pytest.raises(ConfigError, match="another program listens on its ports") as e:
        coordinator_service.start(hub.folder)
    assert [f.rpartition(":")[2] for f in e.value.faults] == [str(hub.port), str(hub.desk)]


def test_8_the_monitors_port_is_taken(hub: Hub, tmp_path: Path, say: Say) -> None:
    site = hub.site(tmp_path / "north")
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        site.node_path.write_text(site.node_path.read_text() + f'[monitor]\nlisten = "{place}"\n')
        code, value = say("site", "doctor", "--node", site.node_path)
        assert code == 2 and f"another program answers on {place}" in value["monitor"]["sentence"]
        (site.pids / "client.json").unlink()
        code, value = say("site", "start", "--node", site.node_path)
        assert code == 2 and place in json.dumps(value)
    assert not (site.pids / "client.json").exists(), "nothing was started"


def test_9_another_version_at_a_peer(hub: Hub, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    site = hub.site(tmp_path / "north")
    monkeypatch.setattr(joining, "__version__", "9.8.7")
    code, value = say("site", "doctor", "--node", site.node_path)
    said = value["membership"]
    assert code == 2 and "9.8.7" in said["sentence"] and polyclinic.__version__ in said["sentence"]
    assert "install the same version" in said["what_to_do"]
    world = World(tmp_path / "world")
    order = world.order(world.study("old", TRIP.format(1, "masked")))
    lead = world.lead(order)
    lead.driver.refused = {"east": ["version: it runs another version of Polyclinic"]}
    hint = str(lead.driver.lost("too many sites refused").hint)
    assert hint.startswith(f"install Polyclinic {polyclinic.__version__} at east") and "submit again" in hint


def test_10_a_site_that_is_not_pinned(tmp_path: Path, say: Say) -> None:
    world = World(tmp_path)
    site = world.sites["north"]
    known = json.loads(site.pins.read_text())
    write_json(site.pins, {n: k for n, k in known.items() if n != "south"})
    order = world.order(world.study("new", TRIP.format(1, "masked")))
    world.open(order)
    assert wait_until(lambda: world.desks["north"].study.stage == "waiting")
    _, value = say("site", "review", "--node", site.node_path)
    (study,) = value["studies"]
    assert "site 'south' is not known here: compare its key, then `polyclinic site pin`" in study["reasons"]
    say("site", "review", "--node", site.node_path, "--reject", order.id)
    world.desks["north"].loaded.result(60)  # its thread ends


def test_11_a_firewall_drops_the_packets(hub: Hub, tmp_path: Path) -> None:
    site = hub.site(tmp_path / "north")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and answers nothing
        papers = Papers.of(site.workspace / "startup")
        found = handshake.handshake("localhost", silent.getsockname()[1], papers, timeout=0.3)
    assert (found.state, found.exit) == ("fault", 5)
    assert "does not answer within 0.3 s" in found.sentence and "firewall or proxy" in found.todo


def test_12_the_database_is_away(
    hub: Hub, tmp_path: Path, database: tuple[Any, str], say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN_PASSWORD", PASSWORD)
    site = _omop(hub.site(tmp_path / "north"), database[1])
    server = database[0]
    _stop(server.pgdata, check=True)
    code, value = say("site", "status", "--node", site.node_path)
    assert (code, value["state"]) == (3, "data away")
    assert "the database is away" in value["problems"][0]["sentence"]
    assert PASSWORD not in json.dumps(value)
    from polyclinic.config import Node, Study
    from polyclinic.records.databases.engine import DataAway
    from polyclinic.records.ingest import ingest

    study = Study.read(hospitals.write_study(tmp_path))
    with pytest.raises(DataAway, match="the database cannot be read"):  # what a study tries again
        ingest(Node.read(site.node_path), study, tmp_path / "out")


def _stop(data: Path, check: bool) -> None:
    """Stop the server of a data folder, as the user who owns the folder."""
    import pgserver

    pg_ctl, owner = next(Path(pgserver.__file__).parent.rglob("pg_ctl")), Path(data).stat()
    command = [str(pg_ctl), "-D", str(data), "-w", "stop", "-m", "fast"]
    subprocess.run(command, check=check, user=owner.st_uid, group=owner.st_gid, capture_output=True, cwd="/")


def test_13_an_old_backup_of_the_ledger(hub: Hub, tmp_path: Path, say: Say) -> None:
    site = hub.site(tmp_path / "north")
    book = ledger_of(site.node)
    book.tie(site.identity().public, site.identity().sign)
    assert book.path is not None
    kept = {p: p.read_bytes() for p in (book.path, *book.path.parent.glob("*.head"))}
    anchor = {p: p.read_bytes() for p in site.node.home.glob("*.anchor")}
    book.write(Refuse("a" * 64, "owner", shown=""))
    head = ledger_of(site.node).head
    known = Known(head, site.identity().sign(vouch_words(head.key)).hex())
    for path, data in {**kept, **anchor}.items():  # the backup of yesterday
        path.write_bytes(data)
    witness_of(site.node).keep(site.node.name, known)  # what the others told this site of its own ledger
    code, value = say("site", "doctor", "--node", site.node_path)
    assert code == 4 and "an older ledger was put back" in value["budget"]["sentence"]
    assert "ledger recover" in value["budget"]["what_to_do"]
    code, value = say("ledger", "verify", site.node_path)
    assert code == 4 and value["whole"] is False
