"""Row 1 and what is like it: whatever leaves a hospital, in whichever study, holds no word of its records, people or places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.attacks.test_names_of_public_codes import MARK, RARE, _rewrite, _tap
from tests.node import test_flare_halves as halves

from polyclinic.errors import PeerLost, ProtocolMismatch
from polyclinic.methods.phenotypes import SumALS
from polyclinic.protocol.interfaces import Step

SECRETS = 'cohort = "women of ward {}"\n'
STUDIES = {
    "dpem plain": ('name = "dpem"\nrank = 2\nrounds = 2\naggregation = "plain"', "[privacy]\nepsilon = 0.5\n"),
    "dpem subspace": ('name = "dpem"\nrank = 2\nrounds = 2\naggregation = "subspace"', "[privacy]\nepsilon = 0.5\n"),
    "trip masked": ('name = "trip"\nrank = 2\nrounds = 2\naggregation = "masked"', ""),
    "sumals masked": ('name = "sumals"\nrank = 2\nrounds = 2\naggregation = "masked"', ""),
    "localtf plain": ('name = "localtf"\nrank = 2\nrounds = 2\naggregation = "plain"', ""),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> halves.World:
    made = halves.World(tmp_path_factory.mktemp("markers"))
    _rewrite(made.root / "north", RARE)
    for name, site in list(made.sites.items()):
        text = site.node_path.read_text(encoding="utf-8")
        site.node_path.write_text(f"{text}\n[ledger]\n{SECRETS.format(name)}", encoding="utf-8")
        made.sites[name] = type(site).of(site.node_path)
    return made


def markers(world: halves.World) -> list[bytes]:
    """Words that are at the hospitals and nowhere else."""
    names = [w for s in world.sites for w in (f"{s}-0", f"{s}-1-0", f"women of ward {s}", str(world.root / s))]
    return [w.encode() for w in (*names, MARK, "rare", "records.duckdb", "events.parquet", "node.toml")]


def search(world: halves.World, sent: list[bytes]) -> None:
    kept = [p.read_bytes() for p in sorted((world.root / "coordinator" / "runs").rglob("*")) if p.is_file()]
    for word in markers(world):
        assert not [b for b in sent if word in b], f"{word!r} left a hospital"
        assert not [b for b in kept if word in b], f"{word!r} is at the coordinator"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("dpem subspace", "sumals masked") else n for n in STUDIES]
)
def test_no_word_of_a_hospital_leaves_it(world: halves.World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    method, tail = STUDIES[name]
    sent: list[bytes] = []
    with monkeypatch.context() as m:
        _tap(m, world, sent)
        order = world.order(world.study(name.replace(" ", "-"), method, tail=tail, head="deadline = 200\n"))
        world.open(order)
        world.lead(order).run()
    assert sum(map(len, sent)) > 5000
    search(world, sent)


def test_nor_when_something_goes_wrong_with_the_records(world: halves.World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the middle of the records quotes them; it stays in the hospital's own log."""

    def breaks(self: Any, step: Step, site: Any, private: Any, public: Any, rng: np.random.Generator) -> None:
        raise ValueError(f"patient {site.name}-0 of ward 7: {MARK}")

    sent: list[bytes] = []
    with monkeypatch.context() as m:
        _tap(m, world, sent)
        m.setattr(SumALS, "contribute", breaks)
        order = world.order(world.study("breaks", STUDIES["sumals masked"][0], head="deadline = 200\n"))
        world.open(order)
        with pytest.raises((PeerLost, ProtocolMismatch)):
            world.lead(order).run()
    search(world, sent)
    assert MARK in world.sites["north"].events.read_text(), "its owner reads what happened"
