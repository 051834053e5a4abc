"""Which codes are shown: by patients of all sites together, and by no two of them."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.prevalence import Prevalence, two_hold
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.simulated.shown_codes import kept_shares
from polyclinic.protocol.loop import run
from polyclinic.tensors.sparse import SparseTensor

Masks = tuple[np.ndarray, np.ndarray]


def masks(sites: list[pc.Site], memberships: list[np.ndarray]) -> Masks:
    """Codes of the first mode that are shown, and those that two patients hold; of a model whose memberships are given."""
    rank = memberships[0].shape[1]
    given = {s.name: a for s, a in zip(sites, memberships)}
    factors = [np.ones((4, rank)) / 2, np.ones((3, rank)) / np.sqrt(3)]
    act = Prevalence(model=Projector(factors, lambda s: given[s.name]))
    public = run(act, sites).public
    return act.shown(public)[0], act.held(public)[0]


def site(name: str, cells: list[tuple[int, int, int, float]], patients: int) -> pc.Site:
    return pc.Site(name, SparseTensor([c[:3] for c in cells], [c[3] for c in cells], (patients, 4, 3)))


def test_a_long_record_hides_no_code_that_many_have_and_a_code_of_nobody_is_hidden_like_one_of_few() -> None:
    cells = [(i, 0, 0, 1.0) for i in range(200)] + [(i, 1, 0, 1.0) for i in range(3)] + [(0, 0, 0, 50.0)]
    shown, _ = masks([site("a", cells, 200)], [np.ones((200, 1))])
    assert shown[:, 0].tolist() == [True, False, False, False]


def test_patients_of_all_sites_count_together() -> None:
    sites = [site(n, [(i, 0, 0, 1.0) for i in range(4)], 4) for n in ("a", "b", "c")]
    assert masks(sites, [np.ones((4, 1))] * 3)[0][0, 0]
    assert not masks(sites[:2], [np.ones((4, 1))] * 2)[0][0, 0]


def test_two_patients_who_hold_most_of_a_code_hide_it_and_the_reason_is_known() -> None:
    s = site("a", [(i, 0, 0, 1.0) for i in range(20)] + [(0, 1, 0, 1.0)], 20)
    share = np.array([[1.0, 0.0]] * 2 + [[0.05, 0.95]] * 18)  # all twenty carry the first phenotype, eighteen a little
    shown, held = masks([s], [share])
    assert not shown[0, 0] and held[0, 0]
    assert shown[0, 1] and not held[0, 1]
    assert not held[1, 0]  # too few patients is the other reason


def test_a_phenotype_of_few_carriers_shows_nothing() -> None:
    memberships = np.column_stack([np.ones(50), np.r_[np.ones(5), np.zeros(45)]])
    shown, _ = masks([site("a", [(i, 0, 0, 1.0) for i in range(50)], 50)], [memberships])
    assert shown[0].tolist() == [True, False]
    assert kept_shares([np.eye(2)], [np.array([[False, True], [False, True]])]) == ((1.0,), (0.0,))


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_never_below_what_two_patients_really_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.lognormal(0, 1 + 2 * rng.random(), int(rng.integers(2, 200)))
    true = np.sort(w)[-2:].sum() / w.sum()
    assert true <= two_hold(w.sum(), (w**8).sum()) + 1e-9 <= 2 * true + 0.3
