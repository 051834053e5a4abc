"""What compose.yaml runs, without a container engine: its own scripts, an ordinary user, a read-only system, a real PostgreSQL.

What is not run here: images, container networks, volumes, the engine's own read-only and capability settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.waiting import wait_until

pytest.importorskip("nvflare")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def _compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    value: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return value


def test_compose_is_closed_and_names_what_is_there() -> None:
    value = _compose()
    ours = {n: s for n, s in value["services"].items() if s.get("image") == "polyclinic"}
    assert set(ours) == {"records", "coordinator", "joining", "north", "south", "east"}
    for name, s in ours.items():
        assert s["read_only"] is True, name
        assert s["cap_drop"] == ["ALL"], name
        assert s["security_opt"] == ["no-new-privileges:true"], name
        assert s["user"] == "10001:10001", name
        assert "ports" not in s, name  # a hospital opens no incoming port
        script = Path(s["entrypoint"][1])
        assert (DEPLOY / "compose" / script.name).is_file(), script
        for volume in s.get("volumes", ()):
            assert volume.partition(":")[0] in value["volumes"], volume
    assert value["networks"]["records"] == {"internal": True}
    docker = (DEPLOY / "Dockerfile").read_text()
    assert "USER 10001:10001" in docker
    assert docker.count("\nFROM ") == 2


@pytest.mark.parametrize("unit", ["polyclinic-site.service", "polyclinic-coordinator.service"])
def test_the_units_are_hardened_and_read_by_systemd(unit: str) -> None:
    text = (DEPLOY / "systemd" / unit).read_text()
    for word in ("ProtectSystem=strict", "NoNewPrivileges=yes", "CapabilityBoundingSet=\n", "User=polyclinic"):
        assert word in text
    if unit == "polyclinic-site.service":
        assert "LoadCredential=database-password:" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: the unit was not read")
    done = subprocess.run(["systemd-analyze", "verify", DEPLOY / "systemd" / unit], capture_output=True, text=True)
    wrong = [
        x for x in done.stderr.splitlines() if "is not executable" not in x
    ]  # /opt/polyclinic is not installed here
    assert wrong == []
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", DEPLOY / "systemd" / unit],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-500:]


@pytest.mark.slow
def test_the_rehearsal_runs_as_an_ordinary_user_on_a_read_only_system() -> None:
    """The services' own scripts, each as user 10001 with no new privileges, where nothing but its folders can be written."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("needs root, unshare and setpriv")
    pgserver = pytest.importorskip("pgserver")
    from polyclinic.node.enrolment.processes import free_port

    base = Path(tempfile.mkdtemp(prefix="pc-compose-", dir="/var/tmp"))
    base.chmod(0o755)
    server = pgserver.get_server(base / "database", cleanup_mode="stop")
    running: list[subprocess.Popen[str]] = []
    try:
        shared = {"SITES": "north south east", "INVITES": str(base / "srv" / "invites")}
        places = ["hub", "invites", "north", "south", "east", "tmp"]
        for p in places:
            (base / "srv" / p).mkdir(parents=True)
            os.chown(base / "srv" / p, 10001, 10001)
        word = base / "password"
        word.write_text("not-asked-for\n")
        word.chmod(0o444)
        ports = {k: free_port() for k in ("--port", "--admin-port", "--enrol-port")}
        tools = base / "tools"
        tools.mkdir()
        (base / "python").mkdir()
        installed = next(p for p in map(Path, sys.path) if p.name == "site-packages")
        for name in ("python", "polyclinic"):
            line = f'exec {base}/python/bin/python3 {"-m polyclinic.cli " if name == "polyclinic" else ""}"$@"'
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)

        def command(script: list[str], more: dict[str, str]) -> tuple[list[str], dict[str, str]]:
            env = {
                "PATH": f"{tools}:/usr/bin:/bin",
                "HOME": str(base / "srv" / "tmp"),
                "TMPDIR": str(base / "srv" / "tmp"),
                "PYTHONPATH": f"{ROOT / 'src'}:{installed}",
                "LD_LIBRARY_PATH": str(base / "python" / "lib"),
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
                **shared,
                **more,
            }
            # the interpreter may lie in a folder that an ordinary user cannot enter (a home): shown elsewhere
            keep = f"mount --bind {sys.base_prefix} {base / 'python'}; "
            keep += " ".join(f"mount --bind {base / 'srv' / p} {base / 'srv' / p};" for p in places)
            words = " ".join(f"'{w}'" for w in script)
            # as an engine does it: own mount namespace, root file system read-only, volumes written, no privileges
            inside = (
                f"{keep} mount -o remount,bind,ro / && ! touch {base}/x 2>/dev/null && exec setpriv --reuid 10001 --regid 10001 "
                f"--clear-groups --no-new-privs --bounding-set=-all {words}"
            )
            return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", inside], env

        def start(name: str, script: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
            argv, env = command(script, more)
            log = open(base / f"{name}.log", "w")  # noqa: SIM115
            made = subprocess.Popen(argv, env=env, stdout=log, stderr=log, text=True)
            running.append(made)
            return made

        def once(script: list[str], more: dict[str, str]) -> str:
            argv, env = command(script, more)
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stdout + done.stderr + _logs(base)
            return done.stdout

        assert "polyclinic" in once(["polyclinic", "--version"], {})
        place = parse_qs(urlsplit(server.get_uri()).query)["host"][0]
        port = _forward(Path(place) / ".s.PGSQL.5432")
        omop = {"OMOP_URL": f"postgresql://postgres@127.0.0.1:{port}/postgres", "OMOP_PASSWORD_FILE": str(word)}
        subprocess.run(
            [sys.executable, DEPLOY / "compose" / "records.py"],
            env={**os.environ, **omop, **shared},
            check=True,
            timeout=120,
        )
        hub = {"HUB": str(base / "srv" / "hub" / "hub"), "HUB_HOST": "localhost"}
        hub["PORTS"] = " ".join(f"{k} {v}" for k, v in ports.items())
        start("coordinator", ["/bin/sh", str(DEPLOY / "compose" / "coordinator.sh")], hub)
        joining = start("joining", ["/bin/sh", str(DEPLOY / "compose" / "joining.sh")], hub)
        for name in ("north", "south", "east"):
            more = {
                "NAME": name,
                "HOME_OF_SITE": str(base / "srv" / name / name),
                **omop,
                "MONITOR_PORT": str(free_port()),
            }
            start(name, ["/bin/sh", str(DEPLOY / "compose" / "site.sh")], more)
        assert wait_until(lambda: any(p.poll() is not None for p in running), 1200), _logs(base)
        assert [p.args for p in running if p.poll() is not None] == [joining.args], _logs(base)
        assert joining.returncode == 0, _logs(base)

        def connected() -> bool:
            said = once(["polyclinic", "coordinator", "status", hub["HUB"], "--json"], hub).splitlines()[-1]
            sites = json.loads(said)["sites"]
            return len(sites) == 3 and all(s["connected"] for s in sites.values())

        assert wait_until(connected, 1200, every=2.0), _logs(base)
        study = str(DEPLOY / "compose" / "study.toml")
        done = json.loads(
            once(["polyclinic", "coordinator", "submit", hub["HUB"], study, "--json"], hub).splitlines()[-1]
        )
        assert done["state"] == "finished", _logs(base)
        metrics = json.loads((Path(done["run"]) / "metrics.json").read_text())
        assert metrics["guarantee"] == "formal"
        assert (Path(done["run"]) / "metrics.json").stat().st_uid == 10001
        told = once(
            ["polyclinic", "site", "status", "--node", str(base / "srv" / "north" / "north" / "node.toml")], omop
        )
        assert "north running" in told
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
        _end_left(base)
        server.cleanup()
        shutil.rmtree(base, ignore_errors=True)


def _forward(place: Path, port: int = 0) -> int:
    """A port of this machine that leads to the database's own socket, which no other user can open."""

    def pump(a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while True:
            here, _ = listening.accept()
            there = socket.socket(socket.AF_UNIX)
            there.connect(str(place))
            for a, b in ((here, there), (there, here)):
                threading.Thread(target=pump, args=(a, b), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=serve, daemon=True).start()
    return int(listening.getsockname()[1])


def _logs(base: Path) -> str:
    events = sorted(base.glob("srv/*/*/site/federation/events.jsonl"))
    told = "\n".join(p.read_text()[-700:] for p in events)
    return told + "\n".join(f"== {p.name}\n{p.read_text()[-1500:]}" for p in sorted(base.glob("*.log")))


def _end_left(base: Path) -> None:
    """Processes that ours left: those whose command line names this test's own folder."""
    import psutil

    for p in psutil.process_iter(["cmdline", "environ"]):
        try:
            if any(str(base / "srv") in w for w in p.info["cmdline"] or ()):
                p.kill()
        except psutil.Error:
            continue
