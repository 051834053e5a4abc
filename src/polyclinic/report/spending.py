"""What the ledgers say: releases and privacy spent by site and by round, by both accountants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.report.charts.rows import natural
from polyclinic.report.contents import RunContents

POINTS: Final = 60  # rounds at which epsilon is computed, at most


@dataclass(frozen=True)
class AfterRound:
    """Epsilon of everything a site had released when a round ended: tight, and by Renyi accounting."""

    round: int
    tight: float
    renyi: float


@dataclass(frozen=True)
class SiteSpending:
    """One site's ledger in figures.

    Attributes
    ----------
    releases, unbounded
        How many values left, and how many of them without a bound.
    whole
        No line was edited, cut or reordered.
    by_round
        Empty where a release had no bound.
    """

    site: str
    releases: int
    unbounded: int
    whole: bool
    faults: tuple[str, ...]
    adjacency: str
    charges: tuple[tuple[str, Charge], ...]  # time, charge
    by_round: tuple[AfterRound, ...] = ()

    @property
    def spent(self) -> AfterRound | None:
        """After the last round."""
        return self.by_round[-1] if self.by_round else None


def spending(run: RunContents) -> tuple[SiteSpending, ...]:
    """Every site's spending on this study: from its ledger in a simulation, between hosts from the extract that it signed."""
    delta = run.card.delta
    cache: dict[tuple[tuple[int, Event], ...], tuple[AfterRound, ...]] = {}
    out = []
    for site, charges, faults in _charges(run):
        if faults:
            out.append(SiteSpending(site, 0, 0, False, faults, "", ()))
            continue
        unbounded = sum(isinstance(c.event, Unbounded) for _, c in charges)
        adjacency = "entry" if any(c.adjacency == "entry" for _, c in charges) else "patient"
        charged = tuple((c.round, c.event) for _, c in charges if not isinstance(c.event, Unbounded))
        # entry-level bounds of the papers leave scores unpaid; patient-level ones must cover everything
        if delta is not None and charged and (not unbounded or adjacency == "entry") and charged not in cache:
            cache[charged] = _by_round(charged, delta)
        bounded = cache.get(charged, ()) if not unbounded or adjacency == "entry" else ()
        out.append(SiteSpending(site, len(charges), unbounded, True, (), adjacency, tuple(charges), bounded))
    return tuple(out)


def _charges(run: RunContents) -> Iterator[tuple[str, list[tuple[str, Charge]], tuple[str, ...]]]:
    """Per site the times and charges of this study, and what is wrong with its ledger."""
    for site in sorted(run.ledgers, key=natural):
        ledger, faults = run.ledger(site)
        entries = () if ledger is None else ledger.entries
        yield site, [(e.time, e.charge) for e in entries if e.charge and e.charge.study == run.name], faults
    if not run.ledgers:
        for extract in sorted(StudyExtract.in_folder(run.path), key=lambda x: natural(x.site)):
            yield extract.site, [("", c) for c in extract.lines], ()


def _by_round(paid: Sequence[tuple[int, Event]], delta: float) -> tuple[AfterRound, ...]:
    rounds = sorted({r for r, _ in paid})
    if len(rounds) > POINTS:
        rounds = sorted({rounds[round(k * (len(rounds) - 1) / (POINTS - 1))] for k in range(POINTS)})
    out = []
    for r in rounds:
        events = _merged([e for at, e in paid if at <= r])
        tight, renyi = accountant.epsilon(events, delta), accountant.epsilon_rdp(events, delta)
        if math.isfinite(tight):
            out.append(AfterRound(r, tight, renyi))
    return tuple(out)


def _merged(events: Sequence[Event]) -> list[Event]:
    """Equal Gaussian releases as one event with a count: the accountants are then fast."""
    multipliers = Counter(e.multiplier for e in events if isinstance(e, Gaussian) for _ in range(e.count))
    return [*(Gaussian(m, n) for m, n in multipliers.items()), *(e for e in events if not isinstance(e, Gaussian))]
