"""What a site keeps of a study while it runs: all its durable promises. Patients' loadings are in it, so it is the owner's only.

    mark        which sums are folded, prepared, entered and signed, and the public state: one small file
    private-*   a private state, written once under the number of its sum and attempt
    codes.json  where each of the site's codes stands, if the sites agreed on that
    closed      the site's last answer; there when the study has ended here

Everything is whole or not there, whenever the process is killed; a promise is on disk before it leaves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.aggregation.promise import Promise
from polyclinic.node.messages import Done, Key, Status, encode_answer, read_answer
from polyclinic.protocol.wire import encoding as wire
from polyclinic.util.atomic_files import atomic


@dataclass
class Mark:
    """Where a site stands in a study."""

    committed: Key | None = None  # the last sum that its contribution entered
    prepared: Key | None = None  # the sum that it contributed to last; the opened total says whether it entered
    entered: dict[Key, str] = field(default_factory=dict)  # secure sums: attempts, and with whom
    signed: dict[int, tuple[Promise, ...]] = field(default_factory=dict)  # secure sums: lists of survivors, by number
    begun: tuple[str, ...] = ()  # sites that began
    counted: tuple[str, ...] = ()  # sites in the last exact sum
    fold: Mapping[str, object] | None = None  # public state, number and chain
    after: Mapping[str, Any] | None = None  # peers: the same after the prepared sum, once it is known here

    def tree(self) -> dict[str, object]:
        """As it is written."""
        signed = [[k, p.attempt, list(p.members), p.key, p.sites] for k, v in self.signed.items() for p in v]
        entered = [[*k, v] for k, v in self.entered.items()]
        return {**vars(self), "entered": entered, "signed": signed}

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> Mark:
        """Inverse of :meth:`tree`."""
        committed, prepared = (None if k is None else (k[0], k[1]) for k in (tree["committed"], tree["prepared"]))
        entered = {(a, b): v for a, b, v in tree["entered"]}
        begun, counted = tuple(tree["begun"]), tuple(tree["counted"])
        made = cls(committed, prepared, entered, {}, begun, counted, tree["fold"], tree["after"])
        for number, attempt, members, key, n in tree["signed"]:
            made.signed[number] = (*made.signed.get(number, ()), Promise(attempt, tuple(members), key, n))
        return made


class Record:
    """The files of one study at one site.

    Parameters
    ----------
    home
        The study's folder, inside the erasable folder of the site.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.file, self._end = home, home / "state.ckpt", home / "closed.ckpt"
        self._codes = home / "codes.json"

    def write(self, mark: Mark) -> None:
        """On disk when it returns."""
        wire.save(self.file, mark.tree())

    def read(self) -> Mark | None:
        """The mark of a process before this one; what was being written when it was killed is swept away."""
        for stray in self.home.rglob(".*"):
            if stray.is_file():
                stray.unlink(missing_ok=True)
        return Mark.read(wire.load(self.file)) if self.file.exists() else None

    def _private(self, key: Key | None) -> Path:
        return self.home / f"private-{'open' if key is None else f'{key[0]}-{key[1]}'}.ckpt"

    def put(self, key: Key | None, state: object) -> None:
        """Keep the site's private state after a sum. Key None is the state before the first."""
        wire.save(self._private(key), wire.pack(state))

    def get(self, key: Key | None, kind: type[object]) -> object | None:
        """Return the site's private state after a sum, if it was kept."""
        path = self._private(key)
        tree = wire.load(path) if path.exists() else None
        return None if tree is None else wire.unpack(kind, tree)

    def prune(self, keys: tuple[Key | None, ...], round_: int) -> None:
        """Forget private states that no sum can go back to, and releases that nobody can ask for again."""
        keep = {self._private(k) for k in keys}
        old = [p for p in self.home.glob("private-*.ckpt") if p not in keep]
        stored = (self.home / "releases").rglob("r*.npz")
        for path in (*old, *(p for p in stored if int(p.name[1:].partition("-")[0]) < round_ - 1)):
            path.unlink(missing_ok=True)

    @property
    def codes(self) -> Mapping[str, object] | None:
        """What was agreed about codes."""
        return json.loads(self._codes.read_text("utf-8")) if self._codes.exists() else None

    @codes.setter
    def codes(self, value: Mapping[str, object]) -> None:
        with atomic(self._codes) as temporary:
            temporary.write_text(json.dumps(value), encoding="utf-8")
            temporary.chmod(0o600)

    @property
    def closed(self) -> tuple[Done, Status] | None:
        """The last answer, should it be asked for again, and how the site stood then; None while the study runs."""
        if not self._end.exists():
            return None
        done, here = (read_answer(raw) for raw in wire.load(self._end))
        assert isinstance(done, Done)
        assert isinstance(here, Status)
        return done, here

    def end(self, kept: Mapping[str, Any], done: Done, here: Status) -> None:
        """The study has ended: what stays here (memberships), and the last answer."""
        with atomic(self.home / "outcome.npz") as temporary:
            with open(temporary, "wb") as f:
                np.savez(f, **kept)
            temporary.chmod(0o600)
        wire.save(self._end, [encode_answer(done), encode_answer(here)])
