"""What a fit sends, both ways, and who may pack."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.federation.fold import Fold
from polyclinic.federation.sums.robust import Median

SITES = pc.datasets.icu_network(patients=1200, seed=5)


@pytest.mark.parametrize("method", [pc.SumALS, pc.TRIP])
def test_a_robust_adder_given_to_the_fold_itself_gets_no_gram_and_no_packed_words(method: type) -> None:
    fold = Fold(method(rank=4, rounds=2, seed=0), SITES, adder=Median())
    outcome = fold.run()
    assert outcome.public.start.kind == "random" and "no sum" in outcome.public.start.reason
    assert all("packed" not in r.step.shapes for r in outcome.releases)
    assert all(np.isfinite(f).all() for f in outcome.public.factors)


def test_what_comes_down_is_the_opened_total() -> None:
    fold = Fold(pc.SumALS(rank=8, aggregation="masked", seed=3), SITES)
    while (step := fold.step()) is not None:
        before, up = fold.traffic.bytes_down, fold.traffic.bytes_up
        keys = not fold.number  # with the first sum keys are agreed on and shares relayed
        fold.advance()
        down, up = (fold.traffic.bytes_down - before) / len(SITES), (fold.traffic.bytes_up - up) / len(SITES)
        assert 8 * step.size < down and down <= (2 if keys else 1) * up
    assert fold.traffic.bytes_down <= 2 * fold.traffic.bytes_up
