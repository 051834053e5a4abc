"""What a study between hosts leaves at the coordinator: the public outcome. No patient is in it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyclinic.node.enrolment.folders import private, read_json
from polyclinic.node.signed_study import StudyOrder
from polyclinic.privacy.card.release_history import Certified
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.privacy.ledger.signed_head import heads_of
from polyclinic.protocol.interfaces import Method, Release
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.schema import schema_from
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import count_votes
from polyclinic.protocol.wire.traffic import Traffic
from polyclinic.studies import registry


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
            "columns": None if setting.columns is None else list(setting.columns),
        },
        "releases": [wire.pack(r) for r in outcome.releases],
        "seconds": outcome.seconds,
        "noise": outcome.noise,
        "heads": {n: asdict(h) for n, h in outcome.heads.items()},
    }
    path = folder / "outcome.ckpt"
    wire.save(path, value)
    return path


def read_outcome(folder: Path, method: Method) -> Outcome:
    """The outcome of a finished study; private states and memberships stayed at the sites, so there are none."""
    value = wire.load(folder / "outcome.ckpt")
    return Outcome(
        wire.unpack(method.Public, value["public"]),
        {},
        {},
        [dict(h) for h in value["history"]],
        Traffic.restore(dict(value["traffic"])),
        schema_from(value["setting"]),
        tuple(wire.unpack(Release, r) for r in value["releases"]),
        float(value["seconds"]),
        str(value["noise"]),
        heads=heads_of(value.get("heads")),
        books=StudyExtract.in_folder(folder),
        certified=read_certified(folder),
    )


def read_certified(folder: Path) -> Certified | None:
    """Who signed the end of a run; only signatures that hold count. None in a folder of an earlier version."""
    path = folder / "certificate.json"
    value = read_json(path) if path.exists() else {}
    if "sites" not in value or not (folder / "books.json").exists():
        return None
    keys = {s: bytes.fromhex(k) for s, k in read_json(folder / "books.json")["keys"].items()}
    sums, chain = int(value["sums"]), bytes.fromhex(value["chain"])
    votes = {s: bytes.fromhex(v) for s, v in value["votes"].items()}
    held = tuple(s for s, v in sorted(votes.items()) if count_votes({s: v}, keys, value["order"], sums, chain) == 1)
    return Certified(held, int(value["sites"]), int(value["needed"]))


def read_model(folder: Path, order: StudyOrder) -> Any:
    """The method of a finished study with its results, the model itself among them."""
    method = registry.ordered(order.parsed(private(folder / "files")))
    method.publish(read_outcome(folder, method))
    return method
