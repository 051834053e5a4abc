"""Records that were read before are not read again: the same node, files and rules give the same site, bit for bit."""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from polyclinic.config import Node, Study
from polyclinic.node.admission import admission
from polyclinic.node.coordinator import site_registry
from polyclinic.records.ingest import Ingested, ingest

_KEPT = tempfile.mkdtemp(prefix="ingested-")
atexit.register(shutil.rmtree, _KEPT, ignore_errors=True)
_MADE: dict[str, tuple[Ingested, Path]] = {}
_LOCK = threading.Lock()


def _key(node: Node, study: Study, events: bool, skip_faulty: bool) -> str | None:
    """A digest of all that :func:`ingest` looks at: node file, hospital's files, rules, public lists; None if it may be more."""
    asked = {k: v for k, v in study.to_json().items() if v and k not in ("study", "method", "privacy", "evaluate")}
    if node.source.kind != "files" or node.exclude is not None or not set(asked) <= {"tensor", "features", "labels"}:
        return None
    if "ranges" in asked.get("tensor", {}):
        return None
    lists = asked.get("tensor", {}).pop("vocabulary", {})
    own = sorted(p for p in node.folder.iterdir() if p.suffix in (".toml", ".parquet", ".csv"))
    parts = [
        json.dumps([asked, events, skip_faulty], sort_keys=True).encode(),
        *(mode.encode() + study.path(p).read_bytes() for mode, p in sorted(lists.items())),
        *(p.name.encode() + p.read_bytes() for p in own),
    ]
    return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()


def ingest_once(
    node: Node, study: Study, out: str | Path, *, events: bool = True, skip_faulty: bool = False
) -> Ingested:
    """What :func:`ingest` returns and writes, from a copy where it was made before."""
    key = _key(node, study, events, skip_faulty)
    if key is None:
        return ingest(node, study, out, events=events, skip_faulty=skip_faulty)
    with _LOCK:
        found = _MADE.get(key)
    if found is None:
        made = ingest(node, study, out, events=events, skip_faulty=skip_faulty)
        kept = Path(tempfile.mkdtemp(dir=_KEPT))
        for name in (*made.manifest["outputs"], "manifest.json"):
            shutil.copy(Path(out) / name, kept / name)
        with _LOCK:
            _MADE[key] = made, kept
        return made
    made, kept = found
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {**made.manifest, "study": {"name": study.name, "sha256": study.digest()}}
    for name in manifest["outputs"]:
        shutil.copy(kept / name, folder / name)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    (folder / "manifest.json").chmod(0o600)
    return replace(made, manifest=manifest)


@contextmanager
def reading_once() -> Iterator[None]:
    """Sites that are admitted to a study read their records once."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(admission, "ingest", ingest_once)
        yield


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The same records are read once for all studies of a file. A folder's ``conftest.py`` imports it."""
    with reading_once():
        yield


@pytest.fixture(autouse=True)
def fast_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come faster than over a network: between the halves the wire is a function call."""
    monkeypatch.setattr(site_registry, "EVERY", 0.1)
    monkeypatch.setattr(site_registry, "GRACE", 3.0)
