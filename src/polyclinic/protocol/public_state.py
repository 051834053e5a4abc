"""The public side of the fold: state, number, step and chain; with history, traffic and releases where it is conducted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import MessageRefused, ProtocolMismatch
from polyclinic.privacy.accounting.accountant import gaussian_mu
from polyclinic.privacy.accounting.noise_grid import on_grid
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.interfaces import Aggregator, Method, Release, Roster, Schema, Step, Total, seeds
from polyclinic.protocol.outcome import Figures, History, Progress
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import ChainLink, Opened, alike, grow, state_digest, within
from polyclinic.protocol.wire.integer_width import width
from polyclinic.protocol.wire.traffic import Traffic
from polyclinic.util.json_types import JsonMap


class PublicState:
    """The fold itself: the public state, the number of the next sum and its step, and the chain of sums that led there.

    Every site has one and believes no other: step, number and public state are derived here, from the order and the totals.

    Parameters
    ----------
    method, setting
        What is computed, of what; from the order and the site's own data.
    share
        Part of the noise variance that each site adds; of the order, the same in all attempts.
    chain
        :func:`polyclinic.protocol.wire.chain.root`; empty in one process, where nobody has to be convinced.
    """

    def __init__(self, method: Method, setting: Schema, share: float, chain: bytes = b"") -> None:
        self.method, self.setting, self.share = method, setting, share
        self.public: Any = None
        self.number = 0
        self.chain, self.before = chain, b""  # now, and before the last sum: what others have voted for
        self.link: ChainLink | None = None  # between the two

    def begin(self) -> None:
        """The public start."""
        self.public = wire.canonical(self.method.init_public(self.setting, seeds(self.method.params.seed, "begin")))

    def step(self) -> Step | None:
        """The next sum to take; None when the method is finished."""
        if self.public is None:
            self.begin()
        return self._known(self.method.next_step(self.public))

    def _known(self, step: Step | None) -> Step | None:
        """The ONE place where a step learns at how many sites a patient may be, and the grid of its noise."""
        if step is None:
            return None
        privacy = self.method.params.privacy
        if noisy(privacy):
            step = replace(step, sites_per_patient=max(step.sites_per_patient, privacy.max_sites_per_patient))
        return on_grid(step, self.share)

    def fold(self, step: Step, total: Total) -> Any:
        """The public state after a sum; not taken yet."""
        return wire.canonical(self.method.update_public(step, self.public, total))

    def take(self, public: object, link: ChainLink | None = None) -> None:
        """Go on to the next sum."""
        self.public = public
        self.number += 1
        if link is not None:
            self.chain, self.before, self.link = grow(self.chain, link), self.chain, link

    def follow(self, opened: Opened, step: Step, agreed: object = None) -> bool:
        """Fold a total that another party relayed, already checked against ``step``; False if the bits are not the sender's.

        ``agreed`` are then the sender's bits (a packed state): taken over where they are this party's own within the method's
        slack and lead to the same next step (its floats within the slack, too), and refused otherwise.
        """
        if (
            opened.public is not None
        ):  # only the coordinator saw the parts; what it made of them must at least be a state
            state = wire.canonical(wire.unpack(self.method.Public, opened.public))
            if not alike(wire.pack(self.public), wire.pack(state)):
                raise MessageRefused(f"sum {opened.number}: a public state of other shapes than before")
        else:
            state = self.fold(step, opened.total)
        digest = state_digest(state)
        if digest != opened.state:
            if agreed is None:
                return False
            theirs = wire.canonical(wire.unpack(self.method.Public, agreed))
            equal = within(wire.pack(state), wire.pack(theirs), self.method.slack)
            if equal:  # only then is it a state at all; a step's bound may be a float of its own
                steps = (wire.pack(self.method.next_step(state)), wire.pack(self.method.next_step(theirs)))
                equal = within(*steps, self.method.slack)
            if not equal or state_digest(theirs) != opened.state:
                raise ProtocolMismatch(
                    f"sum {opened.number}: the public state that was sent does not follow from the total"
                )
            state, digest = theirs, opened.state
        self.take(state, opened.link(step, digest))
        return True

    def state(self) -> dict[str, object]:
        """Everything public that is needed to go on later."""
        return {"public": wire.pack(self.public), "number": self.number, "chain": self.chain, "before": self.before}

    def restore(self, state: JsonMap) -> None:
        """Go on from :meth:`state`."""
        self.public = wire.unpack(self.method.Public, state["public"])
        self.number, self.chain, self.before = int(state["number"]), bytes(state["chain"]), bytes(state["before"])


class CoordinatorState(PublicState):
    """A fold with its history, its traffic and what was released: the coordinator's, and that of one process.

    Under a sum without a coordinator every site has its own, and all are bit-equal.
    """

    def __init__(
        self,
        method: Method,
        setting: Schema,
        adder: Aggregator,
        roster: Roster,
        progress: Callable[[Progress], None] | None = None,
        chain: bytes = b"",
    ) -> None:
        super().__init__(method, setting, adder.noise_share(roster), chain)
        self.adder, self.roster, self.progress = adder, roster, progress
        self.history: History = []
        self.traffic = Traffic()
        self.releases: list[Release] = []
        self._packed: list[object] = []  # the same for the checkpoint; a release stays what it is
        self.protocol = f"{method.name}/{method.version}"
        self._clock = time.perf_counter()
        self._spent = 0.0

    def begin(self) -> None:
        """The public start."""
        super().begin()
        self._tell("begin", 0, {})

    def step(self) -> Step | None:
        """The next sum to take; None when the method is finished."""
        step = super().step()
        if step is None:
            self._tell("end", self.traffic.rounds, {})
        return step

    def commit(
        self,
        step: Step,
        total: Total,
        members: Iterable[str] = (),
        entered: Mapping[str, tuple[int, int]] | None = None,
        words: NDArray[np.uint64] | None = None,
    ) -> Opened | None:
        """A sum was taken: the next public state, and the round's figures if it was its last.

        ``entered``: whose contributions, where others are to follow; what they need for it is returned. ``words``: of a
        masked sum, as it was opened, with the tag by which the sites check it.
        """
        public, announcement = self.fold(step, total), None
        if entered is not None:
            packed = None if step.how == "sum" else wire.pack(public)
            attempt = max(a for _, a in entered.values())
            sites = () if words is None else self.roster.sites
            announcement = Opened(self.number, attempt, entered, total, state_digest(public), packed, words, sites)
            self.take(public, announcement.link(step, announcement.state))
        else:
            self.take(public)
        leak = gaussian_mu(self.adder.leakage(self.roster, step))
        self.releases.append(
            Release(
                len(self.releases),
                step,
                self.share,
                self.roster.attempt,
                tuple(sorted(entered or members)),
                self.adder.facts,
                float("inf") if leak is None else leak,
            )
        )
        if step.counts:
            self.traffic.rounds = max(self.traffic.rounds, step.round)
        next_step = self.method.next_step(self.public)
        if step.round and (next_step is None or next_step.round != step.round):
            self._close_round(step.round)
        return announcement

    def down(self, step: Step, total: Total, members: Sequence[str], words: NDArray[np.uint64] | None = None) -> int:
        """Bytes of what every site is sent after a sum: the opened total, which it folds itself, as between hosts.

        The public state goes with it only where a site cannot compute it (a step that gathers).
        """
        contributions = dict.fromkeys(members, (self.number, self.roster.attempt))
        public = wire.pack(self.public) if step.how == "gather" else None  # of the same shapes as the next one
        sites = () if words is None else self.roster.sites
        return wire.size(
            Opened(self.number, self.roster.attempt, contributions, total, bytes(32), public, words, sites).pack()
        )

    @staticmethod
    def payload(step: Step) -> int:
        """Bytes of the arrays that each site contributes to the model; 0 for set-up and scores."""
        asides = sum(int(np.prod(step.shapes[a])) for a in step.asides)
        return width(step) * (step.size - asides) if step.counts else 0

    def _close_round(self, number: int) -> None:
        clock = time.perf_counter()
        self._spent += clock - self._clock
        self._clock = clock
        bytes_up, bytes_down = self.traffic.in_round(number)
        figures = dict(self.method.round_metrics(self.public))
        self.history.append(
            {"round": number, "seconds": self._spent, **figures, "bytes_up": bytes_up, "bytes_down": bytes_down}
        )
        kind = "round" if number <= self.traffic.rounds else "analysis"  # sums after the fit change no model
        self._tell(kind, number, {**figures, "bytes_up": bytes_up, "bytes_down": bytes_down})

    def _tell(self, kind: str, number: int, figures: Figures) -> None:
        if self.progress is not None:
            self.progress(Progress(kind, self.method.name, number, self.method.params.rounds or 0, figures))

    # ---- the checkpoint: the public state is a plain value

    def state(self) -> dict[str, object]:
        """Everything public that is needed to go on later."""
        self._packed += [wire.pack(r) for r in self.releases[len(self._packed) :]]
        return {
            **super().state(),
            "link": None if self.link is None else wire.pack(self.link),
            "protocol": self.protocol,
            "history": self.history,
            "traffic": self.traffic.state(),
            "releases": list(self._packed),
            "spent": self._spent,
        }

    def restore(self, state: JsonMap) -> None:
        """Go on from :meth:`state`; the result is the same as without the interruption."""
        if state["protocol"] != self.protocol:
            raise ProtocolMismatch(f"checkpoint of {state['protocol']!r}, this run is {self.protocol!r}")
        super().restore(state)
        self.link = None if state["link"] is None else wire.unpack(ChainLink, state["link"])
        self.history = [dict(h) for h in state["history"]]
        self.traffic = Traffic.restore(dict(state["traffic"]))
        self._packed = list(state["releases"])
        self.releases = [wire.unpack(Release, r) for r in self._packed]
        self._spent = float(state["spent"])
        self._clock = time.perf_counter()
