"""Models that version 103ad43 wrote are loaded, hold the same arrays and place patients in the same way.

A script beside the files made them, with that version and no other: `git log -- tests/fixtures/103ad43/make.py` has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc

FOLDER = Path(__file__).parents[1] / "fixtures" / "103ad43"
MODELS = sorted(p for p in (FOLDER / "models").iterdir() if p.suffix != ".json")


def given(patients: Mapping[str, Any]) -> Any:
    """The patients of a fixture as a model takes them."""
    if "coords" in patients:
        axes = [
            pc.Axis(a["name"], None if a["labels"] is None else tuple(a["labels"]), vocabulary=how)  # type: ignore[arg-type]
            for a, how in zip(patients["axes"], ("private", *["public"] * 9))
        ]
        return pc.SparseTensor(np.array(patients["coords"]), np.array(patients["values"]), patients["shape"], axes)
    if "frame" in patients:
        return {k: np.array(v) for k, v in patients["frame"].items()}
    return pc.Site("patients", features=np.array(patients["features"]), columns=patients["columns"])


def test_every_kind_is_here() -> None:
    assert {p.suffix for p in MODELS} == {".phenotypes", ".groups", ".classes", ".moments", ".similarity"}


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.name)
def test_it_is_read(path: Path) -> None:
    expected = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == expected["sha256"]
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
    places = model.transform(given(expected["patients"]))
    np.testing.assert_allclose(places, np.array(expected["transform"], float), rtol=1e-9, atol=1e-12)
