"""Joining a federation over the network: keys born at the site, one-time invites, fingerprints that two people compare."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import wait_until

pytest.importorskip("nvflare")

import hospitals

from polyclinic.cli import main
from polyclinic.errors import PeerLost, PolicyRefusal
from polyclinic.node.admission import membership
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment import invitation, joining
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, read_events, read_json, write_json
from polyclinic.node.enrolment.processes import alive, end, free_port, port_open, recorded, wait_for
from polyclinic.node.flare import coordinator_service as coordinator
from polyclinic.protocol.wire.sealed import digest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SITES = ["east", "north", "south", "west", "isle"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorFolder]:
    """A coordinator whose port for joining is open, in a process of its own; FLARE's server is not needed for it."""
    folder = CoordinatorFolder(tmp_path_factory.mktemp("join") / "coordinator")
    ports = {"port": free_port(), "admin_port": free_port(), "enrol_port": free_port()}
    coordination.found(folder, SITES, host="localhost", **ports)
    desk = coordinator.receive(folder)
    try:
        assert wait_for(lambda: port_open("localhost", ports["enrol_port"]), 30)
        yield folder
        assert alive(desk)
    finally:
        end(recorded(folder.pids))


def node_of(home: CoordinatorFolder, name: str, where: str = "") -> Path:
    place = home.path.parent / (where or name)
    return place / "node.toml" if (place / "node.toml").exists() else hospitals.hospital(place, name, patients=5)


def invite_of(home: CoordinatorFolder, name: str) -> Path:
    return home.path / "invites" / f"{name}.invite.json"


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    """Run a command with --json: exit code and answer."""
    with pytest.raises(SystemExit) as stop:
        main([*map(str, arguments), "--json"])
    said = capsys.readouterr().out.strip().splitlines()
    return int(stop.value.code or 0), json.loads(said[-1]) if said else {}


