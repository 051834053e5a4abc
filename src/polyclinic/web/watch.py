"""A run as seen from outside while it goes on: only names, rounds, figures, bytes and budgets. Never a patient's row."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from polyclinic.errors import ConfigError
from polyclinic.studies.run_folder import RunFolder

QUIET: Final = 120.0  # seconds without news after which an unfinished run counts as stopped
DEPTH: Final = 4
MESSAGES: Final = 50
HIDDEN: Final = ("simulation_only",)


def find_runs(root: Path) -> dict[str, Path]:
    """Run folders under a folder by a short name, newest first; the folder itself if it is one.

    The names are the only way to a run: a request can ask for one of these and nothing else.
    """
    found = [p for p in _folders(root, DEPTH) if (p / "study.json").is_file() or (p / "progress.jsonl").is_file()]
    runs = [p for p in found if not any(q != p and q in p.parents for q in found)]
    runs.sort(key=lambda p: -_changed(p))
    return {str(p.relative_to(root)) if p != root else root.resolve().name: p for p in runs}


def _folders(root: Path, depth: int) -> list[Path]:
    if not root.is_dir():
        return []
    out = [root]
    if depth:
        with os.scandir(root) as entries:
            inside = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))
        for name in inside:
            out += _folders(root / name, depth - 1)
    return out


@dataclass(frozen=True)
class PageWatch:
    """One run folder, read again at every question."""

    path: Path

    def rounds(self, start: int = 0) -> list[dict[str, Any]]:
        """Progress events from line ``start`` on, figures beside the rest, whichever engine wrote them."""
        out = []
        for line in _lines(self.path / "progress.jsonl")[start:]:
            value = _json(line)
            figures = value.pop("figures", {}) if isinstance(value.get("figures"), dict) else {}
            out.append({**value, **{k: v for k, v in figures.items() if v is None or isinstance(v, int | float | str)}})
        return out

    def brief(self) -> dict[str, object]:
        """One line of a list of runs."""
        study, outcome = _file(self.path / "study.json"), _file(self.path / "outcome.json")
        finished = (self.path / "metrics.json").is_file()
        refusal = self.refusal()
        return {
            "name": ((study.get("study") or {}).get("study") or {}).get("name") or self.path.name,
            "method": ((study.get("study") or {}).get("method") or {}).get("name"),
            "state": "stopped" if refusal else self._state(finished),
            "changed": _changed(self.path),
            "guarantee": (outcome.get("privacy") or {}).get("guarantee"),
            "headline": refusal or (outcome.get("privacy") or {}).get("headline"),
            "has_report": finished and bool(outcome) and not refusal,
        }

    def refusal(self) -> str:
        """Return why this version does not read the folder. Empty if it does."""
        try:
            RunFolder(self.path).check_format()
        except ConfigError as e:
            return e.what
        except ValueError:  # not JSON: shown as far as it can be read
            pass
        return ""

    def snapshot(self) -> dict[str, object]:
        """Everything the page shows of a run but its rounds."""
        study, metrics = _file(self.path / "study.json"), _file(self.path / "metrics.json")
        outcome = _file(self.path / "outcome.json")
        asked = (study.get("study") or {}).get("privacy")
        return {
            **self.brief(),
            "asked": asked,
            "metrics": {k: v for k, v in metrics.items() if k not in HIDDEN},
            "sites": self._sites(study.get("sites") or []),
            "messages": self._messages(),
            "history": [
                {"round": h.get("round"), "bytes_up": h.get("bytes_up"), "bytes_down": h.get("bytes_down")}
                for h in outcome.get("history") or []
            ],
        }

    def _state(self, finished: bool) -> str:
        if finished:
            return "finished"
        said = _file(self.path / "status.json").get("state")  # of a study between hosts
        if said in ("stopped", "failed", "finished", "cancelled"):
            return "stopped" if said == "failed" else str(said)
        if said == "submitted":
            return "waiting for the sites"
        return "running" if time.time() - _changed(self.path) < QUIET else "stopped"

    def _sites(self, names: Sequence[str]) -> list[dict[str, object]]:
        states: dict[str, str] = {}
        for e in map(_json, _lines(self.path / "events.jsonl")):
            if e.get("site") and e.get("event"):
                states[str(e["site"])] = str(e["event"])
        return [{"name": name, "state": states.get(name, "no news")} for name in sorted({*names, *states})]

    def _messages(self) -> list[dict[str, object]]:
        """News for the owner: states of sites, refusals, aborted sums; newest last."""
        out = []
        for e in map(_json, _lines(self.path / "events.jsonl")):
            reasons = e.get("reasons") or []
            text = str(e.get("event", "")) + (f": {'; '.join(map(str, reasons))}" if reasons else "")
            out.append({"time": e.get("time", ""), "site": e.get("site", ""), "text": text[:500]})
        return out[-MESSAGES:]


def _lines(path: Path) -> list[str]:
    """Complete lines of a file that may be growing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return text.split("\n")[:-1]


def _json(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _file(path: Path) -> dict[str, Any]:
    try:
        stat = path.stat()
        return _read_file(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, UnicodeDecodeError):
        return {}


@lru_cache(maxsize=128)
def _read_file(path: Path, size: int, changed: int) -> dict[str, Any]:
    return _json(path.read_text(encoding="utf-8"))


def _changed(path: Path) -> float:
    files = [path / n for n in ("progress.jsonl", "events.jsonl", "metrics.json", "study.json")]
    return max((f.stat().st_mtime for f in files if f.is_file()), default=0.0)
