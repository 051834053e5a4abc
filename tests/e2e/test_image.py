"""compose.yaml's own services in the image that deploy/rootfs.py built: read-only root, user 10001, no capability, no network.

ROOTFS names the folder: ``python deploy/rootfs.py FOLDER``, then ``ROOTFS=FOLDER pytest -m slow tests/e2e/test_image.py``. Not an
engine: the services share one network namespace and one process namespace, and PostgreSQL runs outside of the image.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
from tests.e2e.test_compose import DEPLOY, ROOT, _compose, _logs
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]
FORWARD = (
    "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
    "from tests.e2e.test_compose import _forward; _forward(Path(sys.argv[2]), 5432); print('ready', flush=True); sys.stdin.read()"
)


class Engine:
    """Starts services of compose.yaml as an engine would, without one."""

    def __init__(self, image: Path, base: Path) -> None:
        self.image, self.base, self.value = image, base, _compose()
        self.sandbox = runpy.run_path(str(DEPLOY / "rootfs.py"))["sandbox"]
        self.net = f"pc-image-{os.getpid()}"
        self.running: dict[str, subprocess.Popen[str]] = {}
        (base / "hosts").write_text("127.0.0.1 localhost coordinator database\n")
        (base / "srv").mkdir()
        for volume in ("none", *self.value["volumes"]):
            (base / "srv" / volume).mkdir()
            os.chown(base / "srv" / volume, 10001, 10001)
        subprocess.run(["ip", "netns", "add", self.net], check=True)
        subprocess.run(["ip", "-n", self.net, "link", "set", "lo", "up"], check=True)
        # engines allow an ordinary user every port of a container; the coordinator listens on 443
        subprocess.run(self.inside("sysctl", "-qw", "net.ipv4.ip_unprivileged_port_start=0"), check=True)

    def inside(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.net, *command]

    def command(self, name: str, words: list[str]) -> list[str]:
        """A command in a service's container."""
        service = self.value["services"][name]
        volumes = {"/srv": self.base / "srv" / "none"}
        volumes |= {v.split(":")[1]: self.base / "srv" / v.split(":")[0] for v in service.get("volumes", ())}
        files = {"/etc/hosts": self.base / "hosts"}
        for secret in service.get("secrets", ()):  # an engine shows them to every user of the container
            files[f"/run/secrets/{secret}"] = self.base / secret
            shutil.copyfile(DEPLOY / self.value["secrets"][secret]["file"], self.base / secret)
            (self.base / secret).chmod(0o444)
        env = {k: str(v) for k, v in service.get("environment", {}).items()}
        if "HOME_OF_SITE" in env:  # in containers each has its own loopback
            env["MONITOR_PORT"] = str(9464 + ["north", "south", "east"].index(name))
        return self.inside(*self.sandbox(self.image, words, volumes=volumes, env=env, files=files))

    def start(self, name: str) -> None:
        log = open(self.base / f"{name}.log", "w")  # noqa: SIM115
        argv = self.command(name, self.value["services"][name]["entrypoint"])
        self.running[name] = subprocess.Popen(argv, stdout=log, stderr=log, text=True)

    def exec(self, name: str, *words: str, code: int = 0) -> str:
        done = subprocess.run(self.command(name, list(words)), capture_output=True, text=True, timeout=1200)
        assert done.returncode == code, done.stdout + done.stderr + _logs(self.base)
        return done.stdout

    def is_healthy(self, name: str) -> bool:
        """The service's own health check."""
        how, *words = self.value["services"][name]["healthcheck"]["test"]
        words = ["/bin/sh", "-c", words[0].replace("$$", "$")] if how == "CMD-SHELL" else words
        return subprocess.run(self.command(name, words), capture_output=True, timeout=300).returncode == 0


