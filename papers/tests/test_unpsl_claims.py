"""UnPSL's Table 1: the paper's claim is judged by the paired interval."""

from __future__ import annotations

from typing import Any

import pytest

from polyclinic_papers.similarity import _against, _highest
from polyclinic_papers.unpsl import spread


def table(**accuracies: list[float]) -> dict[str, Any]:
    return {
        f"{n} 3": {"accuracy": sum(a) / len(a), "accuracy_se": spread(a), "accuracies": a}
        for n, a in accuracies.items()
    }


@pytest.mark.parametrize(
    ("other", "verdict", "why"),
    [
        ([0.80, 0.81, 0.79, 0.80], "holds", ""),
        ([0.93, 0.86, 0.94, 0.87], "undecided", ""),
        ([0.97, 0.98, 0.97, 0.98], "does not hold", "E3.12"),
    ],
)
def test_highest_of_all_is_judged_by_the_interval_to_the_best_other(other: list[float], verdict: str, why: str) -> None:
    found = table(UnPSL=[0.90, 0.91, 0.90, 0.91], Euclidean=[0.7, 0.7, 0.7, 0.7], GMML=other)
    claim = _highest(found, "parkinsons", "sample", 3)
    assert claim.verdict == verdict and claim.why.startswith(why) and bool(claim.why) == bool(why)
    assert claim.paper == "highest accuracy of all" and "best other: GMML" in claim.ours


def test_one_split_has_no_standard_error_and_no_interval() -> None:
    found = table(UnPSL=[0.9], Euclidean=[0.8])
    assert _against(found, "Euclidean 3", "UnPSL 3") == ("+0.1000 (one split)", None)
