"""What a fit sends, both ways, and who may pack."""

from __future__ import annotations

import warnings
from dataclasses import replace

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


def test_packed_rounds_of_trip_are_a_third_of_the_bytes_and_the_same_fit() -> None:
    one, two = (pc.TRIP(rank=8, seed=3, aggregation="masked", packed=b).fit(SITES) for b in (True, False))
    plain = pc.TRIP(rank=8, seed=3).fit(SITES[::-1])
    assert all(np.array_equal(a, b) for a, b in zip(one.factors_, plain.factors_))
    assert one.start_.kind == "gram" and one.score(SITES) == pytest.approx(two.score(SITES), rel=2e-3)
    assert (
        one.traffic_.payload_bytes_up / one.traffic_.rounds < 0.7 * two.traffic_.payload_bytes_up / two.traffic_.rounds
    )


def test_a_round_of_trip_outside_its_window_is_sent_again() -> None:
    def fit(small: bool) -> Fold:
        fold = Fold(pc.TRIP(rank=8, seed=3, rounds=2, tol=0.0), SITES)
        while (step := fold.step()) is not None:
            if small and step.name == "sweep" and step.round == 1:
                fold.public = replace(fold.public, spread=tuple(s / 100 for s in fold.public.spread))
            fold.advance()
        return fold

    wide, narrow = fit(False), fit(True)
    assert [r.step.name for r in narrow.releases].count("sweep+1") == 1
    for a, b in zip(wide.public.factors, narrow.public.factors):  # the same parts; only the dither is another
        assert np.abs(a - b).max() < 5e-3 * np.abs(a).max()


def test_trip_says_where_it_is_the_wrong_method() -> None:
    with pytest.warns(UserWarning, match=r"200 patients a site for 312 codes.*pc\.SumALS"):
        pc.TRIP(rank=4, rounds=1, weighting="none").fit(SITES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.TRIP(rank=4, rounds=1).fit(SITES)
        pc.TRIP(rank=4, rounds=1, weighting="none", penalty=3.0).fit(SITES)
