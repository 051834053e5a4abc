"""What a site brings to a study that it has agreed to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.interfaces import Aggregator, Exchange, Method, Roster
from polyclinic.records.sites.site import Site


def _unasked(sites: tuple[str, ...], write: bool) -> None:
    """Nobody compares lists where all sites are in one hand."""


@dataclass(frozen=True)
class SiteContext:
    """Everything a site needs for a study that it has agreed to."""

    method: Method
    site: Site
    adder: Aggregator
    gate: ReleaseGate
    setting: dict[str, Any]  # what is public about this site: shape, codes, their digests
    min_sites: int = 1  # the owner's floor for every secure sum, and for agreeing on codes
    max_numbers: int = 2**22  # of one release, and of the model
    all_witnesses: bool = (
        False  # nothing leaves before everybody on the order has told what is known of this site's book
    )
    counts: Callable[[tuple[str, ...], bool], None] = (
        _unasked  # may these sites be in an exact secure sum? written: they are
    )
    report: Callable[[str], None] | None = None  # a formal study: faults of records go to the owner's log only
    elsewhere: int | None = None  # at how many other hospitals the owner says that a patient may be
    agreed: float = 0.0  # when the owner's agreement was there, by the clock of the process


class Aligner(Protocol):
    """How a site agrees with the others on codes before the first sum."""

    def side(self, context: SiteContext, roster: Roster) -> Exchange:
        """The site's mailbox."""

    def agreed(self, side: Exchange, attempt: int) -> dict[str, object]:
        """What was agreed on, to be kept."""

    def apply(self, agreed: Mapping[str, object], context: SiteContext) -> SiteContext:
        """The site on the common codes."""
