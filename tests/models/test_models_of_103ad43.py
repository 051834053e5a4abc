"""Models that version 103ad43 wrote are loaded, hold the same arrays and place patients in the same way."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc

FOLDER = Path(__file__).parents[1] / "fixtures" / "103ad43"
MODELS = sorted(p for p in (FOLDER / "models").iterdir() if p.suffix != ".json")


def _maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_103ad43", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = _maker()


def test_every_kind_is_here() -> None:
    assert {p.suffix for p in MODELS} == {".phenotypes", ".groups", ".classes", ".moments", ".similarity"}


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.name)
def test_it_is_read(path: Path) -> None:
    expected = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert MAKE.sha(path) == expected["sha256"]
    model: Any = pc.load(path)
    assert model.kind == expected["kind"]
    assert [model.origin.method, model.origin.version] == expected["method"]
    assert (model.card.guarantee, model.card.epsilon) == (expected["guarantee"], expected["epsilon"])
    assert (model.rank, len(model.history)) == (expected["rank"], expected["rounds"])
    arrays = model.arrays()
    assert set(arrays) == set(expected["arrays"])
    for name, figures in expected["arrays"].items():
        array = arrays[name]
        assert list(array.shape) == figures["shape"]
        assert float(array.sum()) == pytest.approx(float(figures["sum"]), rel=1e-12, nan_ok=True)
        np.testing.assert_array_equal(np.ravel(array)[:3], [float(x) for x in figures["first"]])
    places = model.transform(MAKE.given(expected["patients"]))
    np.testing.assert_allclose(places, np.array(expected["transform"], float), rtol=1e-9, atol=1e-12)