def test_site_joins_over_the_network_and_both_people_read_the_same_words(
    home: CoordinatorFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    node, invite = node_of(home, "north"), invite_of(home, "north")
    code, asked = command(capsys, "site", "join", invite, "--node", node, "--wait", 0)
    assert (code, asked["state"]) == (0, "requested")
    code, shown = command(capsys, "coordinator", "requests", home.path)
    assert shown["requests"]["north"]["state"] == "waiting"
    assert shown["requests"]["north"]["fingerprint"] == asked["fingerprint"]
    assert len(asked["fingerprint"].split("-")) == 8
    assert asked["coordinator"] == coordination.coordinator_fingerprint(read_json(invite))
    code, _ = command(
        capsys, "coordinator", "approve", home.path, "north", "--fingerprint", asked["fingerprint"], "--yes"
    )
    assert code == 0
    code, done = command(capsys, "site", "join", invite, "--node", node)
    assert (code, done["state"]) == (0, "joined")
    code, pinned = command(capsys, "site", "pin", "--node", node, "--yes")
    assert pinned["pinned"] == ["north"]

    site = SiteFolder.of(node)
    kit = site.workspace / "startup"
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate = x509.load_pem_x509_certificate((kit / "client.crt").read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((home.authority / "rootCA.pem").read_bytes()))
    key = load_pem_private_key((kit / "client.key").read_bytes(), None)
    assert certificate.public_key() == key.public_key()
    assert (kit / "client.key").stat().st_mode & 0o077 == 0
    assert not read_json(site.invite)["secret"]
    assert json.loads((site.workspace / "local" / "authorization.json").read_text())["permissions"]["project_admin"][
        "byoc"
    ] == ("none")
    assert not list(site.workspace.rglob("*.sh"))


def test_no_private_key_of_a_site_is_at_the_coordinator(home: CoordinatorFolder) -> None:
    site = SiteFolder.of(node_of(home, "north"))
    membership.request(site, invite_of(home, "north"))
    raw = (site.path / "identity.key").read_bytes()
    pem = b"".join((site.path / "request" / "north.key").read_bytes().splitlines()[1:-1])[:200]
    for file in (f for f in home.path.rglob("*") if f.is_file()):
        data = b"".join(file.read_bytes().split())
        assert not any(s in data for s in (raw, raw.hex().encode(), pem)), file


def test_nothing_of_flare_is_written_outside_of_the_folders(
    home: CoordinatorFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    site = SiteFolder.of(node_of(home, "isle"))
    _, marks = membership.request(site, invite_of(home, "isle"))
    membership.send(site, wait=0.0)
    coordination.approve_site(home, "isle", marks["site"])
    assert membership.send(site, wait=0.0) == "joined"
    assert not list(tmp_path.iterdir())


def test_invite_works_once(home: CoordinatorFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody who found the invite asks with other keys: refused, and the first request stays as it is."""
    first = SiteFolder.of(node_of(home, "east"))
    _, marks = membership.request(first, invite_of(home, "east"))
    assert membership.send(first, wait=0.0) == "waiting"
    thief = node_of(home, "east", "thief")
    code, said = command(capsys, "site", "join", invite_of(home, "east"), "--node", thief, "--wait", 0)
    assert code == 4
    assert "used before" in said["what"]
    assert invitation.entries(home)["east"].fingerprint == marks["site"]
    assert membership.send(first, wait=0.0) == "waiting"
    assert any(e["event"] == "enrolment refused" for e in read_events(home.events))


def test_wrong_fingerprint_signs_nothing_and_a_rejected_site_is_told(
    home: CoordinatorFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    node = node_of(home, "south")
    command(capsys, "site", "join", invite_of(home, "south"), "--node", node, "--wait", 0)
    wrong = "lusab-babad-lusab-babad-lusab-babad-lusab-babad"
    code, said = command(capsys, "coordinator", "approve", home.path, "south", "--fingerprint", wrong, "--yes")
    assert code == 2
    assert "fingerprint" in said["what"]
    assert "south" not in home.approved()
    assert not (home.path / "approvals" / "south.approval.json").exists()
    assert command(capsys, "coordinator", "reject", home.path, "south")[0] == 0
    code, said = command(capsys, "site", "join", invite_of(home, "south"), "--node", node, "--wait", 0)
    assert code == 4
    assert "rejected" in said["what"]
    code, again = command(capsys, "coordinator", "invite", home.path, "south")  # a new invite, the same keys
    code, said = command(capsys, "site", "join", again["invite"], "--node", node, "--wait", 0)
    assert (code, said["state"]) == (0, "requested")


def test_bad_and_ended_invites_say_what_is_wrong(
    home: CoordinatorFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    node = node_of(home, "west")
    good = read_json(invite_of(home, "west"))

    def told(name: str, **change: object) -> tuple[int, str]:
        path = write_json(tmp_path / f"{name}.json", {**good, **change})
        code, said = command(capsys, "site", "join", path, "--node", node, "--wait", 0)
        return code, " ".join([said["what"], *said["faults"]])

    code, text = told("ended", ends=int(time.time()) - 60)
    assert (code, "it ended on" in text) == (2, True)
    code, text = told("damaged", authority_sha256="SHA256:00", secret=None)
    assert (code, "secret is missing" in text) == (2, True)
    other = read_json(invite_of(home, "east"))
    code, text = told("other", authority=good["authority"].replace("A", "B", 5))
    assert (code, "authority's certificate" in text) == (2, True)
    code, text = told("another-site", site="east", secret=other["secret"])
    assert (code, "the node file says 'west'" in text) == (2, True)
    code, text = told("guessed", secret="0" * 32)
    assert (code, "no such invite" in text) == (4, True)
    assert invitation.entries(home)["west"].state == "invited"
    # a site whose clock is wrong, or that ignores the date: the coordinator looks, too
    entry = invitation.entries(home)["west"]
    try:
        from dataclasses import replace

        invitation.put(home, replace(entry, ends=time.time() - 60))
        code, text = told("late")
        assert (code, "has ended" in text) == (4, True)
    finally:
        invitation.put(home, entry)


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "server", "default_host": "localhost", "fed_learn_port": 1025, "admin_port": 1026},
        {"type": "server", "default_host": "north", "host_names": ["localhost"], "fed_learn_port": 1025},
        {"type": "admin", "role": "lead"},
    ],
    ids=["the server's host", "the server's host as well", "an administrator"],
)
def test_request_for_more_than_a_sites_certificate_is_not_signed(
    tmp_path: Path, asked: dict[str, int | str | list[str]]
) -> None:
    """FLARE signs the kind that a request names; a hostile site names the server's, with the coordinator's host."""
    from polyclinic.errors import ConfigError, MessageRefused
    from polyclinic.node.enrolment.authority import request_of
    from polyclinic.node.enrolment.provisioning import _yaml, nvflare
    from polyclinic.protocol.wire.sealed import Identity

    folder = CoordinatorFolder(tmp_path / "coordinator")
    coordination.found(folder, ["north"], host="localhost", port=free_port(), admin_port=free_port())
    who = {"name": "polyclinic", "participants": [{"name": "north", "org": "polyclinic", **asked}]}
    definition = _yaml(tmp_path / "participant.yaml", who)
    try:
        nvflare("cert", "request", "-p", str(definition), "--out", str(tmp_path / "r"), home=tmp_path / "home")
    except ConfigError as e:
        assert asked["type"] == "admin", e  # FLARE itself wants an address as an administrator's name
        return
    data = (tmp_path / "r" / "north.request.zip").read_bytes()
    file = write_json(tmp_path / "request.json", request_of("north", "polyclinic", data, Identity.generate("north")))
    with pytest.raises((MessageRefused, ConfigError)) as refused:
        coordination.approve(folder, file, None)
    assert "north" not in folder.approved()
    assert not (folder.path / "approvals").exists()
    assert "more than a site's certificate" in str(refused.value) or "FLARE refused" in str(refused.value)


def test_certificate_is_looked_at_before_a_site_gets_it(tmp_path: Path) -> None:
    """Whatever FLARE signs: another key, another name, the server's host or another role is found."""
    import io
    import zipfile

    from polyclinic.node.enrolment.authority import Authority, issue, new_key
    from polyclinic.node.enrolment.provisioning import _faults, request_zip

    request, _ = request_zip(tmp_path, "north", "polyclinic")
    made = issue(Authority.make("polyclinic")[0], "north", new_key()[0].public_key(), "server", host="localhost")
    box = io.BytesIO()
    with zipfile.ZipFile(box, "w") as z:
        z.writestr("north.crt", made)
    assert [f.split(" ")[1] for f in _faults(box.getvalue(), request, "north")] == ["key", "names", "role"]


def test_another_authority_at_the_address_is_not_talked_to(
    home: CoordinatorFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The invite of one federation with the address of another: the site sends nothing."""
    other = CoordinatorFolder(tmp_path / "other")
    port = read_json(home.settings)["enrol_port"]
    (invite,) = coordination.found(
        other, ["west"], host="localhost", port=free_port(), admin_port=free_port(), enrol_port=port
    )
    node = hospitals.hospital(tmp_path / "west", "west", patients=5)
    before = len(read_events(home.events))
    code, said = command(capsys, "site", "join", invite, "--node", node, "--wait", 0)
    assert code == 5
    assert "does not prove to be the coordinator" in said["what"]
    assert len(read_events(home.events)) == before


def test_closed_port_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = CoordinatorFolder(tmp_path / "closed")
    (invite,) = coordination.found(
        folder, ["north"], host="localhost", port=free_port(), admin_port=free_port(), enrol_port=free_port()
    )
    node = hospitals.hospital(tmp_path / "north", "north", patients=5)
    code, said = command(capsys, "site", "join", invite, "--node", node)
    assert code == 5
    assert "--offline" in said["hint"]
    code, said = command(capsys, "site", "join", invite, "--node", node, "--offline")
    approval, _ = coordination.approve(folder, Path(said["request"]), said["fingerprint"])  # carried by hand
    code, said = command(capsys, "site", "join", invite, "--node", node, "--approval", approval)
    assert (code, said["state"]) == (0, "joined")
    code, said = command(capsys, "coordinator", "invite", folder.path, "north")
    assert code == 2
    assert "joined already" in said["what"]


def test_roster_is_for_sites_that_have_joined(home: CoordinatorFolder) -> None:
    site = SiteFolder.of(node_of(home, "north"))
    if not membership.joined(site):
        _, marks = membership.request(site, invite_of(home, "north"))
        membership.send(site, wait=0.0)
        coordination.approve_site(home, "north", marks["site"])
        membership.send(site, wait=0.0)
    assert "north" in membership.fetch_roster(site)["sites"]
    with pytest.raises(PolicyRefusal, match="only a site that has joined"):
        joining.call(site.read_invite(), "/roster", {})


class _Proxy(threading.Thread):
    """A hospital's proxy: passes TLS through on CONNECT, as the deployment guide asks."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.seen: list[str] = []

    def run(self) -> None:
        line, _ = self.listening.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(4096)
        self.seen.append(head.split(b"\r\n")[0].decode())
        host, port = self.seen[0].split()[1].split(":")
        out = socket.create_connection((host, int(port)))
        line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

        def pump(a: socket.socket, b: socket.socket) -> None:
            while data := a.recv(65536):
                b.sendall(data)

        threading.Thread(target=pump, args=(line, out), daemon=True).start()
        pump(out, line)


def test_proxy_that_passes_tls_through_is_used(home: CoordinatorFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = _Proxy()
    proxy.start()
    for name in ("no_proxy", "NO_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    invite = read_json(invite_of(home, "west"))
    with pytest.raises(PolicyRefusal, match="no such invite"):
        joining.call(invite, "/join", {"site": "west", "secret": "x"})
    assert proxy.seen == [f"CONNECT localhost:{invite['enrol_port']} HTTP/1.{proxy.seen[0][-1]}"]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, {"no_grpc_proxy": "hub.example"}),
        ({"http_proxy": "http://p:1"}, {"no_grpc_proxy": "hub.example"}),  # not for TLS; gRPC alone would take it
        ({"HTTPS_PROXY": "http://p:1"}, {"grpc_proxy": "http://p:1"}),  # gRPC alone would not see it
        ({"https_proxy": "p"}, {"grpc_proxy": "http://p:3128"}),
        ({"https_proxy": "http://jo:a%40b@p:1/"}, {"grpc_proxy": "http://jo:a%40b@p:1"}),
        ({"https_proxy": "http://p:1", "no_proxy": "hub.example"}, {"no_grpc_proxy": "hub.example"}),
    ],
)
def test_studies_go_out_by_the_same_proxy_as_joining(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], wanted: dict[str, str]
) -> None:
    from polyclinic.node.enrolment import proxy

    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    made = proxy.grpc_environment("hub.example")
    assert {k: v for k, v in made.items() if k in wanted} == wanted
    assert ("grpc_proxy" in made) == ("grpc_proxy" in wanted)
    assert (proxy.proxy_for("hub.example") is None) == ("grpc_proxy" not in wanted)


@pytest.mark.parametrize("wrong", ["https://p:1", "http://p:x", "socks5://p:1", "http://:1"])
def test_address_that_is_no_proxy_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    from polyclinic.errors import ConfigError
    from polyclinic.node.enrolment import proxy

    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("https_proxy", wrong.replace("//", "//jo:secret@"))
    with pytest.raises(ConfigError, match="not a proxy's address") as e:
        proxy.proxy_for("hub.example")
    assert "secret" not in str(e.value)


@pytest.mark.parametrize("host", ["hub.example:8202", "https://hub.example", "::1", "my hub", ""])
def test_host_that_no_site_could_reach_is_refused_at_founding(tmp_path: Path, host: str) -> None:
    from polyclinic.errors import ConfigError

    with pytest.raises(ConfigError) as e:
        coordination.found(CoordinatorFolder(tmp_path / "hub"), ["north"], host=host, port=1, admin_port=2)
    assert "a name or an IPv4 address" in str(e.value.faults)
    assert not (tmp_path / "hub").exists()


@pytest.fixture
def desk(home: CoordinatorFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[joining.JoiningPort]:
    """The same port in this process, with a short patience, to press on its limits."""
    monkeypatch.setattr(joining, "SECONDS", 1.5)
    with joining.JoiningPort(home, "127.0.0.1", 0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def test_port_for_joining_is_bounded(
    home: CoordinatorFolder, desk: joining.JoiningPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = desk.server_address[1]
    invite = {**read_json(invite_of(home, "west")), "enrol_port": port}
    with pytest.raises(PolicyRefusal, match="at most 65,536 bytes"):
        joining.call(invite, "/join", {"site": "west", "secret": "x" * joining.BODY})
    with pytest.raises(PolicyRefusal, match="nothing here"):
        joining.call(invite, "/../coordinator.json", {})
    with pytest.raises(PolicyRefusal, match="not a request"):
        joining.call(invite, "/join", {"site": ["west"], "secret": 7})
    # connections that say nothing, or drip, end by themselves; as many are served at a time as there are slots
    served: list[int] = []

    class Lines(OrderedDict[int, socket.socket]):
        def __setitem__(self, key: int, line: socket.socket) -> None:
            super().__setitem__(key, line)
            served.append(len(self))

    with desk._gate:  # a connection that ends now is counted once
        desk._lines = Lines(desk._lines)
        served.clear()
    lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(joining.AT_ONCE + 8)]
    tls = ssl.create_default_context(cadata=invite["authority"])
    for line in lines:  # a line that is not cut off waits until its limit, which is an error
        line.settimeout(300)
        assert line.recv(1) == b""
        line.close()
    assert len(served) == len(lines) and max(served) <= joining.AT_ONCE
    with tls.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as drip:
        drip.settimeout(300)

        def cut() -> bool:
            try:
                drip.sendall(b"P")
            except OSError:
                return True
            return False

        assert wait_until(cut, every=0.1)
    # garbage, then too many calls a minute from one address: cut, and the process lives. The minute does not end here
    now = time.monotonic()
    monkeypatch.setattr(joining, "time", SimpleNamespace(monotonic=lambda: now))
    for n in range(joining.A_MINUTE):
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(bytes([n % 256]) * 64)
    with pytest.raises(PeerLost):
        joining.call(invite, "/join", {"site": "west", "secret": "x"})
    desk._calls.clear()
    with pytest.raises(PolicyRefusal, match="no such invite"):
        joining.call(invite, "/join", {"site": "west", "secret": "x"})
    assert set(invitation.entries(home)) == set(SITES)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_site_is_revoked_while_the_coordinator_is_away_and_joins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Joining, running, revoked on file only, shut out after the restart, invited again, connected again, leaving."""
    from polyclinic.node.flare import site_service as service

    folder = CoordinatorFolder(tmp_path / "coordinator")
    ports = {"port": free_port(), "admin_port": free_port(), "enrol_port": free_port()}
    (invite,) = coordination.found(folder, ["north"], host="localhost", **ports)
    node = hospitals.hospital(tmp_path / "north", "north", patients=5)
    site = SiteFolder.of(node)

    def join(invite: Path) -> None:
        code, asked = command(capsys, "site", "join", invite, "--node", node, "--wait", 0)
        assert code == 0
        mark = ("--fingerprint", asked["fingerprint"], "--yes")
        assert command(capsys, "coordinator", "approve", folder.path, "north", *mark)[0] == 0
        assert command(capsys, "site", "join", invite, "--node", node)[1]["state"] == "joined"

    def connected() -> bool:
        return bool(coordinator.status(folder)["sites"].get("north", {}).get("connected"))

    try:
        assert command(capsys, "coordinator", "start", folder.path)[1]["enrol_port"] == ports["enrol_port"]
        assert command(capsys, "coordinator", "start", folder.path)[0] == 2  # twice
        (desk,) = recorded(folder.pids, "reception.json")
        os.kill(desk.pid, signal.SIGKILL)
        assert wait_until(lambda: not alive(desk))
        assert command(capsys, "coordinator", "status", folder.path)[1]["joining"] == "closed"
        assert command(capsys, "coordinator", "start", folder.path)[1]["state"] == "reopened"
        assert command(capsys, "coordinator", "status", folder.path)[1]["joining"] == "open"
        join(invite)
        service.start(site)
        assert wait_until(connected, every=1.0)
        assert command(capsys, "coordinator", "stop", folder.path)[0] == 0
        assert command(capsys, "coordinator", "revoke", folder.path, "north")[0] == 0
        assert command(capsys, "coordinator", "start", folder.path)[0] == 0
        service.stop(site)
        service.start(site)
        from polyclinic.node.flare.session import connected as heard
        from polyclinic.node.flare.session import session

        log = folder.server / "log.txt"
        assert wait_until(lambda: "Reject disabled client registration: north" in log.read_text())
        with session(folder) as api:
            assert "north" not in heard(api)
        with pytest.raises(PolicyRefusal):
            membership.fetch_roster(site)
        service.stop(site)
        code, again = command(capsys, "coordinator", "invite", folder.path, "north")
        join(Path(again["invite"]))
        service.start(site)
        assert wait_until(connected, every=1.0)
        assert command(capsys, "site", "leave", "--node", node, "--yes")[0] == 2  # it runs
        service.stop(site)
        code, left = command(capsys, "site", "leave", "--node", node, "--yes")
        assert code == 0
        assert not site.path.exists()
        assert not list(Path(left["aside"]).rglob("*.key"))
        assert command(capsys, "site", "status", "--node", node)[1]["state"] == "not joined"
    finally:
        service.stop(site)
        coordinator.stop(folder)
    assert not recorded(folder.pids)
    assert not any(port_open("localhost", p) for p in ports.values())


def test_a_certificate_is_renewed_for_the_same_keys_and_nobody_elses(
    home: CoordinatorFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """North joined above; its certificate is taken away, as after its end, and it still can ask: its own key signs."""
    site = SiteFolder.of(node_of(home, "north"))
    kit = site.workspace / "startup"
    secrets = {p: p.read_bytes() for p in (*site.path.rglob("*.key"), site.pins)}
    old = (kit / "client.crt").read_bytes()
    code, said = command(capsys, "site", "renew", "--node", site.node_path, "--wait", 0)
    assert (code, said["state"]) == (5, "waiting")
    assert command(capsys, "coordinator", "requests", home.path)[1]["requests"]["north"]["asks_for_new_certificate"]
    assert (kit / "client.crt").read_bytes() == old
    ends = int(time.time())
    wait_until(lambda: int(time.time()) > ends)  # a certificate's end has whole seconds
    code, made = command(capsys, "coordinator", "renew", home.path, "north")
    assert (code, made["renewed"]) == (0, "north")
    (kit / "client.crt").write_text("nothing")
    code, said = command(capsys, "site", "renew", "--node", site.node_path, "--wait", 0)
    assert (code, said["state"], said["until"]) == (0, "renewed", made["until"])
    assert (kit / "client.crt").read_bytes() not in (old, b"nothing")
    assert {p: p.read_bytes() for p in secrets} == secrets
    code, said = command(capsys, "site", "renew", "--node", site.node_path, "--approval", made["approval"])
    assert code == 2  # it is the one that is here
    assert "not later" in said["what"]
    thief = SiteFolder.of(node_of(home, "isle"))  # it has joined, and asks for another's
    body = {"kind": "polyclinic renewal", "site": "north", "ends": 0}
    with pytest.raises(PolicyRefusal, match="only a site that has joined"):
        joining.call(thief.read_invite(), "/renew", {**body, "signature": thief.identity().sign(digest(body)).hex()})
    assert command(capsys, "coordinator", "renew", home.path, "nobody")[0] == 2
