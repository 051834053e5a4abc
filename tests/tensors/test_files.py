"""Tensors survive their files; damaged files are refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import duckdb
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


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_everything_survives(tensor: SparseTensor, tmp_path: Path, ending: str) -> None:
    path = tensor.save(tmp_path / f"t{ending}")
    assert SparseTensor.load(path) == tensor
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [".tns", ".tns.gz"])
def test_frostt_keeps_entries(tensor: SparseTensor, tmp_path: Path, ending: str) -> None:
    path = tensor.save(tmp_path / f"t{ending}")
    again = SparseTensor.load(path, shape=tensor.shape)
    assert np.array_equal(again.coords, tensor.coords) and np.array_equal(again.values, tensor.values)


def test_frostt_of_others_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tns.gz"
    path.write_bytes(gzip.compress(b"# comment\n1 1 2 3.5\n2 3 1 1\n"))
    t = SparseTensor.load(path)
    assert t.shape == (2, 3, 2) and t.coords.tolist() == [[0, 0, 1], [1, 2, 0]]


def test_parquet_of_others_with_text_codes(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    duckdb.sql(
        f"COPY (SELECT * FROM (VALUES ('p1','0389',2.0),('p0','428.0',1.0)) t(patient, code, value)) TO '{path}'"
    )
    t = SparseTensor.load(path)
    assert t.axes[1].labels == ("0389", "428.0") and t.coords.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.npz", b"not a zip", "not a tensor"),
        ("x.parquet", b"not parquet", "not a readable Parquet"),
        ("x.tns", b"1 2 three\n", "not a FROSTT file"),
        ("x.tns.gz", b"\x1f\x8b broken", "not a FROSTT file"),
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
