"""The outbox: releases that wait until the owner of the data has read and approved them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.privacy.release import Array, Contribution


@dataclass(frozen=True)
class Pending:
    """One release in the outbox: what the owner decides on."""

    id: str
    state: Literal["pending", "approved", "rejected"]
    facts: Mapping[str, Any]
    decided_by: str = ""

    def __str__(self) -> str:
        f = self.facts
        return f"{self.id} {self.state}: study {f.get('study')!r}, round {f.get('round')}, step {f.get('step')!r}"


def private_folder(path: Path) -> Path:
    """A folder only its owner can open."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_release(path: Path, release: Contribution, facts: Mapping[str, object]) -> None:
    """Write what would leave, whole or not at all; readable by the owner only."""
    from polyclinic.util.atomic_files import atomic

    parts: dict[str, Any] = {f"a_{k}": v for k, v in release.arrays.items()}
    parts["__header__"] = np.frombuffer(json.dumps({**facts, "weight": release.weight}).encode(), np.uint8)
    with atomic(path) as temporary:
        with open(temporary, "wb") as f:
            np.savez(f, **parts)
        os.chmod(temporary, 0o600)


def read_release(path: Path) -> tuple[Contribution, dict[str, object]]:
    """Inverse of :func:`write_release`."""
    with np.load(path, allow_pickle=False) as z:
        facts: dict[str, Any] = json.loads(bytes(z["__header__"]))
        arrays: dict[str, Array] = {k[2:]: z[k] for k in z.files if k.startswith("a_")}
    return Contribution(arrays, float(facts.pop("weight"))), facts


class Outbox:
    """A folder of releases that wait for the owner.

    Parameters
    ----------
    path
        The folder; its files can be read by the owner only.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def put(self, id: str, release: Contribution, facts: Mapping[str, object]) -> Pending:
        """Lay a release out for review; the same one again changes nothing."""
        private_folder(self.path)
        file = self.path / f"{id}.npz"
        if not file.exists():
            write_release(file, release, facts)
        return self.get(id)

    def get(self, id: str) -> Pending:
        """State of one release."""
        file = self.path / f"{id}.npz"
        if not file.is_file():
            raise ConfigError(f"outbox {self.path}: no release {id!r}", hint="polyclinic site review lists them")
        _, facts = read_release(file)
        decision = self.path / f"{id}.decision"
        if not decision.exists():
            return Pending(id, "pending", facts)
        value = json.loads(decision.read_text())
        return Pending(id, value["state"], facts, value["by"])

    def read(self, id: str) -> Contribution:
        """Exactly the values that would leave."""
        self.get(id)
        return read_release(self.path / f"{id}.npz")[0]

    def all(self) -> tuple[Pending, ...]:
        """Every release, by study, round and step."""
        if not self.path.is_dir():
            return ()
        releases = [self.get(f.stem) for f in self.path.glob("*.npz")]
        return tuple(sorted(releases, key=lambda p: (str(p.facts.get("study")), int(p.facts.get("round", 0)), p.id)))

    def decide(self, id: str, *, approve: bool, by: str) -> Pending:
        """Approve or reject a release; a decision is not changed afterwards."""
        pending = self.get(id)
        state = "approved" if approve else "rejected"
        if pending.state == state:
            return pending
        if pending.state != "pending":
            raise PolicyRefusal(f"release {id} is already {pending.state} by {pending.decided_by!r}")
        from polyclinic.util.atomic_files import atomic

        with atomic(self.path / f"{id}.decision") as temporary:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            temporary.write_text(json.dumps({"state": state, "by": by, "time": stamp}))
            os.chmod(temporary, 0o600)
        return self.get(id)
