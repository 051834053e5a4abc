"""Refusals between hosts: nine words. Why in full stands in the site's own log and nowhere else.

A text could quote a value, a number of patients or a limit of the owner's policy, and a refusal that depends on data is an
answer to a question that nobody paid for. So an owner's rule, a budget that is spent and data that do not fit are one word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from polyclinic.errors import ConfigError, ListRefusal, MessageRefused, ProtocolMismatch
from polyclinic.records.databases.engine import DataAway

Why = Literal["version", "roster", "declined", "overlap", "away", "disk", "disagrees", "malformed", "closed"]

SENTENCES: Final[Mapping[str, str]] = {
    "version": "version: it runs another version of Polyclinic",
    "roster": "roster: it is not on the roster under its own key",
    "declined": "declined: its owner's rules, its budget or its data do not allow it; its own log says why",
    "overlap": "overlap: with earlier exact studies this list of sites would give away one site's part",
    "away": "data away: its database does not answer",
    "disk": "disk: it cannot write",
    "disagrees": "disagrees: it does not come to the same step or public state, or was not asked what follows from them",
    "malformed": "malformed: it cannot read what it was sent",
    "closed": "closed: the study has ended there",
}
assert set(SENTENCES) == set(get_args(Why))


def why_of(error: BaseException) -> Why:
    """The word for an error; whatever is not about the messages themselves is the owner's business.

    >>> why_of(ProtocolMismatch("x")), why_of(ZeroDivisionError()), why_of(OSError(28, "No space left"))
    ('disagrees', 'declined', 'disk')
    """
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        return "disk"
    if isinstance(error, DataAway):
        return "away"
    if isinstance(error, ListRefusal):
        return "overlap"
    if isinstance(error, ProtocolMismatch):
        return "disagrees"
    if isinstance(error, MessageRefused) or type(error) is ConfigError:
        return "malformed"
    return "declined"


def told(why: Why | None) -> list[str]:
    """What a site said, in words that the coordinator knows; a text of the site's own never comes."""
    return [] if why is None else [SENTENCES[why]]
