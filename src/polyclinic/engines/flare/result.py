"""What a study between hosts leaves at the coordinator: the public outcome. No patient is in it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from polyclinic.engines.flare.desk import setting_from
from polyclinic.federation import wire
from polyclinic.federation.fold import Outcome
from polyclinic.federation.protocol import Method, Release
from polyclinic.federation.traffic import Traffic
from polyclinic.privacy.head import heads_of
from polyclinic.tensors.files import atomic

__all__ = ["read_outcome", "write_outcome"]

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
    )
