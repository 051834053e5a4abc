"""How long a site keeps what: patients' data until a study ends, results as long as ``[site] retention`` says, the book always.

Only names that this program makes are ever removed, inside the site's own folder. The line that a study is closed is in the
book before its data go; a sweep at start-up finishes what a crash interrupted.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from polyclinic.errors import ConfigError
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.gate.owner_rules import ledger_of, outbox_of
from polyclinic.privacy.ledger.entries import Erase

DATA: Final = ("data", "releases")  # folders of a study with patients in them
STATES: Final = ("state.ckpt", "private-*.ckpt", "*.part", ".*")  # also what was being written
INGESTED: Final = ("tensor.npz", "events.parquet", "labels.parquet", "features.parquet", "manifest.json")
RESULTS: Final = ("outcome.npz",)


def seconds(text: str) -> float:
    """A time to keep something: ``"14d"``, ``"12h"``; ``"none"`` is 0, ``"keep"`` for ever.

    >>> seconds("14d") / 86_400
    14.0
    """
    if text in ("none", "keep"):
        return 0.0 if text == "none" else float("inf")
    found = re.fullmatch(r"(\d+)([dh])", text)
    if found is None:
        raise ConfigError(f"{text!r} is no time to keep things", hint="'90d', '12h', 'none' or 'keep'")
    return float(found[1]) * {"d": 86_400.0, "h": 3_600.0}[found[2]]


def drop_data(home: Path) -> int:
    """Remove what a study's folder holds of patients: events, tensor, labels, private states, stored releases."""
    return remove_files([*(home / d for d in DATA), *(f for pattern in STATES for f in home.glob(pattern))])


def let_go(folder: SiteFolder, order: str) -> int:
    """Remove the data of a study that is over, and its releases that still wait for the owner."""
    box = Outbox(outbox_of(folder.node))
    waiting = [p.id for p in box.all() if p.facts.get("order") == order and p.state == "pending"]
    return drop_data(folder.study(order)) + remove_files(box.path / f"{id}.npz" for id in waiting)


def let_go_closed(folder: SiteFolder) -> int:
    """Do so for every study that the ledger has closed: its process may have been killed in between."""
    here = {home.name for home in _studies(folder)}
    return sum(let_go(folder, o) for o in ledger_of(folder.node).tally.closed if o[:32] in here)


def remove_files(places: Iterable[Path]) -> int:
    """Remove files and whole folders, also while another process does; how many files went."""
    files = 0
    for place in places:
        if place.is_symlink():
            continue
        if place.is_dir():
            files += sum(len(f) for _, _, f in os.walk(place))
            while place.exists():
                with suppress(FileNotFoundError):
                    shutil.rmtree(place)
        elif place.exists():
            place.unlink(missing_ok=True)
            files += 1
    return files


def _studies(folder: SiteFolder) -> Iterator[Path]:
    yield from sorted(p.parent for p in folder.studies.glob("*/order.json")) if folder.studies.exists() else ()


def sweep(folder: SiteFolder, now: float | None = None) -> int:
    """Finish what a crash interrupted, and let go what is older than the owner keeps it; how many files went."""
    at = time.time() if now is None else now
    files, keep, resume = (
        let_go_closed(folder),
        seconds(folder.node.site.retention),
        seconds(folder.node.site.resume_for),
    )
    for home in _studies(folder):
        age = at - max(f.stat().st_mtime for f in home.iterdir())
        if (home / "closed.ckpt").exists() or age > resume:
            files += drop_data(home)
        if age > keep:
            files += remove_files(home / r for r in RESULTS)
    return files


def erase(folder: SiteFolder, what: str, *, by: str, study: str = "") -> int:
    """Erase one study, the data of all, or the results of all; keys, pins and book stay, and a line says so."""
    homes = list(_studies(folder))
    if what == "study":
        from polyclinic.node.admission.admission import asked  # which asks here how long things are kept

        fits = [o for o in asked(folder) if o.id == study or (len(study) >= 8 and o.digest.startswith(study))]
        if len(fits) != 1:
            raise ConfigError(
                f"{len(fits)} studies are called {study!r} here", hint="polyclinic site review lists them"
            )
        homes, study = [folder.study(fits[0].digest)], fits[0].digest
        ledger_of(folder.node).close(study, "erased")
    files = 0
    for home in homes:
        if what in ("study", "data"):
            files += drop_data(home)
        if what in ("study", "results"):
            files += remove_files(home / r for r in RESULTS)
    if what == "data":
        files += remove_files(p for p in (folder.node.home / n for n in INGESTED))
    ledger_of(folder.node).write(Erase(what, files, by, study))  # type: ignore[arg-type]
    return files
