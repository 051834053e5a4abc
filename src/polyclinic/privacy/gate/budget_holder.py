"""Hold a budget: an owner's rules, the owner's ledger, and the patients whose budget it is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from polyclinic.errors import ListRefusal
from polyclinic.privacy.accounting.accountant import Event
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.gate.data_source import Register
from polyclinic.privacy.ledger.balance import Balance, cost
from polyclinic.privacy.ledger.entries import Counted, Evaluate, Refuse, Reserve, Rules
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.policy.policy import Policy, StudyRequest, price


@dataclass(frozen=True)
class BudgetHolder:
    """One owner's budget.

    Attributes
    ----------
    policy
        The owner's rules; None in simulation: everything may leave (and is recorded).
    ledger
        The owner's ledger.
    cohort
        The patients that pay.
    beside
        Cohorts of this very run that have no patient in common with this one: other parts of one node.
    """

    policy: Policy | None
    ledger: Ledger
    cohort: str = "all"
    beside: tuple[str, ...] = ()

    def study_faults(self, asked: StudyRequest) -> list[str]:
        """Why the owner does not take part; empty if the owner does."""
        if self.policy is None:
            return []
        # an exact sum is no matter of a budget, but of the other rules
        claim = None if asked.privacy is None else self.ledger.claim
        faults = [] if claim is None else Register.of_user().faults(claim())
        return faults + self.policy.study_faults(self.ledger.tally, asked, self.cohort, self.beside)

    def reserve(self, order: str, study: str, privacy: Privacy | None, margin: float, seconds: float) -> list[str]:
        """Set aside what the study may charge; the reasons if another study came first."""
        policy = self.policy
        if policy is None:
            return []
        claim = self.ledger.claim if policy.limited and privacy is not None else None
        if claim is not None and (claim_faults := Register.of_user().claim(claim())):
            return claim_faults
        events: tuple[Event, ...] = price(privacy, margin)

        def faults(tally: Balance) -> list[str]:
            if not events:
                return []
            return policy.budget_faults(
                tally, cost(events), study=study, cohort=self.cohort, margin=margin, beside=self.beside
            )

        rules = policy.model_dump_json(exclude_defaults=True)
        digest = hashlib.sha256(rules.encode()).hexdigest()
        if self.ledger.tally.policy != digest:
            self.ledger.write(Rules(digest, rules))
        body = Reserve(order, study, self.cohort, events, time.time() + seconds, digest)
        return self.ledger.reserve(body, unless=faults)

    def refuse(self, order: str, faults: Sequence[str]) -> None:
        """What was set aside is free again."""
        if self.policy is not None and order in self.ledger.tally.open:
            self.ledger.write(Refuse(order, "policy", tuple(faults)))

    def pay(self, charge: Charge) -> None:
        """Check the owner's rules and write the line, as one: no other study can come in between."""
        policy, charge = self.policy, replace(charge, cohort=self.cohort)

        def faults(tally: Balance) -> list[str]:
            return [] if policy is None else policy.charge_faults(tally, charge, beside=self.beside)

        self.ledger.charge(charge, unless=faults)

    def asks_exactly(self, order: str, what: str) -> None:
        """Write that an exact study is asked, or refuse it: checked and written under the ledger's lock, before records are read."""
        policy = self.policy
        if policy is None or order in self.ledger.tally.exact:
            return
        since = (datetime.now(UTC) - timedelta(days=365)).isoformat()
        self.ledger.write(
            Evaluate(order, self.cohort), unless=lambda tally: policy.exact_faults(tally, order, since), what=what
        )

    def counts(self, order: str, sites: Sequence[str], willing: Sequence[str], what: str, *, write: bool) -> None:
        """Agree to an exact secure sum over these sites, or refuse it; the line is written once for an order and a list.

        Parameters
        ----------
        order
            Digest of the order.
        sites
            Who is counted.
        willing
            Sites whose owners signed that their own part may be computed by subtraction.
        what
            Said where it is refused.
        write
            False: look only.
        """
        policy, names = self.policy, tuple(sorted(sites))
        if policy is None or any(c[0] == order and tuple(c[2]) == names for c in self.ledger.tally.counted):
            return

        def faults(tally: Balance) -> list[str]:
            reasons = policy.repeat_faults(tally, names, self.cohort, willing)
            if reasons:
                raise ListRefusal(
                    what, faults=reasons, hint="docs/explanation/threat-model.md lists which lists are taken"
                )
            return []

        if write:
            self.ledger.write(Counted(order, self.cohort, names), unless=faults, what=what)
        else:
            faults(self.ledger.tally)
