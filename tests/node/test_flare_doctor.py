"""Doctor and status against real TLS: certificates that ended, signed themselves or come from elsewhere are not "running"."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment import handshake
from polyclinic.node.enrolment.authority import Authority, issue, new_key
from polyclinic.node.enrolment.folders import (
    CoordinatorFolder,
    SiteFolder,
    append_event,
    private,
    write_json,
    write_key,
)
from polyclinic.node.enrolment.handshake import Papers
from polyclinic.node.enrolment.joining import JoiningPort
from polyclinic.node.enrolment.processes import free_port, record
from polyclinic.node.flare.site_service import status
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.util.file_format import FORMAT

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # what a server of HTTP/2 says first
DAY = datetime.timedelta(days=1)


def _certificate(key: Any, name: str, by: Authority | None, days: float) -> str:
    """A certificate that ends in so many days (negative: it has ended), by an authority or by itself."""
    now = datetime.datetime.now(datetime.UTC)
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 400 * DAY)
        .not_valid_after(now + days * DAY)
        .sign(key if by is None else by.key, hashes.SHA256())
    )
    from cryptography.hazmat.primitives.serialization import Encoding

    return made.public_bytes(Encoding.PEM).decode()


class Hub:
    """A coordinator's files, a listener that wants certificates as FLARE's server does, and the real port for joining."""

    def __init__(self, root: Path, version: ssl.TLSVersion) -> None:
        self.folder = CoordinatorFolder(root / "hub")
        self.port, self.desk = free_port(), free_port()
        coordination.found(
            self.folder, ["north"], host="localhost", port=self.port, admin_port=free_port(), enrol_port=self.desk
        )
        self.authority = Authority.read(self.folder.authority)
        kit = self.folder.server / "startup"
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.maximum_version = version
        self.tls.load_cert_chain(kit / "server.crt", kit / "server.key")
        self.tls.load_verify_locations(kit / "rootCA.pem")
        self.tls.verify_mode = ssl.CERT_REQUIRED
        self.tls.set_alpn_protocols(["h2"])

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Both ports, served in threads."""
        door = socket.create_server(("127.0.0.1", self.port))
        desk = JoiningPort(self.folder, "127.0.0.1", self.desk)
        for target in (lambda: self._serve(door), desk.serve_forever):
            threading.Thread(target=target, daemon=True).start()
        try:
            yield
        finally:
            door.close()
            desk.shutdown()
            desk.server_close()

    def _serve(self, door: socket.socket) -> None:
        with contextlib.suppress(OSError):  # ends when the door is closed
            while True:
                raw, _ = door.accept()
                with contextlib.suppress(OSError), raw:
                    raw.settimeout(60)  # a busy machine
                    with self.tls.wrap_socket(raw, server_side=True) as line:
                        line.sendall(SETTINGS)
                        while line.recv(4096):  # a line closed on unread bytes is reset, and the other loses the answer
                            pass

    def site(self, root: Path, days: float = 700.0, by: str = "ours", listed: bool = True) -> SiteFolder:
        """A hospital that has joined and whose client lives (this process), with a certificate as asked."""
        private(root)
        rows = "".join(f"p{i},v{i},2020-01-01,dx,c{i % 3}\n" for i in range(30))
        (root / "events.csv").write_text("patient_id,visit_id,time,kind,code\n" + rows)
        (root / "node.toml").write_text(
            '[site]\nname = "north"\n[source]\nkind = "files"\nevents = "events.csv"\n[policy]\nmax_epsilon_total = 4.0\n'
        )
        folder = SiteFolder.of(root / "node.toml")
        kit = private(folder.workspace / "startup")
        key, pem = new_key()
        signer = None if by == "itself" else self.authority if by == "ours" else Authority.make("another")[0]
        (kit / "client.crt").write_text(_certificate(key, "north", signer, days))
        write_key(kit / "client.key", pem)
        (kit / "rootCA.pem").write_text(self.authority.pem)
        identity = Identity.generate("north")
        write_key(folder.path / "identity.key", identity._key.private_bytes_raw())
        place = {"host": "localhost", "port": self.port, "enrol_port": self.desk}
        write_json(folder.invite, {**place, "coordinator": self.folder.identity().public.hex(), "format": FORMAT})
        record(folder.pids / "client.json", os.getpid())
        known = {"north": {"key": identity.public.hex(), "fingerprint": "x"}} if listed else {}
        write_json(self.folder.sites, known)
        coordination.roster(self.folder)
        return folder


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["tls1.2", "tls1.3"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path, request.param)
    with made.open():
        yield made


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path, ssl.TLSVersion.TLSv1_3)
    with made.open():
        yield made


