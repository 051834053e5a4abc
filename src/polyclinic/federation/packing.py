"""Packed sums: numbers of a few bits each, many in one word, added as whole numbers; exact, whoever adds them.

A number x is sent as v = rint(x / Q + u), u uniform in [-1/2, 1/2) from a public seed of its site and step (subtractive dither:
the sum minus the sum of u has an error of variance n Q^2 / 12 that does not depend on the data). A field of b bits knows its sum
modulo 2^b, and a PUBLIC window [low, low + 2^b) says which one it is; so single parts may have any size and sign. Fields lie side
by side in words below 2^W with n 2^W <= 2^53: sums of words are whole numbers that floating point adds without rounding, so plain
and every secure sum give the same bits, and all totals stay below 2^53.

A sum outside its window would be read wrongly, in silence: one more word carries a weighted checksum of all fields modulo 2^40. If
it does not agree, the step is repeated with wider fields (:meth:`Packing.widened`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.federation.protocol import Contribution, Step, Total, seeds

__all__ = ["Field", "Packing"]

Array = NDArray[np.float64]
EXACT: Final = 53  # bits of whole numbers that float64 adds exactly
CHECK: Final = 40
WIDER: Final = 2  # bits more at every repetition


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

    Examples
    --------
    >>> code = Packing({"x": Field((3,), 0.01, -1.0, 2.0)}, ("a", "b"), "demo", seed=0)
    >>> parts = [code.pack({"x": np.array([0.3, -0.2, 1.0])}, s)["packed"] for s in ("a", "b")]
    >>> code.unpack(sum(parts))["x"].round(1).tolist(), len(parts[0])
    ([0.6, -0.4, 2.0], 2)
    """

    fields: Mapping[str, Field]
    sites: tuple[str, ...]
    label: str
    seed: int = 0
    wider: int = 0

    def widened(self, times: int) -> Packing:
        """The same with wider fields, for the repetition of a step whose checksum failed."""
        return replace(self, wider=WIDER * times)

    # ---- the layout: fields in the order of names, as many as fit in a word

    @cached_property
    def word(self) -> int:
        """W: bits of a word."""
        return EXACT - max(len(self.sites) - 1, 0).bit_length()

    @cached_property
    def _flat(self) -> tuple[Array, NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Grid, window's start and bits of every number, and which are sent."""
        grids, lows, bits, sent = [], [], [], []
        spread = 4.5 * np.sqrt(len(self.sites) / 12.0)  # many sums may lie at the edge of their window
        for name in sorted(self.fields):
            f = self.fields[name]
            low, high = (np.broadcast_to(np.asarray(x, np.float64), f.shape).ravel() for x in (f.low, f.high))
            from_, to = np.floor(low / f.grid - spread), np.ceil(high / f.grid + spread)
            width = np.frexp(np.maximum(to - from_, 1.0))[1].astype(np.int64) + self.wider  # bits of the largest place
            grids.append(np.full(len(low), f.grid))
            lows.append(from_.astype(np.int64) - (2 ** (width - 1) - 2 ** (width - self.wider - 1)))
            bits.append(np.minimum(width, self.word))
            sent.append(high > low)
        return np.concatenate(grids), np.concatenate(lows), np.concatenate(bits), np.concatenate(sent)

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Word and offset of every sent number, widest first; and how many words."""
        _, _, bits, sent = self._flat
        width = bits[sent]
        words, offsets = np.zeros(len(width), np.int64), np.zeros(len(width), np.int64)
        word, used = 0, 0
        for b in sorted(set(width.tolist()), reverse=True):
            same = np.flatnonzero(width == b)
            here, each = (self.word - used) // b, self.word // b  # what the open word still holds, and an empty one
            place = np.arange(len(same)) - here
            words[same] = np.where(place < 0, word, word + 1 + place // each)
            offsets[same] = np.where(place < 0, used + b * np.arange(len(same)), b * (place % each))
            word, used = int(words[same[-1]]), int(offsets[same[-1]]) + b
        return words, offsets, word + (used > 0)

    @property
    def size(self) -> int:
        """Words of a contribution, the checksum among them."""
        return self._places[2] + 1

    def step(self, round_: int, name: str, **options: object) -> Step:
        """The step that carries it."""
        return Step(round_, name, {"packed": (self.size,)}, bound=2.0**self.word, grid=1.0, **options)  # type: ignore[arg-type]

    @cached_property
    def _odd(self) -> NDArray[np.uint64]:
        """Public random odd weights of the checksum."""
        rng = seeds(self.seed, "checksum", self.label)
        return rng.integers(0, 2**39, int(self._flat[3].sum()), dtype=np.uint64) * np.uint64(2) + np.uint64(1)

    def _dither(self, site: str) -> Array:
        count = int(self._flat[3].sum())
        return np.asarray(seeds(self.seed, "dither", site, self.label).random(count, np.float32), np.float64) - 0.5

    # ---- both ends

    def pack(self, arrays: Mapping[str, Array], site: str) -> dict[str, Array]:
        """One site's words, as whole numbers."""
        grid, _, _, sent = self._flat
        flat = np.concatenate([np.asarray(arrays[n], np.float64).ravel() for n in sorted(self.fields)])
        value = np.rint(flat[sent] / grid[sent] + self._dither(site)).astype(np.int64).view(np.uint64)
        words, offsets, count = self._places
        out = np.zeros(count + 1, np.uint64)
        np.add.at(out, words, value << offsets.astype(np.uint64))
        out[:count] &= np.uint64(2**self.word - 1)
        out[count] = np.sum(value * self._odd, dtype=np.uint64) & np.uint64(2**CHECK - 1)
        return {"packed": out.astype(np.float64)}

    def contribution(self, arrays: Mapping[str, Array], site: str) -> Contribution:
        """The same as a contribution."""
        return Contribution(self.pack(arrays, site))

    def unpack(self, total: Array) -> dict[str, Array] | None:
        """The summed arrays; None where the checksum does not agree (a sum lay outside its window)."""
        grid, low, bits, sent = self._flat
        words, offsets, count = self._places
        left = np.asarray(total, np.float64).astype(np.int64).view(np.uint64)
        check, rest = left[count], left[:count] & np.uint64(2**self.word - 1)
        low, bits = low[sent], bits[sent]
        value = np.zeros(len(low), np.int64)
        for lane in self._lanes:  # the lowest field of every word first; what it carries goes with it
            w, b = words[lane], bits[lane].astype(np.uint64)
            mask = (np.uint64(1) << b) - np.uint64(1)
            value[lane] = low[lane] + ((rest[w] - low[lane].view(np.uint64)) & mask).view(np.int64)
            rest[w] = (rest[w] - value[lane].view(np.uint64)) & np.uint64(2**self.word - 1)
            # the field is gone; the next one of the word moves down, modulo what is left of the word
            rest[w] >>= b
            rest[w] &= (np.uint64(1) << (np.uint64(self.word) - offsets[lane].astype(np.uint64) - b)) - np.uint64(1)
        found = np.sum(value.view(np.uint64) * self._odd, dtype=np.uint64) & np.uint64(2**CHECK - 1)
        if found != check & np.uint64(2**CHECK - 1):
            return None
        dither = np.zeros(len(value))
        for site in self.sites:
            dither += self._dither(site)
        flat = np.zeros(len(sent))
        flat[sent] = (value - dither) * grid[sent]
        out, at = {}, 0
        for name in sorted(self.fields):
            size = int(np.prod(self.fields[name].shape, dtype=np.int64))
            out[name] = flat[at : at + size].reshape(self.fields[name].shape)
            at += size
        return out

    def opened(self, total: Total) -> dict[str, Array] | None:
        """:meth:`unpack` of a total."""
        return self.unpack(total.arrays["packed"])

    @cached_property
    def _lanes(self) -> Sequence[NDArray[np.int64]]:
        """Numbers by their place in the word: all first ones, all second ones, ..."""
        words, offsets, _ = self._places
        order = np.lexsort((offsets, words))
        starts = np.flatnonzero(np.diff(words[order], prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        return [order[rank == k] for k in range(int(rank.max(initial=-1)) + 1)]
