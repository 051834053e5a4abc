"""The opened words of a masked sum, read by a site: with the tag where it signed the list, without where it was away."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyclinic.errors import MessageRefused
from polyclinic.federation.protocol import Roster, Step, Total
from polyclinic.federation.sums.fixedpoint import FixedPoint
from polyclinic.federation.sums.tag import Tag
from polyclinic.federation.sums.vector import unflatten

__all__ = ["read_words"]


def read_words(
    step: Step, roster: Roster, words: np.ndarray[Any, Any], members: tuple[str, ...], tag: Tag | None
) -> Total:
    """The total of the opened words.

    Parameters
    ----------
    step
        As the reader derived it.
    roster
        Of the attempt: its number of sites is the unit of the words.
    words
        Whole numbers mod 2^64, the weight, and the tag mod 2^61 - 1.
    members
        The list of survivors.
    tag
        Of the attempt, at those who signed the list; :class:`MessageRefused` if the words are not their sum. None: the words
        are only read, and others' votes must say that they are the sum.
    """
    if words.dtype != np.uint64 or words.shape != (step.size + 2,):
        raise MessageRefused(f"a total of {words.size} numbers, {step.size + 2} are expected")
    data = words[:-1] if tag is None else tag.check(words, members)
    values = FixedPoint.of(step, len(roster.sites)).decode(data)
    return unflatten(step, values, len(members), 1.0 / (roster.threshold - roster.colluders))
