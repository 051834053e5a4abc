"""Attack: one patient's code shows by the description that only a hospital that has the code can give.

A public list of codes without names; the hospital's own descriptions would name the codes that occur there, and only
those. So nothing that leaves a site may hold them: neither its greeting nor anything else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.node import test_flare_halves as halves

from polyclinic.protocol.wire import encoding as wire

MARK = "zebra"  # in every description of the hospitals, and nowhere else


def _rewrite(folder: Path, rows: str) -> None:
    """The hospital's events with descriptions of its own; ``rows``: what one more patient has."""
    path = folder / "events.parquet"
    with duckdb.connect() as con:
        con.execute(f"ATTACH '{folder / 'records.duckdb'}' AS hospital (READ_ONLY)")
        con.execute(
            f"CREATE TABLE e AS SELECT *, code || ' {MARK}' AS description FROM hospital.events WHERE code <> 'DR29'"
        )
        if rows:
            con.execute(f"INSERT INTO e BY NAME {rows}")
        con.execute(f"COPY e TO '{path}' (FORMAT parquet)")


RARE = " UNION ALL BY NAME ".join(
    f"SELECT 'rare' AS patient_id, 'v' AS visit_id, TIMESTAMP '2024-01-01' AS time, '{kind}' AS kind, '{code}' AS code, "
    f"'{code} {MARK}' AS description"
    for kind, code in (("drug", "DR29"), ("diagnosis", "DI00"))
)


@pytest.mark.parametrize("named", [False, True])
def test_what_a_site_says_about_public_codes_does_not_depend_on_its_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    world = halves.World(tmp_path)
    for kind in ("drug", "diagnosis"):
        path = tmp_path / "studies" / f"{kind}.csv"
        codes = [r.split(",")[0] for r in path.read_text(encoding="utf-8").splitlines()[1:]]
        # mutation: a list that names some codes only
        lines = [f"{c},public {c}" if named and i % 2 else f"{c}," for i, c in enumerate(codes)]
        path.write_text("\n".join(["code,name", *lines]) + "\n", encoding="utf-8")
    said = {}
    for present in (False, True):
        _rewrite(tmp_path / "north", RARE if present else "")
        method = 'name = "dpem"\nrank = 2\nrounds = 2\naggregation = "masked"'
        order = world.order(world.study(f"rare-{present}", method, tail="[privacy]\nepsilon = 0.5\ndelta = 1e-6\n"))
        sent: list[bytes] = []
        _tap(monkeypatch, world, sent)
        world.open(order)
        outcome = world.lead(order).run()
        said[present] = wire.encode(world.desks["north"].study.context.setting)
        assert MARK not in repr(outcome.setting)
        axis = outcome.setting.axes[0]
        assert axis.describe(axis.labels.index("DR29")) in ("DR29", "public DR29")
        leaves = b"".join(sent)
        assert len(leaves) > 1000
        assert MARK.encode() not in leaves
        assert b"DR29" not in leaves  # a site sends digests, not labels
    assert said[False] == said[True]


def _tap(monkeypatch: pytest.MonkeyPatch, world: Any, sent: list[bytes]) -> None:
    """Keep whatever leaves a site: answers to the coordinator and letters to neighbours."""
    ask, post = type(world).ask, type(world)._post

    def answered(site: Any, data: Any, timeout: Any) -> Any:
        out = ask(world, site, data, timeout)
        sent.append(out or b"")
        return out

    def posted(to: Any, data: Any) -> None:
        sent.append(bytes(data))
        post(world, to, data)

    monkeypatch.setattr(world, "ask", answered)
    monkeypatch.setattr(world, "_post", posted)
