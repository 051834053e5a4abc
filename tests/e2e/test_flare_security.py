"""What a site and a coordinator refuse: code, other classes, forged and revoked parties; what a tap on the relay sees."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

import pytest

from polyclinic.node.signed_study import StudyOrder

pytest.importorskip("nvflare")

from tests.e2e.flare_federation import Federation, running, same
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

TRIP = 'name = "trip"\nrank = 4\nrounds = 2\naggregation = "{}"'


def _submit(federation: Federation, folder: Path) -> str:
    """Hand a job to FLARE as a hostile coordinator would, past our own command line."""
    from polyclinic.node.flare.session import connected, quiet, session

    with session(federation.coordinator) as api, quiet():
        assert wait_until(lambda: set(connected(api)) >= set(federation.names))
        job = api.submit_job(str(folder))
        wait_until(lambda: api.get_job_status(job) not in (None, "SUBMITTED", "APPROVED", "DISPATCHED", "RUNNING"), 60)
        return str(api.get_job_status(job))


def _job(federation: Federation, order: StudyOrder, name: str) -> Path:
    from polyclinic.node.enrolment.startup_files import job_folder

    return job_folder(federation.root / name, order=order.encode(), sites=list(federation.names), quorum=1)


def test_forged_study_is_refused_everywhere_and_status_exits_4(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """The genuine coordinator's process leads, but the sites are handed an order that somebody else signed."""
    from polyclinic.cli import main
    from polyclinic.config import Study
    from polyclinic.node.enrolment.folders import read_events
    from polyclinic.node.signed_study import make_order
    from polyclinic.protocol.wire.sealed import Identity

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
def test_study_over_the_policy_of_one_site_goes_on_without_it_and_status_exits_4(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """South's owner allows another method only: refused there, by name in both logs; the quorum goes on."""
    from polyclinic.cli import main
    from polyclinic.node.enrolment.folders import read_events

    south = federation.sites["south"]
    kept = south.node_path.read_text()
    south.node_path.write_text(kept.replace("[policy]\n", '[policy]\nmethods = ["dpem"]\n'))
    try:
        path = federation.study("over", TRIP.format("plain"), head="deadline = 40\nquorum = 2\n")
        order = federation.order(path)
        status = federation.follow(order)
    finally:
        south.node_path.write_text(kept)
    assert status["state"] == "finished", (status, federation.events(order))
    assert set(status["refused"]) == {"south"}
    assert any(e["event"] == "refused" and e["site"] == "south" for e in federation.events(order))
    assert any(e["event"] == "refused" and e["study"] == order.id for e in read_events(south.events))
    for command in ("status", "review"):
        with pytest.raises(SystemExit) as stop:
            main(["site", command, "--node", str(south.node_path), "--json"])
        assert stop.value.code == 4, command
    assert same(federation.outcome(order).public, federation.in_process(path, without={"south"}).public)
    assert federation.charges("south", "over") == []
    assert federation.charges("north", "over") != []


@pytest.mark.slow
def test_job_with_code_or_another_class_does_not_run_at_any_site(tmp_path: Path) -> None:
    """The coordinator is hostile: its own server lets everything pass. What stops the jobs is in the sites' hands."""
    made = Federation(tmp_path)
    local = made.coordinator.server / "local"
    everything = {"format_version": "1.0", "permissions": {"project_admin": "any"}}
    (local / "authorization.json").write_text(json.dumps(everything))
    with running(made):
        order = made.order(made.study("evil", TRIP.format("plain"), head="deadline = 10\n"))
        mark = made.root / "evil-ran"
        code = _job(made, order, "code-job")
        (code / "app" / "custom").mkdir()
        (code / "app" / "custom" / "evil.py").write_text(
            f"class Evil:\n    def __init__(self):\n        open({str(mark)!r}, 'w').write('x')\n"
        )
        client = code / "app" / "config" / "config_fed_client.json"
        value = json.loads(client.read_text())
        client.write_text(json.dumps({**value, "components": [{"id": "x", "path": "evil.Evil", "args": {}}]}))
        assert "COMPLETED" not in _submit(made, code)
        log = (made.coordinator.server / "log.txt").read_text()
        assert all(f"{name}: NVFLARE_ERROR: BYOC not permitted" in log for name in made.names)  # each site said so
        touch = {"id": "x", "path": "subprocess.Popen", "args": {"args": ["touch", str(mark)]}}
        shell = "nvflare.app_common.launchers.subprocess_launcher.SubprocessLauncher"
        launch = {"id": "x", "path": shell, "args": {"script": f"touch {mark}", "launch_once": True}}
        for n, evil in enumerate((touch, launch)):
            other = _job(made, order, f"class-job-{n}")
            client = other / "app" / "config" / "config_fed_client.json"
            client.write_text(json.dumps({**value, "components": [evil]}))
            assert "COMPLETED" not in _submit(made, other)
            for site in made.sites.values():
                said = f"component not authorized: Component '{evil['path']}'"
                assert said in (site.path / "worker.log").read_text()
        assert not mark.exists()
        # the same hostile server can still lead an honest study: the refusals above were of the jobs, not of the server
        study = made.study("honest", TRIP.format("plain"))
        order = made.order(study)
        assert made.follow(order)["state"] == "finished"
        assert same(made.outcome(order).public, made.in_process(study).public)


def test_client_without_certificate_or_of_another_authority_is_refused(federation: Federation, tmp_path: Path) -> None:
    from polyclinic.node.enrolment.authority import Authority, issue, new_key

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


def test_approved_site_is_not_refused(federation: Federation) -> None:
    """The check above can fail: with a site's own certificate the line stays open."""
    startup = federation.sites["north"].workspace / "startup"
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(str(startup / "client.crt"), str(startup / "client.key"))
    assert not _refused(context, federation.port)
    assert not _refused(context, federation.admin_port)


@pytest.mark.slow
def test_revoked_site_is_out(tmp_path: Path) -> None:
    from polyclinic.node.flare import coordinator_service as coordinator
    from polyclinic.node.flare import site_service as sites
    from polyclinic.node.flare.session import connected, session

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
        assert wait_until(lambda: not _up(made, "south"))
        with session(made.coordinator) as api:
            assert "south" not in connected(api)


def _up(federation: Federation, name: str) -> bool:
    from polyclinic.node.enrolment.processes import Recorded, alive

    return alive(Recorded.read(federation.sites[name].pids / "client.json"))
