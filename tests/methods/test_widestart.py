"""The start without a Gram: few patients, packed sums, more phenotypes than are asked for and an audition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.methods.packing.packed_sums import Packing
from polyclinic.methods.starts.state import StartPublic
from polyclinic.methods.starts.wide import WIDE, WideStart
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.tensors.sparse import SparseTensor

SITES = pc.datasets.icu_network(patients=400, seed=7)  # too few for a Gram


@pytest.mark.parametrize("cls", [pc.SumALS, pc.TRIP])
def test_few_patients_start_wide_and_say_so_however_rounds_travel(cls: type) -> None:
    packed = cls(rank=8, seed=3, aggregation="masked").fit(SITES)
    whole = cls(rank=8, seed=3, aggregation="masked", packed=False).fit(SITES)
    best = max(pc.CPALS(rank=8, seed=s).fit(SITES).score(SITES) for s in range(3))
    assert packed.start_.kind == whole.start_.kind == "random" and "1,024 patients" in packed.start_.reason
    assert packed.traffic_.bytes_up < whole.traffic_.bytes_up
    assert min(packed.score(SITES), whole.score(SITES)) > 0.98 * best
    plain = cls(rank=8, seed=3).fit(SITES[::-1])
    assert all(np.array_equal(a, b) for a, b in zip(packed.factors_, plain.factors_))


@pytest.mark.parametrize("seed", [24, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cls", [pc.SumALS, pc.TRIP])
def test_small_vocabularies_start_wide_with_fewer_bytes_and_the_pooled_fit(cls: type, seed: int) -> None:
    sites = pc.datasets.planted_counts(600, 20, 25, phenotypes=4, codes=(5, 6), sites=3, seed=seed)
    short, random = cls(rank=4, seed=1).fit(sites), cls(rank=4, seed=1, start="random").fit(sites)
    best = max(pc.CPALS(rank=4, seed=s).fit(sites).score(sites) for s in range(3))
    assert short.score(sites) >= 0.99 * best
    assert pc.metrics.factor_match_score(sites.truth.factors, short.factors_) >= 0.99
    assert short.traffic_.bytes_up < 0.5 * random.traffic_.bytes_up


def test_who_asks_for_a_random_start_or_few_rounds_gets_whole_words() -> None:
    for method in (
        pc.SumALS(rank=8, start="random"),
        pc.SumALS(rank=8, rounds=5),
        pc.SumALS(rank=8, nonnegative=False),
    ):
        fold = Simulation(method, SITES)
        for _ in range(3):
            fold.advance()
        assert [r.step.name for r in fold.releases] == ["setup", "mode1", "mode2"], method


def test_resume_at_every_sum_of_a_wide_start() -> None:
    whole, states = Simulation(pc.SumALS(rank=8, seed=2), SITES), []
    while whole.advance():
        states.append(wire.encode(whole.state(), limit=2**30))
    names = [r.step.name for r in whole.releases]
    wide = [f"wide{k}mode{n}" for k in range(1, WIDE + 1) for n in (1, 2)]
    assert [n for n in names if "+" not in n][: len(wide) + 4] == ["setup", "rows", *wide, "audition", "mode1"]
    for at in (0, 1, 4, names.index("audition") - 1, names.index("audition"), len(states) - 2):
        again = Simulation(pc.SumALS(rank=8, seed=2), SITES[::-1])
        again.restore(wire.decode(states[at], limit=2**30))
        assert all(np.array_equal(a, b) for a, b in zip(again.run().public.factors, whole.public.factors)), names[at]


@pytest.mark.parametrize("stage", ["rows", "wide"])
def test_a_wrap_of_a_wide_start_is_noticed_and_repaired(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows made too small by hand: the sum is repeated with wider fields, and says what it would have said."""
    packing = WideStart.packing

    def narrow(self: WideStart, start: StartPublic) -> Packing:
        made = packing(self, start)
        if start.stage != stage:
            return made
        fields = {n: replace(f, high=f.low + (f.high - f.low) / 2**9) for n, f in made.fields.items()}
        return replace(made, fields=fields)

    starts = []
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(WideStart, "packing", narrow)
        fold = Simulation(pc.SumALS(rank=8, seed=4), SITES)
        while fold.public is None or (fold.public.start.sweep, fold.public.start.mode) < (1, 2):
            fold.advance()
        starts.append(fold.public.start)
        repeated = [r.step.name for r in fold.releases if "+" in r.step.name]
        assert bool(repeated) == broken and all(n.startswith(stage) for n in repeated)
    one, two = starts  # other dithers, so other roundings: of the codes' energies, and of a factor
    assert np.abs(one.rows - two.rows).max() < 1e-3 * one.rows.max()
    assert np.einsum("ir,ir->r", one.coarse[0], two.coarse[0]).mean() > 0.85
    assert one.explained == pytest.approx(two.explained, rel=1e-3)


