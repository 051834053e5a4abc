"""Ask the owner before a release leaves: what an owner reads, what an approval approves, and waiting for it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from polyclinic.errors import PolicyRefusal
from polyclinic.privacy.facts import AggregatorFacts, MethodFacts
from polyclinic.privacy.gate.outbox import Outbox, Pending
from polyclinic.privacy.gate.release_store import bytes_digest
from polyclinic.privacy.ledger.entries import Approve, Reject
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.release import Contribution, Step
from polyclinic.tensors.sparse import SparseTensor

AHEAD = "ahead"  # approved before the study, by the name of its step alone
LOOK: float = 0.2  # seconds between two looks at the outbox


def facts_digest(step: Step, share: float, by: AggregatorFacts) -> str:
    """What ``review = "names"`` approves: everything public about a step but its round.

    A later step of the same name with any other of these facts waits again. The bound is one of them only where noise is
    drawn for it: in exact steps it follows the size of the model from round to round and tells nothing.
    """
    words: list[object] = [
        step.name,
        {k: list(v) for k, v in sorted(step.shapes.items())},
        step.how,
        step.adjacency,
        share,
        by.name,
        by.reveals,
    ]
    if step.noise_sd > 0:
        words += [step.bound, step.sensitivity, step.multiplier, step.grid, step.sites_per_patient]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def in_words(step: Step, share: float, by: AggregatorFacts, facts: MethodFacts) -> list[str]:
    """Write the step as an owner reads it: what it is, who sees it, the noise, what it could tell."""
    meaning = facts.meaning(step.name)
    numbers = f"{len(step.shapes)} array{'s' if len(step.shapes) > 1 else ''}, {step.size:,} numbers"
    noisy, gathered = step.noise_sd > 0, step.how == "gather"
    parties = _parties(by, "with noise" if noisy else "exact")
    lines = [
        f"step {step.name!r}: {numbers}: {meaning.what if meaning is not None else 'its author says nothing about it'}",
        "who sees it: " + ("the coordinator: your own values, by themselves" if gathered else parties),
    ]
    if noisy:
        part = "" if share == 1.0 else f", of which this site adds {share:.3g} of the variance"
        protected = "one patient" if step.adjacency == "patient" else "one entry"
        noise = f"{step.multiplier:.4g} times what {protected} can move, standard deviation {step.noise_sd:.4g}"
        return [*lines, f"noise: {noise} in the sum{part}"]
    lines.append("noise: none")
    if meaning is not None and meaning.could_tell:
        lines.append(f"could tell: {meaning.could_tell}")
    attacks = facts.known(each=gathered or by.reveals == "each", exact=True, ran=[step.name])
    return lines + [f"shown to work: {a}" if facts.attacks is not None else a for a in attacks]


def _parties(by: AggregatorFacts, values: str) -> str:
    return "; ".join(f"{party}: {text.format(values=values)}" for party, text in by.saw.items())


def list_ahead(facts: MethodFacts, by: AggregatorFacts) -> Mapping[str, list[str]]:
    """All steps of a method before a study starts, each in words: one sitting, and nothing waits in the night."""
    parties = _parties(by, "as the study asks")
    return {
        name: [
            f"step {name!r}: {m.what}",
            f"who sees it: {parties}",
            *([f"could tell: {m.could_tell}"] if m.could_tell else []),
        ]
        for name, m in facts.steps.items()
    }


def rare_here(tensor: SparseTensor, minimum: int) -> tuple[str, ...]:
    """How many codes few patients of this site have, for each mode: what exact sums by code could tell is about them.

    Parameters
    ----------
    tensor
        The site's counts, patients first.
    minimum
        Patients from which a count may be shown (``[policy] min_cell``).

    Examples
    --------
    >>> coords = np.array([[0, 0], [1, 0], [2, 0], [2, 1]])
    >>> rare_here(SparseTensor(coords, np.ones(4), (3, 5)), 2)
    ("here: 1 of 5 codes of 'mode 1' have fewer than 2 patients (3 have none)",)
    """
    notes = []
    patients = np.asarray(tensor.coords[:, 0], np.int64)
    for m in range(1, len(tensor.shape)):
        codes, size = np.asarray(tensor.coords[:, m], np.int64), tensor.shape[m]
        codes_of_patients = np.unique(patients[tensor.values != 0] * size + codes[tensor.values != 0]) % size
        carriers = np.bincount(codes_of_patients, minlength=size)
        rare, unused = int(((carriers > 0) & (carriers < minimum)).sum()), int((carriers == 0).sum())
        name = tensor.axes[m].name
        notes.append(
            f"here: {rare} of {size} codes of {name!r} have fewer than {minimum} patients ({unused} have none)"
        )
    return tuple(notes)


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
        digest = bytes_digest(step, waiting.release) if self.each else facts_digest(step, waiting.share, waiting.by)
        if not self.each and self._agreed(order, step, digest):
            return waiting.release
        ticket = f"{waiting.id}-{digest[:32]}"  # approval is of these values, or of these facts, not of a name
        review_text = waiting.shown(facts, each=self.each)
        decision = self._asked(ticket, waiting, review_text, digest)
        if decision is None:
            return waiting.release  # agreed to ahead, while it waited
        note = f"shown {hashlib.sha256(json.dumps(review_text, sort_keys=True).encode()).hexdigest()}"
        if decision.state == "approved":
            if not self._agreed(order, step, digest):
                self.ledger.write(Approve(order, step.name, digest, decision.decided_by, note))
            return waiting.release
        rejected = decision.state == "rejected"
        if rejected:
            self.ledger.write(Reject(order, step.name, digest, decision.decided_by, note))
        verb = "was rejected by the owner" if rejected else "waits for the owner's approval"
        raise PolicyRefusal(
            f"site {waiting.site!r}, study {waiting.study!r}, round {step.round}, step {step.name!r}: the release {verb}",
            faults=[f"release {ticket}"],
            hint="" if rejected else "read and decide: polyclinic site review; then resume the run",
        )

    def _asked(self, ticket: str, waiting: Waiting, shown: dict[str, object], of: str) -> Pending | None:
        end = time.monotonic() + self.wait
        decision = self.outbox.put(ticket, waiting.release, shown)
        while decision.state == "pending" and time.monotonic() < end:
            time.sleep(min(LOOK, self.wait))
            decision = self.outbox.get(ticket)
            if not self.each and self._agreed(waiting.order, waiting.step, of):
                return None
        return decision

    def _agreed(self, order: str, step: Step, of: str) -> bool:
        return self.ledger.tally.approves(order, step.name, of)
