"""Everything that ``doctor`` looks at, at a site and at the coordinator; ``site status`` uses the same probes."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from polyclinic.config import Node, Study
from polyclinic.config.service import address
from polyclinic.errors import ConfigError, LedgerError, PolyclinicError
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder
from polyclinic.node.enrolment.handshake import Papers, ask, certificate, clock, handshake, membership
from polyclinic.node.enrolment.processes import MONITOR, Recorded, alive, port_open
from polyclinic.node.enrolment.proxy import proxy_for
from polyclinic.node.enrolment.startup_files import inside
from polyclinic.node.flare_package import VERSION
from polyclinic.node.probe import Probe
from polyclinic.privacy.gate.owner_rules import LedgerRule, ledger_of, policy_of, witness_of
from polyclinic.records.databases.drivers import DRIVERS, address_of, extra_of
from polyclinic.records.preflight import Checkup, Limits, check_node
from polyclinic.studies.registry import PROTOCOLS, federated, make

FULL: Final = 200e6  # bytes: less does not hold a checkpoint
LOW: Final = 2e9  # bytes: a study of some size wants as much


def site_probes(folder: SiteFolder, studies: Sequence[tuple[str, Study]] = ()) -> list[Probe]:
    """All probes of a site, from its own files to the coordinator. Data are also read as these named studies would."""
    node = folder.node
    secrets = [*folder.path.rglob("*.key"), *_password_files(node)]
    room = disk(node.home)
    return [
        *_versions(_extras(node)),
        _settings(node),
        *_permissions(secrets, [folder.node_path], _holds_password(node)),
        room,
        *_data(node, room, studies),
        _budget(folder),
        *_monitor(folder),
        *_joined(folder),
    ]


def _joined(folder: SiteFolder) -> list[Probe]:
    if not folder.invite.exists():
        return [Probe("joined", "warning", "this site has not joined a federation", "polyclinic site join INVITE")]
    if not (folder.workspace / "startup" / "client.crt").exists():
        return [
            Probe("joined", "warning", "the coordinator has not approved yet", "polyclinic site join INVITE goes on")
        ]
    up = alive(Recorded.read(folder.pids / "client.json"))
    lives = Probe("process", "ok", "the node runs") if up else _not_running("polyclinic site start")
    return [lives, *_way(str(folder.read_invite()["host"])), *acceptance(folder)]


def acceptance(folder: SiteFolder, *, timeout: float = 5.0) -> list[Probe]:
    """Certificate, mutual handshake, membership and clock of a site that has joined."""
    invite, papers = folder.read_invite(), Papers.of(folder.workspace / "startup")
    host, port, desk = str(invite["host"]), int(invite["port"]), invite.get("enrol_port")
    found = [certificate(papers, folder.node.name)]
    try:
        found.append(handshake(host, port, papers, timeout=timeout))
    except ConfigError as e:  # a proxy's address that is none
        return [*found, Probe("coordinator", "fault", e.what, e.hint, exit=5)]
    if found[1].state == "fault":
        return found  # it would only be said twice
    if desk is None:
        text = "not known: this coordinator has no port where a site can ask"
        return [
            *found,
            Probe("membership", "warning", text, "the coordinator sees it: coordinator status"),
            clock(None),
        ]
    probe, answer = membership(
        lambda: ask(host, int(desk), papers, timeout=timeout),
        str(invite["coordinator"]),
        folder.node.name,
        folder.identity().public,
    )
    return [*found, probe, clock(answer.ahead if answer is not None else None)]


def coordinator_probes(folder: CoordinatorFolder) -> list[Probe]:
    """All probes of a coordinator: its files, its name, and its own port as a site meets it."""
    settings = folder.read_settings()
    host, port = str(settings["host"]), int(settings["port"])
    renew = f"polyclinic coordinator renew {folder.path}, then coordinator stop and start; the sites notice nothing"
    server = certificate(Papers.of(folder.server / "startup", "server"), host, todo=renew)
    found = [
        *_versions([("nvflare", "nvflare")]),
        *_permissions(list(folder.path.rglob("*.key")), [folder.settings], False),
        disk(folder.path),
        server,
        *_way(host)[:1],
    ]
    if not alive(Recorded.read(folder.pids / "server.json")):
        return [*found, _not_running(f"polyclinic coordinator start {folder.path}")]
    found.append(Probe("process", "ok", "the server runs"))
    found.append(handshake(inside(host), port, Papers.of(folder.admin / "startup"), called=host))
    if settings.get("enrol_port") is not None and not alive(Recorded.read(folder.pids / "reception.json")):
        todo = f"polyclinic coordinator start {folder.path} opens it again"
        found.append(Probe("joining", "warning", f"the port for joining, {settings['enrol_port']}, is closed", todo))
    return found


def _not_running(todo: str) -> Probe:
    return Probe("process", "warning", "not running", todo)


def _extras(node: Node) -> list[tuple[str, str]]:
    """Packages this node needs, each with the extra that brings it."""
    need = [("nvflare", "nvflare")]
    if not node.site.rehearsal:
        need.append(("opendp", "exact"))
    if node.source.url or (node.source.database and not node.source.database.endswith((".duckdb", ".ddb"))):
        with suppress(ConfigError):  # an address that cannot be read is a fault of its own
            scheme = address_of(node)[0].scheme
            need.append((DRIVERS[scheme].package, extra_of(scheme)))
    return need


def _versions(need: Iterable[tuple[str, str]]) -> list[Probe]:
    have, lack = [], []
    for package, extra in (("polyclinic", ""), *need):
        try:
            have.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lack.append((package, extra))
    found = [Probe("versions", "ok", ", ".join(have))] if have else []
    for package, extra in lack:
        todo = f"pip install 'polyclinic[{extra}]'"
        found.append(Probe("versions", "fault", f"package {package} (extra {extra}) is not installed", todo))
    flare = next((h.split()[1] for h in have if h.startswith("nvflare ")), f"{VERSION}.0")
    if not flare.startswith(f"{VERSION}."):
        text = f"nvflare {flare} is installed; this release needs {VERSION}.x"
        found.append(Probe("versions", "fault", text, "pip install 'polyclinic[nvflare]'"))
    return found


def _settings(node: Node) -> Probe:
    try:
        policy_of(node)
    except ConfigError as e:
        return Probe("settings", "fault", "; ".join((e.what, *e.faults)), e.hint or "correct these lines of node.toml")
    return Probe("settings", "ok", f"node file of {node.name}: every setting is known and has a valid value")


def _holds_password(node: Node) -> bool:
    url, word = node.source.url or "", node.source.password or ""
    user = url.partition("://")[2].rpartition("@")[0]
    return ":" in user or bool(word and not word.startswith(("env:", "file:")))


def _password_files(node: Node) -> list[Path]:
    said = [v for v in (node.source.url, node.source.password) if v and v.startswith("file:")]
    return [node.path(v.removeprefix("file:")) for v in said]


def _permissions(secrets: list[Path], files: list[Path], holds: bool) -> list[Probe]:
    """Keys and passwords are their owner's alone; nobody else may change what the owner allows."""
    found = []
    for path in secrets:
        if path.exists() and path.stat().st_mode & 0o077:
            text = f"{path}: others may read it (mode {path.stat().st_mode & 0o777:o})"
            found.append(Probe("permissions", "fault", text, f"chmod 600 {path}"))
    for path in files:
        mode = path.stat().st_mode & 0o777
        if mode & 0o022:
            found.append(
                Probe("permissions", "fault", f"{path}: others may change it (mode {mode:o})", f"chmod 600 {path}")
            )
        elif holds and mode & 0o044:
            text = f"{path} holds a password and others may read it (mode {mode:o})"
            found.append(Probe("permissions", "fault", text, f"chmod 600 {path}, or password = 'env:NAME'"))
    text = f"{len(secrets)} keys and password files are their owner's alone"
    return found or [Probe("permissions", "ok", text)]