def test_of_very_many_codes_the_heaviest_are_searched_among_and_the_others_enter_at_last() -> None:
    """Three planted phenotypes of heavy codes, 1,100 codes in all."""
    rng, shape = np.random.default_rng(5), (500, 600)
    sites = []
    for k in range(3):
        kind = rng.integers(0, 3, 500)
        who = np.repeat(np.arange(500), 16)
        a, b = 12 * kind[who] + rng.integers(0, 12, len(who)), 14 * kind[who] + rng.integers(0, 14, len(who))
        noise = rng.random(len(who)) < 0.3
        a[noise], b[noise] = (rng.integers(0, n, int(noise.sum())) for n in shape)
        sites.append(pc.Site(f"h{k}", SparseTensor(np.column_stack([who, a, b]), np.ones(len(who)), (500, *shape))))
    fold = Simulation(pc.SumALS(rank=3, seed=1), sites)
    sizes = []
    while (step := fold.step()) is not None:
        sizes.append((step.name, step.size))
        fold.advance()
    start, names = fold.public.start, [n for n, _ in sizes]
    assert start.kind == "random" and "1,100 codes the 512" in start.reason and "cells" not in names
    assert fold.public.whole and sum(n.startswith("mode") and "+" not in n for n in names) % 2 == 0
    assert [int((start.rows[i:j] >= f).sum()) for (i, j), f in zip(((0, 500), (500, 1100)), start.floors)] == [256, 256]
    last = [size for n, size in sizes if n.startswith("mode2")]
    assert last[-1] > 2 * last[-2], "the other codes enter in the last sweep"
    model = pc.SumALS(rank=3, seed=1, aggregation="masked").fit(sites[::-1])
    assert model.score(sites) > 0.98 * pc.CPALS(rank=3, seed=0).fit(sites).score(sites)
    masked = Simulation(pc.SumALS(rank=3, seed=1, aggregation="masked"), sites[::-1]).run().public.factors
    assert all(np.array_equal(a, b) for a, b in zip(masked, fold.public.factors))
    exact = pc.SumALS(rank=3, seed=1, packed=False).fit(sites)
    assert exact.start_.kind == "random" and exact.score(sites) > 0.99 * model.score(sites)


def test_sites_without_a_count_end_as_before() -> None:
    shape = SITES[0].counts().shape
    none = [
        pc.Site(s.name, SparseTensor(np.empty((0, 3), np.int64), np.empty(0), (s.patients, *shape[1:]))) for s in SITES
    ]
    fold = Simulation(pc.SumALS(rank=8, rounds=16), none)
    fold.run()
    assert [r.step.name for r in fold.releases][:3] == ["setup", "rows", "mode1"]
    assert all(np.isfinite(f).all() for f in fold.public.factors)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [pc.SumALS, pc.TRIP])
def test_methods_that_start_wide_pass_the_battery(cls: type) -> None:
    """But for the parts that no packed sum passes (see the battery of the Gram start)."""
    sites = list(pc.datasets.planted_counts(160, 140, 160, phenotypes=3, codes=(5, 6), sites=3, seed=4))
    method = cls(rank=7, rounds=15, tol=0.5)
    assert any(r.step.name.startswith("wide") for r in Simulation(method, sites).run().releases)
    parts = ["order", "resume", "silent", "wire", "degenerate", "sums", "retry", "return", "publish"]
    battery = pc.check_protocol(cls(rank=7, rounds=15, tol=0.5), sites, parts=parts)
    assert battery.passed and all(p.state == "passed" for p in battery.parts), str(battery)
