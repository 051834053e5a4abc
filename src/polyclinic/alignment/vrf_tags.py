"""One place for one tag, that a site can check: marks of a verifiable random function on ristretto255.

The coordinator of a ring has a secret scalar v, for this attempt and mode, and shows ``V = v B``. The mark of a tag t is ::

    m(t) = v H(t)           H hashes a tag to a point

Every site is sent ALL marks, sorted; the place of a code is that of its tag's mark among them. With its places a site gets one proof
that its marks m_j are v H(t_j): for coefficients c_j that are a digest of everything shown, the discrete logarithms of V to the base
B, and of ``sum_j c_j m_j`` to the base ``sum_j c_j H(t_j)``, are the same number (Chaum and Pedersen).

So two sites that hold the same V and the same list have equal codes at equal places, and unequal codes at unequal ones: the digest
of both goes into the chain of a study. A coordinator that could give one site places of its own would see that site's part of every
sum by itself.

A site cannot ask whether a tag is on the list that it has not sent: marks of other tags are random to it. H is what makes this so:
were the mark ``v t``, whoever sends ``2 t`` could halve the mark and look for it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

BYTES: Final = 32
IDENTITY: Final = bytes(BYTES)  # a valid encoding, and the same whatever it is multiplied by
Points = NDArray[np.uint8]


def raised(points: Points, secret: bytes) -> Points:
    """Every point times the secret."""
    import rbcl

    multiply = rbcl.crypto_scalarmult_ristretto255
    out = b"".join(multiply(secret, p.tobytes()) for p in points)
    return np.frombuffer(out, np.uint8).reshape(-1, BYTES)


def _scalar(*texts: bytes) -> bytes:
    import rbcl

    parts = b"".join(len(t).to_bytes(8, "little") + t for t in (b"polyclinic marks 1", *texts))
    return bytes(rbcl.crypto_core_ristretto255_scalar_reduce(hashlib.sha512(parts).digest()))


def _hashed(tags: Points) -> Points:
    """Tags as points of which nobody knows a relation to another."""
    import rbcl

    texts = (hashlib.sha512(b"polyclinic mark 1" + t.tobytes()).digest() for t in tags)
    out = b"".join(rbcl.crypto_core_ristretto255_from_hash(t) for t in texts)
    return np.frombuffer(out, np.uint8).reshape(-1, BYTES)


def _sum(points: Points, seed: bytes) -> bytes:
    """``sum_j c_j P_j``."""
    import rbcl

    total = IDENTITY
    for j, p in enumerate(points):
        c = _scalar(b"coefficient", seed, j.to_bytes(8, "little"))
        total = rbcl.crypto_core_ristretto255_add(total, rbcl.crypto_scalarmult_ristretto255(c, p.tobytes()))
    return bytes(total)


class Marker:
    """The coordinator's secret, for one attempt and mode.

    Examples
    --------
    >>> tags = np.frombuffer(bytes(range(64)), np.uint8).reshape(2, 32)
    >>> marker = Marker()
    >>> marks = marker.marks(tags)
    >>> proven(marker.public, tags, marks, marker.proof(tags, marks, b"here"), b"here")
    True
    >>> proven(marker.public, tags, marks[::-1], marker.proof(tags, marks, b"here"), b"here")
    False
    """

    def __init__(self) -> None:
        import rbcl

        self._secret = bytes(rbcl.crypto_core_ristretto255_scalar_random())
        self.public = bytes(rbcl.crypto_scalarmult_ristretto255_base(self._secret))

    def marks(self, tags: Points) -> Points:
        """``v H(t)`` of each tag."""
        return raised(_hashed(tags), self._secret)

    def proof(self, tags: Points, marks: Points, context: bytes) -> bytes:
        """That these are the marks of these tags: 64 bytes."""
        import rbcl

        if not len(tags):
            return bytes(2 * BYTES)
        seed = _scalar(b"seed", context, self.public, tags.tobytes(), marks.tobytes())
        base, r = _sum(_hashed(tags), seed), bytes(rbcl.crypto_core_ristretto255_scalar_random())
        a, d = rbcl.crypto_scalarmult_ristretto255_base(r), rbcl.crypto_scalarmult_ristretto255(r, base)
        e = _scalar(b"challenge", seed, bytes(a), bytes(d))
        return e + bytes(
            rbcl.crypto_core_ristretto255_scalar_add(r, rbcl.crypto_core_ristretto255_scalar_mul(e, self._secret))
        )


def proven(public: bytes, tags: Points, marks: Points, proof: bytes, context: bytes) -> bool:
    """Whether the marks are those of the tags under the secret of ``public``; points must be valid."""
    import rbcl

    if len(proof) != 2 * BYTES or tags.shape != marks.shape:
        return False
    if not len(tags):
        return True
    seed = _scalar(b"seed", context, public, tags.tobytes(), marks.tobytes())
    base, image = _sum(_hashed(tags), seed), _sum(marks, seed)
    e, s = proof[:BYTES], proof[BYTES:]
    try:
        take, times = rbcl.crypto_core_ristretto255_sub, rbcl.crypto_scalarmult_ristretto255
        a = take(rbcl.crypto_scalarmult_ristretto255_base(s), times(e, public))
        d = take(times(s, base), times(e, image))
    except RuntimeError:  # a zero, or a number that is none
        return False
    return _scalar(b"challenge", seed, bytes(a), bytes(d)) == e