def _command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    from polyclinic.cli import main

    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--json"])
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def _doctor(capsys: pytest.CaptureFixture[str], site: SiteFolder) -> tuple[int, dict[str, dict[str, str]]]:
    code, value = _command(capsys, "site", "doctor", "--node", str(site.node_path))
    assert value["ok"] == (code == 0)
    return code, {p["name"]: p for p in value["probes"]}


def test_a_site_that_is_accepted_runs(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = hub.site(tmp_path / "north")
    value = status(site)
    assert (value["state"], value["coordinator"]["reachable"], value["exit"]) == ("running", True, 0), value
    code, probes = _doctor(capsys, site)
    assert code == 0 and {p["state"] for p in probes.values()} == {"ok"}, probes
    assert set(probes) >= {
        *("versions", "settings", "permissions", "disk", "data", "budget"),
        *("process", "name", "proxy", "certificate", "coordinator", "membership", "clock"),
    }
    assert "epsilon 4 of 4 left" in probes["budget"]["sentence"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"days": -3.0}, "expired on"),
        ({"by": "itself"}, "signed by itself"),
        ({"by": "another"}, "authority is unknown"),
    ],
)
def test_a_wrong_certificate_is_not_running(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], sentence: str
) -> None:
    site = hub.site(tmp_path / "north", **asked)
    code, value = _command(capsys, "site", "status", "--node", str(site.node_path))
    assert (code, value["state"], value["coordinator"]["reachable"]) == (5, "not accepted", False), value
    assert sentence in value["problems"][0]["sentence"]
    code, probes = _doctor(capsys, site)
    assert code == 5 and sentence in probes["certificate"]["sentence"]
    assert "refuses this certificate" in probes["coordinator"]["sentence"]  # the server said so, not our own look


