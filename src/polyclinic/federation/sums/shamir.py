"""Split a secret so that any t of n keepers can rebuild it, and t - 1 know nothing (Shamir 1979).

Over the prime 2^256 + 297, so that every 32-byte secret fits. A share travels as 33 bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

__all__ = ["PRIME", "SHARE_BYTES", "rebuild", "split", "weights"]

PRIME = 2**256 + 297
SHARE_BYTES = 33


def split(secret: bytes, points: Sequence[int], threshold: int) -> list[bytes]:
    """One share per keeper.

    Parameters
    ----------
    secret
        32 bytes.
    points
        The keepers' public numbers, distinct and from 1.
    threshold
        How many shares rebuild the secret.

    Examples
    --------
    >>> shares = split(b"k" * 32, [1, 2, 3], 2)
    >>> rebuild([shares[0], shares[2]], weights([1, 3]))
    b'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk'
    """
    if len(secret) != 32 or len(set(points)) != len(points) or min(points) < 1 or not 1 <= threshold <= len(points):
        raise ValueError("a secret of 32 bytes, distinct points from 1, and a threshold of at most as many")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    shares = []
    for x in points:
        y = 0
        for c in coefficients:
            y = (y + c) * x % PRIME
        shares.append(((y + int.from_bytes(secret, "big")) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return shares


def weights(points: Sequence[int]) -> list[int]:
    """Lagrange weights at zero: the secret is the weighted sum of the shares. One set serves every secret.

    >>> weights([1, 2])[0]
    2
    """
    out = []
    for a in points:
        top = bottom = 1
        for b in points:
            if b != a:
                top = top * b % PRIME
                bottom = bottom * (b - a) % PRIME
        out.append(top * pow(bottom, -1, PRIME) % PRIME)
    return out


def rebuild(shares: Sequence[bytes], lagrange: Sequence[int]) -> bytes:
    """The secret from exactly the threshold's number of shares; ``ValueError`` if they do not belong together."""
    if any(len(s) != SHARE_BYTES for s in shares):
        raise ValueError(f"a share has {SHARE_BYTES} bytes")
    value = sum(int.from_bytes(s, "big") * w for s, w in zip(shares, lagrange, strict=True)) % PRIME
    return value.to_bytes(SHARE_BYTES, "big")[1:] if value < 2**256 else _wrong()


def _wrong() -> bytes:
    raise ValueError("the shares do not belong together")
