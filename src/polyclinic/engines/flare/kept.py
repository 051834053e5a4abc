"""What a site keeps of a study while it runs: patients' loadings are in it, so it is the owner's only, and erasable.

A private state is written once, under the number of its sum and attempt; one small file says which of them is committed and
which prepared. Everything is whole or not there, whenever the process is killed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from polyclinic.federation import wire
from polyclinic.tensors.files import atomic

__all__ = ["Kept", "Key"]

LIMIT: Final = 2**40  # a checkpoint is not a message
Key = tuple[int, int]  # number of the sum, attempt


class Kept:
    """The files of one study at one site.

    Parameters
    ----------
    home
        The study's folder, inside the erasable folder of the site.
    """

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def file(self) -> Path:
        """The small file."""
        return self.home / "state.ckpt"

    @property
    def closed(self) -> Path:
        """The site's last answer; there when the study has ended here."""
        return self.home / "closed.ckpt"

    def _private(self, key: Key | None) -> Path:
        return self.home / f"private-{'open' if key is None else f'{key[0]}-{key[1]}'}.ckpt"

    def write(self, path: Path, value: Any) -> None:
        """Write a tree of values."""
        with atomic(path) as temporary:
            temporary.write_bytes(wire.encode(value, limit=LIMIT))
            temporary.chmod(0o600)

    def read(self, path: Path) -> Any:
        """Inverse of :meth:`write`."""
        return wire.decode(path.read_bytes(), limit=LIMIT)

    def has(self, key: Key | None) -> bool:
        """Whether the private state after a sum is kept; None: the one before the first."""
        return self._private(key).exists()

    def put(self, key: Key | None, states: Any) -> None:
        """Keep the private states of the site's nodes after a sum."""
        self.write(self._private(key), wire.pack(states))

    def get(self, key: Key | None) -> dict[str, Any]:
        """Trees of the private states of the site's nodes."""
        return dict(self.read(self._private(key)))

    def prune(self, keys: tuple[Key | None, ...], round_: int) -> None:
        """Forget private states that no sum can go back to, and releases that nobody can ask for again."""
        keep = {self._private(k) for k in keys}
        for old in self.home.glob("private-*.ckpt"):
            if old not in keep:
                old.unlink(missing_ok=True)
        for old in (self.home / "releases").rglob("r*.npz"):
            if int(old.name[1:].partition("-")[0]) < round_ - 1:
                old.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove files that were being written when a process was killed."""
        for stray in self.home.rglob(".*"):
            if stray.is_file():
                stray.unlink(missing_ok=True)

    def end(self, kept: dict[str, Any], answer: dict[str, Any]) -> None:
        """The study has ended: what stays here (memberships), and the last answer, should it be asked for again."""
        with atomic(self.home / "outcome.npz") as temporary:
            with open(temporary, "wb") as f:
                np.savez(f, **kept)
            temporary.chmod(0o600)
        self.write(self.closed, answer)

    def forget(self) -> None:
        """Remove the checkpoint and the stored releases."""
        self.file.unlink(missing_ok=True)
        for old in (*self.home.glob("private-*.ckpt"), *(self.home / "releases").rglob("*.npz")):
            old.unlink()
