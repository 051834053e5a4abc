"""Masked sum: the coordinator learns the sum and nothing else, also when sites drop out (after Bonawitz et al. 2017).

Every pair of neighbours adds a mask that the other subtracts; every site adds a mask of its own. In the sum the pairwise masks
cancel; the self-masks, and the pairwise masks of sites that were lost, are rebuilt from shares that the sites keep for each
other. All arithmetic is on whole numbers mod 2^64, so a masked vector is uniformly distributed. ::

    once a run   advertise   site -> coordinator   a fresh X25519 key, signed; the list that the site is bound to, if any
                 keys        coordinator -> site   everybody's, each with its owner's signature
    10, 20 sums  shares      site -> coordinator   shares of the secrets of the next sums, sealed for each keeper (``agreement``)
                 inbox       coordinator -> site   the shares that others sealed for it
    each sum     masked      site -> coordinator   encode(w x, w), tag + self-mask +/- pairwise masks (mod 2^64; tag mod 2^61 - 1)
                 survivors   coordinator -> site   whose vectors arrived in time
                 signed      site -> coordinator   votes for that list, one for each to check; ONE list per number (``promise``)
                 signatures  coordinator -> site   at least ``threshold`` votes for the same list
                 unmask      site -> coordinator   seed shares of survivors, lock shares of the lost; never both of one site
    any time     again       coordinator -> site   somebody has lost the keys: agree anew

Security. Honest-but-curious sites and a coordinator that may lie about who was lost: two different lists would need
``2 (threshold - colluders)`` honest votes out of ``sites - colluders``, hence ``2 threshold > sites + colluders`` is
required; and a sum over fewer than ``colluders + 2`` sites is never opened (``least_threshold``). Below the threshold the attempt is
aborted: no share has left a site, the keys are forgotten, a new attempt agrees on new ones, and so does the next sum whenever somebody
was lost. Keys live in memory and cannot be pickled. A site that sends false shares or votes can spoil the sum, but not open it.

The total. Whoever took part can check what it is shown afterwards: :meth:`MaskedSite.check` accepts the opened words only with
the tag that belongs to the sum of what the members sent (``aggregation.secure.total_check``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from polyclinic.aggregation.fixed_point import FixedPoint, stream
from polyclinic.aggregation.promise import Promises
from polyclinic.aggregation.secure.authenticated import AuthenticatedMessage
from polyclinic.aggregation.secure.client import MaskedSite, read
from polyclinic.aggregation.secure.key_agreement import Board, Session
from polyclinic.aggregation.secure.key_broadcast import KeyBroadcast
from polyclinic.aggregation.secure.server import MaskedCoordinator
from polyclinic.aggregation.vector import flatten, only_added
from polyclinic.errors import ConfigError
from polyclinic.protocol.interfaces import (
    Aggregator,
    AggregatorFacts,
    Contribution,
    Exchange,
    Roster,
    Step,
    least_threshold,
)
from polyclinic.protocol.wire.sealed import Identity, introduce, parties_digest

__all__ = ["Masked", "MaskedCoordinator", "MaskedSite", "least_threshold", "read", "stream"]


class Masked(Aggregator):
    """Secure aggregation through a coordinator that learns only the sum.

    Parameters
    ----------
    identities
        Signing keys of the parties that run HERE: between hospitals a party holds its own only; in one process
        :meth:`enrol` makes everybody's.
    least
        A site's own floor (policy ``min_sites``): it signs no list of survivors that is shorter, whatever the threshold.
    slots
        Sums for which secrets are shared at a time; ten at most the first time.
    once
        Agree on keys once a run; False: for every sum anew (the totals are the same bits).
    """

    facts: ClassVar[AggregatorFacts] = AggregatorFacts(
        "masked",
        "total",
        checked=True,
        saw={
            "the coordinator": "the sum over sites, {values}",
            "other sites": "masked messages and the sum over sites, {values}",
        },
    )

    def __init__(
        self,
        identities: Mapping[str, Identity] | None = None,
        *,
        least: int = 1,
        slots: int = 20,
        once: bool = True,
    ) -> None:
        if not 1 <= slots <= 255:
            raise ConfigError(f"slots {slots}: secrets are shared for 1 to 255 sums at a time")
        self.identities, self.least, self.slots, self.once = dict(identities or {}), least, slots, once
        self.sessions: dict[tuple[str, bytes], Session] = {}  # of the sites that run here, between sums, by roster
        self.boards: dict[bytes, Board] = {}  # the coordinator's, if it runs here
        self.introduced: dict[bytes, KeyBroadcast] = {}  # one process: everybody's keys are checked once
        self.agreed: dict[tuple[bytes, bytes], bytes] = {}  # one process: a pair's key is computed once, not twice

    def enrol(self, roster: Roster) -> Roster:
        """For one process: make a key for everybody and pin them; raise a threshold that is not given to the least safe one."""
        parties = [*roster.sites, roster.coordinator or "coordinator"]
        if not set(parties) <= set(self.identities):
            self.identities, _ = introduce(parties)
        threshold = roster.threshold if roster.threshold > 1 else least_threshold(len(roster.sites), roster.colluders)
        keys = {p: self.identities[p].public for p in parties}
        return replace(roster, coordinator=parties[-1], threshold=threshold, keys=keys)

    def noise_share(self, roster: Roster) -> float:
        """Each site adds ``1 / (threshold - colluders)`` of the noise variance, so that any allowed sum carries it all."""
        return 1.0 / (roster.threshold - roster.colluders)

    def exchange(
        self,
        me: str,
        roster: Roster,
        step: Step,
        mine: Contribution | None,
        *,
        promises: Promises | None = None,
    ) -> Exchange:
        """A site's side (with its contribution) or the coordinator's (with None)."""
        only_added(step, self.name)
        faults = self._roster_faults(me, roster)
        if (mine is None) != (me == roster.coordinator):
            faults.append(f"{me!r}: a site brings a contribution, the coordinator none")
        if faults:
            raise ConfigError("a masked sum is not safe with this roster", faults=faults)
        parties = parties_digest(roster)
        restart = roster.attempt > 0 or not self.once or (promises is not None and bool(promises.bound))
        board = None if restart or mine is not None else self.boards.get(parties)
        session = None if restart or mine is None else self.sessions.get((me, parties))
        lines: Mapping[str, bytes] = {} if board is None else board.lines
        if session is not None and roster.coordinator is not None:
            lines = {roster.coordinator: session.line}
        envelope = AuthenticatedMessage(me, roster, step, self.identities.get(me), lines=lines)
        if mine is None:
            return MaskedCoordinator(envelope, self, board)
        words = FixedPoint.of(step, len(roster.sites)).encode(flatten(step, mine, me), me)
        return MaskedSite(envelope, words, self, session, promises)

    def _roster_faults(self, me: str, roster: Roster) -> list[str]:
        """Why a sum over this roster would not be safe."""
        n, t, c = len(roster.sites), roster.threshold, roster.colluders
        faults = []
        if c < 1:
            faults.append(f"{c} colluders; at least 1: a curious site subtracts its own part and its own noise")
        if n < c + 2:
            faults.append(f"{n} sites; with fewer than {c + 2}, {c} pooling site(s) see the other's contribution")
        if n < self.least:
            faults.append(f"{n} sites; the owner of {me!r} asks for sums over at least {self.least}")
        if not least_threshold(n, c) <= t <= n:
            faults.append(f"threshold {t}; {n} sites with {c} colluders need {least_threshold(n, c)}..{n}")
        if roster.coordinator is None or roster.coordinator in roster.sites:
            faults.append(f"coordinator {roster.coordinator!r} must be a party apart from the sites")
        if len(set(roster.sites)) != n:
            faults.append("a site appears twice")
        return faults
