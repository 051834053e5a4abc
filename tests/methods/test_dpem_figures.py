"""DPEM's figures, in full; the same commands print them (benchmarks/dpem_planted.py, benchmarks/dpem_real.py)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.tensors.kernels import em as em_kernels

SHAPE = (20, 30)
ROOT = Path(__file__).resolve().parents[2]


def command(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "least"), [(0.5, 0.90), (1.0, 0.95), (2.0, 0.97)])
def test_planted_phenotypes_are_found_at_the_promised_likeness(epsilon: float, least: float) -> None:
    row = command("dpem_planted").row(20_000, epsilon, 3)
    assert row["fms"] >= least
    if epsilon == 1.0:
        assert row["auc"] >= row["auc_planted"] - 0.01
        assert row["auc_random"] < row["auc"]
        assert row["ghosts"] <= 0.02


@pytest.mark.slow
def test_a_hundred_thousand_patients_at_half_the_epsilon() -> None:
    assert command("dpem_planted").row(100_000, 0.5, 1)["fms"] >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "epsilon", "least"),
    [("diabetes", "diabetes130", "1", 0.80), ("claims", "cms_desynpuf", "2", 0.89)],
)
def test_real_structure_is_kept_and_never_below_the_marginals(
    name: str,
    folder: str,
    epsilon: str,
    least: float,
    data_path: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POLYCLINIC_DATA", str(data_path(folder).parent))
    monkeypatch.setenv("POLYCLINIC_BENCH_CACHE", str(tmp_path))
    rows = {r["epsilon"]: r for r in command("dpem_real").table([name], repeats=3)}
    assert rows[epsilon]["kept"] >= least
    for label in ("0.5", "1", "2", "8"):
        assert rows[label]["kept_worst"] > 0
        assert rows[label]["cells_worst"] > 0
    assert rows["0.1"]["kept"] >= 0  # single splits of claims scatter by .06 around .09


@pytest.mark.slow
def test_one_patient_moves_the_matrix_of_the_comparison_by_at_most_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact integers: with or without a patient, however many cells the patient has and whatever their counts are."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pair_sums = command("dpem_matrix").pair_sums
    rng, (first, second) = np.random.default_rng(0), SHAPE
    sizes = [1, 2, 3, 7, 50, first * second]
    cells = [rng.permutation(first * second)[:n] for n in sizes]
    patient = np.repeat(np.arange(len(sizes)), sizes)
    flat = np.concatenate(cells)
    coords = np.column_stack([patient, flat // second, flat % second])
    everyone = pc.SparseTensor(coords, 10.0 ** rng.integers(0, 9, len(flat)), (len(sizes), *SHAPE))
    lengths = []
    for i in range(len(sizes)):
        without = everyone.take([k for k in range(len(sizes)) if k != i])
        moved = (pair_sums(everyone) - pair_sums(without)).astype(np.int64)
        lengths.append(sum(int(k) ** 2 for k in moved.ravel()))  # Python integers: exact
        assert lengths[-1] <= em_kernels.UNIT**2
    assert min(lengths) > 0.99 * em_kernels.UNIT**2  # the bound is reached
