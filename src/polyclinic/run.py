"""The run folder: one file per box of the data's way, so that any stage can be inspected or rerun alone."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.tensors.files import atomic

__all__ = ["RunFolder"]


@dataclass(frozen=True)
class RunFolder:
    """Names of every artifact of a run. Made readable by its owner only: checkpoints hold patients' loadings."""

    path: Path

    @classmethod
    def create(cls, path: str | Path, *, resume: bool = False) -> RunFolder:
        """A new folder, or the same one again with ``resume``."""
        p = Path(path)
        begun = p.is_dir() and any(x.name != "study.json" for x in p.iterdir())  # a refused study leaves nothing else
        if (p.exists() and not p.is_dir()) or (begun and not resume):
            raise ConfigError(f"{p}: the folder is not empty", hint="choose another --out, or --resume the run in it")
        p.mkdir(parents=True, exist_ok=True)
        os.chmod(p, 0o700)
        return cls(p)

    @property
    def study(self) -> Path:
        """The study as it ran."""
        return self.path / "study.json"

    @property
    def metrics(self) -> Path:
        """Figures of merit."""
        return self.path / "metrics.json"

    @property
    def outcome(self) -> Path:
        """The model."""
        return self.path / "outcome.npz"

    @property
    def progress(self) -> Path:
        """Progress events, one JSON a line; the live page follows it."""
        return self.path / "progress.jsonl"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def ledgers(self) -> Path:
        """Each simulated site's privacy ledger."""
        return self.path / "ledgers"

    def checkpoints(self) -> list[Path]:
        """Checkpoints, oldest first."""
        return sorted(self.path.glob("round-*.ckpt"))

    def write_checkpoint(self, number: int, data: bytes, *, keep: int = 2) -> Path:
        """Write one round's checkpoint atomically and prune older ones."""
        path = self.path / f"round-{number:04d}.ckpt"
        with atomic(path) as temporary:
            temporary.write_bytes(data)
        for old in self.checkpoints()[:-keep]:
            old.unlink()
        return path

    def write_json(self, path: Path, value: Mapping[str, Any]) -> None:
        """Write JSON atomically; NaN is refused, numpy numbers are plain."""
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(value, indent=1, default=_plain, allow_nan=False) + "\n", encoding="utf-8")

    def read_json(self, path: Path) -> Any:
        """Read JSON, or say that the run did not get that far."""
        if not path.is_file():
            raise ConfigError(f"{path}: not there", hint="is this a run folder, and did the run finish?")
        return json.loads(path.read_text(encoding="utf-8"))

    def append_progress(self, event: Mapping[str, Any]) -> None:
        """Add one progress event."""
        with open(self.progress, "a", encoding="utf-8") as f:
            f.write(json.dumps(event, default=_plain) + "\n")

    def write_arrays(self, path: Path, arrays: Mapping[str, Any]) -> None:
        """Write arrays atomically."""
        with atomic(path) as temporary, open(temporary, "wb") as f:
            np.savez_compressed(f, **dict(arrays))

    @staticmethod
    def manifest() -> dict[str, str]:
        """Versions that a result depends on."""
        names = ["polyclinic", "numpy", "scipy", "numba", "scikit-learn", "duckdb", "cryptography", "dp-accounting"]
        return {"python": platform.python_version(), "platform": sys.platform, **{n: version(n) for n in names}}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
