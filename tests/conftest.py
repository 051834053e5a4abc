"""Shared fixtures: where the open data lies, and small networks."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # how long an example takes says how busy the machine is


@pytest.fixture(scope="session")
def data_path() -> Callable[[str], Path]:
    """Path of an open data set, or skip with the reason. ``POLYCLINIC_DATA`` names the folder."""
    base = Path(os.environ.get("POLYCLINIC_DATA", ROOT.parent / "shared" / "data"))

    def find(name: str) -> Path:
        path = base / name
        if not path.exists():
            pytest.skip(f"open data set {name!r} not found under {base} (set POLYCLINIC_DATA)")
        return path

    return find


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Address of a PostgreSQL of this file's own."""
    from tests.databases import postgresql

    with postgresql() as address:
        yield address


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and the tests of a file, in another order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files, then tests inside each file: a file's shared fixtures are still made once."""
    seed = config.getoption("--shuffle")
    if seed is not None:
        order = random.Random(seed)
        place = {path: order.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: (place[item.path], order.random()))


def pytest_collection_finish() -> None:
    """What was imported stays to the end: the collector of garbage walks through all of it seldom."""
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Nobody pulls the plug while tests run: a file of this process need not reach the disk, only every other reader.

    Where a test kills a party at the instant at which something becomes durable, it puts its own ``fsync`` here.
    """

    def fsync(handle: int) -> None:
        os.fstat(handle)  # a handle that is closed is an error here as well

    with pytest.MonkeyPatch.context() as m:
        m.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(scope="session", autouse=True)
def same_noise() -> Iterator[None]:
    """Simulated noise is another in every test and at every door, and the same in every run: no figure fails by chance.

    What a test asks of noise must hold of nearly all of it; which draws it meets is settled here, once.
    """
    from polyclinic.privacy.accounting import mechanisms as mechanism

    drawn: Counter[str] = Counter()

    def generator() -> np.random.Generator:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        drawn[test] += 1
        return np.random.default_rng([*hashlib.sha256(f"{test} {drawn[test]}".encode()).digest()])

    with pytest.MonkeyPatch.context() as m:
        m.setattr(mechanism, "secure_generator", generator)
        yield


@pytest.fixture(scope="session", autouse=True)
def some_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is written in the home of whoever runs the tests, not by a fixture of a whole file either."""
    with pytest.MonkeyPatch.context() as m:
        m.setenv("POLYCLINIC_STATE", str(tmp_path_factory.getbasetemp() / "state"))
        yield


@pytest.fixture(autouse=True)
def own_state(some_state: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a user's state of its own, made when needed: which book pays for which records is written there."""
    folder = tmp_path_factory.getbasetemp() / "states" / secrets.token_hex(8)
    monkeypatch.setenv("POLYCLINIC_STATE", str(folder))
    return folder


@pytest.fixture(scope="session")
def without_patients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Folders in which hospitals take part without their patients, on purpose. Anywhere else that is a fault of the tests.

    A formal study tells others nothing of a hospital whose records cannot be read: a test would pass, and test nothing. The
    hospital's own log has a line about it.
    """
    meant: list[Path] = []
    yield meant
    logs = [f for f in tmp_path_factory.getbasetemp().rglob("events.jsonl*") if not {*meant} & {*f.parents}]
    empty = [f"{log}: {line[:200]}" for log in logs for line in log.read_text().splitlines() if "everybody: " in line]
    assert not empty, "hospitals took part without patients (marker 'nobody', if that is meant):\n" + "\n".join(empty)


@pytest.fixture(autouse=True)
def with_patients(without_patients: list[Path], request: pytest.FixtureRequest) -> None:
    """Every test world has patients, but for those of tests that are marked ``nobody``."""
    if request.node.get_closest_marker("nobody") is not None:
        without_patients.append(request.getfixturevalue("tmp_path"))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that starts anew in every test."""
    return np.random.default_rng(0)
