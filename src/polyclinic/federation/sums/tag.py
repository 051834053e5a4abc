"""One more word in every masked vector, by which each site can check the total that it is shown.

With ``p = 2^61 - 1`` and the ``d`` whole numbers ``x_1 .. x_d`` of contributor k (the weight is one of them), the word is::

    h_k = sum_{i=1..d} x_i rho^i + beta_k   mod p

It is masked and added mod p, all others mod 2^64. Whoever knows ``rho`` and the pads accepts ``words`` over the members S iff ::

    sum_i words_i rho^i + sum_{k in S} beta_k = tag   mod p      and   |words_i| <= 2^59   (and its rounding)

rho and beta come from ``K = HKDF(s_1 .. s_m)`` where every site sends its fresh 32 bytes ``s_k`` sealed to the others, so the
coordinator, who sees total AND tag before it hands them out, knows neither: for every rho there are pads that fit what it sees.
It passes another total with probability at most ``m (d + 1) / p`` over the m sites asked. A coordinator WITH a site knows rho
and can name any total; that site could shift the total anyway, within its summand.

Do not simplify. Without pads the coordinator solves for rho; an exponent 0 lets it change that word and the tag together; two
words instead of one show single entries to whoever knows rho (which h_k carried).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from polyclinic.errors import MessageRefused
from polyclinic.federation.sums.blake import LONGEST, MANY, Digests, named
from polyclinic.federation.sums.field import P, added, evaluate, within
from polyclinic.federation.sums.fixedpoint import BITS, Words

__all__ = ["Tag"]


@dataclass(frozen=True)
class Tag:
    """The secret of one attempt's contributors.

    Examples
    --------
    >>> tag = Tag.of({"a": b"1" * 32, "b": b"2" * 32}, b"context")
    >>> x, y = np.array([3, 4], np.int64), np.array([-1, 5], np.int64)
    >>> total = (x + y).view(np.uint64)
    >>> word = (tag.word(x.view(np.uint64), "a") + tag.word(y.view(np.uint64), "b")) % P
    >>> tag.accepts(total, word, ("a", "b")), tag.accepts(total[::-1].copy(), word, ("a", "b"))
    (True, False)
    """

    key: bytes

    @classmethod
    def of(cls, parts: Mapping[str, bytes], context: bytes) -> Tag:
        """From everybody's 32 bytes; all who have the same letters have the same key."""
        names = sorted(parts)
        material = b"".join(len(n.encode()).to_bytes(4, "little") + n.encode() + parts[n] for n in names)
        return cls(HKDF(algorithm=hashes.SHA256(), length=32, salt=context, info=b"polyclinic tag 1").derive(material))

    def _number(self, purpose: bytes) -> int:
        # Keyed BLAKE2b; 256 bits reduced to 61 are uniform up to 2^-195.
        return int.from_bytes(hashlib.blake2b(purpose, key=self.key, digest_size=32).digest(), "little")

    @property
    def rho(self) -> int:
        """Where the polynomial is evaluated; never 0."""
        return 1 + self._number(b"rho") % (P - 1)

    def pad(self, site: str) -> int:
        """The one-time pad of a contributor."""
        return self._number(b"pad" + site.encode()) % P

    def _pads(self, sites: Sequence[str]) -> int:
        """The sum of their pads mod p."""
        if len(sites) < MANY or max(map(len, sites)) > LONGEST:
            return sum([self.pad(s) for s in sites]) % P
        pads = Digests([self.key], 32).of(*named(tuple(sites), b"pad"))
        return int(added(pads.view(np.uint64)))

    def word(self, words: Words, site: str) -> int:
        """``h_k`` of a contributor's whole numbers."""
        return (int(evaluate(words.view(np.int64), np.uint64(self.rho))) + self.pad(site)) % P

    def accepts(self, words: Words, tag: int, members: Iterable[str]) -> bool:
        """Whether these words can be the sum over these members."""
        whole, names = words.view(np.int64), tuple(members)
        if not within(whole, np.int64(2**BITS + len(names))):  # each was rounded once
            return False
        pads = self._pads(names)
        return (int(evaluate(whole, np.uint64(self.rho))) + pads - tag) % P == 0

    def check(self, opened: Words, members: Iterable[str]) -> Words:
        """The data words of an opened vector (tag last), or :class:`MessageRefused`."""
        members = tuple(members)
        if not self.accepts(opened[:-1], int(opened[-1]), members):
            raise MessageRefused(
                f"the total over {len(members)} sites is not the sum of what they sent: its tag is wrong",
                hint="the coordinator, or a site, has changed it: nothing is built on this total",
            )
        return opened[:-1]
