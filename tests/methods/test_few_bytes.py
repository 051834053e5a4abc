"""What a fit sends, both ways, and who may pack."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.aggregation.robust import Median
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.tensors.matching import cosines
from polyclinic.tensors.sparse import SparseTensor

SITES = pc.datasets.icu_network(patients=1200, seed=5)


@pytest.mark.parametrize("method", [pc.SumALS, pc.TRIP])
def test_a_robust_adder_given_to_the_fold_itself_gets_no_gram_and_no_packed_words(method: type) -> None:
    fold = Simulation(method(rank=4, rounds=2, seed=0), SITES, adder=Median())
    outcome = fold.run()
    assert outcome.public.start.kind == "random" and "no sum" in outcome.public.start.reason
    assert all("packed" not in r.step.shapes for r in outcome.releases)
    assert all(np.isfinite(f).all() for f in outcome.public.factors)


def test_what_comes_down_is_the_opened_total() -> None:
    fold = Simulation(pc.SumALS(rank=8, aggregation="masked", seed=3), SITES)
    while (step := fold.step()) is not None:
        before, up = fold.traffic.bytes_down, fold.traffic.bytes_up
        keys = not fold.number  # with the first sum keys are agreed on and shares relayed
        fold.advance()
        down, up = (fold.traffic.bytes_down - before) / len(SITES), (fold.traffic.bytes_up - up) / len(SITES)  # type: ignore[assignment]
        assert 8 * step.size < down and down <= (2 * up if keys else 8 * step.size + 900)
    assert fold.traffic.bytes_down <= 2 * fold.traffic.bytes_up


def test_a_masked_fit_with_its_keys_is_some_twenty_kilobytes_and_says_what_it_costs() -> None:
    """Keys once a run, seven bytes a word, and no sum to learn that it is over. About one network in ten takes a sweep more."""
    sites = pc.datasets.icu_network(patients=3000, seed=6)
    m = pc.SumALS(rank=10, aggregation="masked", seed=6).fit(sites)
    assert m.start_.kind == "gram" and not m.start_.weak
    assert m.traffic_.bytes_up / len(sites) < 25e3
    assert m.score(sites) == pytest.approx(pc.SumALS(rank=10, seed=6, packed=False).fit(sites).score(sites), rel=5e-3)


def test_weak_structure_is_searched_with_more_phenotypes_and_then_auditioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.8 R random columns for five sweeps; any order, same bits."""
    monkeypatch.setattr("polyclinic.methods.packed_sumals.WEAK", 0.0)
    names, states, wide, fold = [], [], [], Simulation(pc.SumALS(rank=8, seed=3), SITES)
    while (step := fold.step()) is not None:
        if step.name == "overlap":
            wide = [w.shape[1] for w in fold.public.start.coarse]
            assert [f.shape[1] for f in fold.public.factors] == [8, 8]
        names.append(step.name)
        fold.advance()
        states.append(wire.encode(fold.state(), limit=2**30))
    assert wide == [15, 15] and fold.public.searched and fold.public.factors[0].shape[1] == 8
    search = ["overlap", *(f"wide{k}mode{n}" for k in range(1, 6) for n in (1, 2)), "audition", "mode1"]
    at = names.index("overlap")
    assert names[at - 1] == "mode1" and [n for n in names[at:] if "+" not in n][: len(search)] == search
    masked = Simulation(pc.SumALS(rank=8, seed=3, aggregation="masked"), SITES[::-1]).run()
    ends = [masked.public.factors]
    for sums in (
        at + 1,
        names.index("audition", at) - 1,
        len(states) - 2,
    ):  # within the search, before its audition, after
        again = Simulation(pc.SumALS(rank=8, seed=3), SITES[::-1])
        again.restore(wire.decode(states[sums], limit=2**30))
        ends.append(again.run().public.factors)
    for end in ends:
        for a, b in zip(fold.public.factors, end):
            np.testing.assert_array_equal(a, b)


def rare_everywhere(seed: int) -> tuple[list[np.ndarray], list[pc.Site]]:
    """25 hospitals of 80: seven phenotypes, and an eighth that three patients of each have."""
    made = pc.datasets.planted_counts(2000, 60, 80, phenotypes=7, codes=(6, 8), sites=25, seed=seed, background=0.1)
    rng, out = np.random.default_rng(seed), []
    chosen = [rng.permutation(n)[:k] for n, k in ((60, 6), (80, 8))]
    for site in made:
        t = site.counts()
        who = np.repeat(rng.permutation(t.patients)[:3], 30)
        more = np.column_stack([who, *(rng.choice(c, len(who)) for c in chosen)])
        before = np.column_stack([np.repeat(t.rows, np.diff(t.indptr)), *t.codes])
        values = np.concatenate([t.values, np.ones(len(who))])
        out.append(pc.Site(site.name, SparseTensor(np.concatenate([before, more]), values, t.shape)))
    return [np.bincount(c, minlength=n)[:, None] / np.sqrt(len(c)) for n, c in zip((60, 80), chosen)], out


