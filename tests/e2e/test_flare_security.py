"""What a site and a coordinator refuse: code, other classes, forged and revoked parties; what a tap on the relay sees."""

from __future__ import annotations

import json
import socket
import ssl
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
sys.path.insert(0, str(Path(__file__).parent))

from flare_federation import Federation, running, same, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

TRIP = 'name = "trip"\nrank = 4\nrounds = 2\naggregation = "{}"'


def _submit(federation, folder: Path) -> str:
    """Hand a job to FLARE as a hostile coordinator would, past our own command line."""
    from polyclinic.engines.flare.session import quiet, session

    with session(federation.coordinator) as api, quiet():
        job = api.submit_job(str(folder))
        wait_until(lambda: api.get_job_status(job) not in (None, "SUBMITTED", "APPROVED", "DISPATCHED", "RUNNING"), 60)
        return str(api.get_job_status(job))


def _job(federation, order, name: str) -> Path:
    from polyclinic.engines.flare.kit import job_folder

    return job_folder(federation.root / name, order=order.encode(), sites=list(federation.names), quorum=1)


def test_forged_study_is_refused_everywhere_and_status_exits_4(federation, capsys):
    """The genuine coordinator's process leads, but the sites are handed an order that somebody else signed."""
    from polyclinic.cli import main
    from polyclinic.engines.flare.folders import read_events
    from polyclinic.engines.flare.order import make_order
    from polyclinic.federation.envelope import Identity
    from polyclinic.study import Study

    path = federation.study("forged", TRIP.format("plain"), head="deadline = 20\n")
    order = federation.order(path)
    forged = make_order(Study.read(path), order.id, {n: order.keys[n] for n in order.sites}, Identity.generate("x"))
    job = _job(federation, order, "forged-job")
    client = job / "app" / "config" / "config_fed_client.json"
    value = json.loads(client.read_text())
    value["executors"][0]["executor"]["args"]["order"] = forged.encode()
    client.write_text(json.dumps(value))
    _submit(federation, job)
    status = json.loads((federation.coordinator.run(order.id) / "status.json").read_text())
    assert status["state"] == "stopped"
    assert {e["site"] for e in federation.events(order) if e["event"] == "refused"} == set(federation.names)
    for site in federation.sites.values():
        assert any(e["event"] == "refused" and "not signed" in e["what"] for e in read_events(site.events))
        with pytest.raises(SystemExit) as stop:
            main(["site", "status", "--node", str(site.node_path), "--json"])
        assert stop.value.code == 4


@pytest.mark.slow
def test_job_with_code_or_another_class_does_not_run_at_any_site(federation):
    order = federation.order(federation.study("evil", TRIP.format("plain"), head="deadline = 10\n"))
    mark = federation.root / "evil-ran"
    code = _job(federation, order, "code-job")
    custom = code / "app" / "custom"
    custom.mkdir()
    (custom / "evil.py").write_text(f"open({str(mark)!r}, 'w').write('x')\n")
    status = _submit(federation, code)
    assert "COMPLETED" not in status
    other = _job(federation, order, "class-job")
    client = other / "app" / "config" / "config_fed_client.json"
    value = json.loads(client.read_text())
    value["components"] = [{"id": "x", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}]
    client.write_text(json.dumps(value))
    _submit(federation, other)
    assert not mark.exists()


def test_client_without_certificate_or_of_another_authority_is_refused(federation, tmp_path):
    from polyclinic.engines.flare.enrolment import Authority, issue, new_key

    stranger, _ = Authority.make("polyclinic")
    key, pem = new_key()
    (tmp_path / "x.key").write_bytes(pem)
    (tmp_path / "x.crt").write_text(issue(stranger, "north", key.public_key(), "client"))
    for pair in (None, (tmp_path / "x.crt", tmp_path / "x.key")):
        for port in (federation.port, federation.admin_port):
            context = ssl.create_default_context(cafile=str(federation.coordinator.authority / "rootCA.pem"))
            if pair is not None:
                context.load_cert_chain(*map(str, pair))
            assert _refused(context, port)


