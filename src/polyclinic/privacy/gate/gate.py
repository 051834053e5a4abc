"""Check, add noise, store, charge and let out: the one way out of a hospital, in this order.

A release is drawn ONCE. Its bytes are on disk under a provisional name before its line is in the ledger, and get their name
afterwards: bytes without a line never left and are drawn anew; a line without its bytes is refused, never drawn again.
Another attempt at the same sum sends the same bytes and pays nothing, but for what the way to add itself leaks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.privacy.accounting.accountant import Event, Unbounded
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import versions
from polyclinic.privacy.accounting.mechanisms import Noise, SimulatedNoise, add_noise
from polyclinic.privacy.accounting.noise_grid import NoiseScale, check_grid, event_of, noise_scale, together
from polyclinic.privacy.facts import PLAIN, AggregatorFacts, MethodFacts
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.gate.release_store import ReleaseStore, bytes_digest, release_digest
from polyclinic.privacy.gate.review import Reviewer, Waiting
from polyclinic.privacy.ledger.ledger import Charge, Ledger
from polyclinic.privacy.policy.policy import Policy, StudyRequest
from polyclinic.privacy.release import Contribution, Step


@dataclass(frozen=True)
class Waits:
    """How long a gate waits, in seconds.

    Attributes
    ----------
    decision
        For the owner's decision on a release before giving up; the run can be resumed.
    resumption
        For a run that stopped, before what was set aside for it is given back.
    """

    decision: float = 0.0
    resumption: float = 14 * 86_400.0


WAITS: Final = Waits()


class ReleaseGate:
    """Everything that leaves a site passes here, and nothing passes unpaid.

    Parameters
    ----------
    site
        Name of the site.
    policy
        The owner's rules; None in simulation: everything may leave (and is recorded).
    ledger
        What was spent; None: a new one in memory.
    noise
        Source of noise; None: simulated, and labelled so.
    study
        Name of the study; ``admit`` may set it later.
    store
        Folder where each release is kept as it left, so that a resumed run sends the same bytes; None: in memory.
    outbox
        Folder of releases that wait for the owner (policy ``review``); default ``store / "outbox"``.
    cohort
        The patients that pay; budgets are per cohort.
    waits
        How long to wait for the owner, and for a run that stopped.
    run
        A name of this one run of the study.
    beside
        Cohorts of this very run that have no patient in common with this one: other parts of one node.
    others
        Further owners of the same patients' records (sites that were joined): all have to agree, and all pay.

    Examples
    --------
    >>> import numpy as np
    >>> step = Step(1, "counts", {"x": (2,)}, bound=100.0, sensitivity=1.0, multiplier=10.0)
    >>> gate = ReleaseGate("north")
    >>> out = gate.release(step, Contribution({"x": np.array([3.0, 4.0])}), share=1.0)
    >>> round(gate.ledger.epsilon(1e-6), 3)
    0.397
    """

    def __init__(
        self,
        site: str,
        *,
        policy: Policy | None = None,
        ledger: Ledger | None = None,
        noise: Noise | None = None,
        study: str = "",
        store: Path | None = None,
        outbox: Path | None = None,
        cohort: str = "all",
        waits: Waits = WAITS,
        run: str = "",
        beside: Sequence[str] = (),
        others: Sequence[BudgetHolder] = (),
    ) -> None:
        self.site = site
        self.policy = policy
        self.ledger = Ledger(site=site) if ledger is None else ledger
        self.noise: Noise = SimulatedNoise() if noise is None else noise
        self.study = study
        self.method = ""
        self.aggregation = ""
        self.facts = MethodFacts()  # of the method that runs: the words an owner reads
        self.here: tuple[str, ...] = ()  # what the site's own records say beside them; never leaves
        self.once = False  # a sum that was released is sent again as it was, also where the records have changed since
        self.max_sites = 1
        self.patients: int | None = None  # here; known once the study was admitted
        self.cohort, self.beside = cohort, tuple(beside)
        self.others = tuple(others)
        self.waits = waits
        self.run = run
        self.store = ReleaseStore(store)
        folder = outbox if outbox is not None else None if store is None else store / "outbox"
        self.outbox = None if folder is None else Outbox(folder)
        self.session = ""
        self._fresh = False
        if policy is not None and policy.review != "none" and self.outbox is None:
            raise ConfigError(
                f"site {site!r}: review = {policy.review!r} needs an outbox", hint="give store= or outbox= a folder"
            )

    def admit(
        self,
        study: str,
        method: str,
        privacy: Privacy | None = None,
        sites: int | Sequence[str] = 1,
        patients: int = 0,
        *,
        aggregation: str = "",
        resume: bool = False,
        margin: float = 0.0,
    ) -> None:
        """Agree to a study, or refuse it with every reason, before anything is computed.

        Parameters
        ----------
        study, method
            Their names.
        privacy
            What the study asks for.
        sites
            The sites that take part, or how many.
        patients
            Number of patients here; it is not quoted in a refusal.
        aggregation
            How contributions are added; written in the ledger.
        resume
            The study was admitted before and goes on: what it spent is not counted twice.
        margin
            Part of the price that is set aside for what the way to add leaks (``Sum.margin``).
        """
        self.study, self.method, self.aggregation = study, method, aggregation
        self.max_sites = 1 if privacy is None else privacy.max_sites_per_patient
        self.patients = patients
        if self.policy is None and not self.others:
            return
        if not self._run:
            self.begin()
            self._fresh = True
        order = self._run
        count = sites if isinstance(sites, int) else len(sites)
        request = StudyRequest(study, method, privacy, count, patients, order, resume, margin)
        faults: list[str] = []
        for p in self._payers:
            faults += p.study_faults(request)
        if not faults and not resume:
            for p in self._payers:
                faults += p.reserve(order, study, privacy, margin, self.waits.resumption)
        if faults:
            for p in self._payers:
                p.refuse(order, faults)
            raise PolicyRefusal(
                f"site {self.site!r} does not take part in study {study!r}; nothing was computed",
                faults=list(dict.fromkeys(faults)),
                hint="ask the owner of the data, or change the study",
            )

    def give_back(self, why: str) -> None:
        """The study does not begin, because of somebody else: what was set aside is free, and it may be asked again."""
        for p in self._payers if self._run else ():
            p.refuse(self._run, [why])

    @property
    def _payers(self) -> tuple[BudgetHolder, ...]:
        """The gate's own ledger last: where it has a line, all have."""
        return (*self.others, BudgetHolder(self.policy, self.ledger, self.cohort, self.beside))

    def asks_exactly(self) -> None:
        """Write that an exact study is asked, or refuse it, before records are read."""
        for p in self._payers:
            p.asks_exactly(
                self._run, f"site {self.site!r} does not take part in study {self.study!r}: its sums are exact"
            )

    def close(self, reason: str = "finished") -> None:
        """The run is over: what it did not charge is free again, and nothing more leaves under it."""
        for p in self._payers if self._run else ():
            p.ledger.close(self._run, reason)

    def begin(self, session: str | None = None) -> str:
        """A new run in this process begins (or, with the name of its session, goes on): its releases are its own."""
        if session is None and self._fresh:  # the run that was just admitted
            self._fresh = False
            return self.session
        self.session = token_hex(8) if session is None else session
        return self.session

    def wrote(self, charge: Charge) -> bool:
        """Whether a line is of this run."""
        return (charge.study, charge.run) == (self.study, self._run)

    def noise_sd(self, step: Step) -> float:
        """Noise that the total carries at least: the step's, for the most sites one patient may appear at."""
        return self._step(step).noise_sd

    def _step(self, step: Step) -> Step:
        return replace(step, sites_per_patient=max(self.max_sites, step.sites_per_patient))

    def release(
        self,
        step: Step,
        mine: Contribution,
        *,
        share: float = 1.0,
        attempt: int = 0,
        number: int = -1,
        by: AggregatorFacts = PLAIN,
        also: Sequence[Event] = (),
    ) -> Contribution:
        """Let one contribution out.

        Parameters
        ----------
        step
            What is released; public.
        mine
            The site's values, without noise.
        share
            Part of the total's noise variance this site adds: 1 where each contribution is seen, less in a secure sum.
        attempt
            Which attempt at the sum this is; the same values leave as the same bytes in all of them.
        number
            Which sum of the run this is; -1: not counted.
        by
            The way to add that will see it.
        also
            What the sum itself leaks, charged with the release (masks of finite variance under ``subspace``) and again
            in every further attempt.

        Returns
        -------
        Contribution
            The values with noise: what leaves.
        """
        mine.check(step, self.site)
        if not 0 < share <= 1:
            raise ConfigError(f"share {share!r} of the noise is outside 0..1")
        if step.how == "gather":
            share = 1.0  # seen by itself, so it must carry all the noise itself
        self._check_alone(step, by)
        step = self._step(step)
        place = {"attempt": attempt, "number": number}
        digest = release_digest(step, share, self._identifying(mine))
        id, stored = self.store.find(self._name(step, number), digest)
        if stored is not None:
            of = bytes_digest(step, stored)
            if not self.ledger.paid(self._run, id, bytes=of):
                raise self._gone(
                    step,
                    f"release {id} is in the store, and the ledger has no line for these bytes (deleted, or put back)",
                )
            if also and not self.ledger.paid(self._run, id, attempt):
                sum_alone = NoiseScale(0.0, None)  # the release was paid for: this attempt pays for what the sum leaks
                self._pay(self._charge(step, together(also), sum_alone, share, by, **place, release=id, bytes=of))
            return self._reviewed(id, step, share, by, stored)

        scale = noise_scale(step, share)
        check_grid(step, mine, self.site)
        if self.ledger.paid(self._run, id):
            return self._reviewed(id, step, share, by, self._finished(id, step, digest))
        noisy = add_noise(self.noise, mine, math.sqrt(share) * scale.sd, scale.grid)
        self.store.prepare(id, step, digest, noisy)
        event = event_of(step, also)
        of = digest if noisy is mine and share == 1.0 else bytes_digest(step, noisy)  # the same text: hashed once
        self._pay(self._charge(step, event, scale, share, by, **place, release=id, bytes=of))
        self.store.keep(id, step, digest, noisy)
        return self._reviewed(id, step, share, by, noisy)

    def _identifying(self, mine: Contribution) -> Contribution:
        return Contribution({}) if self.once else mine

    def _check_alone(self, step: Step, by: AggregatorFacts) -> None:
        """Some values may be seen by themselves only where they are of many patients."""
        is_visible = step.how == "gather" or by.reveals == "each"
        if is_visible and self.patients is not None and self.patients < step.patients:
            raise PolicyRefusal(
                f"site {self.site!r}, study {self.study!r}, round {step.round}, step {step.name!r}: not released",
                faults=[
                    f"{by.name!r} shows this site's own values, which must be of {step.patients:,} patients at least"
                ],
                hint="aggregation = 'masked', or start = 'random'",
            )

    def _pay(self, charge: Charge) -> None:
        for p in self._payers:
            p.pay(charge)

    def _charge(
        self, step: Step, event: Event, scale: NoiseScale, share: float, by: AggregatorFacts, **more: Any
    ) -> Charge:
        is_visible = step.how == "gather" or by.reveals == "each"
        return Charge.of_step(
            step,
            event,
            study=self.study,
            method=self.method,
            formal=step.formal and not isinstance(event, Unbounded),
            cohort=self.cohort,
            site=self.site,
            run=self._run,
            by=by,
            recipient="coordinator" if is_visible else "peers" if by.topology == "peers" else "total",
            noise=self.noise.label if scale.sd else "none",
            sd=scale.sd,
            share=share,
            grid=scale.grid,
            versions=versions(),
            **more,
        )

    # ---- stored bytes and review

    @property
    def _run(self) -> str:
        return self.run or self.session

    def _name(self, step: Step, number: int) -> str:
        words = f"{self.study}\0{self.method}\0{step.round}\0{step.name}\0{number}\0{self.site}\0{self._run}"
        return f"r{step.round:04d}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"

    def _finished(self, id: str, step: Step, digest: str) -> Contribution:
        stored = self.store.finish(id, step, digest, lambda of: self.ledger.paid(self._run, id, bytes=of))
        if stored is None:
            raise self._gone(
                step,
                f"release {id} is in the ledger, and its bytes are not in the store (deleted, or put back without it)",
            )
        return stored

    def _gone(self, step: Step, fault: str) -> PolicyRefusal:
        return PolicyRefusal(
            f"site {self.site!r}, study {self.study!r}, round {step.round}, step {step.name!r}: not released again",
            faults=[fault],
            hint="noise is drawn once for a release; start the study anew, which pays anew",
        )

    def _reviewed(self, id: str, step: Step, share: float, by: AggregatorFacts, release: Contribution) -> Contribution:
        """Wait for the owner where the policy asks for it."""
        if self.policy is None or self.policy.review == "none" or self.outbox is None:
            return release
        reviewer = Reviewer(self.outbox, self.ledger, self.policy.review == "each", self.waits.decision)
        meaning = self.facts.meaning(step.name)
        tells = not step.noise_sd > 0 and (meaning is None or bool(meaning.could_tell))
        rare_codes = self.here if tells else ()
        case = Waiting(self.study, self.method, self.site, self._run, id, step, share, by, release, rare_codes)
        return reviewer.let_out(case, self.facts)
