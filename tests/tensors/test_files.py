"""Tensors survive their files; damaged files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyclinic import Axis, SparseTensor
from polyclinic.errors import DataError


@pytest.fixture
def tensor(rng: np.random.Generator) -> SparseTensor:
    x = rng.poisson(0.4, (9, 4, 3)).astype(float) * 1.25
    axes = [
        Axis("patient"),
        Axis("drug", ("a", "b'", 'c"', "d"), None, "public"),
        Axis("lab", ("x", "y", "z"), ("X", "Y", "Z")),
    ]
    return SparseTensor(np.argwhere(x), x[x != 0], x.shape, axes)


def test_everything_survives(tensor: SparseTensor, tmp_path: Path) -> None:
    path = tensor.save(tmp_path / "t.npz")
    assert SparseTensor.load(path) == tensor
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.npz", b"not a zip", "not a tensor"),
        ("x.csv", b"", "unknown kind"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=words):
        SparseTensor.load(tmp_path / name)


def test_a_forged_layout_is_refused(tensor: SparseTensor, tmp_path: Path) -> None:
    path = tensor.save(tmp_path / "t.npz")
    with np.load(path) as z:
        arrays = dict(z)
    arrays["codes1"] = arrays["codes1"] + np.uint16(100)
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="damaged"):
        SparseTensor.load(path)


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        SparseTensor.load(tmp_path / "nix.npz")
