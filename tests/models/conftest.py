"""One small fitted model of every estimator of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic_papers.baselines import GMML, Cosine, Euclidean, LowRank

TENSORS = example_sites("tensor")
TABLES = example_sites("features")
X = np.concatenate([s.matrix() for s in TABLES])
Y = np.concatenate([np.asarray(s.labels) for s in TABLES])

MAKERS: dict[str, Callable[[], Any]] = {
    "CPALS": lambda: pc.CPALS(rank=3, rounds=20).fit(TENSORS),
    "CPALS starts": lambda: pc.CPALS(rank=3, rounds=10, n_starts=2).fit(TENSORS),
    "CPALS missing": lambda: pc.CPALS(rank=2, rounds=5, zeros="missing").fit(TENSORS),
    "CPALS signed": lambda: pc.CPALS(rank=3, rounds=10, nonnegative=False).fit(TENSORS),
    "CPSGD": lambda: pc.CPSGD(rank=3, rounds=5).fit(TENSORS),
    "SumALS": lambda: pc.SumALS(rank=3, rounds=4, warmup=1).fit(TENSORS),
    "TRIP": lambda: pc.TRIP(rank=3, rounds=4, warmup=1).fit(TENSORS),
    "TRIP masked": lambda: pc.TRIP(rank=3, rounds=3, aggregation="masked").fit(TENSORS),
    "TRIP starts": lambda: pc.TRIP(rank=3, rounds=3, n_starts=2).fit(TENSORS),
    "DPFact": lambda: pc.DPFact(rank=3, rounds=3, sparsity=0.01).fit(TENSORS),
    "LocalTF": lambda: pc.LocalTF(rank=3, rounds=3).fit(TENSORS),
    "DistributedSGD": lambda: pc.DistributedSGD(rank=3, rounds=3).fit(TENSORS),
    "LocalModel": lambda: pc.LocalModel(rank=3, rounds=5).fit(TENSORS),
    "DPEM": lambda: pc.DPEM(rank=4, rounds=3).fit(TENSORS),
    "DPEM private": lambda: pc.DPEM(rank=4, rounds=3, privacy=pc.Privacy(8.0, 1e-6)).fit(TENSORS),
    "GaussianMixture": lambda: pc.GaussianMixture(n_components=3, rounds=5).fit(TABLES),
    "GaussianMixture diag": lambda: pc.GaussianMixture(n_components=2, rounds=5, covariance_type="diag").fit(TABLES),
    "Standardizer": lambda: pc.Standardizer().fit(TABLES),
    "FederatedPCA": lambda: pc.FederatedPCA(n_components=2, standardize=True).fit(TABLES),
    "UnPSL": lambda: pc.UnPSL().fit(X, Y),
    "UnPSL sites": lambda: pc.UnPSL().fit_sites(TABLES, rounds=3),
    "UnPSLCV": lambda: pc.UnPSLCV(l1s=(0.001,), l2s=(0.001,), iterations=3, cv=3).fit(X, Y),
    "Euclidean": lambda: Euclidean().fit(X, Y),
    "Cosine": lambda: Cosine().fit(X, Y),
    "GMML": lambda: GMML().fit(X, Y),
    "LowRank": lambda: LowRank().fit(X, Y),
}


@pytest.fixture(scope="session")
def fitted() -> Callable[[str], Any]:
    """A fitted model by the name of its maker, made once."""
    made: dict[str, Any] = {}

    def give(name: str) -> Any:
        if name not in made:
            made[name] = MAKERS[name]()
        return made[name]

    return give


@pytest.fixture(params=sorted(MAKERS))
def model(request: pytest.FixtureRequest, fitted: Callable[[str], Any]) -> Any:
    """Every estimator in turn."""
    return fitted(request.param)


def patients_for(model: Any) -> Any:
    """New patients of the kind that a model takes."""
    if model.result_.kind == "phenotypes":
        return example_sites("tensor", seed=5)[1]
    return example_sites("features", seed=5)[1].matrix()
