"""Where a coordinator and a site keep what belongs to a federation; everything readable by its owner only."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from polyclinic.config import Node
from polyclinic.errors import ConfigError
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.util.atomic_files import locked, write_whole
from polyclinic.util.file_format import check_format

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LOG, KEPT = 5_000_000, 3  # bytes after which a log goes on in a new file; old ones that are kept


def private(path: Path) -> Path:
    """A folder that only its owner can open."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def write_key(path: Path, data: bytes) -> None:
    """Write a secret once; never overwrites."""
    private(path.parent)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def write_json(path: Path, value: Mapping[str, object]) -> Path:
    """Write JSON, whole or not at all, readable by the owner only."""
    return write_whole(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_json(path: Path, hint: str = "") -> dict[str, Any]:
    """Read JSON, or say what is missing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: not there", hint=hint) from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path}: not readable ({e})", hint=hint) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: not an object", hint=hint)
    return value


def append_event(path: Path, **event: object) -> None:
    """Add one line to a log of events; time first. On a full disk the line is dropped: a log never ends a study."""
    import time

    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = (json.dumps({"time": stamp, **event}, default=str) + "\n").encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            done = os.write(handle, line)
            if done < len(line):  # no half lines: the next one would be glued to it
                os.ftruncate(handle, os.fstat(handle).st_size - done)
            elif os.fstat(handle).st_size > LOG and path.name == "events.jsonl":
                turn(path)
        finally:
            os.close(handle)
    except OSError as e:
        if e.errno not in FULL:
            raise


def turn(path: Path) -> None:
    """Go on in a new file: ``log`` becomes ``log.1``, that one ``log.2`` ...; one process at a time, and only once."""
    if not path.exists() or path.stat().st_size <= LOG:
        return
    with locked(path.with_name(f".{path.name}.turn")):
        if not path.exists() or path.stat().st_size <= LOG:  # another process was faster
            return
        for n in range(KEPT, 0, -1):
            old = path if n == 1 else path.with_name(f"{path.name}.{n - 1}")
            if old.exists():
                old.replace(path.with_name(f"{path.name}.{n}"))


def read_events(path: Path) -> list[dict[str, Any]]:
    """The log, oldest first, with what was turned over; a line cut by a crash is left out."""
    found = []
    for file in (*(path.with_name(f"{path.name}.{n}") for n in range(KEPT, 0, -1)), path):
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            continue
        for line in lines:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


@contextmanager
def alone(path: Path, what: str) -> Iterator[None]:
    """A lock: two processes never work on the same checkpoint."""
    private(path.parent)
    with ExitStack() as held:
        try:
            held.enter_context(locked(path, wait=False))
        except BlockingIOError:
            raise ConfigError(f"{what} is already at work", hint=f"wait for it, or stop it ({path})") from None
        yield


def at_work(path: Path) -> bool:
    """Whether a process holds the lock of :func:`alone`."""
    try:
        if path.exists():
            with locked(path, wait=False):
                return False
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class _Under:
    """A path below a folder's own."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def __get__(self, folder: CoordinatorFolder | SiteFolder, owner: type) -> Path:
        return folder.path.joinpath(*self.parts)


@dataclass(frozen=True)
class CoordinatorFolder:
    """The coordinator's folder. It never holds a private key of a site."""

    path: Path

    settings = _Under("coordinator.json")  # project, address, ports
    authority = _Under("authority")  # certificate and key of the certificate authority
    sites = _Under("sites.json")  # approved sites with their public keys
    server = _Under("flare", "server")  # workspace of the FLARE server
    admin = _Under("flare", "admin")  # kit of the one administrator: the coordinator itself
    events = _Under("events.jsonl")  # what happened, one JSON a line
    pids = _Under("pids")  # processes that belong to this coordinator

    def run(self, id: str) -> Path:
        """Run folder of a study."""
        return self.path / "runs" / id

    def read_settings(self) -> dict[str, Any]:
        """Read what `coordinator init` wrote."""
        value = read_json(self.settings, "polyclinic coordinator init FOLDER --site NAME ...")
        todo = "run `polyclinic coordinator init` with a new folder, and let every site leave and join again"
        check_format(value, f"coordinator folder {self.path}", todo)
        return value

    def approved(self) -> dict[str, dict[str, Any]]:
        """Sites by name, revoked ones left out."""
        known = read_json(self.sites) if self.sites.exists() else {}
        return {n: s for n, s in sorted(known.items()) if not s.get("revoked")}

    def identity(self) -> Identity:
        """The coordinator's signing key."""
        return Identity.from_bytes("coordinator", (self.path / "identity.key").read_bytes())


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder of the federation: inside the erasable folder of the node."""

    node: Node
    node_path: Path

    @classmethod
    def of(cls, path: Path) -> SiteFolder:
        """The folder of a node file."""
        return cls(Node.read(path), path.resolve())

    @property
    def path(self) -> Path:
        """Everything about the federation."""
        return self.node.home / "federation"

    invite = _Under("invite.json")  # the invite that was accepted
    shown = _Under("shown.json")  # which order the owner was shown under which name
    pins = _Under("pins.json")  # sites whose keys the owner has compared
    willing = _Under(
        "willing.json"
    )  # of these, sites whose owners signed that their part may be computed by subtraction
    workspace = _Under("flare")  # workspace of the FLARE client
    events = _Under("events.jsonl")  # what happened here, one JSON a line
    pids = _Under("pids")  # processes that belong to this site
    studies = _Under("studies")  # one folder for each study: the order, checkpoints, releases

    def study(self, digest: str) -> Path:
        """Folder of one study: data, checkpoint (patients' loadings), releases.

        Parameters
        ----------
        digest
            Of its order (``Order.digest``). No name that a sender chose is ever part of a path.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError("a study's folder is named by the digest of its order")
        return self.studies / digest[:32]

    def read_invite(self) -> dict[str, Any]:
        """Read the invite that was accepted, or say what to do first."""
        value = read_json(self.invite, "polyclinic site join INVITE --node node.toml")
        todo = f"run `polyclinic site leave --node {self.node_path}`, then join again with a new invite"
        check_format(value, f"the kit of site {self.node.name!r}", todo)
        return value

    def identity(self) -> Identity:
        """The site's signing key."""
        return Identity.from_bytes(self.node.name, (self.path / "identity.key").read_bytes())
