"""Held-out figures: zero for a model that learned nothing, one for the reference itself."""

from __future__ import annotations

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import DataError
from polyclinic.records.sites.site import pooled
from polyclinic_papers.heldout import (
    CountModel,
    code_completion,
    completion,
    halves,
    log_likelihood,
    marginal_model,
    structure_kept,
)
from polyclinic_papers.prediction import split


@pytest.fixture(scope="module")
def parts() -> tuple[pc.SparseTensor, pc.SparseTensor, CountModel]:
    net = pc.datasets.planted_counts(1200, 30, 40, phenotypes=4, codes=(5, 6), seed=2)
    train, test = (pooled(p).counts() for p in split(net, 0.8, 0))
    return train, test, CountModel([np.column_stack([f, np.ones(len(f)) / len(f)]) for f in net.truth.factors])


def test_kept_is_zero_for_the_marginals_and_one_for_the_reference(
    parts: tuple[pc.SparseTensor, pc.SparseTensor, CountModel],
) -> None:
    train, test, planted = parts
    marginals = marginal_model(train)
    assert structure_kept(marginals, planted, marginals, test) == pytest.approx(0.0, abs=1e-12)
    assert structure_kept(planted, planted, marginals, test) == pytest.approx(1.0)
    assert log_likelihood(planted, test) > log_likelihood(marginals, test) + 0.5


def test_completion_is_zero_for_the_marginals_and_negative_for_random_factors(
    parts: tuple[pc.SparseTensor, pc.SparseTensor, CountModel],
) -> None:
    train, test, planted = parts
    marginals = marginal_model(train)
    random = CountModel([np.random.default_rng(0).gamma(0.3, size=(n, 5)) + 1e-6 for n in (30, 40)])
    gain = [completion(m, marginals, test, np.random.default_rng(1)) for m in (marginals, planted, random)]
    assert gain[0] == pytest.approx(0.0, abs=1e-9)
    assert gain[1] > 0.5
    assert gain[2] < 0


def test_halves_share_out_every_event_of_known_patients() -> None:
    t = pc.SparseTensor([[0, 0, 0], [0, 1, 1], [1, 0, 1]], [10.0, 7.0, 1.0], (2, 2, 2))
    a, b = halves(t, np.random.default_rng(0))
    assert a.values.sum() + b.values.sum() in (17.0, 18.0)  # the patient with one event may be known by nothing
    assert set(b.rows) <= set(a.rows)
    with pytest.raises(DataError, match="whole"):
        halves(pc.SparseTensor([[0, 0]], [0.5], (1, 1)), np.random.default_rng(0))


def test_a_private_fit_keeps_most_of_the_structure(parts: tuple[pc.SparseTensor, pc.SparseTensor, CountModel]) -> None:
    train, test, _ = parts
    site = pc.Site("a", train)
    reference = CountModel.of(pc.DPEM(rank=8, rounds=15, regroup=False, prune=False, background=False).fit([site]))
    private = CountModel.of(pc.DPEM(rank=8, rounds=8, privacy=pc.Privacy(8.0)).fit([site]))
    marginals = marginal_model(train)
    assert 0.5 < structure_kept(private, reference, marginals, test) < 1.2
    assert completion(private, marginals, test, np.random.default_rng(0)) > 0.3


def test_hidden_codes_are_told_by_phenotypes_and_not_by_a_cross_product(
    parts: tuple[pc.SparseTensor, pc.SparseTensor, CountModel],
) -> None:
    """Cells that are all products of a patient's own codes: hidden cells are easy, hidden codes are not."""
    train, test, planted = parts
    marginals = marginal_model(train)
    assert code_completion(marginals, marginals, test, 0) == pytest.approx(0.0, abs=1e-12)
    assert code_completion(planted, marginals, test, 0) > 0.5
    rng = np.random.default_rng(0)
    own = [(rng.choice(30, 4, replace=False), rng.choice(40, 4, replace=False)) for _ in range(300)]
    coords = np.array([[i, a, b] for i, (x, y) in enumerate(own) for a in x for b in y])
    t = pc.SparseTensor(coords, np.ones(len(coords)), (300, 30, 40))
    flat = marginal_model(t)
    echo = CountModel(
        [0.9 * np.eye(30) + 0.1 / 30, np.full((40, 30), 1 / 40)]
    )  # "what was seen is seen again", no more
    assert completion(echo, flat, t, rng) > 0.5
    assert code_completion(echo, flat, t, 0) < 0.02
