"""Four hosts for the end-to-end tests: network namespaces on a switch, each with its own address, loopback and disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hospitals
from tests.e2e.flare_federation import ROOT, Federation
from tests.waiting import wait_until

HUB = "study.example.org"  # the name in the guide
NET = "10.77.0"
GUIDE = "\n".join((ROOT / "docs" / "howto" / f"{n}.md").read_text(encoding="utf-8") for n in ("deployment", "network"))
SAID = {" ".join(line.split("#")[0].split()) for line in GUIDE.splitlines()}
PROXY_PORT = 3128
PORTS = (443, 8204)  # what the guide's table opens at the coordinator


def missing() -> str:
    """Why there can be no hosts here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    if shutil.which("ip") is None:
        return "the command `ip` (iproute2) is missing"
    probe = f"pc{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode else ""


def guide(line: str, **names: str) -> str:
    """A command that stands in the guide, word for word; ``names`` says what the guide calls it there."""
    said = line
    for ours, theirs in names.items():
        said = said.replace(ours, theirs)
    assert said in SAID, f"the deployment guide does not say: {said}"
    return line


def firewall(whose: str, address: str = "") -> str:
    """A firewall of the guide; ``address`` is that of the coordinator."""
    found = re.search(rf"```text\n(table inet {whose} .*?)```", GUIDE, re.S)
    assert found is not None
    return found[1].replace("192.0.2.10", address)


