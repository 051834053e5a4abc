"""Make the privacy card of a result: what is guaranteed, to whom, under which assumptions, and which attacks are known.

A card is made from the lines of the sites' ledgers and from nothing else: every release that the result depends on, those
that chose its codes or scaled its features included, with the way to add that really ran. It is formal only if EVERY value
that depends on data was paid for, because one exact value can undo the noise of all others: each step has a sensitivity that is a theorem and noise to match, the
vocabulary of each mode is public or paid, and what a way to add leaks is charged. Its epsilon is that of the site which
paid most. An epsilon is never shown without its adjacency, its delta and the kind of guarantee.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

from polyclinic.errors import DataError
from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.accountant import multiplier_of
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge, events_for
from polyclinic.privacy.accounting.mechanisms import NOT_PRIVATE
from polyclinic.privacy.card.release_history import VOCABULARY, ReleaseHistory
from polyclinic.privacy.facts import AggregatorFacts, MethodFacts
from polyclinic.privacy.guarantee import FORMAL, formal, noisy
from polyclinic.privacy.release import Adjacency
from polyclinic.safe_text import one_line

Guarantee = Literal["formal", "information-theoretic", "heuristic", "none"]

E0_8: Final = (  # what the papers' theorem needs, and Algorithm 1 does not have (ERRATA E0.8, E0.10, E0.11)
    "ASSUMED by the papers and not true of their algorithm: the loss is convex in what moves (three factors move)",
    "ASSUMED: both runs restart from the same public state (patient loadings persist without noise)",
    "ASSUMED: the number of releases is fixed in advance; the site's patients are in no other site",
    "protects the value of one count, not whether a patient has the code, and not a patient",
)
ADJACENCY: Final = {"patient": "one patient added or removed", "entry": "one entry of the tensor changed"}


@dataclass(frozen=True)
class Card:
    """What a result guarantees.

    Attributes
    ----------
    epsilon, delta
        The bound that holds for everything released (tight), or None: no bound.
    adjacency
        Whom it protects: ``"patient"`` (added or removed), ``"entry"`` (one count changed), or None.
    guarantee
        ``"formal"``: a theorem covers everything that left. ``"information-theoretic"``: single contributions are
        hidden, the sums are not protected. ``"heuristic"``: noise was added, the bound rests on assumptions that are
        not proven or not true. ``"none"``.
    claimed
        The epsilon that the paper's or the study's own formula gives for this noise.
    reasons
        Why the card says no more than it does.
    saw
        What each party saw.
    books
        Between hosts: which sites signed what their books say of this study.
    agreement
        Between hosts: how many sites signed the end of the run, and when agreement was checked.
    """

    method: str
    guarantee: Guarantee
    epsilon: float | None = None
    delta: float | None = None
    adjacency: Adjacency | None = None
    mechanism: str = "none"
    aggregation: str = "plain"
    noise: str = "none"
    claimed: float | None = None
    claimed_exact: float | None = None
    releases: int = 0
    assumptions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    saw: Mapping[str, str] = field(default_factory=dict)
    attacks: tuple[str, ...] = ()
    audit: Mapping[str, object] | None = None
    books: str = ""
    agreement: str = ""

    @property
    def headline(self) -> str:
        """One sentence for a clinician."""
        if self.epsilon is None:
            meaning = {
                "information-theoretic": "single contributions are hidden; the sums themselves are not protected",
                "heuristic": "noise was added, but no bound holds for everything that was released",
            }.get(self.guarantee, "no bound on what the released values reveal about a patient")
            return f"{self.guarantee}: {meaning}"
        kind = "differential privacy" if self.guarantee == "formal" else "privacy noise"
        assert self.adjacency is not None
        return (
            f"{self.guarantee} {self.adjacency}-level {kind}: epsilon {self.epsilon:.4g} at delta {self.delta:g} "
            f"({ADJACENCY[self.adjacency]})"
        )

    def with_audit(self, audit: Mapping[str, object]) -> Card:
        """The same card with the result of an audit next to its epsilon."""
        return replace(self, audit=dict(audit))

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of everything on the card."""
        claimed = ""
        if self.claimed is not None and self.adjacency is not None:
            exact = (
                "" if self.claimed_exact is None else f" ({self.claimed_exact:.4g} by Prop. 2.8 without approximation)"
            )
            claimed = f"epsilon {self.claimed:.4g}{exact} at delta {self.delta or 0:g}, {self.adjacency}-level"
        audit = "" if self.audit is None else "; ".join(f"{k} {v}" for k, v in self.audit.items())
        table = [
            ("method", self.method),
            ("guarantee", self.headline),
            ("claimed", claimed),
            ("mechanism", self.mechanism),
            ("noise", self.noise),
            ("releases", str(self.releases)),
            ("added by", self.aggregation),
            ("ledgers", self.books),
            ("agreement", self.agreement),
            *[("limitation", r) for r in self.reasons],
            *[("assumption", a) for a in self.assumptions],
            *[(f"{who} saw", what) for who, what in self.saw.items()],
            *[("known attack", a) for a in self.attacks],
            ("audit", audit),
        ]
        return [(k, v) for k, v in table if v]

    def __str__(self) -> str:
        width = max(len(k) for k, _ in self.rows())
        return "\n".join(f"{k:<{width}}  {v}" for k, v in self.rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left;vertical-align:top'>{html.escape(k)}</th>"
            f"<td style='text-align:left'>{html.escape(v)}</td></tr>"
            for k, v in self.rows()
        )
        return f"<table class='polyclinic-privacy' data-guarantee='{html.escape(self.guarantee)}'>{cells}</table>"

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        value = asdict(self)
        return {**value, "tight": self.epsilon, "headline": self.headline}

    def to_json(self) -> str:
        """The card as JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Card:
        """Inverse of :meth:`to_dict`."""
        spelled = {k: _spelled(v) for k, v in value.items() if k in cls.__dataclass_fields__}
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in spelled.items()}
        card = cls(**fields)
        for key, allowed in (("guarantee", get_args(Guarantee)), ("adjacency", (None, *get_args(Adjacency)))):
            if fields.get(key) not in allowed:
                raise DataError(f"{fields.get(key)!r} is no {key} of a privacy card")
        return card


def _spelled(value: Any) -> Any:
    """Texts of a card that somebody else wrote, in characters that are printed."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [_spelled(v) for v in value]
    return {one_line(k): _spelled(v) for k, v in value.items()} if isinstance(value, dict) else value