def _refused(context: ssl.SSLContext, port: int) -> bool:
    """Whether the server breaks the line; TLS 1.3 tells a refused client at its first read only."""
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("localhost", port), timeout=10) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as line,
        ):
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # preface, settings
            return line.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_approved_site_is_not_refused(federation):
    """The check above can fail: with a site's own certificate the line stays open."""
    startup = federation.sites["north"].workspace / "startup"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(str(startup / "client.crt"), str(startup / "client.key"))
    assert not _refused(context, federation.port)
    assert not _refused(context, federation.admin_port)


@pytest.mark.slow
def test_revoked_site_is_out(tmp_path):
    from polyclinic.engines.flare import coordinator
    from polyclinic.engines.flare import site as sites
    from polyclinic.engines.flare.session import connected, session

    made = Federation(tmp_path)
    with running(made):
        study = made.study("before", TRIP.format("plain"))
        order = made.order(study)
        assert made.follow(order)["state"] == "finished"
        assert same(made.outcome(order).public, made.in_process(study).public)
        coordinator.revoke(made.coordinator, "south")
        with session(made.coordinator) as api:
            assert "south" not in connected(api)
        assert "south" not in made.order(made.study("without", TRIP.format("plain"))).sites
        sites.stop(made.sites["south"])
        sites.start(made.sites["south"])  # its certificate is still good for TLS, but it cannot register
        assert wait_until(lambda: not _up(made, "south"), 60)
        with session(made.coordinator) as api:
            assert "south" not in connected(api)


def _up(federation, name: str) -> bool:
    from polyclinic.engines.flare.processes import Recorded, alive

    return alive(Recorded.read(federation.sites[name].pids / "client.json"))


TAP = """
import sys, base64
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
real = CoreCell._receive if hasattr(CoreCell, "_receive") else None
from nvflare.fuel.f3.sfm import conn_manager
take = conn_manager.ConnManager.process_frame_task
def tapped(self, sfm_conn, frame):
    with open({path!r}, "ab") as f:
        f.write(bytes(frame) + b"\\n--frame--\\n")
    return take(self, sfm_conn, frame)
conn_manager.ConnManager.process_frame_task = tapped
sys.argv = sys.argv[1:]
from polyclinic.engines.flare.serve import main
main(*sys.argv[0:3])
"""


@pytest.mark.slow
def test_tap_on_the_relay_sees_no_plaintext_of_a_letter_between_sites(tmp_path):
    """The server's process is run with a tap on every frame it takes off the wire, after TLS was removed."""
    from polyclinic.engines.flare import coordinator, site
    from polyclinic.engines.flare.processes import launch, port_open

    made = Federation(tmp_path)
    frames = tmp_path / "frames.bin"
    script = tmp_path / "tap.py"
    script.write_text(TAP.format(path=str(frames)))
    argv = [str(script), "server", str(made.coordinator.server.resolve()), "server"]
    try:
        launch(
            argv,
            env=coordinator.environment(made.coordinator),
            log=made.coordinator.path / "server.log",
            note=made.coordinator.pids / "server.json",
        )
        assert wait_until(lambda: port_open("localhost", made.port), 60)
        for folder in made.sites.values():
            site.start(folder)
        study = made.study("tapped", 'name = "trip"\nrank = 2\nrounds = 1\naggregation = "subspace"')
        order = made.order(study)
        assert made.follow(order)["state"] == "finished"
    finally:
        made.stop()
    seen = frames.read_bytes()
    letters = seen.count(b"pc.put")
    assert letters > 50  # the tap did see the letters' envelopes ...
    # ... whose numbers would be doubles: every letter body between sites is sealed, so none decodes to known values
    from polyclinic.federation import wire

    plain = 0
    for piece in seen.split(b"PCW1")[1:]:
        body = b"PCW1" + piece
        if b'"value"' in body[:400] or b"\xa5value" in body[:400]:
            size = int.from_bytes(body[4:8], "little")
            header = body[8 : 8 + size]
            assert b"sealed" in header, header[:200]
            plain += 1
    assert plain > 20
    assert wire.LIMIT  # the module under test was imported