def test_a_revoked_site_is_not_running(newest: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = newest.site(tmp_path / "north", listed=False)
    code, value = _command(capsys, "site", "status", "--node", str(site.node_path))
    assert (code, value["state"]) == (5, "not accepted")
    assert "revoked this site, or does not know it" in value["problems"][0]["sentence"]


@pytest.mark.parametrize(("days", "said"), [(10.0, "ends very soon"), (40.0, "ends soon"), (61.0, "valid until")])
def test_the_end_of_a_certificate_is_told_ahead(newest: Hub, tmp_path: Path, days: float, said: str) -> None:
    value = status(newest.site(tmp_path / "north", days=days))
    assert value["exit"] == 0
    told = [p["sentence"] for p in value["problems"]]
    assert told == [] if said == "valid until" else said in told[0]


def test_a_server_of_another_authority_is_not_the_coordinator(newest: Hub, tmp_path: Path) -> None:
    site = newest.site(tmp_path / "north")
    other, _ = Authority.make("another")
    key, pem = new_key()
    (tmp_path / "s.crt").write_text(issue(other, "localhost", key.public_key(), "server", host="localhost"))
    (tmp_path / "s.key").write_bytes(pem)
    newest.tls.load_cert_chain(tmp_path / "s.crt", tmp_path / "s.key")
    value = status(site)
    assert value["state"] == "not accepted" and "does not prove" in value["problems"][0]["sentence"]


def test_away_silent_and_dead(tmp_path: Path) -> None:
    hub = Hub(tmp_path, ssl.TLSVersion.TLSv1_3)
    site = hub.site(tmp_path / "north")
    value = status(site)  # nobody listens: the client goes on trying
    assert (value["state"], value["coordinator"]["reachable"], value["exit"]) == ("running", False, 5)
    with socket.create_server(("127.0.0.1", hub.port)):  # a TCP connection alone is not "reachable"
        found = handshake.handshake("localhost", hub.port, Papers.of(site.workspace / "startup"), timeout=0.3)
    assert found.state == "fault" and "does not answer" in found.sentence
    (site.pids / "client.json").unlink()
    with hub.open():
        value = status(site)
    assert (value["state"], value["coordinator"]["reachable"], value["exit"]) == ("stopped", True, 5)


def test_open_keys_and_a_missing_source_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub = Hub(tmp_path, ssl.TLSVersion.TLSv1_3)
    site = hub.site(tmp_path / "north")
    (site.workspace / "startup" / "client.key").chmod(0o644)
    (tmp_path / "north" / "events.csv").unlink()
    with hub.open():
        code, probes = _doctor(capsys, site)
    assert code == 2 and "client.key" in probes["permissions"]["sentence"]
    assert probes["permissions"]["what_to_do"].startswith("chmod 600")
    assert probes["data"]["state"] == "fault" and "events.csv" in probes["data"]["sentence"]
    code, probes = _command(capsys, "site", "doctor", "--node", str(tmp_path / "nowhere.toml"))
    assert code == 2 and "nowhere.toml" in probes["probes"][0]["sentence"]  # type: ignore[index]


def test_old_refusals_do_not_stick(newest: Hub, tmp_path: Path) -> None:
    site = newest.site(tmp_path / "north")
    append_event(site.events, event="refused", study="a", what="over the budget", reasons=[])
    assert (status(site)["exit"], status(site)["in_fault"]) == (4, {"a": "refused"})
    append_event(site.events, event="finished", study="b")
    value = status(site)
    assert (value["exit"], value["refused"]) == (0, ["a"])


def test_a_study_that_failed_here_is_not_running(newest: Hub, tmp_path: Path) -> None:
    site = newest.site(tmp_path / "north")
    append_event(site.events, event="failed", study="icu-1", error="MemoryError: 12 GB")
    value = status(site)
    assert (value["state"], value["exit"]) == ("study failed", 5)
    (told,) = value["problems"]
    assert "study icu-1 failed here: MemoryError: 12 GB" in told["sentence"]


def test_a_database_that_is_away_is_not_running(
    newest: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("psycopg")
    site = newest.site(tmp_path / "north")
    word = tmp_path / "north" / "word"
    word.write_text("geheim-4711")
    word.chmod(0o600)
    url = f"postgresql://reader@127.0.0.1:{free_port()}/cdm"
    text = site.node_path.read_text().replace('kind = "files"\nevents = "events.csv"', f'kind = "omop"\nurl = "{url}"')
    site.node_path.write_text(text.replace("[policy]", f'password = "file:{word}"\n[policy]'))
    site.node_path.chmod(0o600)
    code, value = _command(capsys, "site", "status", "--node", str(site.node_path))
    assert (value["state"], code) == ("data away", 3)
    (told,) = value["problems"]
    assert "the database is away" in told["sentence"] and "refused" in told["sentence"]
    assert "4711" not in json.dumps(value)  # never the password


def test_a_full_disk_is_not_running(newest: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = newest.site(tmp_path / "north")
    home = site.node.home
    for p in (tmp_path / "kept",):
        home.rename(p)
    home.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(home)]).returncode:
        pytest.skip("a disk of its own needs root")
    try:
        shutil.copytree(tmp_path / "kept", home, dirs_exist_ok=True)
        with contextlib.suppress(OSError), open(home / "filler", "wb") as f:
            while True:
                f.write(bytes(4096))
                f.flush()
        code, value = _command(capsys, "site", "status", "--node", str(site.node_path))
        assert (value["state"], code) == ("no room on the disk", 5)
        (told,) = value["problems"]
        assert "nothing can be written (No space left on device)" in told["sentence"]
        code, probes = _doctor(capsys, site)
        assert code == 2 and probes["disk"]["state"] == probes["data"]["state"] == "fault"
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.mark.parametrize(("ahead", "state"), [(2.0, "ok"), (-90.0, "warning"), (400.0, "fault"), (None, "warning")])
def test_clock(ahead: float | None, state: str) -> None:
    assert handshake.clock(ahead).state == state


def test_the_coordinators_own_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub = Hub(tmp_path, ssl.TLSVersion.TLSv1_3)
    with hub.open():
        record(hub.folder.pids / "server.json", os.getpid())
        record(hub.folder.pids / "reception.json", os.getpid())
        code, value = _command(capsys, "coordinator", "doctor", str(hub.folder.path))
    assert (code, {p["state"] for p in value["probes"]}) == (0, {"ok"}), value
    (hub.folder.authority / "rootCA.key").chmod(0o640)
    code, value = _command(capsys, "coordinator", "doctor", str(hub.folder.path))
    assert code == 2 and any("rootCA.key" in p["sentence"] for p in value["probes"] if p["state"] == "fault")


def test_a_missing_package_is_named_with_its_extra() -> None:
    from polyclinic.node.doctor.probes import _versions

    (fault,) = [p for p in _versions([("no-such-driver", "postgres")]) if p.state == "fault"]
    assert "no-such-driver (extra postgres)" in fault.sentence and fault.todo == "pip install 'polyclinic[postgres]'"
