"""Large and wide data: memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyclinic.methods.similarity.unpsl import UnPSL
from polyclinic_papers.samples import load_leukemia

MANY = """
import json
import numpy as np
from polyclinic.methods.similarity.unpsl import UnPSL

rng = np.random.default_rng(0)
y = rng.integers(0, 2, 20_000)
X = rng.normal(size=(20_000, 100))
X[:, 0] += 2 * y
u = UnPSL(rank=10, iterations=20, inner=1, tol=0).fit(X, y)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss would count the parent's
print(json.dumps({
    "mb": int(peak.split()[1]) / 1024,
    "iterations": u.n_iter_,
    "found": int(u.feature_weights_.argmax()),
}))
"""


@pytest.mark.slow
def test_two_hundred_million_pairs_fit_in_two_gigabytes() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True, timeout=3600)
    told = json.loads(done.stdout)
    assert told["mb"] < 2000
    assert told["iterations"] == 20
    assert told["found"] == 0


@pytest.mark.slow
def test_leukemia_with_3571_features_fits(data_path: Callable[[str], Path]) -> None:
    X, y, _, _ = load_leukemia(data_path("leukemia_golub1999"))
    u = UnPSL().fit(X[:38], y[:38])
    assert X.shape[1] == 3571
    assert u.n_iter_ >= 1
