"""Totals of the sums that were taken, as the coordinator relays them: a site that missed some folds them when it is back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from polyclinic.engines.flare.folders import private
from polyclinic.federation import wire
from polyclinic.federation.certificate import Opened
from polyclinic.tensors.files import atomic

__all__ = ["Totals"]

LIMIT: Final = 2**40
AT_ONCE: Final = 32 * 2**20  # bytes of totals in one message, about; the rest in the next


class Totals:
    """The opened sums of one run, on disk: one file a sum, until nobody can ask for it any more.

    Parameters
    ----------
    folder
        Inside the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last: tuple[int, dict[str, Any]] | None = None  # the one that everybody asks for
        self.states = False  # whether a site's bits ever differed: then public states are kept, too

    def put(self, opened: Opened, public: Any) -> None:
        """Keep one; on disk before the next sum begins."""
        tree = opened.pack()
        private(self.folder)
        self._write(self.folder / f"{opened.number}.ckpt", tree)
        if self.states:
            self._write(self.folder / f"{opened.number}.state.ckpt", wire.pack(public))
        self._last = (opened.number, tree)

    def _write(self, path: Path, tree: Any) -> None:
        with atomic(path) as temporary:
            temporary.write_bytes(wire.encode(tree, limit=LIMIT))
            temporary.chmod(0o600)

    def since(self, number: int, end: int) -> list[dict[str, Any]]:
        """Sums ``number`` to ``end - 1``, as many as one message carries."""
        found: list[dict[str, Any]] = []
        size = 0
        for k in range(max(0, number), end):
            if self._last is not None and self._last[0] == k:
                tree = self._last[1]
                more = sum(a.nbytes for a in (*tree["arrays"].values(), tree["words"]) if a is not None)
            else:
                data = (self.folder / f"{k}.ckpt").read_bytes()
                tree, more = wire.decode(data, limit=LIMIT), len(data)
            if found and size + more > AT_ONCE:
                break
            found.append(tree)
            size += more
        return found

    def state(self, number: int) -> Any | None:
        """The public state after a sum, where it was kept."""
        path = self.folder / f"{number}.state.ckpt"
        return wire.decode(path.read_bytes(), limit=LIMIT) if path.exists() else None

    def prune(self, number: int) -> None:
        """Forget sums before ``number``: every site has folded them."""
        for path in self.folder.glob("*.ckpt"):
            if int(path.name.partition(".")[0]) < number:
                path.unlink(missing_ok=True)

    def end(self) -> None:
        """The run is over."""
        shutil.rmtree(self.folder, ignore_errors=True)
