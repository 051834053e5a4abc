"""One more word in every masked vector, by which each site can check the total that it is shown.

With ``p = 2^61 - 1`` and the ``d`` whole numbers ``x_1 .. x_d`` of contributor k (the weight is one of them), the word is::

    h_k = sum_{i=1..d} x_i rho^i + beta_k   mod p

It is masked and added mod p, all others mod 2^64. Whoever knows ``rho`` and the pads accepts ``words`` over the members S iff ::

    sum_i words_i rho^i + sum_{k in S} beta_k = tag   mod p      and   |words_i| <= 2^59   (and its rounding)

rho and all beta come from ``K = HKDF(s_1 .. s_m)`` where every site sends its fresh 32 bytes ``s_k`` sealed to the others, so
the coordinator, who sees total AND tag before it hands them out, knows neither: for every rho there are pads that fit what it sees.
They are ONE stream, ``SHAKE256("polyclinic tag 2" K)``, 128 bits each (reduced mod p: uniform up to 2^-67): rho first, then the
pad of every site in the order of the roster, which K covers. So no two sites of a sum, and no two sums, share a pad.
It passes another total with probability at most ``m (d + 1) / p`` over the m sites asked. A coordinator WITH a site knows rho
and can name any total; that site could shift the total anyway, within its summand.

Do not simplify. Without pads the coordinator solves for rho; an exponent 0 lets it change that word and the tag together; two
words instead of one show single entries to whoever knows rho (which h_k carried).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from polyclinic.aggregation.fixed_point import BITS, Words
from polyclinic.aggregation.secure.prime_field import P, added, weighed
from polyclinic.errors import MessageRefused

_WIDE: Final = 16  # bytes of the stream for a number mod p
_TWO: Final = struct.Struct("<QQ")


def group_key(parts: Mapping[str, bytes], context: bytes) -> bytes:
    """K from everybody's 32 bytes; all who have the same letters have the same key."""
    material = b"".join(len(n.encode()).to_bytes(4, "little") + n.encode() + parts[n] for n in sorted(parts))
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=context, info=b"polyclinic tag 1").derive(material)


class TotalCheck(NamedTuple):
    """With what one list of members is checked: rho, and the sum of their pads. 16 bytes on a site's disk."""

    rho: int
    pads: int
    members: int

    @classmethod
    def read(cls, raw: bytes, members: int) -> TotalCheck:
        """From the 16 bytes."""
        rho, pads = _TWO.unpack(raw)
        return cls(rho, pads, members)

    @property
    def raw(self) -> bytes:
        """The 16 bytes."""
        return _TWO.pack(self.rho, self.pads)

    def accepts(self, words: Words, tag: int) -> bool:
        """Whether these words can be the sum over the members."""
        value = int(weighed(words, self.rho, 2**BITS + self.members))  # each was rounded once
        return value < P and (value + self.pads - tag) % P == 0

    def opened(self, words: Words) -> Words:
        """The data words of an opened vector (tag last), or :class:`MessageRefused`."""
        if not self.accepts(words[:-1], int(words[-1])):
            raise MessageRefused(
                f"the total over {self.members} sites is not the sum of what they sent: its tag is wrong",
                hint="the coordinator, or a site, has changed it: nothing is built on this total",
            )
        return words[:-1]


class TotalTag:
    """The secret of one sum: rho, and a pad for every site of the roster.

    Examples
    --------
    >>> tag = TotalTag(b"k" * 32, ("a", "b"))
    >>> x, y = np.array([3, 4], np.int64), np.array([-1, 5], np.int64)
    >>> total = (x + y).view(np.uint64)
    >>> word = (tag.word(x.view(np.uint64), "a") + tag.word(y.view(np.uint64), "b")) % P
    >>> check = tag.over(("a", "b"))
    >>> check.accepts(total, word), check.accepts(total[::-1].copy(), word)
    (True, False)
    """

    def __init__(self, key: bytes, sites: Sequence[str]) -> None:
        raw = hashlib.shake_256(b"polyclinic tag 2" + key).digest(_WIDE * (len(sites) + 1))
        self.rho = 1 + int.from_bytes(raw[:_WIDE], "little") % (P - 1)  # never 0
        self._sites, self._raw = tuple(sites), raw[_WIDE:]

    def word(self, words: Words, site: str) -> int:
        """``h_k`` of a contributor's whole numbers."""
        begin = _WIDE * self._sites.index(site)
        pad = int.from_bytes(self._raw[begin : begin + _WIDE], "little")
        return (int(weighed(words, self.rho, -1)) + pad) % P

    def over(self, members: Sequence[str]) -> TotalCheck:
        """What checks the sum over these members."""
        pads, members = np.frombuffer(self._raw, "<u8").reshape(-1, 2), tuple(members)
        if members != self._sites:
            places = {s: i for i, s in enumerate(self._sites)}
            pads = pads[[places[m] for m in members]]
        return TotalCheck(self.rho, int(added(pads)), len(members))
