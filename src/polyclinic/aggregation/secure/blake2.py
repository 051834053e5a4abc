"""Many keyed digests at a time: BLAKE2b (RFC 7693) of texts of one block, compiled.

With n sites every site makes n votes, checks more than n / 2, and takes n pads off a total; calling ``hashlib`` for each of them is what
a sum of 1,000 sites would spend most of its time with. The digests are ``hashlib.blake2b``'s, bit for bit; few of them are left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.aggregation.fixed_point import Words
from polyclinic.tensors.simd.jit import kernel

__all__ = ["BLOCK", "LONGEST", "MANY", "Digests", "blocks", "headed", "named"]

BLOCK: Final = 128  # bytes
LONGEST: Final = 15  # letters of a name that surely fits behind 64 bytes: a letter has at most four
MANY: Final = 24  # from here on the compiled loop is worth its call
_IV: Final = np.array(
    [
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179,
    ],
    np.uint64,
)  # fmt: skip
_I0, _I1, _I2, _I3, _I4, _I5, _I6, _I7 = _IV

Bytes = NDArray[np.uint8]


@kernel
def _g(a, b, c, d, x, y):  # type: ignore[no-untyped-def]
    """The mixing of RFC 7693, 3.1."""
    a = a + b + x
    d = d ^ a
    d = (d >> np.uint64(32)) | (d << np.uint64(32))
    c = c + d
    b = b ^ c
    b = (b >> np.uint64(24)) | (b << np.uint64(40))
    a = a + b + y
    d = d ^ a
    d = (d >> np.uint64(16)) | (d << np.uint64(48))
    c = c + d
    b = b ^ c
    b = (b >> np.uint64(63)) | (b << np.uint64(1))
    return a, b, c, d


@kernel
def _round(v, m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15):  # type: ignore[no-untyped-def]
    """Columns, then diagonals; the words come in the order of this round."""
    v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15 = v
    v0, v4, v8, v12 = _g(v0, v4, v8, v12, m0, m1)
    v1, v5, v9, v13 = _g(v1, v5, v9, v13, m2, m3)
    v2, v6, v10, v14 = _g(v2, v6, v10, v14, m4, m5)
    v3, v7, v11, v15 = _g(v3, v7, v11, v15, m6, m7)
    v0, v5, v10, v15 = _g(v0, v5, v10, v15, m8, m9)
    v1, v6, v11, v12 = _g(v1, v6, v11, v12, m10, m11)
    v2, v7, v8, v13 = _g(v2, v7, v8, v13, m12, m13)
    v3, v4, v9, v14 = _g(v3, v4, v9, v14, m14, m15)
    return v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15


@kernel
def _compress(h, m, count, last, out):  # type: ignore[no-untyped-def]
    """One block of each text: state h (8, n or 1) and words m (16, n or 1) to state ``out`` (8, n).

    ``count`` are the bytes so far, ``last`` is all ones for the last block. One column is everybody's.
    """
    same_h, same_m = h.shape[1] == 1, m.shape[1] == 1
    for k in range(out.shape[1]):
        i = 0 if same_h else k
        j = 0 if same_m else k
        m0, m1, m2, m3, m4, m5, m6, m7 = m[0, j], m[1, j], m[2, j], m[3, j], m[4, j], m[5, j], m[6, j], m[7, j]
        m8, m9, m10, m11, m12, m13, m14, m15 = (
            m[8, j],
            m[9, j],
            m[10, j],
            m[11, j],
            m[12, j],
            m[13, j],
            m[14, j],
            m[15, j],
        )
        h0, h1, h2, h3, h4, h5, h6, h7 = h[0, i], h[1, i], h[2, i], h[3, i], h[4, i], h[5, i], h[6, i], h[7, i]
        v = (h0, h1, h2, h3, h4, h5, h6, h7, _I0, _I1, _I2, _I3, _I4 ^ count[k], _I5, _I6 ^ last, _I7)
        v = _round(v, m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15)
        v = _round(v, m14, m10, m4, m8, m9, m15, m13, m6, m1, m12, m0, m2, m11, m7, m5, m3)
        v = _round(v, m11, m8, m12, m0, m5, m2, m15, m13, m10, m14, m3, m6, m7, m1, m9, m4)
        v = _round(v, m7, m9, m3, m1, m13, m12, m11, m14, m2, m6, m5, m10, m4, m0, m15, m8)
        v = _round(v, m9, m0, m5, m7, m2, m4, m10, m15, m14, m1, m11, m12, m6, m8, m3, m13)
        v = _round(v, m2, m12, m6, m10, m0, m11, m8, m3, m4, m13, m7, m5, m15, m14, m1, m9)
        v = _round(v, m12, m5, m1, m15, m14, m13, m4, m10, m0, m7, m6, m3, m9, m2, m8, m11)
        v = _round(v, m13, m11, m7, m14, m12, m1, m3, m9, m5, m0, m15, m4, m8, m6, m2, m10)
        v = _round(v, m6, m15, m14, m9, m11, m3, m0, m8, m12, m2, m13, m7, m1, m4, m10, m5)
        v = _round(v, m10, m2, m8, m4, m7, m6, m1, m5, m15, m11, m9, m14, m3, m12, m13, m0)
        v = _round(v, m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15)
        v = _round(v, m14, m10, m4, m8, m9, m15, m13, m6, m1, m12, m0, m2, m11, m7, m5, m3)
        out[0, k], out[1, k], out[2, k], out[3, k] = (
            h0 ^ v[0] ^ v[8],
            h1 ^ v[1] ^ v[9],
            h2 ^ v[2] ^ v[10],
            h3 ^ v[3] ^ v[11],
        )
        out[4, k], out[5, k], out[6, k], out[7, k] = (
            h4 ^ v[4] ^ v[12],
            h5 ^ v[5] ^ v[13],
            h6 ^ v[6] ^ v[14],
            h7 ^ v[7] ^ v[15],
        )


def blocks(texts: Sequence[bytes], head: bytes = b"") -> tuple[Words, Words]:
    """``head + text`` of each as the 16 words of a block, (16, n), and the lengths; ``ValueError`` for more than one block."""
    n = max((len(t) for t in texts), default=0)
    if len(head) + n > BLOCK:
        raise ValueError(f"a text of {len(head) + n} bytes is longer than a block of {BLOCK}")
    raw = np.zeros((len(texts), BLOCK), np.uint8)
    raw[:, : len(head)] = np.frombuffer(head, np.uint8)
    raw[:, len(head) : len(head) + n] = np.frombuffer(b"".join([t.ljust(n, b"\0") for t in texts]), np.uint8).reshape(
        -1, n
    )
    lengths = np.array([len(head) + len(t) for t in texts], np.uint64)
    return np.ascontiguousarray(raw.view("<u8").T), lengths


@lru_cache(maxsize=8)
def named(names: tuple[str, ...], head: int | bytes) -> tuple[Words, Words]:
    """Blocks of ``head + name`` for each name, remembered; a number stands for that many bytes to be filled in: :func:`headed`."""
    return blocks([s.encode() for s in names], bytes(head) if isinstance(head, int) else head)


def headed(head: bytes, words: Words) -> Words:
    """The same blocks with their first bytes (whole words) filled in."""
    out, n = words.copy(), len(head) // 8
    out[:n] = np.frombuffer(head, "<u8")[:, None]
    return out


class Digests:
    """Keys under which many digests will be made: one for all texts, or one for each.

    Parameters
    ----------
    keys
        Of 1 to 64 bytes, all of the same length.
    size
        Bytes of a digest, 8 to 64, a multiple of 8.
    person
        Up to 16 bytes: what the digests are for.

    Examples
    --------
    >>> import hashlib
    >>> made = Digests([b"k" * 32], 16).of(*blocks([b"a", b"bc"]))
    >>> made[1].tobytes() == hashlib.blake2b(b"bc", key=b"k" * 32, digest_size=16).digest()
    True
    """

    def __init__(self, keys: Sequence[bytes], size: int, person: bytes = b"") -> None:
        self.size = size
        begin = _IV.copy()
        begin[0] ^= np.uint64(0x01010000 ^ (len(keys[0]) << 8) ^ size)
        begin[6:] ^= np.frombuffer(person.ljust(16, b"\0"), "<u8")
        words, lengths = blocks(keys)
        self._states = np.empty((8, len(keys)), np.uint64)
        _compress(begin[:, None], words, np.full_like(lengths, BLOCK), np.uint64(0), self._states)

    def of(self, words: Words, lengths: Words, which: slice | NDArray[np.int64] = slice(None)) -> Bytes:
        """Digests, (n, size), of texts from :func:`blocks`: n texts, or one text under the n keys ``which``."""
        states = self._states[:, which] if self._states.shape[1] > 1 else self._states
        n = max(states.shape[1], words.shape[1])
        out = np.empty((8, n), np.uint64)
        count = np.broadcast_to(lengths + np.uint64(BLOCK), n)
        _compress(np.ascontiguousarray(states), words, np.ascontiguousarray(count), ~np.uint64(0), out)
        return np.ascontiguousarray(out.T[:, : self.size // 8]).astype("<u8", copy=False).view(np.uint8)
