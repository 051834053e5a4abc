"""The privacy card of a result: what is guaranteed, to whom, under which assumptions, and what is known to go wrong.

A card is formal only if EVERY value that depends on data was paid for (PRIVACY 3.1): each step has a sensitivity that
is a theorem and noise to match, the vocabulary of each mode is public or paid, and masks of finite variance are
charged. An epsilon is never shown without its adjacency, its delta and the kind of guarantee.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from polyclinic.privacy import accountant
from polyclinic.privacy.accountant import Event, Gaussian
from polyclinic.privacy.attacks import E0_8, POOLED, SECURE, known_attacks
from polyclinic.privacy.budget import Privacy
from polyclinic.privacy.masks import Masks
from polyclinic.privacy.mechanism import NOT_PRIVATE, SimulatedNoise
from polyclinic.privacy.release import Adjacency, Step
from polyclinic.tensors.axis import Axis

__all__ = ["Card", "Guarantee", "Masks", "card_of", "central_card", "make_card"]

Guarantee = Literal["formal", "information-theoretic", "heuristic", "none"]

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
    audit: Mapping[str, Any] | None = None

    @property
    def tight(self) -> float | None:
        """The same as ``epsilon``: the tight value, beside ``claimed``."""
        return self.epsilon

    @property
    def headline(self) -> str:
        """One sentence for a clinician."""
        if self.epsilon is None:
            what = {
                "information-theoretic": "single contributions are hidden; the sums themselves are not protected",
                "heuristic": "noise was added, but no bound holds for everything that was released",
            }.get(self.guarantee, "no bound on what the released values reveal about a patient")
            return f"{self.guarantee}: {what}"
        kind = "differential privacy" if self.guarantee == "formal" else "privacy noise"
        assert self.adjacency is not None
        return (
            f"{self.guarantee} {self.adjacency}-level {kind}: epsilon {self.epsilon:.4g} at delta {self.delta:g} "
            f"({ADJACENCY[self.adjacency]})"
        )

    def with_audit(self, audit: Mapping[str, Any]) -> Card:
        """The same card with the result of an audit beside its epsilon."""
        return replace(self, audit=dict(audit))

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of everything on the card."""
        claimed = ""
        if self.claimed is not None and self.adjacency is not None:
            exact = (
                "" if self.claimed_exact is None else f" ({self.claimed_exact:.4g} by Prop. 2.8 without approximation)"
            )
            claimed = (
                f"epsilon {self.claimed:.4g}{exact} at delta {self.delta or 0:g}, {self.adjacency}-level, as claimed"
            )
        audit = "" if self.audit is None else "; ".join(f"{k} {v}" for k, v in self.audit.items())
        table = [
            ("method", self.method),
            ("guarantee", self.headline),
            ("claimed", claimed),
            ("mechanism", self.mechanism),
            ("noise", self.noise),
            ("releases", str(self.releases)),
            ("added by", self.aggregation),
            *[("but", r) for r in self.reasons],
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
        return f"<table class='polyclinic-privacy' data-guarantee='{self.guarantee}'>{cells}</table>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        value = asdict(self)
        return {**value, "tight": self.tight, "headline": self.headline}

    def to_json(self) -> str:
        """The card as JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Card:
        """Inverse of :meth:`to_dict`."""
        known = {k: v for k, v in value.items() if k in cls.__dataclass_fields__}
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**fields)


def make_card(
    method: str,
    steps: Sequence[Step],
    *,
    axes: Sequence[Axis] = (),
    aggregation: str = "plain",
    privacy: Privacy | None = None,
    delta: float | None = None,
    noise: str = SimulatedNoise.label,
    masks: Masks | None = None,
    attempts: Mapping[int, int] | None = None,
    attacks: Sequence[str] | None = None,
    assumptions: Sequence[str] = (),
) -> Card:
    """The card of any method, from the steps it took.

    Parameters
    ----------
    method
        Its name.
    steps
        Every sum that was taken; set-up and scores too.
    axes
        The feature modes; a vocabulary taken from the data downgrades the card.
    aggregation
        How contributions were added.
    privacy
        What was asked for.
    delta
        Overrides the delta of ``privacy``.
    noise
        Label of the noise source.
    masks
        Under ``subspace``: the masks, so that what they leak can be charged.
    attempts
        Position of a step -> how many times it was released, where more than once (retries pay anew).
    attacks, assumptions
        Known attacks (default: those of PRIVACY section 2) and further assumptions of the method.

    Examples
    --------
    >>> step = Step(1, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
    >>> print(make_card("dpem", [step], privacy=Privacy(1.0)).headline)
    formal patient-level differential privacy: epsilon 0.3969 at delta 1e-06 (one patient added or removed)
    >>> print(make_card("trip", [Step(1, "factors", {"x": (3,)}, bound=9.0)]).headline)
    none: no bound on what the released values reveal about a patient
    """
    name = method.lower()
    paid = [s for s in steps if s.noise_sd > 0]
    unpaid = sorted({s.name for s in steps if not s.noise_sd > 0})
    unpaid_model = sorted({s.name for s in steps if not s.noise_sd > 0 and s.counts})
    known = known_attacks(name, aggregation, noise=bool(paid)) if attacks is None else tuple(attacks)
    base = Card(
        method=method,
        guarantee="none",
        aggregation=aggregation,
        releases=len(steps),
        saw=_saw(aggregation, steps),
        attacks=known,
    )
    if not paid:
        return _without_noise(base, privacy)

    entry = any(s.adjacency == "entry" for s in paid)
    adjacency: Adjacency = "entry" if entry else "patient"
    at = delta if delta is not None else privacy.delta if privacy is not None else 1e-6
    events: list[Event] = []
    for n, s in enumerate(steps):
        if s.noise_sd > 0 and s.multiplier is not None:
            events.append(Gaussian(s.multiplier, (attempts or {}).get(n, 1)))
    reasons: list[str] = []
    proven = all(s.formal for s in paid) and not entry
    bounded = not (unpaid_model if entry else unpaid)
    if not all(s.formal for s in paid):
        reasons.append("the sensitivity is the paper's claim, not a theorem (a counterexample is among the tests)")
    if unpaid:
        reasons.append(f"released without noise, so not covered: {', '.join(unpaid)}")
    chosen = [a.name for a in axes if a.vocabulary == "data"]
    if chosen:
        reasons.append(
            f"the list of codes of {', '.join(repr(c) for c in chosen)} was taken from the data, which itself tells who "
            "has a rare code; use a public list, or pay for noisy counts (privacy.vocabulary)"
        )
    if aggregation == "subspace":
        leak, why = _mask_events(paid, masks)
        events += leak
        reasons += [why] if why else []
        proven = proven and not why
    if aggregation == "cycle":
        reasons.append(POOLED)
        proven = False
    eps = accountant.epsilon(events, at) if bounded else math.inf
    formal = proven and bounded and not chosen
    sites = 1 if privacy is None else privacy.max_sites_per_patient
    believed = [
        f"one patient is at no more than {sites} site{'s' if sites > 1 else ''}",
        "rounds, rank and stopping depend on public or released values only",
        "sites follow the protocol; each adds its share of the noise",
    ]
    if aggregation in SECURE:
        believed.append("no more sites pool what they see than the roster allows; keys stay at their sites")
    claimed, exact = _claimed(paid, privacy, at)
    if NOT_PRIVATE in noise:  # a rehearsal: whoever knows the seed has the exact values
        return replace(base, noise=noise, mechanism="none that protects", reasons=(noise, *reasons))
    return replace(
        base,
        guarantee="formal" if formal else "heuristic",
        epsilon=eps if math.isfinite(eps) else None,
        delta=at,
        adjacency=adjacency,
        mechanism=f"Gaussian noise on {'each contribution' if aggregation != 'masked' else 'the sum'}, "
        f"{len(paid)} releases, multipliers {_range([s.multiplier or 0 for s in paid])}",
        noise=noise,
        claimed=claimed,
        claimed_exact=exact,
        assumptions=(*(E0_8 if entry else tuple(believed)), *assumptions),
        reasons=tuple(reasons),
        attacks=() if formal else known,
    )


def card_of(method: Any, outcome: Any) -> Card:
    """The card of a fitted method: its parameters and the sums that were really taken."""
    params = method.params
    return make_card(
        method.name,
        [step for step, _ in outcome.releases],
        axes=outcome.setting.axes,
        aggregation=params.aggregation,
        privacy=params.privacy,
        noise=getattr(outcome, "noise", None) or SimulatedNoise.label,
        masks=getattr(outcome, "masks", None),
        attacks=getattr(method, "attacks", None),
        assumptions=getattr(method, "assumptions", ()),
    )


def central_card(method: str) -> Card:
    """The card of a central method: one party saw every record."""
    return Card(method, "none", aggregation="none", saw={"the analyst": "every patient's record"})


def _without_noise(card: Card, privacy: Privacy | None) -> Card:
    reasons = []
    if privacy is not None and privacy.level == "entry" and privacy.clip is None:
        reasons.append("without a clip the gradient has no bound, so the papers' noise has no scale: no epsilon exists")
    if card.aggregation == "masked":
        reasons.append("the coordinator sees sums only; what the sums themselves reveal is not bounded")
    if card.aggregation == "cycle":
        reasons.append(POOLED.removesuffix(", with its own noise only"))
    if card.aggregation == "subspace":
        return replace(
            card,
            guarantee="information-theoretic",
            mechanism="random masks in the consensus' non-converging subspace",
            reasons=(
                "hides each site's contribution among its honest neighbours; the sums are exact and shown to all",
            ),
            assumptions=("every site has at least one honest neighbour; masks are fresh in every sum",),
        )
    return replace(card, reasons=tuple(reasons))


def _mask_events(steps: Sequence[Step], masks: Masks | None) -> tuple[list[Event], str]:
    if masks is None or not masks.honest_neighbours > 0 or not masks.sd > 0:
        return [], "the masks of the subspace sum have a finite variance and their leak was not charged"
    return [e for s in steps for e in masks.events(s)], ""


def _claimed(steps: Sequence[Step], privacy: Privacy | None, delta: float) -> tuple[float | None, float | None]:
    """What the study's formula says: the asked epsilon; for the papers' mechanism theorem 4.1, and Prop. 2.8 exactly."""
    if not any(s.adjacency == "entry" for s in steps):
        return (None if privacy is None else privacy.epsilon), None
    rho = sum(1 / (2 * s.multiplier**2) for s in steps if s.multiplier)
    return math.sqrt(4 * rho * math.log(1 / delta)), accountant.prop_2_8(rho, delta)


def _saw(aggregation: str, steps: Sequence[Step]) -> dict[str, str]:
    noisy = "with noise" if steps and all(s.noise_sd > 0 for s in steps) else "exact" if steps else ""
    if aggregation == "masked":
        saw = {"the coordinator": f"the sum over sites, {noisy}", "other sites": "the public model, masked messages"}
    elif aggregation == "subspace":
        saw = {"neighbours": f"masked messages and the average over sites, {noisy}", "a coordinator": "there is none"}
    elif aggregation == "cycle":
        saw = {"the next site": f"the running sum behind a random offset, {noisy}", "a coordinator": "there is none"}
    else:
        saw = {"the coordinator": f"each site's contribution, {noisy}", "other sites": "the public model"}
        if aggregation not in ("plain", "none"):  # what a robust rule trades for standing liars
            saw["the coordinator"] += f" (rule {aggregation!r} must look: no secure sum, full noise at every site)"
    shown = sorted({s.name for s in steps if s.how == "gather"})
    if shown:
        saw["the coordinator (shown)"] = f"each site's own {', '.join(shown)}"
    return saw


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if math.isclose(low, high) else f"{low:.4g} to {high:.4g}"
