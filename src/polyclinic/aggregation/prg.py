"""A short key as a long stream of uniformly distributed words (ChaCha20)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from polyclinic.aggregation.fixed_point import Words

__all__ = ["stream"]


def stream(key: bytes, size: int) -> Words:
    """``size`` uniformly distributed 64-bit words from a 32-byte key (ChaCha20)."""
    out = np.empty(size, np.uint64)
    # One key makes one stream: keys are derived anew for every pair, slot and context, so the nonce may be zero.
    Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update_into(_zeros(8 * size), out.view(np.uint8))  # type: ignore[arg-type]
    return out


@lru_cache(maxsize=4)
def _zeros(size: int) -> bytes:
    return bytes(size)
