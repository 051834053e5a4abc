"""Forget one patient at a site: later studies leave the person out, and no stored study holds the records any more.

A sum that has left cannot be taken back, and a checkpoint has no rows by name. So a study whose stored data hold the patient ends
at this site. The node and all other studies run on.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.node.admission.admission import asked
from polyclinic.node.admission.retention import INGESTED, RESULTS, drop_data, let_go, remove_files
from polyclinic.node.enrolment.folders import SiteFolder, append_event, at_work
from polyclinic.node.enrolment.processes import Recorded, alive
from polyclinic.node.signed_study import StudyOrder
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.entries import Erase
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.atomic_files import locked, write_whole

LIST: Final = "optout.csv"  # made beside the node file where it names no list
LOGS: Final = ("*.log", "events.jsonl", "events.jsonl.*")
MARK: Final = b"(forgotten)"


@dataclass(frozen=True)
class Forgotten:
    """What was done about one patient.

    Attributes
    ----------
    studies
        Ended at this site, because their stored data held the patient.
    released
        All studies in which sums of this site have left. Whether the patient is in one is not known afterwards.
    files
        How many files were deleted.
    optout
        The list of ``[exclude]``, which has the identifier now.
    left
        Files below the site's folder in which these letters still stand.
    """

    site: str
    studies: tuple[str, ...]
    released: tuple[str, ...]
    files: int
    optout: Path
    left: tuple[Path, ...]


def holding(folder: SiteFolder, patient: str) -> list[StudyOrder]:
    """Return the studies whose stored data hold the patient, or may: they are being read, or cannot be read."""
    return [o for o in asked(folder) if _may_hold(folder.study(o.digest) / "data", patient)]


def forget(folder: SiteFolder, patient: str, *, by: str) -> Forgotten:
    """Leave the patient out of every later study, and delete what is stored."""
    name = patient.strip()
    if not name or not name.isprintable():
        raise ConfigError(f"{patient!r} is no identifier of a patient", hint="give it as the source writes it")
    if at_work(folder.path / "courier" / "lock"):
        raise ConfigError("the courier is at work and holds data in memory", hint="stop `polyclinic courier site`")
    optout = _exclude(folder, name)  # first: a worker that starts again reads the list
    book, ids = ledger_of(folder.node), {o.digest: o.id for o in asked(folder)}
    studies, files = _end_studies(folder, name)
    # scores have no names: whose row is whose is not known any more
    stored = [f for r in RESULTS for f in folder.studies.glob(f"*/{r}")]
    files += remove_files([*stored, *(folder.node.home / n for n in INGESTED)])
    book.write(Erase("data", files, by))
    left = _clean(folder, name)
    append_event(folder.events, event="forgotten", studies=studies, files=files)
    released = tuple(sorted({ids.get(c.run, c.study) for c in book.charges()}))
    return Forgotten(folder.node.name, studies, released, files, optout, left)


def _end_studies(folder: SiteFolder, patient: str) -> tuple[tuple[str, ...], int]:
    """End the studies that hold the patient here: their names, and how many files went."""
    ended = holding(folder, patient)
    for order in ended:
        ledger_of(folder.node).close(order.digest, "forgotten")
    for order in asked(folder):
        if order in ended or not (folder.study(order.digest) / "data").exists():
            _start_anew(folder, order)
    files = sum(let_go(folder, o.digest) for o in ended)
    torn = [d.parent for d in folder.studies.glob("*/data") if _may_hold(d, patient)]  # no order says whose these are
    return tuple(o.id for o in ended), files + sum(map(drop_data, torn))


def statement(done: Forgotten) -> list[str]:
    """Return what a hospital can hand to the patient. The identifier is not in it."""
    studies, released = ", ".join(done.studies) or "no stored study", ", ".join(done.released) or "no study"
    return [
        f"Statement of {done.site} on the deletion of one patient's research data",
        f"Deleted: the stored records of these studies: {studies}. {done.files} files were deleted.",
        "Deleted: the stored scores of all studies. They have no names, so all of them were deleted.",
        f"From now on: the patient is in {done.optout.name}. Every later study of this hospital leaves the patient out.",
        "Not deleted: the hospital's own medical records, which this program only reads, and backups of other programs.",
        f"Cannot be deleted: sums over many patients that have left the hospital. Studies with such sums: {released}.",
        "Cannot be deleted: models computed from these sums. They have no names and no single records.",
    ]


def _may_hold(data: Path, patient: str) -> bool:
    stored = [f for pattern in ("*.parquet", "*.npz") for f in data.glob(pattern)]
    return data.exists() and (not (data / "manifest.json").exists() or any(_holds(f, patient) for f in stored))


def _holds(file: Path, patient: str) -> bool:
    import pyarrow.parquet as parquet

    try:
        if file.suffix == ".npz":
            return patient in (SparseTensor.load(file).axes[0].labels or ())
        return patient in map(str, parquet.read_table(file, columns=["patient_id"])["patient_id"].to_pylist())
    except FileNotFoundError:  # its study has just ended
        return False
    except (OSError, ValueError, KeyError, PolyclinicError):  # it cannot be shown that the patient is not in it
        return True


def _exclude(folder: SiteFolder, patient: str) -> Path:
    """Write the patient into the list of ``[exclude]``, and the section where the node file has none."""
    rule, node_file = folder.node.exclude, folder.node_path
    path = folder.node.path(LIST if rule is None else rule.patients)
    with locked(path.with_name(f".{path.name}.lock")):
        text = path.read_text(encoding="utf-8") if path.exists() else "patient_id\n"
        if patient not in {row[0].strip() for row in csv.reader(io.StringIO(text)) if row}:
            line = io.StringIO()
            csv.writer(line, lineterminator="\n").writerow([patient])
            write_whole(path, text + "\n" * (not text.endswith("\n")) + line.getvalue())
    if rule is None:
        mode, kept = node_file.stat().st_mode & 0o777, node_file.read_text(encoding="utf-8")
        write_whole(node_file, f'{kept.rstrip()}\n\n[exclude]\npatients = "{LIST}"\n').chmod(mode)
    return path


def _start_anew(folder: SiteFolder, order: StudyOrder) -> None:
    """Kill the processes of a study here. The node starts them again: they read the list, or find the study closed."""
    for note in folder.pids.glob("worker-*.json") if folder.pids.exists() else ():
        process, job = Recorded.read(note), folder.workspace / note.stem.removeprefix("worker-")
        configs = [json.loads(f.read_text("utf-8")) for f in job.rglob("config_fed_client.json")]
        orders = [c["executors"][0]["executor"]["args"]["order"] for c in configs]
        if process is not None and alive(process) and order.encode() in orders:
            os.kill(process.pid, signal.SIGKILL)


def _clean(folder: SiteFolder, patient: str) -> tuple[Path, ...]:
    """Take the identifier out of the logs; return the files that have it still."""
    word = re.compile(rb"(?<![0-9A-Za-z_])" + re.escape(patient.encode()) + rb"(?![0-9A-Za-z_])")
    telling = not patient.isdigit() or len(patient) > 5  # a short number stands for many other things
    files = [f for f in folder.node.home.rglob("*") if f.is_file() and not f.is_symlink()]
    logs = {f for p in LOGS for f in files if telling and f.match(p)}
    return tuple(sorted(f for f in files if _has(f, word, clean=f in logs)))


def _has(file: Path, word: re.Pattern[bytes], *, clean: bool) -> bool:
    """Whether the identifier stands in a file, after it was taken out of a log."""
    try:
        text = file.read_bytes()
        if clean and word.search(text):
            text = word.sub(MARK, text)
            with open(file, "r+b") as f:  # in place: a process may have it open
                f.write(text)
                f.truncate()
    except FileNotFoundError:  # of a study that runs
        return False
    return word.search(text) is not None
