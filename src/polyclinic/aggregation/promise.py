"""One list of survivors per number: what a site has signed for ONE sum, over all attempts at it.

Opening needs ``t`` signatures under one list. Honest sites sign one list per NUMBER, so two lists of a number would need
``2 (t - c)`` honest signatures out of ``n - c``, which ``2 t > n + c`` excludes. A list per ATTEMPT is not enough: two attempts
with one site more or less give that site's contribution by subtraction.

    a site may sign list L in attempt b   iff   b is larger than every attempt it signed in,
                                                and it has signed no other list for this number

The caller gives the lists that are on its disk and a function that puts them there; the signature leaves only after that
function has returned. (A rule by which signers that can never open their list may sign another is left out: a study then
waits until everybody on the list is back.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from polyclinic.errors import MessageRefused


@dataclass(frozen=True)
class Promise:
    """A list that was signed, and with what the site checks the total of that attempt (``aggregation.secure.total_check``)."""

    attempt: int
    members: tuple[str, ...]
    key: bytes = b""  # rho and the sum of the members' pads: ``tag.Check``
    sites: int = 0  # on the roster of the attempt: the scale of the numbers follows from it


class Promises:
    """What one site signed for one number.

    Parameters
    ----------
    signed
        Promises made before, from disk.
    keep
        Called with all promises before a new one counts; they must be on disk (fsync) when it returns. None: one process, where
        a crash takes every key with it.

    Examples
    --------
    >>> mine = Promises()
    >>> mine.sign(Promise(0, ("east", "north", "south")))
    >>> mine.may(1, ("east", "north", "south")), mine.may(1, ("east", "north"))
    (True, False)
    """

    def __init__(
        self, signed: Iterable[Promise] = (), keep: Callable[[tuple[Promise, ...]], None] | None = None
    ) -> None:
        self.signed, self._keep = tuple(signed), keep

    @property
    def bound(self) -> tuple[str, ...]:
        """The list that this site is bound to; empty if it is free."""
        return self.signed[0].members if self.signed else ()

    def may(self, attempt: int, members: tuple[str, ...]) -> bool:
        """Whether this list may be signed in this attempt; the very same promise may always be made again."""
        same_list = all(p.members == members for p in self.signed)
        repeated = any(p.attempt == attempt for p in self.signed)
        return same_list and (repeated or all(attempt > p.attempt for p in self.signed))

    def sign(self, made: Promise) -> None:
        """Make a promise, durably; :class:`MessageRefused` if an earlier one stands against it."""
        if not self.may(made.attempt, made.members):
            raise MessageRefused(
                f"a list of {len(made.members)} sites in attempt {made.attempt}: another list of this sum was signed before, and only "
                "one is ever opened",
                faults=[f"attempt {p.attempt}: {', '.join(p.members)}" for p in self.signed],
                hint="propose the list that was signed, and wait until everybody on it is back",
            )
        if not any(p.attempt == made.attempt for p in self.signed):
            promises = (*self.signed, made)
            if self._keep is not None:
                self._keep(promises)
            self.signed = promises
