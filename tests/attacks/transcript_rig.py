"""Hospitals with records that a test writes out, and all that a coordinator hears of them: words, messages and totals.

The halves of a study are those of :mod:`tests.hostile.plain_world`: real folders, admission, ledgers; the wire is a function call.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.attacks.hostile_world import World
from tests.enrolled import enrolled
from tests.hostile.plain_world import Halves

from polyclinic.errors import PolyclinicError
from polyclinic.node.enrolment.folders import CoordinatorFolder
from polyclinic.node.messages import Letters, read_answer
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.wire import encoding as wire

Row = Sequence[object]
EVENT = ("patient_id", "visit_id", "time", "kind", "code")


class Records(World):
    """Enrolled hospitals over tables of a test: ``tables[site][name]`` are rows, the first one is the header.

    Parameters
    ----------
    rules
        Lines of ``[keys]``; none: every order waits for the owner.
    """

    def __init__(
        self,
        root: Path,
        tables: Mapping[str, Mapping[str, Iterable[Row]]],
        *,
        policy: str,
        rules: str = 'studies = "policy"',
    ) -> None:
        os.umask(0o077)
        self.root = root
        (root / "studies").mkdir()
        nodes = {}
        for site, files in tables.items():
            (root / site).mkdir()
            for name, rows in files.items():
                with open(root / site / f"{name}.csv", "w", newline="", encoding="utf-8") as f:
                    csv.writer(f).writerows(rows)
            source = "".join(f'{name} = "{name}.csv"\n' for name in files)
            nodes[site] = root / site / "node.toml"
            nodes[site].write_text(
                f'[site]\nname = "{site}"\nfolder = "site"\n[source]\nkind = "files"\n{source}'
                f"[policy]\nmin_sites = 3\n{policy}\n[keys]\n{rules}\n"
            )
            nodes[site].chmod(0o600)
        self.coordinator = CoordinatorFolder(root / "coordinator")
        self.sites = enrolled(self.coordinator, nodes)
        self.key = self.coordinator.identity()

    def tensor(self, name: str, drugs: Iterable[str], diagnoses: Iterable[str], more: str = "") -> str:
        """Write public lists of codes; returns the section of a study that names them."""
        for kind, codes in (("drug", drugs), ("diagnosis", diagnoses)):
            rows = "".join(f"{code},{code}\n" for code in codes)
            (self.root / "studies" / f"{name}-{kind}.csv").write_text(f"code,name\n{rows}")
        lists = f'{{drug = "{name}-drug.csv", diagnosis = "{name}-diagnosis.csv"}}'
        return f'[tensor]\nmodes = ["drug", "diagnosis"]\nvocabulary = {lists}\n{more}\n'

    def among(self, order: StudyOrder, sites: Iterable[str]) -> StudyOrder:
        """The same order for fewer sites, correctly signed."""
        keys = {n: k for n, k in order.keys.items() if n in (*sites, "coordinator")}
        return self.forged(order, keys=keys, quorum=min(order.quorum, len(set(keys) - {"coordinator"})))


class Transcript(Halves):
    """What the coordinator of an order hears: the word of every site, each message, each total."""

    def __init__(self, world: World, order: StudyOrder) -> None:
        super().__init__(world, order)
        self.totals: list[dict[str, np.ndarray[Any, Any]]] = []
        self.messages: list[tuple[str, bytes]] = []  # by site, as the way to add wrote them
        self.tap = self._hear
        taken = self.driver.taken

        def note(opened: Any, public: Any = None) -> None:
            self.totals.append(dict(opened.total.arrays))
            taken(opened, public)

        self.driver.taken = note  # type: ignore[method-assign]

    def _hear(self, site: str, data: bytes) -> bytes:
        answer = read_answer(data)
        if isinstance(answer, Letters):
            self.messages += ((site, message) for message in answer.letters)
        return data

    def words(self) -> dict[str, tuple[str, str | None]]:
        """How each site says that it stands, and why."""
        status = {n: s.here() for n, s in self.sites.items() if n in self.order.sites}
        return {n: (s.stage, s.why) for n, s in status.items()}

    def outcome(self) -> Outcome | None:
        """Run to the end; None where the study was refused or stopped."""
        try:
            result: Outcome = self.run()
        except PolyclinicError:
            return None
        return result


def arrays(value: object) -> list[np.ndarray[Any, Any]]:
    """Every array inside a message, however deep."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, bytes):
        try:
            return arrays(wire.decode(value))
        except PolyclinicError:
            return []
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [a for part in parts for a in arrays(part)]


def visits(site: str, patients: int, *, drugs: int = 10, diagnoses: int = 8) -> list[Row]:
    """Ordinary patients of 2024: a visit with up to three drugs DR0, DR1 ... and three diagnoses DI0, DI1 ..."""
    rng = np.random.default_rng([5, *site.encode()])
    rows: list[Row] = [EVENT]
    for p in range(patients):
        day = f"2024-01-{1 + int(rng.integers(27)):02d} 08:00:00"
        for kind, codes in (("drug", drugs), ("diagnosis", diagnoses)):
            for code in sorted(set(rng.integers(0, codes, 3).tolist())):
                rows.append((f"{site}{p}", f"{site}{p}-0", day, kind, f"{kind[:2].upper()}{code}"))
    return rows


def visit(patient: str, day: str, drug: str, *diagnoses: str) -> list[Row]:
    """One more visit of a patient."""
    codes = [("drug", drug), *(("diagnosis", d) for d in diagnoses)]
    return [(patient, f"{patient}-{day}", f"{day} 08:00:00", kind, code) for kind, code in codes]
