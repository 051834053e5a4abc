"""Write real numbers as whole numbers mod 2^64, so that sums are exact in any order and masks hide perfectly.

Scale. With ``n`` sites and a public limit ``L`` per coordinate (bound times weight bound, plus room for noise), the
largest power of two with ``n L scale <= 2^59`` is used: no sum can wrap, scaling itself is exact, and two sums that differ in
a word differ modulo ``2^61 - 1`` as well, so that the tag of a masked sum sees every change (``aggregation.secure.total_check``).

Error. A coordinate is rounded to ``1 / scale <= n L / 2^58``; so the sum is off by at most ``n / (2 scale)``, that is
``n^2 L / 2^59`` or, relative to ``n L``, ``n * 1.7e-18``: below float64's own rounding (1.1e-16) up to 64 sites. Where a
coordinate itself has more than 53 significant bits after scaling nothing is lost, it is a whole number already.

Grid. A step whose contributions are whole multiples of ``grid`` uses ``scale = 1 / grid``: sums are exact whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import floor, log2

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from polyclinic.aggregation.vector import limits
from polyclinic.errors import ConfigError, ProtocolMismatch
from polyclinic.privacy.release import Array
from polyclinic.protocol.interfaces import Step

BITS = 59  # of the largest possible sum

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class FixedPoint:
    """How the coordinates of one step become whole numbers; everything here follows from public values.

    Examples
    --------
    >>> code = FixedPoint.of(Step(1, "factors", {"B": (1,)}, bound=1.0), sites=4)
    >>> words = code.encode(np.array([-0.25, 1.0]), "north") + code.encode(np.array([0.75, 1.0]), "south")
    >>> code.decode(words)
    array([0.5, 2. ])
    """

    scale: float
    weight_scale: float
    grid: float | None
    sites: int

    @classmethod
    def of(cls, step: Step, sites: int) -> FixedPoint:
        """The scale of a step, refused if the sum could leave 59 bits."""
        value, weight = limits(step)
        weight_scale = 2.0 ** floor(BITS - log2(sites * weight))
        if step.grid is None:
            return cls(2.0 ** floor(BITS - log2(sites * value)), weight_scale, None, sites)
        if not step.grid > 0 or sites * value / step.grid > 2.0**BITS:
            raise ConfigError(
                f"step {step.name!r}: the sum of {sites} sites does not fit {BITS} bits on its grid",
                faults=[f"grid {step.grid!r}, largest coordinate {value!r}"],
                hint="use a coarser grid or a smaller bound",
            )
        return cls(1.0 / step.grid, weight_scale, step.grid, sites)

    @property
    def error(self) -> float:
        """Largest absolute error of a coordinate of the sum (0 on a grid), before the last rounding to float64."""
        return 0.0 if self.grid is not None else self.sites / (2 * self.scale)

    def encode(self, vector: Array, who: str) -> Words:
        """Whole numbers mod 2^64, shape (size + 1,); off-grid values are refused, not rounded."""
        scaled = vector * self.scale
        scaled[-1] = vector[-1] * self.weight_scale
        rounded = np.rint(scaled, out=scaled if self.grid is None else None)
        if self.grid is not None and not np.allclose(rounded[:-1], scaled[:-1], rtol=1e-12, atol=1e-6):
            raise ProtocolMismatch(f"site {who!r}: contribution is not on the announced grid {self.grid!r}")
        return np.asarray(rounded.astype(np.int64).view(np.uint64))

    def decode(self, words: Words) -> Array:
        """Real numbers from the sum of encoded vectors."""
        numbers = words.view(np.int64).astype(np.float64)
        weight = numbers[-1] / self.weight_scale
        if self.grid is None:
            numbers /= self.scale
        else:
            numbers *= self.grid
        numbers[-1] = weight
        return np.asarray(numbers)


def stream(key: bytes, size: int) -> Words:
    """``size`` uniformly distributed 64-bit words from a 32-byte key (ChaCha20)."""
    out = np.empty(size, np.uint64)
    # One key makes one stream: keys are derived anew for every pair, slot and context, so the nonce may be zero.
    Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update_into(_zeros(8 * size), out.view(np.uint8))  # type: ignore[arg-type]
    return out


@lru_cache(maxsize=4)
def _zeros(size: int) -> bytes:
    return bytes(size)
