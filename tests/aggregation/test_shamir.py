"""Shamir's sharing: t shares rebuild, t - 1 say nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from polyclinic.aggregation.secure import shamir
from polyclinic.aggregation.secure.prime_field import P


def numbers(*values: int) -> shamir.Elements:
    return np.array(values, np.uint64)


def split(secret: shamir.Elements, points: list[int], threshold: int) -> shamir.Elements:
    """Shares at all points: a polynomial that has the secret at 0 and random values at as many points as are free."""
    free = shamir.draw(threshold - 1, secret.size)
    rest = shamir.complete(np.vstack([secret, free]), [0, *points[: threshold - 1]], points[threshold - 1 :])[1]
    return np.vstack([free, rest])


def test_the_field_is_a_field() -> None:
    """2^61 - 1 is prime: the Lucas-Lehmer test of Mersenne numbers."""
    assert P == 2**61 - 1
    s = 4
    for _ in range(61 - 2):
        s = (s * s - 2) % P
    assert s == 0


@pytest.mark.parametrize("secret", [numbers(0, 0, 0, 0), numbers(*[P - 1] * 4), shamir.draw(4)], ids=["0", "p-1", "?"])
def test_every_subset_of_threshold_size_rebuilds(secret: shamir.Elements) -> None:
    points = [1, 2, 5, 9, 1000]
    shares = split(secret, points, 3)
    for chosen in itertools.combinations(range(5), 3):
        back = shamir.rebuild(shares[list(chosen)], shamir.weights(tuple(points[i] for i in chosen)))
        np.testing.assert_array_equal(back, secret)


def test_shares_and_weights_are_those_of_exact_integers() -> None:
    points = (3, 7, 11)
    w = shamir.weights(points)
    for a, got in zip(points, w):
        exact = 1
        for b in points:
            if b != a:
                exact = exact * b * pow(b - a, -1, P) % P
        assert int(got) == exact
    shares = split(shamir.draw(5), list(points), 3)
    exact_sum = [sum(int(w[k]) * int(shares[k, m]) for k in range(3)) % P for m in range(5)]
    assert shamir.rebuild(shares, w).tolist() == exact_sum


def test_fewer_than_threshold_fit_every_secret() -> None:
    """With t - 1 shares, for EVERY candidate secret there is a completing share: nothing was learned."""
    shares = split(shamir.draw(1), [1, 2, 3], 3)
    w = shamir.weights((1, 2, 3))
    for candidate in (0, P - 1, int(shamir.draw(1)[0])):
        known = sum(int(shares[k, 0]) * int(w[k]) for k in range(2))
        third = (candidate - known) * pow(int(w[2]), -1, P) % P
        completed = np.array([shares[0], shares[1], [third]], np.uint64)
        assert int(shamir.rebuild(completed, w)[0]) == candidate


def test_drawn_numbers_are_uniform_and_fresh() -> None:
    one = shamir.draw(4000) / P
    assert abs(one.mean() - 0.5) < 5 / np.sqrt(12 * 4000)
    assert len(set(one.tolist())) == 4000


def test_another_number_of_shares_is_refused() -> None:
    with pytest.raises(ValueError, match="2 shares are needed"):
        shamir.rebuild(shamir.draw(3, 4), shamir.weights((1, 2)))


def test_shares_that_keepers_know_already_make_the_others_and_the_secret() -> None:
    """Any t of all shares rebuild the same secret; t - 1 of the given ones fit every secret, because the last one is free."""
    known, others = [3, 1, 6], [2, 4, 5]
    given = shamir.draw(3, 5)
    secret, rest = shamir.complete(given, known, others)
    points, rows = np.array([*known, *others]), np.concatenate([given, rest])
    for chosen in itertools.combinations(range(6), 3):
        at = tuple(int(x) for x in points[list(chosen)])
        np.testing.assert_array_equal(shamir.rebuild(rows[list(chosen)], shamir.weights(at)), secret)
    other = given.copy()
    other[2] = shamir.draw(5)
    assert not np.any(shamir.complete(other, known, others)[0] == secret)
