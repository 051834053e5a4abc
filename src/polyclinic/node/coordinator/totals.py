"""Totals of the sums that were taken, as the coordinator relays them: a site that missed some folds them when it is back."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import Opened

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
        self._last: Opened | None = None  # the one that everybody asks for
        self.states = False  # whether a site's bits ever differed: then public states are kept, too

    def put(self, opened: Opened, public: Any = None) -> None:
        """Keep one; on disk before the next sum begins."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        wire.save(self._file(opened.number), opened.pack())
        if self.states:
            wire.save(self.folder / f"{opened.number}.state.ckpt", wire.pack(public))
        self._last = opened

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.ckpt"

    def has(self, number: int) -> bool:
        """Whether this sum is still kept."""
        return number >= 0 and self._file(number).exists()

    def since(self, number: int, end: int) -> tuple[Opened, ...]:
        """Sums ``number`` to ``end - 1``, as many as one message carries; none where the first is not kept any more."""
        found: list[Opened] = []
        size = 0
        for k in range(number, end) if self.has(number) else ():
            last = self._last
            one = last if last is not None and last.number == k else Opened.read(wire.load(self._file(k)))
            size += sum(a.nbytes for a in (*one.total.arrays.values(), one.words) if a is not None)
            if found and size > AT_ONCE:
                break
            found.append(one)
        return tuple(found)

    def state(self, number: int) -> Any | None:
        """The public state after a sum, where it was kept."""
        path = self.folder / f"{number}.state.ckpt"
        return wire.load(path) if path.exists() else None

    def prune(self, number: int) -> None:
        """Forget sums before ``number``: every site has folded them."""
        for path in self.folder.glob("*.ckpt"):
            if int(path.name.partition(".")[0]) < number:
                path.unlink(missing_ok=True)

    def end(self) -> None:
        """The run is over."""
        shutil.rmtree(self.folder, ignore_errors=True)