def make_card(facts: MethodFacts, happened: ReleaseHistory) -> Card:
    """The card of any method, from what happened.

    Parameters
    ----------
    facts
        What is known about the method.
    happened
        The lines of the ledgers, and what else is public about the run.

    Examples
    --------
    >>> from polyclinic.privacy.release import Release, Step
    >>> step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    >>> print(make_card(MethodFacts(formal=True), ReleaseHistory.of("dpem", [Release(0, step)])).headline)
    formal patient-level differential privacy: epsilon 0.3969 at delta 1e-06 (one patient added or removed)
    >>> print(make_card(MethodFacts(), ReleaseHistory.of("trip", [Release(0, Step(1, "factors", {"x": (3,)}, bound=9.0))])).headline)
    none: no bound on what the released values reveal about a patient
    """
    e = _Evidence(happened)
    base = Card(
        method=happened.method,
        guarantee="none",
        aggregation=", ".join(s.name for s in e.sums) or "plain",
        releases=happened.releases,
        saw=_saw(e.lines, e.sums),
        attacks=_attacks(facts, e),
        reasons=(*_lost(happened), *_differ(happened)),
        books=_signers(happened),
        agreement="" if happened.certified is None else str(happened.certified),
    )
    if not e.paid:
        return _without_noise(base, e.sums, happened.asked)
    reasons, noise = _why_unproven(e), ", ".join(sorted({c.noise for c in e.paid} - {"", "none"}))
    if NOT_PRIVATE in noise:  # a rehearsal: whoever knows the seed has the exact values
        return replace(base, noise=noise, mechanism="none that protects", reasons=(noise, *reasons, *base.reasons))
    delta = happened.asked.delta if happened.asked is not None else 1e-6
    epsilon = e.epsilon(delta)
    formal = math.isfinite(epsilon) and not reasons and not e.entry
    claimed, exact = _claimed(e.paid, happened.asked, delta)
    return replace(
        base,
        guarantee="formal" if formal else "heuristic",
        epsilon=epsilon if math.isfinite(epsilon) else None,
        delta=delta,
        adjacency=e.adjacency,
        mechanism=_mechanism(e),
        noise=noise,
        claimed=claimed,
        claimed_exact=exact,
        assumptions=(*(E0_8 if e.entry else _assumptions(e)), *facts.assumptions),
        reasons=(*reasons, *base.reasons),
        attacks=() if formal else base.attacks,
    )


