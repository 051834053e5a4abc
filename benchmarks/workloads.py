"""The workloads of the benchmarks: hospital-like count tensors of the papers' shapes (``polyclinic_papers.skewed_counts``)."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from polyclinic_papers.skewed_counts import skewed_counts


@dataclass(frozen=True)
class Workload:
    """Shape and number of nonzeros."""

    shape: tuple[int, ...]
    nonzeros: int


WORKLOADS = {
    "W1": Workload((40_662, 202, 316), 2_000_000),  # DPFact's MIMIC-III
    "W2": Workload((38_035, 3_229, 304), 15_000_000),  # TRIP's data
    "W2L": Workload((38_035, 3_229, 304), 50_000_000),
    "W3": Workload((82_307, 2_532, 10_983), 730_000),  # DPFact's CMS
}


def cached(name: str, nonzeros: int | None = None) -> Path:
    """Path of a workload's ``.npz``, made if it is not there (folder: POLYCLINIC_BENCH_CACHE, else temporary)."""
    folder = Path(os.environ.get("POLYCLINIC_BENCH_CACHE") or Path(tempfile.gettempdir()) / "polyclinic-bench")
    work = WORKLOADS[name]
    count = work.nonzeros if nonzeros is None else nonzeros
    path = folder / f"{name}-{count}.npz"
    if not path.exists():
        skewed_counts(work.shape, count).save(path)
    return path