def disk(home: Path) -> Probe:
    """Whether something can really be written, and how much room is left."""
    near = next(p for p in (home, *home.resolve().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=near) as f:
            f.write(bytes(1 << 16))  # a quota shows only when something is written
            f.flush()
            os.fsync(f.fileno())
        free = float(shutil.disk_usage(near).free)
    except OSError as e:
        return Probe(
            "disk", "fault", f"{near}: nothing can be written ({e.strerror or e})", "free space, or the rights"
        )
    text = f"{near}: {free / 1e9:,.1f} GB free"
    if free < LOW:
        return Probe("disk", "fault" if free < FULL else "warning", text, "free some space: studies need room")
    return Probe("disk", "ok", text)


def _data(node: Node, room: Probe, studies: Sequence[tuple[str, Study]]) -> list[Probe]:
    """The data, read with the node's own rights, and as each of these studies would read them."""
    if room.state == "fault":
        return [
            Probe("data", "fault", "not read: there is no room for the engine's own files", "see the disk above", 3)
        ]
    if (unset := password_unset(node)) is not None:
        return [unset]
    return [_data_for(node, "data", None), *(_data_for(node, f"data of {name}", study) for name, study in studies)]


def password_unset(node: Node) -> Probe | None:
    """A warning where the password is in the environment of the service, and this shell has none."""
    name = (node.source.password or "").removeprefix("env:")
    if not (node.source.password or "").startswith("env:") or name in os.environ:
        return None
    text = f"not known: the password is in {name}, which this shell does not have (the service may)"
    return Probe("data", "warning", text, f"export {name}, or password = 'file:PATH' in node.toml")


def checkup(node: Node, study: Study | None) -> tuple[list[str], Checkup]:
    """Read the records as a study would: what ``check`` prints and ``doctor`` sums up. First the faults of policy and method."""
    wrong: list[str] = []
    limits = Limits()
    try:
        limits = Limits.of(policy_of(node))
    except ConfigError as e:
        wrong += e.faults
    if study is not None and study.method is not None:
        try:
            (federated if study.chosen().name.lower() in PROTOCOLS else make)(study)
        except PolyclinicError as e:
            wrong += [f"{e.what}: {f}" for f in e.faults] or [e.what]
    return wrong, check_node(node, study, limits=limits)


def _data_for(node: Node, name: str, study: Study | None) -> Probe:
    wrong, found = checkup(node, study)
    if faults := [*(wrong if study is not None else ()), *found.faults]:  # `settings` names those of the policy
        todo = "polyclinic check node.toml shows everything; url, password, rights, file names are in [source]"
        return Probe(name, "fault", "; ".join(faults), todo, exit=found.exit_code or 3)
    rows = (
        f"{found.figures['rows']:,} events ({', '.join(found.figures['kinds'])}), " if "rows" in found.figures else ""
    )
    text = f"{rows}readable with the node's own rights, at least the policy's minimum of patients"
    if absent := found.figures.get("absent"):
        text += f". Tables that are not there: {', '.join(absent)}"
        return Probe(name, "warning", text, "studies of their events will be refused; [source] tables maps other names")
    return Probe(name, "ok", text)


def _budget(folder: SiteFolder) -> Probe:
    node = folder.node
    try:
        policy, book = policy_of(node), ledger_of(node)
        rolled = [f for k in witness_of(node).about(node.name) for f in book.against(k.head, "another party")]
        if rolled:
            raise LedgerError("an older ledger was put back", faults=rolled, hint="polyclinic ledger recover node.toml")
        cohort = LedgerRule.model_validate(node.ledger).cohort
        spent = book.tally.epsilon(policy.delta, study=None, cohort=cohort)
    except PolyclinicError as e:
        todo = e.hint or "polyclinic ledger verify node.toml"
        return Probe("budget", "fault", "; ".join((e.what, *e.faults)), todo, exit=4)
    most = policy.max_epsilon_total
    if most is None:
        return Probe("budget", "ok", f"no limit is set ([policy] max_epsilon_total); {book.count} lines in the ledger")
    left = max(0.0, most - spent)
    text = f"epsilon {left:.3g} of {most:g} left for cohort {cohort!r} (delta {policy.delta:g})"
    todo = "studies will be refused: the owner decides about [policy] max_epsilon_total"
    return Probe("budget", "warning", text, todo) if left < 0.1 * most else Probe("budget", "ok", text)


def _monitor(folder: SiteFolder) -> list[Probe]:
    """Whether [monitor] listen is this node's own: another program there would answer for it."""
    rule = folder.node.monitor
    if rule is None or rule.listen is None:
        return []
    if alive(Recorded.read(folder.path / MONITOR)):
        return [Probe("monitor", "ok", f"health on http://{rule.listen}/health")]
    if port_open(*address(rule.listen)):
        text = f"another program answers on {rule.listen}: it is not this node's health"
        return [Probe("monitor", "fault", text, "choose another [monitor] listen, then site stop, site start")]
    return [Probe("monitor", "warning", f"nothing answers on {rule.listen}", "polyclinic site start")]


def _way(host: str) -> list[Probe]:
    """The name, and the proxy on the way."""
    try:
        proxy = proxy_for(host)
    except ConfigError as e:
        return [Probe("proxy", "fault", e.what, e.hint, exit=5)]
    asked, whose = (host, "coordinator") if proxy is None else (proxy.host, "proxy")
    try:
        at = sorted({str(a[4][0]) for a in socket.getaddrinfo(asked, None, type=socket.SOCK_STREAM)})
    except OSError:
        text = f"{asked} (the {whose}): this machine does not know the name"
        return [Probe("name", "fault", text, "name service, /etc/hosts, or a proxy that knows it", exit=5)]
    way = f"through {proxy.host}:{proxy.port}" if proxy is not None else f"none on the way to {host}"
    return [Probe("name", "ok", f"{asked} is {', '.join(at)}"), Probe("proxy", "ok", way)]
