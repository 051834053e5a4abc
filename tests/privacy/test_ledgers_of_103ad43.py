"""Ledgers that version 103ad43 wrote are read, verified, and cost the same."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from polyclinic.privacy.ledger.ledger import Ledger

LEDGERS = Path(__file__).parents[1] / "fixtures" / "103ad43" / "ledgers"
EXPECTED: dict[str, dict[str, Any]] = json.loads((LEDGERS / "expected.json").read_text())


@pytest.fixture(params=sorted(EXPECTED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def copied(name: str, folder: Path, leave: tuple[str, ...] = ()) -> Ledger:
    """A copy: opening a ledger makes a lock file beside it."""
    folder.mkdir(mode=0o700)
    for file in LEDGERS.glob(f"{name}.jsonl*"):
        if file.suffix not in leave:
            shutil.copyfile(file, folder / file.name)
            (folder / file.name).chmod(0o600)
    return Ledger(folder / f"{name}.jsonl", site=EXPECTED[name]["site"])


@pytest.fixture
def ledger(name: str, tmp_path: Path) -> Ledger:
    return copied(name, tmp_path / "ledgers")


def test_it_is_whole_and_has_the_same_lines(ledger: Ledger, name: str) -> None:
    expected = EXPECTED[name]
    assert list(ledger.verify()) == expected["faults"] == []
    kinds = [e.kind for e in ledger.entries]
    assert len(kinds) == ledger.count == expected["entries"]
    assert (sorted(set(kinds)) if name == "long" else kinds) == expected["kinds"]
    assert len(ledger.charges()) == expected["charges"]
    assert ledger.head.hash == expected["head"]
    assert ledger.head.valid is expected["head_is_signed"] is True


def test_it_costs_the_same(ledger: Ledger, name: str) -> None:
    """An event that cannot be read has no bound: the figures show that every one was read."""
    expected = EXPECTED[name]
    assert ledger.epsilon(expected["delta"]) == pytest.approx(float(expected["epsilon"]), rel=1e-12)
    bounded = ledger.epsilon(expected["delta"], bounded=True)
    assert bounded == pytest.approx(expected["epsilon_of_bounded_releases"], rel=1e-12)
    if math.isfinite(float(expected["epsilon"])):
        assert ledger.tally.epsilon(expected["delta"], now=math.inf) == pytest.approx(bounded, rel=1e-12)


@pytest.mark.parametrize("file", sorted(LEDGERS.glob("*.export.json")), ids=lambda f: f.name)
def test_it_exports_the_same(file: Path, tmp_path: Path) -> None:
    (exported,) = json.loads(file.read_text())["ledgers"]
    again = json.loads(json.dumps(copied(file.name.removesuffix(".export.json"), tmp_path / "ledgers").export()))
    for key in ("entries", "lines", "key"):
        assert again[key] == exported[key], key


def test_it_goes_on(ledger: Ledger, name: str) -> None:
    ledger.close("ff" * 32, "finished")
    assert ledger.count == EXPECTED[name]["entries"] + 1
    assert ledger.verify() == ()
    assert Ledger(ledger.path, site=ledger.site).count == ledger.count


def test_a_snapshot_says_the_same_as_the_lines(tmp_path: Path) -> None:
    by_lines = copied("long", tmp_path / "lines", leave=(".state",))
    by_snapshot = copied("long", tmp_path / "snapshot")
    assert by_lines.tally.state() == by_snapshot.tally.state()
