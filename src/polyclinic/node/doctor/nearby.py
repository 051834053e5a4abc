"""What a node needs on its own side, looked at in a moment: room on its disk, and data that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from polyclinic.config import Node
from polyclinic.errors import PolyclinicError
from polyclinic.node.doctor.probe import Probe
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.records.sources.postgres import address_of

PATIENCE: Final = 5  # seconds for a database
TODO: Final = (
    "polyclinic site doctor reads the data as a study would; url, password, rights, file names are in [source]"
)


def nearby(folder: SiteFolder) -> list[Probe]:
    """Disk and data."""
    from polyclinic.node.doctor.probes import disk

    return [disk(folder.node.home), data_there(folder.node)]


def data_there(node: Node) -> Probe:
    """Whether the database answers, or the files are there; nothing is read (``doctor`` and ``check`` read)."""
    source = node.source
    if source.url:
        return _database(node)
    named = {k: getattr(source, k) for k in ("events", "labels", "features", "folder", "database")}
    away = [f"{k} = {v!r}" for k, v in named.items() if v and not _found(node.path(v))]
    if away:
        return Probe("data", "fault", f"the data are not there: {', '.join(away)}", TODO, exit=3)
    return Probe("data", "ok", "the files are there")


def _found(path: Path) -> bool:
    if any(c in str(path) for c in "*?["):
        return any(path.parent.glob(path.name))
    return path.exists()


def _database(node: Node) -> Probe:
    try:
        import psycopg
    except ImportError:
        return Probe(
            "data", "fault", "package psycopg (extra postgres) is not installed", "pip install 'polyclinic[postgres]'"
        )
    try:
        with psycopg.connect(address_of(node), connect_timeout=PATIENCE) as link:
            link.execute("SELECT 1")
    except PolyclinicError as e:
        return Probe("data", "fault", "; ".join((e.what, *e.faults)), e.hint or TODO, exit=3)
    except psycopg.Error as e:
        why = str(e).strip().splitlines()[0].strip() if str(e).strip() else type(e).__name__
        return Probe("data", "fault", f"the database is away or refuses us: {why}", TODO, exit=3)
    return Probe("data", "ok", "the database answers")