class _Evidence:
    """What the rules of a card look at: the charges, sorted."""

    def __init__(self, happened: ReleaseHistory) -> None:
        self.happened = happened
        self.lines = happened.lines
        self.paid = [c for c in self.lines if c.paid]
        self.sums = _sums(self.lines)
        self.each = not self.sums or any(s.reveals == "each" for s in self.sums)
        self.entry = any(c.adjacency == "entry" for c in self.paid)
        self.adjacency: Adjacency = "entry" if self.entry else "patient"
        self.between_hosts = happened.signed is not None or happened.certified is not None

    def epsilon(self, delta: float) -> float:
        """That of the site which paid most."""
        by_site = [[c for c in self.lines if c.site == s] for s in self.happened.sites]
        return max((accountant.epsilon(events_for(lines, self.adjacency), delta) for lines in by_site), default=0.0)

    def axes(self, vocabulary: str) -> list[str]:
        """Names of the modes whose codes were chosen in this way."""
        return [repr(a.name) for a in self.happened.axes if a.vocabulary == vocabulary]


# What keeps a card with noise from being formal: the names it concerns, and the sentence.
UNPROVEN: Final[tuple[tuple[Callable[[_Evidence], list[str]], str], ...]] = (
    (
        lambda e: [c.step for c in e.paid if not c.formal],
        "the sensitivity is the paper's claim, not a theorem (a counterexample is among the tests)",
    ),
    (
        lambda e: sorted({c.step for c in e.lines if not c.paid}),
        "released without noise, so not covered: {}",
    ),
    (
        lambda e: e.axes("data"),
        "the list of codes of {} was taken from the data, which itself shows who has a rare code. Use a public list",
    ),
    (
        lambda e: [] if e.happened.vocabulary else e.axes("paid"),
        "the list of codes of {} was charged in a run whose ledger lines are not here: its cost is not in this epsilon",
    ),
    (
        lambda e: [a.level for a in (e.happened.asked,) if e.between_hosts and noisy(a) and not formal(a)],
        f"the study asked for no patient-level epsilon up to {FORMAL:g}, so its hospitals' messages and refusals may depend on records",
    ),
)


def _why_unproven(e: _Evidence) -> list[str]:
    reasons = [text.format(", ".join(names)) for find, text in UNPROVEN if (names := find(e))]
    return reasons + [f"{s.pooled}, with its own noise only" for s in e.sums if s.pooled]


def _assumptions(e: _Evidence) -> list[str]:
    """What a patient-level bound rests on."""
    sites = max(c.sites_per_patient for c in e.paid)
    general = [
        f"one patient is at no more than {sites} site{'s' if sites > 1 else ''}: {e.happened.overlap or 'assumed'}",
        "rounds, rank and stopping depend on public or released values only",
        "sites follow the protocol; each adds its share of the noise",
    ]
    if e.happened.signed is not None:
        general += [
            "when an answer comes is covered only to the study's public pace ([study] pace, reading)",
            "SQL of an owner decides on each patient alone; CSV files close their quotation marks",
        ]
    pooled = "at most as many sites collude as the participant list allows, and no site gives away its keys"
    return general if e.each else [*general, pooled]


def _mechanism(e: _Evidence) -> str:
    """The noise at the site that released most."""
    site = max(e.happened.sites, key=lambda s: sum(c.site == s for c in e.paid))
    charges = [c for c in e.paid if c.site == site]
    multipliers = [m for c in charges if (m := multiplier_of(c.event)) is not None]
    target = "each contribution" if e.each else "the sum"
    return f"Gaussian noise on {target}, {len(charges)} releases, multipliers {_range(multipliers)}"


