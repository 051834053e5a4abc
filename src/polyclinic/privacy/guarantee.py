"""Decide what a study claims: the one meaning of *formal* and of *exact*, asked by everything else.

A formal study claims patient-level differential privacy by a theorem. Which messages leave a hospital in it, their sizes and their
words, may not depend on records. Every other study is exact: its owner's rules about small numbers, lists of sites and repeated
questions hold, whatever noise it adds.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from typing_extensions import TypeIs

from polyclinic.privacy.release import Step

FORMAL: Final = 20.0  # largest epsilon of a formal study, see docs/explanation/privacy.md
T = TypeVar("T")


class _Asked(Protocol):
    """What a study asks for: of a study file, or of a method."""

    @property
    def epsilon(self) -> float: ...

    @property
    def level(self) -> str: ...


def noisy(asked: T | None) -> TypeIs[T]:
    """Return whether a study asks for noise at all, of any kind.

    >>> noisy(None)
    False
    """
    return asked is not None


def formal(asked: _Asked | None, *, listed: bool = True) -> bool:
    """Return whether a study claims a patient-level theorem that protects a patient.

    Parameters
    ----------
    asked
        Its ``[privacy]``, or None.
    listed
        Whether every code and column is on a public list. A list that is made from records is an answer about them.

    Examples
    --------
    >>> from polyclinic.privacy.accounting.budget import Privacy
    >>> formal(Privacy(1.0)), formal(Privacy(1e9)), formal(Privacy(1.0, level="entry")), formal(Privacy(1.0), listed=False)
    (True, False, False, False)
    """
    return asked is not None and asked.level == "patient" and asked.epsilon <= FORMAL and listed


def exact(step: Step) -> bool:
    """Return whether a sum leaves without noise that hides a patient, whatever it is recorded as.

    >>> exact(Step(1, "counts", {"x": (1,)}, bound=1.0)), exact(Step(1, "n", {"x": (1,)}, 1.0, sensitivity=1.0, multiplier=2.0))
    (True, False)
    """
    return not step.hides
