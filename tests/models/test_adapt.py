"""A hospital that was not in the study is set beside the network: its own phenotypes are found, shared ones are untouched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError, ProtocolMismatch
from polyclinic.tensors.matching import cosines

UNITS = ("CCU", "CSRU", "MICU", "NICU", "SICU", "TSICU")


def halves(site: pc.Site, seed: int) -> tuple[pc.Site, pc.Site]:
    order = np.random.default_rng(seed).permutation(site.patients)
    return site.take(np.sort(order[::2])), site.take(np.sort(order[1::2]))


def without(unit: str, seed: int) -> tuple[Any, Any, pc.Site, Any]:
    made = pc.datasets.icu_network(patients=3000, seed=seed)
    net = pc.align(made)
    here = next(s for s in net if s.name == unit)
    others = [s for s in net if s is not here]
    seen, unseen = halves(here, 7)
    model = pc.CPALS(rank=12, seed=0, n_starts=2).fit(others).result_
    saw = pc.CPALS(rank=12, seed=0, n_starts=2).fit([*others, seen]).result_
    adapted = model.adapt(seen)
    ratio = adapted.phenotypes.quality(unseen)["rmse_full"] / saw.quality(unseen)["rmse_full"]
    return ratio, adapted, unseen, made.truth


def planted_only_there(truth: Any, names: list[str], unit: str, axes: Any) -> list[np.ndarray[Any, Any]]:
    """Planted phenotypes that no other unit has, on the model's codes."""
    prevalence = dict(zip(names, truth.prevalence))
    mine = [
        r
        for r in range(truth.rank)
        if prevalence[unit][r] and not any(prevalence[u][r] for u in prevalence if u != unit)
    ]
    out = []
    for axis, own, f in zip(truth.axes, axes, truth.factors):
        at = {label: i for i, label in enumerate(axis.labels)}
        out.append(np.array([f[at[x]] if x in at else np.zeros(f.shape[1]) for x in own.labels])[:, mine])
    return out


def test_a_unit_that_was_left_out_finds_its_own_phenotypes() -> None:
    ratio, here, unseen, truth = without("NICU", 0)
    assert ratio <= 1.02
    names = [s.name for s in pc.datasets.icu_network(patients=600, seed=0)]
    planted = planted_only_there(truth, names, "NICU", here.phenotypes.axes)
    assert planted[0].shape[1] == 2
    assert (cosines(planted, list(here.own)).max(1) >= 0.9).all()
    assert here.fits["here"] < 0.1 < here.fits["adapted"]
    assert np.isnan(here.drift).all()  # nobody there carries a shared phenotype: drift says nothing
    assert here.transform(unseen).shape == (unseen.patients, 12 + here.rank)
    for a, b in zip(here.shared.factors, here.phenotypes.factors):  # what is shared is untouched
        np.testing.assert_array_equal(b[: len(a), :12], a)
    assert here.table()["whose"].count("own") == here.rank


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("seed", [0, 11])
def test_every_unit_is_explained_as_well_as_by_a_model_that_saw_it(unit: str, seed: int) -> None:
    assert without(unit, seed)[0] <= 1.02


def test_own_codes_may_be_part_of_own_phenotypes() -> None:
    rng = np.random.default_rng(0)
    codes = tuple(f"c{i}" for i in range(12))
    group = rng.integers(0, 2, 400)
    who = np.repeat(np.arange(400), 20)
    coords = np.column_stack(
        [who, 4 * group[who] + rng.integers(0, 4, len(who)), 3 * group[who] + rng.integers(0, 3, len(who))]
    )
    known = pc.SparseTensor(coords, np.ones(len(coords)), (400, 12, 6), [codes, [f"d{i}" for i in range(6)]])
    p = pc.CPALS(rank=2, seed=0, n_starts=6).fit(known).result_
    mine = rng.random(400) < 0.4
    new = coords.copy()
    new[mine[who], 1] = 8 + rng.integers(0, 4, int(mine[who].sum()))
    labels = (*codes[:8], "own a", "own b", "own c", "own d")
    site = pc.Site("new", pc.SparseTensor(new, np.ones(len(new)), (400, 12, 6), [labels, [f"d{i}" for i in range(6)]]))
    here = p.adapt(site)
    assert here.rank == 2  # with each of the two groups of diagnoses
    assert here.coverage.events == pytest.approx((~mine[who]).mean())
    own = here.phenotypes.table().where(phenotype=2)
    assert {r["code"] for r in own if r["mode"] == "mode 1" and r["share"] > 0.1} == {
        "own a",
        "own b",
        "own c",
        "own d",
    }
    again = p.adapt(site)
    assert all(np.array_equal(a, b) for a, b in zip(here.own, again.own))


def test_adapt_of_every_placing_and_wrong_input(fitted: Any) -> None:
    from polyclinic.auditing.contracts.result import example_sites

    site = example_sites("tensor", seed=3)[0]
    for name in ("DPEM", "TRIP", "CPALS signed", "CPALS missing"):
        here = fitted(name).result_.adapt(site, own=1)
        assert here.rank == 1
        assert here.transform(site).shape == (site.patients, here.shared.rank + 1)
        assert here.fits["adapted"] >= here.fits["here"] - 1e-9
    p = fitted("TRIP").result_
    assert p.adapt(site).rank == 0  # fewer than 40 patients: halves say nothing
    with pytest.raises(ConfigError, match="neither 'auto' nor a number"):
        p.adapt(site, own=-1)
    with pytest.raises(DataError, match="no events"):
        p.adapt(site.take(np.arange(0)))
    t = site.counts()
    other = [t.axes[0], *(pc.Axis(a.name, tuple(f"x{i}" for i in range(n))) for a, n in zip(t.axes[1:], t.shape[1:]))]
    with pytest.raises(ProtocolMismatch, match="'x"):
        p.adapt(pc.Site("else", t.with_axes(other)))


def test_codes_that_changed_most_are_listed_with_their_patients() -> None:
    def site(name: str, patients: dict[str, range]) -> pc.Site:
        labels = tuple(patients)
        cells = [(p, i, p % 2) for i, who in enumerate(patients.values()) for p in who]
        return pc.Site(
            name, pc.SparseTensor(np.array(cells), np.ones(len(cells)), (100, len(labels), 2), [labels, ["x", "y"]])
        )

    earlier = site("earlier", {"a": range(100), "b": range(50), "c": range(40, 60), "rare": range(5)})
    now = site("now", {"new": range(30), "a": range(100), "b": range(45, 100), "c": range(80), "rare": range(4)})
    model = pc.CPALS(rank=1, seed=0).fit(earlier).result_
    found = model.adapt(now, own=0, before=earlier).codes
    counts = {r["code"]: (r["patients before"], r["patients now"], r["in the model"]) for r in found}
    assert counts["c"] == ("20", "80", "yes")
    assert counts["new"] == ("0", "30", "no")
    assert counts["a"] == ("100", "100", "yes")
    assert counts["rare"] == ("fewer than 11", "fewer than 11", "yes")
    assert found["code"][:2] == ["c", "new"]  # the largest changes first
    alone = model.adapt(now, own=0).codes
    assert alone.rows == [("mode 1", "new", "no earlier records", "30", "no")]
