"""Packed sums: numbers of a few bits each, many in one word, added as whole numbers; exact, whoever adds them.

A number x is sent as v = rint(x / Q + u), u uniform in [-1/2, 1/2) from a public seed of its site and step (subtractive dither:
the sum minus the sum of u has an error of variance n Q^2 / 12 that does not depend on the data). A field of L levels knows its
sum modulo L, and a PUBLIC window [low, low + L) says which one it is; so single parts may have any size and sign. Fields are the
digits of words, word = sum_j v_j B_j mod P with B_j = L_1 .. L_(j-1) and P the product of all, P <= 2^W and n 2^W <= 2^53: sums of
words are whole numbers that floating point adds without rounding, so plain and every secure sum give the same bits, and all
totals stay below 2^53. (Whole bits a field would cost a twelfth more.)

A sum outside its window would be read wrongly, in silence: one more word carries a weighted checksum of all fields modulo 2^40. If
it does not agree, up to ``mends`` such sums are found and put right by some words more (:mod:`.packing.error_correction`); if more were outside, the step
is repeated with wider fields (:meth:`Packing.widened`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ProtocolMismatch
from polyclinic.methods.packing.error_correction import PRIME, lacking, located, weights
from polyclinic.protocol.interfaces import Contribution, Step, Total, seeds
from polyclinic.tensors.simd.jit import kernel

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
EXACT: Final = 53  # definition: bits of whole numbers that float64 adds exactly
CHECK: Final = 40  # limit: bits of the checksum, so that one in 2^40 wrong sums passes
WIDER: Final = 2  # bits more at every repetition: docs/benchmarks/constants.md
BLOCK: Final = 8192  # limit: numbers that share their power sums
FAR: Final = 64  # limit: windows: what lies further away was cut, perhaps, and is asked for again
MENDS: Final = 2  # sums outside their windows that are put right, unless more are asked for


@kernel
def _fill(levels, order, limit, words, bases, products):  # type: ignore[no-untyped-def]
    """Digits into words, one after the other, as long as their product stays within the limit."""
    word = 0
    for k in range(order.shape[0]):
        number = order[k]
        if products[word] > limit // levels[number]:
            word += 1
        words[number] = word
        bases[number] = products[word]
        products[word] *= levels[number]
    return word + 1


@dataclass(frozen=True, eq=False)
class Field:
    """One array of a packed step; everything is public.

    Parameters
    ----------
    shape
        Of the array.
    grid
        Q: the step of the rounding.
    low, high
        The sum of all sites lies between them (scalars, or one per entry). Where they are equal nothing is sent: the entry is 0.
    """

    shape: tuple[int, ...]
    grid: float
    low: float | Array
    high: float | Array


@dataclass(frozen=True, eq=False)
class Packing:
    """How the arrays of one step travel.

    Parameters
    ----------
    fields
        Name -> what is known of it.
    sites
        Names of all sites of the study (for the dither; a missing one costs no more than its own rounding).
    label
        What the dither and the checksum are drawn for: step and round.
    seed
        The study's.
    wider
        Bits more a field than the windows need.
    mends
        How many sums outside their windows are put right; each costs two numbers of 22 bits and a site's logarithm.
    far
        Windows away from its own that a sum may be put right. Where few numbers are much larger than all others, narrow windows and many
        mends cost less than windows for the largest.

    Examples
    --------
    >>> code = Packing({"x": Field((3,), 0.01, -1.0, 2.0)}, ("a", "b"), "demo", seed=0)
    >>> parts = [code.pack({"x": np.array([0.3, -0.2, 1.0])}, s)["packed"] for s in ("a", "b")]
    >>> code.unpack(sum(parts))["x"].round(1).tolist(), len(parts[0])
    ([0.6, -0.4, 2.0], 4)
    """

    fields: Mapping[str, Field]
    sites: tuple[str, ...]
    label: str
    seed: int = 0
    wider: int = 0
    mends: int = MENDS
    far: int = FAR

    def widened(self, times: int) -> Packing:
        """The same with wider fields, for the repetition of a step whose checksum failed.

        Raises
        ------
        ProtocolMismatch
            Fields of a whole word did not help: what came back is not the sum of what was sent.
        """
        if WIDER * (times - 1) >= self.word:
            raise ProtocolMismatch(
                f"packed sum {self.label!r}: its checksum failed {times} times, the last time with fields as wide as a word; "
                "what came back is not the sum of what the sites sent",
                hint="packed sums need an adder that adds (plain, masked), not a robust or asynchronous one",
            )
        return replace(self, wider=WIDER * times)

    # ---- the layout: fields in the order of names, as many as fit in a word

    @cached_property
    def word(self) -> int:
        """W: bits of a word."""
        return EXACT - max(len(self.sites) - 1, 0).bit_length()

    @cached_property
    def _flat(self) -> tuple[Array, Whole, Whole, NDArray[np.bool_]]:
        """Grid, window's start and levels of every number, and which are sent."""
        grids, lows, levels, flags = [], [], [], []
        spread = 4.5 * np.sqrt(len(self.sites) / 12.0)  # many sums may lie at the edge of their window
        for name in sorted(self.fields):
            f = self.fields[name]
            low, high = (np.broadcast_to(np.asarray(x, np.float64), f.shape).ravel() for x in (f.low, f.high))
            grid = self._grid(f, low, high)
            from_, end = np.floor(low / grid - spread), np.ceil(high / grid + spread)
            width = np.maximum(end - from_, 0.0) + 1.0
            widened = np.minimum(width * 2.0**self.wider, 2.0**self.word)
            grids.append(np.full(len(low), grid))
            lows.append((from_ - np.floor((widened - width) / 2)).astype(np.int64))
            level_counts = widened.astype(np.int64)
            levels.append(level_counts - (level_counts % PRIME == 0))  # every digit has an inverse in the field
            flags.append(high > low)
        return np.concatenate(grids), np.concatenate(lows), np.concatenate(levels), np.concatenate(flags)

    def _grid(self, f: Field, low: Array, high: Array) -> float:
        """The field's grid, or a coarser one where its window has more steps than a word, or none at all.

        A column that died, or a model that explains nothing, asks for rounding to nothing: then the window itself says how fine.
        """
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ProtocolMismatch(
                f"packed sum {self.label!r}: a window that is not finite", hint="the fit has left the finite numbers"
            )
        most = max(float(np.abs(low).max(initial=0.0)), float(np.abs(high).max(initial=0.0)))
        least = max(most * 2.0 ** (4 - self.word), 1e-290)
        return max(f.grid, least) if np.isfinite(f.grid) else least

    @cached_property
    def _places(self) -> tuple[Whole, Whole, Whole]:
        """Word and base of every sent number, those with most levels first; and the product of levels of every word."""
        _, _, levels, flags = self._flat
        sent_levels = levels[flags]
        order = np.argsort(-sent_levels, kind="stable")
        words, bases = np.zeros(len(sent_levels), np.int64), np.ones(len(sent_levels), np.int64)
        products = np.ones(max(len(sent_levels), 1), np.int64)
        count = _fill(sent_levels, order, 2**self.word, words, bases, products) if len(sent_levels) else 0
        return words, bases, products[:count]

    @property
    def size(self) -> int:
        """Words of a contribution, those that mend and the checksum among them."""
        return len(self._places[2]) + len(self._syndromes([0] * sum(len(w) for _, w in self._codes))) + 1

    def step(self, round_: int, name: str, **options: object) -> Step:
        """The step that carries it."""
        return Step(round_, name, {"packed": (self.size,)}, bound=2.0**self.word, grid=1.0, **options)  # type: ignore[arg-type]

    @cached_property
    def _odd(self) -> NDArray[np.uint64]:
        """Public random odd weights of the checksum."""
        rng = seeds(self.seed, "checksum", self.label)
        return rng.integers(0, 2**39, int(self._flat[3].sum()), dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def _checksum(self, value: Whole) -> int:
        words: int = int(
            np.bitwise_and(np.sum(value.view(np.uint64) * self._odd, dtype=np.uint64), np.uint64(2**CHECK - 1))
        )
        return words

    @cached_property
    def _above(self) -> Whole:
        """The next digit of a number's word; -1 for the last."""
        words, bases, _ = self._places
        next_digit, order = np.full(len(words), -1, np.int64), np.lexsort((bases, words))
        same_word = words[order[1:]] == words[order[:-1]]
        next_digit[order[:-1][same_word]] = order[1:][same_word]
        return next_digit

    @cached_property
    def _codes(self) -> list[tuple[Whole, Whole]]:
        """Numbers in blocks of whole words, each with the weights of its own power sums: the work grows with the numbers only."""
        _, _, levels, flags = self._flat
        levels, next_digit, words = levels[flags], self._above, self._places[0]
        digit = np.zeros(len(levels), np.int64)
        for k, lane in enumerate(self._lanes):
            digit[lane] = k
        block = words * (-(-len(words) // BLOCK)) // max(len(self._places[2]), 1)
        out = []
        for which in np.unique(block):
            members = np.flatnonzero(block == which)
            next_member = np.where(next_digit[members] >= 0, np.searchsorted(members, next_digit[members]), -1)
            mends = -(-self.mends * len(members) // len(words))
            out.append((members, weights(levels[members], next_member, digit[members], 2 * mends)))
        return out

    def _power_sums(self, value: Whole) -> list[int]:
        return [x for own, weight in self._codes for x in lacking(value[own], weight).tolist()]

    @cached_property
    def _many(self) -> int:
        """Power sums that fit in a word, each with room for the sum of all sites."""
        most, room = PRIME * max(len(self.sites), 1), 1
        while most ** (room + 1) <= 2**self.word:
            room += 1
        return room

    def _syndromes(self, sums: Sequence[int]) -> list[int]:
        """Power sums as words."""
        most, n = PRIME * max(len(self.sites), 1), self._many
        return [sum(int(x) * most**i for i, x in enumerate(sums[k : k + n])) for k in range(0, len(sums), n)]

    def _dither(self, site: str) -> Array:
        count = int(self._flat[3].sum())
        return np.asarray(seeds(self.seed, "dither", site, self.label).random(count, np.float32), np.float64) - 0.5

    # ---- both ends

    def pack(self, arrays: Mapping[str, Array], site: str) -> dict[str, Array]:
        """One site's words, as whole numbers."""
        grid, _, _, flags = self._flat
        flat = np.concatenate([np.asarray(arrays[n], np.float64).ravel() for n in sorted(self.fields)])
        # Far outside its window a number is cut: the sum is wrong either way, and the checksum says so.
        with np.errstate(over="ignore"):
            digits = np.clip(np.rint(flat[flags] / grid[flags] + self._dither(site)), -(2.0**62), 2.0**62)
        if not np.isfinite(digits).all():
            raise ProtocolMismatch(
                f"site {site!r}, packed sum {self.label!r}: NaN", hint="the fit has left the finite numbers"
            )
        value = digits.astype(np.int64)
        words, bases, products = self._places
        out = np.zeros(len(products), np.int64)
        np.add.at(out, words, np.mod(value, products[words] // bases) * bases)
        extra_words = [*self._syndromes(self._power_sums(value)), self._checksum(value)]
        return {"packed": np.concatenate([out % products, np.array(extra_words, np.int64)]).astype(np.float64)}

    def contribution(self, arrays: Mapping[str, Array], site: str) -> Contribution:
        """The same as a contribution."""
        return Contribution(self.pack(arrays, site))

    def unpack(self, total: Array) -> dict[str, Array] | None:
        """The summed arrays; None where the checksum does not agree (a sum lay outside its window)."""
        grid, low, levels, flags = self._flat
        words, _, products = self._places
        words_summed = np.asarray(total, np.float64).astype(np.int64)
        remainder, room = words_summed[: len(products)] % products, products.copy()
        low, levels = low[flags], levels[flags]
        value = np.zeros(len(low), np.int64)
        for lane in self._lanes:  # the lowest digit of every word first; what it carries goes with it
            w, base = words[lane], levels[lane]
            value[lane] = low[lane] + np.mod(remainder[w] - low[lane], base)
            remainder[w] = np.mod(remainder[w] - value[lane], room[w]) // base
            room[w] //= base
        difference = (int(words_summed[-1]) - self._checksum(value)) % 2**CHECK
        if difference and not self._mended(value, levels, words_summed):
            return None
        dither = np.zeros(len(value))
        for site in self.sites:
            dither += self._dither(site)
        flat = np.zeros(len(flags))
        flat[flags] = (value - dither) * grid[flags]
        out, position = {}, 0
        for name in sorted(self.fields):
            size = int(np.prod(self.fields[name].shape, dtype=np.int64))
            out[name] = flat[position : position + size].reshape(self.fields[name].shape)
            position += size
        return out

    def _mended(self, value: Whole, levels: Whole, whole: Whole) -> bool:
        """Put right, in place, the sums that lay outside their windows, if they are few; whether the checksum agrees then."""
        most, n, position = PRIME * max(len(self.sites), 1), self._many, 0
        sums = [int(w) // most**i % most for w in whole[len(self._places[2]) : -1] for i in range(n)]
        for own, weight in self._codes:
            lack = (np.array(sums[position : position + len(weight)], np.int64) - lacking(value[own], weight)) % PRIME
            position += len(weight)
            misread = located(lack.tolist(), len(own)) if lack.any() else (own[:0], own[:0])
            if misread is None or np.abs(misread[1]).max(initial=0) > self.far:
                return False
            for j, q in zip(own[misread[0]], misread[1]):
                value[j] += q * levels[j]
                if self._above[j] >= 0:
                    value[self._above[j]] -= q
        return bool((int(whole[-1]) - self._checksum(value)) % 2**CHECK == 0)

    def opened(self, total: Total) -> dict[str, Array] | None:
        """:meth:`unpack` of a total."""
        return self.unpack(total.arrays["packed"])

    @cached_property
    def _lanes(self) -> Sequence[NDArray[np.int64]]:
        """Numbers by their place in the word: all first ones, all second ones, ..."""
        words, bases, _ = self._places
        order = np.lexsort((bases, words))
        starts = np.flatnonzero(np.diff(words[order], prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        return [order[rank == k] for k in range(int(rank.max(initial=-1)) + 1)]
