"""Between hosts features go by name, too: another order changes nothing, other columns are refused before any sum."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from tests.node import test_flare_halves as halves

from polyclinic.errors import ConfigError, ProtocolMismatch

FEATURES = '[features]\nlabel = "status"\n'  # no columns: every site's own numbers
METHOD = 'name = "unpsl"\nrounds = 1\ninner = 3\naggregation = "{}"'


def _rewrite(path: Path, order: list[int], rename: dict[str, str]) -> None:
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    rows[0] = [rename.get(c, c) for c in rows[0]]
    with path.open("w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([[r[i] for i in order] for r in rows])


@pytest.mark.parametrize("adder", ["masked", pytest.param("subspace", marks=pytest.mark.slow)])
def test_features_between_hosts_go_by_name(tmp_path: Path, adder: str) -> None:
    world = halves.World(tmp_path)
    path = world.study("columns", METHOD.format(adder), data=FEATURES)
    before = world.reference(path)
    _rewrite(tmp_path / "north" / "features.csv", [0, 4, 3, 7, 6, 5, 2, 1], {})
    order = world.order(path)
    world.open(order)
    np.testing.assert_array_equal(world.lead(order).run().public.W, before.public.W)

    _rewrite(tmp_path / "south" / "features.csv", list(range(8)), {"x3": "pulse"})
    order = world.order(world.study("renamed", METHOD.format(adder), data=FEATURES))
    world.open(order)
    lead = world.lead(order)
    with pytest.raises(ProtocolMismatch, match=r"'south' has another vocabulary, shape or other columns"):
        lead.run()
    assert lead.number == 0


def test_study_that_names_no_data_is_refused_before_it_is_signed(tmp_path: Path) -> None:
    world = halves.World(tmp_path)
    for method, missing in (
        (METHOD.format("plain"), "features"),
        ('name = "trip"\nrank = 2\naggregation = "plain"', "tensor"),
    ):
        with pytest.raises(ConfigError, match="the study names none") as refused:
            world.order(world.study(f"no-{missing}", method, data=""))
        assert refused.value.faults == (f"[{missing}] is missing",)
    assert not list((world.coordinator.path / "runs").glob("*"))
