"""Columns that are one phenotype are joined before they are judged; two phenotypes with a part in common are not."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.link import Link
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.replication.splits import Splits, SplitsPublic, alike_pairs, joined
from polyclinic.protocol.loop import run
from polyclinic.records.sites.site import Site, Sites


def made(together: bool, seed: int = 0) -> list[Site]:
    """Patients with procedures 0-3 and, of them, diagnoses 0-2 and 3-5: the same patients have both, or half of them each."""
    rng, out = np.random.default_rng(seed), []
    for k in range(3):
        coords = []
        for i in range(400):
            kind = rng.integers(3)  # 0: others; 1, 2: the procedures in question
            codes = {0: range(6, 12), 1: range(6) if together else range(3), 2: range(6) if together else range(3, 6)}
            procedures = range(4) if kind else range(4, 8)
            for _ in range(rng.integers(4, 9)):
                coords.append([i, rng.choice(list(procedures)), rng.choice(list(codes[int(kind)]))])
        out.append(pc.Site(f"h{k}", pc.SparseTensor(np.array(coords), np.ones(len(coords)), (400, 8, 12))))
    return out


def split() -> tuple[np.ndarray, np.ndarray]:
    """Columns: (procedures 0-3, diagnoses 0-2), (the same, 3-5), others."""
    f, g = np.zeros((8, 3)), np.zeros((12, 3))
    f[:4, :2], f[4:, 2] = 0.5, 0.5
    g[:3, 0], g[3:6, 1], g[6:, 2] = 3**-0.5, 3**-0.5, 6**-0.5
    return f, g


@pytest.mark.parametrize(("together", "groups"), [(True, [[0, 1]]), (False, [])])
def test_only_parts_that_the_same_patients_have_are_one(together: bool, groups: list[list[int]]) -> None:
    factors = split()
    assert alike_pairs(factors) == [(0, 1, 1)]
    act = Splits(model=Projector(factors, lambda s: np.ones((s.patients, 3))), aggregation="masked")
    found = run(act, made(together)).public
    assert isinstance(found, SplitsPublic)
    assert act.groups(found) == groups


def test_joined_columns_are_the_best_single_one_and_the_rest_stays() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Fit:
        factors: tuple[np.ndarray, ...]
        energy: np.ndarray | None
        objective: float | None = None

    f, g = split()
    whole = joined(Fit((f, 2.0 * g), np.array([9.0, 9.0, 1.0])), [[0, 1]])
    assert whole.factors[0].shape == (8, 2) and whole.factors[1].shape == (12, 2)
    np.testing.assert_allclose(whole.factors[0][:, 0], f[:, 0], atol=1e-12)
    np.testing.assert_allclose(whole.factors[1][:, 0], np.r_[np.full(6, 6**-0.5), np.zeros(6)], atol=1e-12)
    assert whole.energy is not None
    np.testing.assert_allclose(whole.energy, [72.0, 4.0])  # (3 * 2)^2 twice; as it was


def test_splits_keep_the_contract() -> None:
    net = pc.datasets.planted_counts(300, 8, 12, phenotypes=3, codes=(3, 4), sites=3, seed=0)
    pc.check_protocol(Splits(model=Projector(split(), lambda s: np.ones((s.patients, 3)))), list(net))


def test_what_is_flagged_was_planted_though_more_was_asked_for() -> None:
    net: Sites = pc.datasets.planted_counts(3000, 60, 80, phenotypes=8, codes=(6, 8), sites=4, seed=1, background=0.3)
    apart, one = (pc.replicate(pc.SumALS(rank=12, seed=1), net, key="base 1", merge=m) for m in (False, True))
    flagged = np.array(one.table["replicable"], bool)
    like = np.min([a.T @ b for a, b in zip(one.model.factors_, net.truth.factors)], axis=0)[flagged]
    assert (like.max(1) >= 0.8).all() and (like.max(0) >= 0.8).sum() >= 7
    assert len(one.table) < len(apart.table) == 12


def test_three_kinds_of_codes_come_back_and_hold_together_by_every_pair() -> None:
    sites = pc.datasets.planted_four_mode(1200, (30, 40, 16), 4, seed=6, codes=(4, 5, 3))
    found = pc.replicate(pc.SumALS(rank=5, rounds=12, seed=6), sites, key="three")
    unit = [f / np.linalg.norm(f, axis=0) for f in found.model.factors_]
    alike = np.min([u.T @ (t / np.linalg.norm(t, axis=0)) for u, t in zip(unit, sites.truth.factors)], axis=0)
    flags = np.array(found.table["replicable"], bool)
    assert flags.sum() == 4 and (alike[flags].max(0) >= 0.9).all(), "each planted one, and nothing else"
    torn = [np.array(f) for f in found.model.factors_]  # the third kind of codes of another phenotype: one pair fails
    torn[2][:, flags] = np.roll(torn[2][:, flags], 1, axis=1)
    act = Link(model=Projector(torn, lambda site: np.ones((site.patients, torn[0].shape[1]))))
    assert (act.rho(run(act, sites).public)[1][flags] < 3).all()
