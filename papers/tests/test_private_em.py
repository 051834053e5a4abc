"""The private EM paper's figures: "coincide" and "reveals least" hold; its protection does not (issue 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polyclinic_papers import private_em

pytestmark = pytest.mark.paper


def test_figure_2_curves_of_subspace_and_cycle_coincide(data_path: Callable[[str], Path]) -> None:
    r = private_em.figure_2(data_path("parkinsons"), iterations=2)
    assert r["records"] == 195
    assert r["nodes"] == 80
    assert r["difference"] < 1e-6
    assert max(r["parameters"].values()) < 1e-6  # n = 80 geometric graph, against plain sums
    assert min(r["falls"].values()) > -1e-8
    np.testing.assert_allclose(r["explained"], [0.589, 0.113], atol=1e-3)


def test_figure_3_subspace_reveals_least_and_federated_everything() -> None:
    r = private_em.figure_3(runs=1500, iterations=1)
    assert r["order_holds"]
    assert r["nmi"]["federated"]["1"] == [1.0]
    assert r["nmi"]["cycle"]["3"] == [1.0]  # eq. 11: between two corrupt nodes
    assert r["nmi"]["subspace"]["1"][0] < 0.2
    exact = r["exact_equal_weights"]
    assert abs(exact["subspace"]["1"] - 0.2925) < 1e-4  # ERRATA E4.5
    assert abs(exact["cycle"]["1"] - 0.5) < 1e-4
    for way in ("cycle", "subspace"):
        assert abs(r["ksg_equal_weights"][way]["1"] - exact[way]["1"]) < 0.12


@pytest.mark.slow
def test_figure_3_in_full() -> None:
    r = private_em.figure_3()
    assert r["order_holds"]
    for way in ("cycle", "subspace"):
        for node in "15":
            assert abs(r["ksg_equal_weights"][way][node] - r["exact_equal_weights"][way][node]) < 0.05