def test_a_phenotype_that_shares_its_buckets_with_another_shows_in_a_column_beside() -> None:
    """Over cells the two are one, at any rank (seed 4222). Two columns more in the first sweep, an audition, and no search."""
    rare, sites = rare_everywhere(4222)
    fold, states, widths = Simulation(pc.SumALS(rank=8, seed=4222, aggregation="masked"), sites), [], []
    payload = 0
    while (step := fold.step()) is not None:
        widths.append((step.name, fold.public.factors[0].shape[1] if fold.public else 0))
        payload += step.size * 7
        fold.advance()
        states.append(wire.encode(fold.state(), limit=2**30))
    first = [("lift", 8), ("mode1", 10), ("mode2", 10), ("audition", 10), ("mode1", 8), ("mode2", 8)]
    assert widths[3:9] == first and payload < 9_000
    assert float(cosines(fold.public.factors, rare).max()) > 0.9
    for sums in (4, 5, 6):  # beside, before and after the audition
        again = Simulation(pc.SumALS(rank=8, seed=4222), sites[::-1])
        again.restore(wire.decode(states[sums], limit=2**30))
        for a, b in zip(again.run().public.factors, fold.public.factors):
            np.testing.assert_array_equal(a, b)


def test_columns_beside_that_found_nothing_go_again_without_a_sum() -> None:
    fold = Simulation(pc.SumALS(rank=14, seed=3, rounds=15), SITES)
    names, seen = [], []
    while (step := fold.step()) is not None:
        names.append(step.name)
        seen.append(fold.public.beside if fold.public else 0)
        fold.advance()
    assert names[:7] == ["setup", "energies", "cells", "lift", "mode1", "mode2", "mode1"]
    assert seen[4:7] == [2, 2, 0] and fold.public.factors[0].shape[1] == 14
    short = Simulation(pc.SumALS(rank=14, seed=3, rounds=4), SITES).run().public  # too short for them
    assert fold.public.objective <= 1.001 * short.objective


def test_one_feature_mode_has_no_columns_beside() -> None:
    """A first sum is a whole sweep there."""
    sites = []
    for s in SITES:
        t = s.counts()
        rows = np.column_stack([np.repeat(t.rows, np.diff(t.indptr)), t.codes[0]])
        sites.append(pc.Site(s.name, SparseTensor(rows, t.values, t.shape[:2])))
    names = [r.step.name for r in Simulation(pc.SumALS(rank=2, seed=3), sites).run().releases]
    assert names[:6] == ["setup", "energies", "cells", "lift", "mode1", "mode1"] and "overlap" not in names


def test_trip_searches_at_once_where_the_lift_loses_what_the_cells_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear structure is lifted whole; records are not. Then a wide start follows the lift, and the penalty stays that of a Gram."""
    clear = Simulation(pc.TRIP(rank=8, seed=3), SITES)
    while not clear.public or clear.public.stage in ("setup", "start"):
        clear.advance()
    assert clear.public.start.kept > 0.989 and not clear.public.start.sweep
    monkeypatch.setattr("polyclinic.methods.starts.choice.VAGUE", 1.1)
    names, states, fold = [], [], Simulation(pc.TRIP(rank=8, seed=3, aggregation="masked"), SITES)
    while (step := fold.step()) is not None:
        names.append(step.name)
        fold.advance()
        states.append(wire.encode(fold.state(), limit=2**30))
    at = names.index("lift")
    search = ["overlap", *(f"wide{k}mode{n}" for k in range(1, 6) for n in (1, 2)), "audition", "scale", "sweep"]
    assert [n for n in names[at + 1 :] if "+" not in n][: len(search)] == search
    assert fold.public.start.kind == "gram"
    for sums in (at, at + 3):
        again = Simulation(pc.TRIP(rank=8, seed=3), SITES[::-1])
        again.restore(wire.decode(states[sums], limit=2**30))
        for a, b in zip(again.run().public.factors, fold.public.factors):
            np.testing.assert_array_equal(a, b)
    assert pc.TRIP(rank=8, seed=3).fit(SITES).start_.weak
    assert not any("wide" in r.step.name for r in Simulation(pc.TRIP(rank=8, seed=3, rounds=5), SITES).run().releases)


def test_a_short_fit_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyclinic.methods.packed_sumals.WEAK", 0.0)
    short = pc.SumALS(rank=8, seed=3, rounds=4).fit(SITES)
    assert short.traffic_.rounds <= 4
    assert pc.SumALS(rank=8, seed=3).fit(SITES).score(SITES) > 0.99 * short.score(SITES)


def test_packed_rounds_of_trip_are_a_third_of_the_bytes_and_the_same_fit() -> None:
    one, two = (pc.TRIP(rank=8, seed=3, aggregation="masked", packed=b).fit(SITES) for b in (True, False))
    plain = pc.TRIP(rank=8, seed=3).fit(SITES[::-1])
    assert all(np.array_equal(a, b) for a, b in zip(one.factors_, plain.factors_))
    assert one.start_.kind == "gram" and one.score(SITES) == pytest.approx(two.score(SITES), rel=2e-3)
    assert (
        one.traffic_.payload_bytes_up / one.traffic_.rounds < 0.7 * two.traffic_.payload_bytes_up / two.traffic_.rounds
    )


def test_trip_says_where_it_is_the_wrong_method() -> None:
    with pytest.warns(UserWarning, match=r"200 patients a site for 312 codes.*pc\.SumALS"):
        pc.TRIP(rank=4, rounds=1, weighting="none").fit(SITES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pc.TRIP(rank=4, rounds=1).fit(SITES)
        pc.TRIP(rank=4, rounds=1, weighting="none", penalty=3.0).fit(SITES)


def test_columns_that_cancel_each_other_over_cells_are_no_start() -> None:
    # The best of six starts over cells cancels: over codes it explains half as much.
    sites = pc.datasets.icu_network(patients=3000, seed=980)
    m = pc.SumALS(rank=sites.truth.rank + 2, seed=980).fit(sites)
    assert m.start_.gain is not None and m.start_.gain < 0.05 and not m.start_.weak
    assert m.traffic_.bytes_up / len(sites) < 25_000