@pytest.fixture
def engine() -> Iterator[Engine]:
    image = Path(os.environ.get("ROOTFS", "/nowhere"))
    if not (image / "image.json").is_file():
        pytest.skip("ROOTFS names no folder of deploy/rootfs.py")
    if os.geteuid() != 0 or not all(map(shutil.which, ("bwrap", "ip"))):
        pytest.skip("needs root, bubblewrap and iproute2")
    pgserver = pytest.importorskip("pgserver")
    import psycopg

    base = Path(tempfile.mkdtemp(prefix="pc-image-", dir="/var/tmp"))
    base.chmod(0o755)
    server = pgserver.get_server(base / "database", cleanup_mode="stop")
    with psycopg.connect(server.get_uri(), autocommit=True) as link:
        link.execute("CREATE ROLE reader SUPERUSER LOGIN")
        link.execute("CREATE DATABASE cdm OWNER reader")
    made = Engine(image, base)
    place = str(Path(server.get_uri().partition("host=")[2]) / ".s.PGSQL.5432")
    forward = subprocess.Popen(
        made.inside(sys.executable, "-c", FORWARD, str(ROOT), place),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert forward.stdout is not None and forward.stdout.readline() == "ready\n"
    try:
        yield made
    finally:
        for process in (*made.running.values(), forward):
            process.terminate()
        left = subprocess.run(["ip", "netns", "pids", made.net], capture_output=True, text=True).stdout.split()
        for pid in map(int, left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (*made.running.values(), forward):
            process.wait(timeout=60)
        subprocess.run(["ip", "netns", "delete", made.net], check=False)
        server.cleanup()
        shutil.rmtree(base, ignore_errors=True)


def _end(engine: Engine, name: str) -> None:
    engine.running[name].wait(timeout=1200)
    assert engine.running[name].returncode == 0, _logs(engine.base)


@pytest.mark.parametrize("unit", ["polyclinic-site.service", "polyclinic-coordinator.service"])
def test_systemd_finds_no_fault_in_the_units_where_the_program_is_installed(engine: Engine, unit: str) -> None:
    program = ["--tmpfs", "/opt", "--ro-bind", str(engine.image / "image" / "opt" / "polyclinic"), "/opt/polyclinic"]
    words = ["bwrap", "--dev-bind", "/", "/", *program, "systemd-analyze", "verify", str(DEPLOY / "systemd" / unit)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_rehearsal_of_compose_runs_in_the_image(engine: Engine) -> None:
    told = engine.exec(
        "coordinator",
        "/bin/sh",
        "-c",
        "id -u; touch /x /opt/x 2>/dev/null || echo no; cat /proc/self/status; command -v pip gcc || echo none",
    )
    assert told.startswith("10001\nno\n") and told.endswith("none\n")
    facts = dict(line.split(":\t") for line in told.splitlines() if ":\t" in line)
    assert {facts[k] for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16} and facts[
        "NoNewPrivs"
    ] == "1"
    engine.exec("coordinator", "polyclinic", "--version")
    engine.start("records")
    _end(engine, "records")
    engine.start("coordinator")
    for name in ("joining", "north", "south", "east"):
        engine.start(name)
    _end(engine, "joining")

    def connected() -> bool:
        said = engine.exec("coordinator", "polyclinic", "coordinator", "status", "/srv/hub", "--json")
        sites: dict[str, Any] = json.loads(said.splitlines()[-1])["sites"]
        return len(sites) == 3 and all(s["connected"] for s in sites.values())

    assert wait_until(connected, 1200, every=5.0), _logs(engine.base)
    study = "/opt/polyclinic/compose/study.toml"
    said = engine.exec("coordinator", "polyclinic", "coordinator", "submit", "/srv/hub", study, "--json")
    done = json.loads(said.splitlines()[-1])
    assert done["state"] == "finished", _logs(engine.base)
    run = engine.base / "srv" / "hub" / Path(done["run"]).relative_to("/srv")
    assert json.loads((run / "metrics.json").read_text())["guarantee"] == "formal"
    assert (run / "metrics.json").stat().st_uid == 10001
    for name in ("coordinator", "north", "south", "east"):
        assert engine.is_healthy(name), (name, _logs(engine.base))
    assert all(p.poll() is None for n, p in engine.running.items() if n not in ("records", "joining")), _logs(
        engine.base
    )