class Host:
    """One machine: a namespace with an address, its own /srv, and no sight of the other hosts' folders."""

    def __init__(self, name: str, number: int, root: Path) -> None:
        self.name, self.address, self.root = name, f"{NET}.{number}", root
        self.number, self.ns, self.switch = number, f"pc{os.getpid()}-{name}", f"pc{os.getpid()}-switch"
        self.disk = root / name
        self.disk.mkdir(mode=0o700, parents=True)
        self.env: dict[str, str] = {}
        self.etc = Path("/etc/netns") / self.ns

    def wrap(self, command: list[str], cwd: str) -> list[str]:
        """A command as it runs on this host."""
        inside = 'mount --bind "$1" /srv && mount -t tmpfs none "$2" && cd "$3" && shift 3 && exec "$@"'
        return ["ip", "netns", "exec", self.ns, "sh", "-c", inside, "sh", str(self.disk), str(self.root), cwd, *command]

    def popen(self, command: str, *, cwd: str = "/srv", env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command on this host."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.wrap(command.split(), cwd),
            env={**clean, "PATH": path, **self.env, **(env or {})},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def run(self, command: str, *, typed: str = "", code: int | None = 0, **options: Any) -> str:
        """Run a command on this host; ``typed`` is what a person answers. Returns what it said."""
        process = self.popen(command, **options)
        out, err = process.communicate(typed, timeout=200)
        assert code is None or process.returncode == code, f"{self.name}: {command}\n{out}\n{err}"
        return out + err

    def reaches(self, address: str, port: int) -> bool:
        """Whether a connection to an address succeeds within two seconds."""
        code = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
        return subprocess.run(self.wrap([sys.executable, "-c", code], "/"), capture_output=True).returncode == 0

    def pids(self) -> list[int]:
        """Every process that runs on this host."""
        out = subprocess.run(["ip", "netns", "pids", self.ns], capture_output=True, text=True).stdout
        return [int(p) for p in out.split()]

    def listening(self) -> set[tuple[str, int]]:
        """Where somebody listens on this host: address and port."""
        found = set()
        for line in self.run("cat /proc/net/tcp /proc/net/tcp6").splitlines():
            parts = line.split()
            if len(parts) > 3 and parts[3] == "0A":
                raw, port = parts[1].split(":")
                v4 = ".".join(str(b) for b in reversed(bytes.fromhex(raw[-8:])))
                found.add(("0.0.0.0" if not int(raw, 16) else v4, int(port, 16)))
        return found

    def cable(self, plugged: bool) -> None:
        """Pull this host's cable, or put it back; the host sees it."""
        _ip("-n", self.ns, "link", "set", "eth0", "up" if plugged else "down")

    def road(self, open_: bool) -> None:
        """Block the road somewhere behind the switch, or open it: packets vanish both ways, and nobody is told."""
        state = "3" if open_ else "0"  # of the spanning tree: forwarding, or disabled
        _ip("netns", "exec", self.switch, "bridge", "link", "set", "dev", f"p{self.number}", "state", state)

    def firewall(self, rules: str) -> None:
        """Load a firewall, in place of any other."""
        subprocess.run(
            ["ip", "netns", "exec", self.ns, "nft", "-f", "-"],
            input=f"flush ruleset\n{rules}",
            text=True,
            check=True,
            capture_output=True,
        )

    def shut_in(self, proxy: Host | None, hub: Host) -> None:
        """From now on this host has no name service and no way to the coordinator, but a proxy (with a firewall: nothing else)."""
        self.knows({})
        _ip("-n", self.ns, "route", "add", "prohibit", f"{hub.address}/32")
        if proxy is not None:
            self.firewall(firewall("hospital", proxy.address).replace("443, 8204", str(PROXY_PORT)))

    def knows(self, names: Mapping[str, str]) -> None:
        """The hosts file of this host, in place of a name service."""
        self.etc.mkdir(parents=True, exist_ok=True)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        (self.etc / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (self.etc / "resolv.conf").write_text("nameserver 127.0.0.1\n", encoding="utf-8")  # nobody answers there


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def network(root: Path, names: list[str]) -> Iterator[dict[str, Host]]:
    """Hosts on a switch; whatever happens, their processes are ended by number and everything is taken down."""
    switch = f"pc{os.getpid()}-switch"
    hosts = {name: Host(name, n, root) for n, name in enumerate(names, start=1)}
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for n, host in enumerate(hosts.values(), start=1):
            _ip("netns", "add", host.ns)
            _ip("-n", switch, "link", "add", f"p{n}", "type", "veth", "peer", "name", "eth0", "netns", host.ns)
            _ip("-n", switch, "link", "set", f"p{n}", "master", "br0", "up")
            _ip("-n", host.ns, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.ns, "link", "set", "lo", "up")
            _ip("-n", host.ns, "link", "set", "eth0", "up")
        yield hosts
    finally:
        for host in hosts.values():
            for sign in (signal.SIGTERM, signal.SIGKILL):
                for pid in host.pids():
                    with suppress(ProcessLookupError):
                        os.kill(pid, sign)
                if wait_until(lambda host=host: not host.pids(), 5):  # type: ignore[misc]
                    break
            subprocess.run(["ip", "netns", "del", host.ns], capture_output=True)
            shutil.rmtree(host.etc, ignore_errors=True)
        subprocess.run(["ip", "netns", "del", switch], capture_output=True)


class Hospitals(Federation):
    """A coordinator and three hospitals on four hosts, made by the commands of the guide and nothing else."""

    def __init__(self, hosts: dict[str, Host], root: Path) -> None:
        from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder

        self.hosts, self.root, self.names = hosts, root, hospitals.NAMES
        self.hub = hosts["hub"]
        self.port, self.admin_port, self.enrol_port = 443, 8203, 8204
        self.coordinator = CoordinatorFolder(self.hub.disk / "polyclinic")
        hospitals.vocabulary(self.hub.disk)
        self.sites: dict[str, Any] = {}
        for name in self.names:
            review = name == "east"  # its owner wants to see every study; the others let the policy decide
            node = hospitals.hospital(hosts[name].disk / "polyclinic-site", name, rehearsal=True)
            if review:
                text = node.read_text(encoding="utf-8").replace('studies = "policy"', 'studies = "ask"')
                node.write_text(text, encoding="utf-8")
            self.sites[name] = SiteFolder.of(node)

    def at(self, name: str, command: str, **options: Any) -> str:
        """A command at a hospital, in its folder."""
        return self.hosts[name].run(command, cwd="/srv/polyclinic-site", **options)

    def join(self) -> None:
        """From nothing to four connected hosts: the guide's own lines, a person's answers included."""
        sites = " ".join(f"--site {n}" for n in ("north", "south", "east"))
        self.hub.run(guide(f"polyclinic coordinator init /srv/polyclinic --host {HUB} --port 443 {sites}"))
        self.hub.run(guide("polyclinic coordinator start /srv/polyclinic"))
        for name in self.names:
            home = self.hosts[name].disk / "polyclinic-site"
            shutil.copy(self.coordinator.path / "invites" / f"{name}.invite.json", home)  # the letter
            self.ask(name)
        for name in self.names:
            self.at(name, guide("polyclinic site pin --node node.toml"), typed="y\n")
            self.at(name, guide("polyclinic site start --node node.toml"))
        assert wait_until(lambda: not self.status()["waiting_for"]), self.status()

    def ask(self, name: str) -> None:
        """A hospital asks to join and waits; somebody at the coordinator compares the words and approves."""
        line = guide(f"polyclinic site join {name}.invite.json --node node.toml", **{name: "north"})
        asking = self.hosts[name].popen(line, cwd="/srv/polyclinic-site")
        try:
            assert asking.stdout is not None
            told = ""
            while "waiting for the coordinator's approval" not in told:
                said = asking.stdout.readline()
                assert said, (name, told, asking.stderr.read() if asking.stderr else "")
                told += said
            words = next(x.split()[-1] for x in told.splitlines() if x.strip().startswith("this site"))
            assert words in self.hub.run(guide("polyclinic coordinator requests /srv/polyclinic"))
            line = guide(f"polyclinic coordinator approve /srv/polyclinic {name}", **{name: "north"})
            assert words in self.hub.run(line, typed="y\n")
            out, err = asking.communicate(timeout=60)
            assert asking.returncode == 0, err
            assert f"{name} has joined" in out
        finally:
            if asking.poll() is None:
                asking.kill()

    def status(self) -> dict[str, Any]:
        """What the coordinator says."""
        guide("polyclinic coordinator status /srv/polyclinic")
        return dict(json.loads(self.hub.run("polyclinic coordinator status /srv/polyclinic --json")))

    def study(self, name: str, method: str, **options: Any) -> Path:
        """Write a study file at the coordinator."""
        return Path(hospitals.study(self.hub.disk, name, method, **{"head": "deadline = 90\n", **options}))

    def submit(
        self, study: Path, *, at_round: int = 0, act: Callable[[], None] = lambda: None, code: int | None = 0
    ) -> tuple[Any, dict[str, Any]]:
        """Submit a study as the guide says, let the owner of east accept it, do something when a round is reached."""
        line = guide(f"polyclinic coordinator submit /srv/polyclinic {study.name}", **{study.name: "study.toml"})
        before = set((self.coordinator.path / "runs").glob("*/order.json"))
        process = self.hub.popen(f"{line} --json")
        try:
            runs = self.coordinator.path / "runs"
            assert wait_until(lambda: set(runs.glob("*/order.json")) - before), process.poll()
            (made,) = set(runs.glob("*/order.json")) - before
            run = made.parent
            self._accept(run.name, process)
            if at_round:
                from polyclinic.node.flare.coordinator_service import progress

                assert wait_until(
                    lambda: any(e.get("round", 0) >= at_round for e in progress(run)) or process.poll() is not None
                )
                act()
            out, err = process.communicate(timeout=300)
        finally:
            if process.poll() is None:
                process.kill()
        assert code is None or process.returncode == code, (out, err)
        return self.order_named(run.name), json.loads(out) if out else {"said": err}

    def _accept(self, study: str, process: subprocess.Popen[str]) -> None:
        place = self.sites["east"].study(self.order_named(study).digest) / "order.json"
        wait_until(lambda: place.exists() or process.poll() is not None)
        if place.exists():
            guide("polyclinic site review --node node.toml")
            line = guide(f"polyclinic site review --node node.toml --accept {study}", **{study: "icu-1a2b3c4d"})
            assert study in self.at("east", line)

    def state(self, order: Any) -> str:
        """How a study stands."""
        from polyclinic.node.flare.coordinator_service import state_of

        return str(state_of(self.coordinator, order)["state"])

    def processes(self) -> list[int]:
        """Every process on any of the hosts."""
        return [p for h in self.hosts.values() if h.name != "proxy" for p in h.pids()]

    def stop(self) -> None:
        """Stop everything, by the commands of the guide."""
        for name in self.names:
            self.at(name, guide("polyclinic site stop --node node.toml"))
        self.hub.run(guide("polyclinic coordinator stop /srv/polyclinic"))
