"""How a study stands at a site: loading, waiting for its owner, ready, refused or over; and what the coordinator hears of that."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from polyclinic import __version__
from polyclinic.errors import MessageRefused, PolicyRefusal, PolyclinicError, ProtocolMismatch
from polyclinic.node.messages import Done, Stage, Status
from polyclinic.node.refusals import Why, why_of
from polyclinic.node.signed_study import StudyOrder
from polyclinic.node.site.record import Record
from polyclinic.node.site.replica import SiteReplica
from polyclinic.privacy.ledger.rollback_check import RollbackCheck
from polyclinic.protocol.wire.sealed import Identity


class StandingReplica(SiteReplica):
    """A site's own state of a study, with the word for it.

    Parameters
    ----------
    log, watch, ended
        As of :class:`~polyclinic.node.site.worker.SiteStudy`.
    """

    def __init__(
        self,
        order: StudyOrder,
        identity: Identity,
        record: Record,
        *,
        log: Callable[..., None],
        watch: RollbackCheck | None,
        ended: Callable[[], object],
    ) -> None:
        super().__init__(order, identity, record)
        self.log, self.watch, self.ended = log, watch, ended
        self.stage: Stage = "loading"
        self.reasons: list[str] = []  # the owner's to read
        self.why: Why | None = None  # all that the coordinator hears of them
        self.shown: Status | None = None  # at a public pace: how the site stood before the answer that is computed now
        self._last: tuple[Done, Status] | None = None  # the study has ended here
        self._life = secrets.token_hex(8)

    def over(self) -> bool:
        """Whether the study had ended here before this process began: then its data go, and its last answer is all there is."""
        closed = self.record.closed
        if closed is not None:
            self.stage, self._last = "ready", closed
            if self.watch is not None:
                self.watch.ledger.close(self.order.digest, "finished")  # the line first, then the data
        elif self.watch is not None and self.order.digest in self.watch.ledger.tally.closed:
            self.stage, self.why = "refused", "closed"  # cancelled, or erased by the owner
        else:
            return False
        self.ended()
        return True

    @property
    def ended_here(self) -> bool:
        """Whether nothing more leaves in this study."""
        return self._last is not None or self.stage == "refused"

    def wait(self, reasons: list[str]) -> None:
        """The owner has been asked."""
        self.stage, self.reasons = "waiting", reasons

    def refuse(self, error: BaseException) -> None:
        """The site takes no part, or no longer: in our log in full; the coordinator hears a word."""
        if self.why == "closed":  # cancelled: what it was doing then may end in any way
            return
        if isinstance(error, PolyclinicError):
            refused = isinstance(error, PolicyRefusal | MessageRefused | ProtocolMismatch)
            kind, what, faults = "refused" if refused else "failed", error.what, list(error.faults)
            self.log(event=kind, study=self.order.id, code=error.code, what=what, reasons=faults)
        else:
            what, faults = f"{type(error).__name__}: {error}", []
            self.log(event="failed", study=self.order.id, error=what)
        word = why_of(error)
        if self.order.keys.get(self.me) != self.identity.public.hex():
            word = "roster"
        if self.order.polyclinic.split(".")[:2] != __version__.split(".")[:2]:
            word = "version"
        self.stage, self.reasons, self.why = "refused", [what, *faults], word

    def here(self, *, full: bool = False) -> Status:
        """How the site stands; may be read at any time, also while it works."""
        if self._last is not None:
            return replace(self._last[1], life=self._life)
        out = self.shown or Status(self.stage, self._life, self.number, self.mark.prepared, self._after, self.why)
        if self.order.peers and self._after and self.fold is not None:
            out = replace(out, vote=self._vote(self.fold))  # said before, and again: a killed coordinator has lost it
        if full and self.stage == "ready":
            out = replace(out, setting=self.context.setting, noise=self.context.gate.noise.label)
        return out

    def hold(self) -> None:
        """Show how the site stands now, until the answer that is computed next has left."""
        self.shown = replace(self.here(), books=b"" if self.watch is None else self.watch.hear())

    @property
    def _after(self) -> bytes:
        """Peers: the chain after the prepared sum, once it is known here."""
        return b"" if self.mark.after is None else bytes(self.mark.after["chain"])
