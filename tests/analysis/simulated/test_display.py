"""Which codes are shown: by patients, by no two of them, and by the same sums whoever takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.simulated.presence import presence
from polyclinic.analysis.simulated.shown_codes import CodeSums, kept_shares
from polyclinic.models.origin import Origin
from polyclinic.models.phenotypes.projection import LeastSquares
from polyclinic.privacy.card.card import central_card
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor


class Placed:
    """A model whose memberships are given: what the rule alone decides."""

    def __init__(self, sites: list[pc.Site], factors: list[np.ndarray], memberships: list[np.ndarray]) -> None:
        origin = Origin.of("given", 1, {}, central_card("given"), ())
        axes = tuple(Axis.of(None, n) for n in range(1, len(factors) + 1))
        self.result_ = pc.Phenotypes(origin, tuple(factors), np.ones(factors[0].shape[1]), axes, LeastSquares())
        self.memberships_ = {s.name: a for s, a in zip(sites, memberships)}


def site(name: str, cells: list[tuple[int, int, int, float]], patients: int) -> pc.Site:
    return pc.Site(name, SparseTensor([c[:3] for c in cells], [c[3] for c in cells], (patients, 4, 3)))


def test_a_code_of_three_patients_is_hidden_and_one_of_two_hundred_carriers_is_shown() -> None:
    cells = [(i, 0, 0, 1.0) for i in range(200)] + [(i, 1, 0, 1.0) for i in range(3)]
    cells += [(0, 0, 0, 50.0)]  # one of 200 has it fifty times: (sum w)^2 / sum w^2 would still count 23 patients
    s = site("a", cells, 200)
    model = Placed([s], [np.ones((4, 1)) / 2, np.ones((3, 1)) / np.sqrt(3)], [np.ones((200, 1))])
    found = presence(model, [s])
    assert found.few[0][:, 0].tolist() == [False, True, True, True]  # nobody has codes 2 and 3: hidden, like few
    assert not found.few[1][0, 0]


def test_patients_of_all_sites_count_together() -> None:
    sites = [site(n, [(i, 0, 0, 1.0) for i in range(4)], 4) for n in ("a", "b", "c")]
    model = Placed(sites, [np.ones((4, 1)) / 2, np.ones((3, 1)) / np.sqrt(3)], [np.ones((4, 1))] * 3)
    assert not presence(model, sites).few[0][0, 0]
    assert presence(model, sites[:2]).few[0][0, 0]


def test_two_patients_who_hold_most_of_a_code_hide_it_and_the_reason_is_known() -> None:
    cells = [(i, 0, 0, 1.0) for i in range(30)] + [(0, 0, 0, 60.0), (1, 0, 0, 60.0)]
    s = site("a", cells, 30)
    model = Placed([s], [np.ones((4, 1)) / 2, np.ones((3, 1)) / np.sqrt(3)], [np.ones((30, 1))])
    found = presence(model, [s])
    assert found.few[0][0, 0] and found.held[0][0, 0]
    assert found.few[0][1, 0] and not found.held[0][1, 0]
    assert found.carried == (True,) and found.named == 0


def test_two_patients_are_judged_by_the_cells_that_made_the_model() -> None:
    """A saturating fit lets no record count more than twice a typical one; judged by raw counts, it would hide the code."""
    cells = [(i, 0, 0, 1.0) for i in range(30)] + [(0, 0, 0, 60.0), (1, 0, 0, 60.0)]
    s = site("a", cells, 30)
    model = Placed([s], [np.ones((4, 1)) / 2, np.ones((3, 1)) / np.sqrt(3)], [np.ones((30, 1))])
    model.result_ = replace(model.result_, placing=LeastSquares(saturation=2.0))
    found = presence(model, [s])
    assert not found.few[0][0, 0] and found.few[0][1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_never_below_what_two_patients_really_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.lognormal(0, 1 + 2 * rng.random(), int(rng.integers(2, 200)))
    sums = CodeSums(np.array([[float(len(w))]]), w.sum(keepdims=True)[None], (w**8).sum(keepdims=True)[None])
    true = np.sort(w)[-2:].sum() / w.sum()
    assert true <= sums.two_hold()[0, 0] + 1e-9 <= 2 * true + 0.3


def test_sums_by_site_judge_as_all_patients_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.lognormal(0, 2, (n, 5)) for n in (7, 30, 11)]
    each = [CodeSums((p > 1).sum(0)[:, None] * 1.0, p.sum(0)[:, None], (p**8).sum(0)[:, None]) for p in parts]
    total = CodeSums(*(sum(getattr(e, k) for e in each) for k in ("support", "first", "eighth")))
    whole = np.concatenate(parts)
    once = CodeSums((whole > 1).sum(0)[:, None] * 1.0, whole.sum(0)[:, None], (whole**8).sum(0)[:, None])
    assert (total.hidden(11) == once.hidden(11)).all()
    np.testing.assert_allclose(total.two_hold(), once.two_hold())


def test_a_phenotype_of_few_carriers_keeps_nothing() -> None:
    s = site("a", [(i, 0, 0, 1.0) for i in range(50)], 50)
    a = np.zeros((50, 2))
    a[:, 0] = 1.0
    a[:5, 1] = 1.0
    model = Placed([s], [np.eye(4, 2), np.ones((3, 2)) / np.sqrt(3)], [a])
    found = presence(model, [s])
    assert found.carried == (True, False)
    assert found.kept[1] == (0.0, 0.0) and found.kept[0][0] == 1.0
    assert kept_shares([np.eye(2)], [np.zeros((2, 2), bool)]) == ((1.0,), (1.0,))
