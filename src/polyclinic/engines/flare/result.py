"""What a study between hosts leaves at the coordinator: the public outcome. No patient is in it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from polyclinic.engines.flare.desk import setting_from
from polyclinic.engines.flare.folders import read_json, write_json
from polyclinic.engines.flare.order import Order
from polyclinic.federation import wire
from polyclinic.federation.fold import Outcome
from polyclinic.federation.protocol import Method, Release
from polyclinic.federation.traffic import Traffic
from polyclinic.privacy.head import heads_of
from polyclinic.privacy.studybook import StudyBook
from polyclinic.tensors.files import atomic

__all__ = ["read_books", "read_outcome", "write_books", "write_outcome"]

LIMIT: Final = 2**40


def write_outcome(folder: Path, outcome: Outcome) -> Path:
    """Write ``outcome.ckpt``: everything public of an outcome."""
    setting = outcome.setting
    value = {
        "public": wire.pack(outcome.public),
        "history": outcome.history,
        "traffic": outcome.traffic.state(),
        "setting": {
            "shape": list(setting.shape),
            "axes": [a.to_json() for a in setting.axes],
            "sites": list(setting.sites),
        },
        "releases": [wire.pack(r) for r in outcome.releases],
        "seconds": outcome.seconds,
        "noise": outcome.noise,
        "heads": {n: asdict(h) for n, h in outcome.heads.items()},
    }
    path = folder / "outcome.ckpt"
    with atomic(path) as temporary:
        temporary.write_bytes(wire.encode(value, limit=LIMIT))
        temporary.chmod(0o600)
    return path


def read_outcome(folder: Path, method: Method[Any, Any, Any]) -> Outcome:
    """The outcome of a finished study; private states and memberships stayed at the sites, so there are none."""
    value = wire.decode((folder / "outcome.ckpt").read_bytes(), limit=LIMIT)
    return Outcome(
        wire.unpack(method.Public, value["public"]),
        {},
        {},
        [dict(h) for h in value["history"]],
        Traffic.restore(dict(value["traffic"])),
        setting_from(value["setting"]),
        tuple(wire.unpack(Release, r) for r in value["releases"]),
        float(value["seconds"]),
        str(value["noise"]),
        heads=heads_of(value.get("heads")),
        books=read_books(folder),
    )


def write_books(folder: Path, order: Order, books: Mapping[str, bytes]) -> None:
    """Keep what the sites signed of their books, with the keys to check it by."""
    keys = {s: order.keys[s] for s in order.sites}
    packed = {s: b64encode(b).decode() for s, b in sorted(books.items())}
    write_json(folder / "books.json", {"order": order.digest, "keys": keys, "books": packed})


def read_books(folder: Path) -> tuple[StudyBook, ...]:
    """The signed books of a run that hold."""
    if not (folder / "books.json").exists():
        return ()
    value = read_json(folder / "books.json")
    keys = {s: bytes.fromhex(k) for s, k in value["keys"].items()}
    return StudyBook.several({s: b64decode(b) for s, b in value["books"].items()}, keys, str(value["order"]))
