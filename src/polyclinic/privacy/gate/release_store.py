"""The releases of a site as they left: each is drawn once, and every further attempt sends the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np

from polyclinic.privacy.gate.outbox import private_folder, read_release, write_release
from polyclinic.privacy.release import Contribution, Step


class ReleaseStore:
    """Releases under the names they were booked with.

    Parameters
    ----------
    folder
        Where they are kept, so that a resumed run finds them; None: in memory, those of the last two rounds.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._kept: dict[str, tuple[int, str, Contribution]] = {}

    def find(self, name: str, digest: str) -> tuple[str, Contribution | None]:
        """The release of these very values under a name; other values under it are another release, and pay anew."""
        for k in count():
            id = f"{name}-{k}"
            entry = self._load(id)
            if entry is None:
                return id, None
            if entry[0] == digest:
                return id, entry[1]
        raise AssertionError

    def _load(self, id: str) -> tuple[str, Contribution] | None:
        if self.folder is None:
            entry = self._kept.get(id)
            return None if entry is None else (entry[1], entry[2])
        file = self.folder / f"{id}.npz"
        if not file.exists():
            return None
        release, facts = read_release(file)
        return str(facts["digest"]), release

    def prepare(self, id: str, step: Step, digest: str, release: Contribution) -> None:
        """Lay the bytes down under a provisional name, before their line is in the book."""
        if self.folder is not None:
            private_folder(self.folder)
            facts = {"digest": digest, "round": step.round, "step": step.name}
            write_release(self.folder / f"{id}.part", release, facts)

    def keep(self, id: str, step: Step, digest: str, release: Contribution) -> None:
        """Give them their name: the line is in the book."""
        if self.folder is None:
            self._kept = {k: v for k, v in self._kept.items() if v[0] >= step.round - 1}
            self._kept[id] = (step.round, digest, release)
        else:
            (self.folder / f"{id}.part").replace(self.folder / f"{id}.npz")

    def finish(self, id: str, step: Step, digest: str, booked: Callable[[str], bool]) -> Contribution | None:
        """A line is in the book and its release was not sent: the prepared bytes, if they are the ones that were booked.

        Parameters
        ----------
        id, step, digest
            Which release, of which values.
        booked
            Whether the book has a line for bytes of this digest.
        """
        part = None if self.folder is None else self.folder / f"{id}.part"
        if part is None or not part.exists():
            return None
        release, facts = read_release(part)
        if facts["digest"] != digest or not booked(bytes_digest(step, release)):
            return None
        self.keep(id, step, digest, release)
        return release


def bytes_digest(step: Step, release: Contribution) -> str:
    """What a line of the book has of the values that left."""
    return release_digest(step, 1.0, release)


def release_digest(step: Step, share: float, mine: Contribution) -> str:
    """A name for one release: its step, its share and its values. Stays at the site."""
    words: dict[str, object] = {**vars(step), "shapes": {k: list(v) for k, v in sorted(step.shapes.items())}}
    if not step.patients:
        del words["patients"]  # newer than books that are resumed
    h = hashlib.sha256(json.dumps([words, share, mine.weight], sort_keys=True).encode())
    for name in sorted(mine.arrays):
        h.update(name.encode() + b"\0")
        h.update(np.ascontiguousarray(mine.arrays[name], np.float64).data)
    return h.hexdigest()