def _attacks(facts: MethodFacts, e: _Evidence) -> tuple[str, ...]:
    """What was shown to work on the steps that ran, with and without noise; sizes and scores alone were not attacked."""
    model = [c for c in e.lines if c.counts and c.step != VOCABULARY] or list(e.lines)
    exact = [c.step for c in model if not c.paid]
    noisy = any(c.paid for c in model)
    return facts.known(each=e.each, exact=bool(exact) or not noisy, noisy=noisy, ran=exact if e.lines else None)


def central_card(method: str) -> Card:
    """The card of a central method: one party saw every record."""
    return Card(method, "none", aggregation="none", saw={"the analyst": "every patient's record"})


def _sums(lines: Sequence[Charge]) -> tuple[AggregatorFacts, ...]:
    """The ways to add that ran, each once, in the order of their names."""
    return tuple({c.by.name: c.by for c in sorted(lines, key=lambda c: c.by.name)}.values())


def _without_noise(card: Card, sums: Sequence[AggregatorFacts], asked: Privacy | None) -> Card:
    reasons = []
    if asked is not None and asked.level == "entry" and asked.clip is None:
        reasons.append("without a clip the gradient has no bound, so the papers' noise has no scale: no epsilon exists")
    if sums and all(s.sentence for s in sums):
        return replace(
            card,
            guarantee="information-theoretic",
            mechanism="random masks in the consensus' non-converging subspace",
            reasons=(*dict.fromkeys(s.sentence for s in sums), *card.reasons),
            assumptions=("every site has at least one honest neighbour; masks are fresh in every sum",),
        )
    if sums and all(s.reveals == "total" and s.topology == "star" for s in sums):
        reasons.append("the coordinator sees sums only. What the sums themselves reveal is not bounded")
    reasons += [s.pooled for s in sums if s.pooled]
    return replace(card, reasons=(*reasons, *card.reasons))


def _lost(happened: ReleaseHistory) -> tuple[str, ...]:
    """Who was missing from exact sums: the difference of two rounds then shows that site's contribution."""
    if not happened.lost:
        return ()
    risk = "everybody who sees the totals can compute the contribution of a site that drops out"
    return (f"not counted in every exact sum: {', '.join(happened.lost)}; {risk}",)


def _signers(happened: ReleaseHistory) -> str:
    """Who signed; nothing for a run in one process."""
    if happened.signed is None:
        return ""
    names = f"signed by {', '.join(happened.signed)}"
    if not happened.unsigned:
        return f"{names}: every site that took part"
    return f"{names}; not by {', '.join(happened.unsigned)}, of whom is counted what follows from the sums taken"


def _differ(happened: ReleaseHistory) -> tuple[str, ...]:
    if not happened.differ:
        return ()
    return (f"the signed ledger lacks sums that were taken, at {', '.join(happened.differ)}; they are counted here",)


def _claimed(lines: Sequence[Charge], asked: Privacy | None, delta: float) -> tuple[float | None, float | None]:
    """What the study's formula says: the asked epsilon; for the papers' mechanism theorem 4.1, and Prop. 2.8 exactly."""
    if not any(c.adjacency == "entry" for c in lines):
        return (None if asked is None else asked.epsilon), None
    first = lines[0].site
    mu = accountant.gaussian_mu([c.event for c in lines if c.site == first])
    rho = math.inf if mu is None else mu**2 / 2
    return math.sqrt(4 * rho * math.log(1 / delta)), accountant.prop_2_8(rho, delta)


def _saw(lines: Sequence[Charge], sums: Sequence[AggregatorFacts]) -> dict[str, str]:
    noisy = "with noise" if lines and all(c.paid for c in lines) else "exact" if lines else ""
    saw: dict[str, str] = {}
    for s in sums:
        for who, what in s.saw.items():
            text = what.format(values=noisy)
            saw[who] = text if who not in saw or saw[who] == text else f"{saw[who]}; {text}"
    gathered = sorted({c.step for c in lines if c.how == "gather"})
    if gathered:
        saw["the coordinator (shown)"] = f"each site's own {', '.join(gathered)}"
    return saw


def _range(values: Sequence[float]) -> str:
    if not values:
        return "of old lines"
    low, high = min(values), max(values)
    return f"{low:.4g}" if math.isclose(low, high) else f"{low:.4g} to {high:.4g}"
