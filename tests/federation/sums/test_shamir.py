"""Shamir's sharing: t shares rebuild, t - 1 say nothing."""

from __future__ import annotations

import contextlib
import itertools
import secrets

import pytest

from polyclinic.federation.sums import shamir


def is_probable_prime(p: int) -> bool:
    d, s = p - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for _ in range(40):
        x = pow(secrets.randbelow(p - 3) + 2, d, p)
        if x in (1, p - 1):
            continue
        for _ in range(s - 1):
            x = x * x % p
            if x == p - 1:
                break
        else:
            return False
    return True


def test_the_field_is_a_field_and_holds_every_32_bytes() -> None:
    assert shamir.PRIME > 2**256
    assert is_probable_prime(shamir.PRIME)


@pytest.mark.parametrize("secret", [b"\0" * 32, b"\xff" * 32, secrets.token_bytes(32)], ids=["zeros", "ones", "random"])
def test_every_subset_of_threshold_size_rebuilds(secret: bytes) -> None:
    points = [1, 2, 5, 9, 11]
    shares = shamir.split(secret, points, 3)
    for chosen in itertools.combinations(range(5), 3):
        assert shamir.rebuild([shares[i] for i in chosen], shamir.weights([points[i] for i in chosen])) == secret


def test_fewer_than_threshold_fit_every_secret() -> None:
    """With t - 1 shares, for EVERY candidate secret there is a completing share: nothing was learned."""
    shares = shamir.split(secrets.token_bytes(32), [1, 2, 3], 3)
    w = shamir.weights([1, 2, 3])
    for candidate in (b"\0" * 32, b"a" * 32, secrets.token_bytes(32)):
        known = sum(int.from_bytes(s, "big") * a for s, a in zip(shares[:2], w))
        third = (int.from_bytes(candidate, "big") - known) * pow(w[2], -1, shamir.PRIME) % shamir.PRIME
        completed = [*shares[:2], third.to_bytes(shamir.SHARE_BYTES, "big")]
        assert shamir.rebuild(completed, w) == candidate


def test_false_shares_do_not_rebuild_the_secret() -> None:
    secret = secrets.token_bytes(32)
    shares = shamir.split(secret, [1, 2, 3], 2)
    false = bytes([shares[0][0], *(b ^ 1 for b in shares[0][1:])])
    with contextlib.suppress(ValueError):  # raised where the false secret does not even fit 32 bytes
        assert shamir.rebuild([false, shares[1]], shamir.weights([1, 2])) != secret


def test_wrong_arguments_are_refused() -> None:
    for bad in [(b"short", [1, 2], 2), (b"k" * 32, [1, 1], 2), (b"k" * 32, [0, 1], 2), (b"k" * 32, [1, 2], 3)]:
        with pytest.raises(ValueError):
            shamir.split(*bad)
