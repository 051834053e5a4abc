"""Waiting for the owner: a release is laid out, and leaves when a person has said so; what was said goes to the book."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from polyclinic.errors import PolicyRefusal
from polyclinic.privacy.facts import AggregatorFacts, MethodFacts
from polyclinic.privacy.gate.outbox import Outbox, Pending
from polyclinic.privacy.gate.release_store import bytes_digest
from polyclinic.privacy.gate.review import facts_digest, in_words
from polyclinic.privacy.ledger.entries import Approve, Reject
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.release import Contribution, Step

__all__ = ["Reviewer", "Waiting"]

LOOK: float = 0.2  # seconds between two looks at the outbox


@dataclass(frozen=True)
class Waiting:
    """One release that asks to leave.

    Attributes
    ----------
    study, method, site, order
        Whose it is.
    id
        Its name in the store.
    step, share, by
        What is public about it.
    release
        The values, as they would leave.
    here
        What this site's own values say, for the owner alone; never part of what is approved.
    """

    study: str
    method: str
    site: str
    order: str
    id: str
    step: Step
    share: float
    by: AggregatorFacts
    release: Contribution
    here: Sequence[str] = ()

    def shown(self, facts: MethodFacts, *, each: bool) -> dict[str, object]:
        """What the owner is shown; its digest goes to the book with the decision."""
        step = self.step
        return {
            "study": self.study,
            "method": self.method,
            "site": self.site,
            "order": self.order,
            "round": step.round,
            "step": step.name,
            "shapes": {k: list(v) for k, v in step.shapes.items()},
            "how": step.how,
            "noise_sd": step.noise_sd,
            "approves": "these values" if each else "every release of this step with these facts",
            "words": [*in_words(step, self.share, self.by, facts), *self.here],
        }


@dataclass(frozen=True)
class Reviewer:
    """Asks the owner for these very bytes (``each``), or once for everything public about a step (``names``).

    Attributes
    ----------
    outbox
        Where releases wait.
    ledger
        Where decisions are written.
    each
        Whether every release is asked for.
    wait
        Seconds to wait before giving up; the run can be resumed.
    """

    outbox: Outbox
    ledger: Ledger
    each: bool
    wait: float

    def let_out(self, waiting: Waiting, facts: MethodFacts) -> Contribution:
        """The release, once the owner agrees; a refusal if the owner rejects it, or does not say in time."""
        step, order = waiting.step, waiting.order
        of = bytes_digest(step, waiting.release) if self.each else facts_digest(step, waiting.share, waiting.by)
        if not self.each and self._agreed(order, step, of):
            return waiting.release
        ticket = f"{waiting.id}-{of[:32]}"  # approval is of these values, or of these facts, not of a name
        shown = waiting.shown(facts, each=self.each)
        said = self._asked(ticket, waiting, shown, of)
        if said is None:
            return waiting.release  # agreed to ahead, while it waited
        note = f"shown {hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()}"
        if said.state == "approved":
            if not self._agreed(order, step, of):
                self.ledger.write(Approve(order, step.name, of, said.decided_by, note))
            return waiting.release
        rejected = said.state == "rejected"
        if rejected:
            self.ledger.write(Reject(order, step.name, of, said.decided_by, note))
        verb = "was rejected by the owner" if rejected else "waits for the owner's approval"
        raise PolicyRefusal(
            f"site {waiting.site!r}, study {waiting.study!r}, round {step.round}, step {step.name!r}: the release {verb}",
            faults=[f"release {ticket}"],
            hint="" if rejected else "read and approve it with `polyclinic ledger approve`, then resume the run",
        )

    def _asked(self, ticket: str, waiting: Waiting, shown: dict[str, object], of: str) -> Pending | None:
        end = time.monotonic() + self.wait
        said = self.outbox.put(ticket, waiting.release, shown)
        while said.state == "pending" and time.monotonic() < end:
            time.sleep(min(LOOK, self.wait))
            said = self.outbox.get(ticket)
            if not self.each and self._agreed(waiting.order, waiting.step, of):
                return None
        return said

    def _agreed(self, order: str, step: Step, of: str) -> bool:
        return self.ledger.tally.approves(order, step.name, of)
