"""Numbers and findings in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyclinic.privacy.card.card import Card
from polyclinic.report.cards import PhenotypeCard
from polyclinic.report.contents import RunContents
from polyclinic.report.replication import Verdict, first_words, verdicts
from polyclinic.report.spending import SiteSpending

__all__ = [
    "badge",
    "count",
    "flow",
    "gaps",
    "meaning",
    "no_outcome",
    "number",
    "percent",
    "rounds",
    "size",
    "skewed",
    "summary",
    "weights",
]

KINDS = {
    "phenotypes": "phenotypes",
    "mixture": "patient groups",
    "similarity": "a measure of similarity",
    "other": "a model",
}


def number(value: Any, digits: int = 3) -> str:
    """A figure with a few digits; a dash where there is none.

    >>> number(0.828741), number(None), number(12345), number(0.00001234)
    ('0.829', '–', '12,345', '1.23e-05')
    """
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and float(value).is_integer()):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def count(value: int | None, minimum: int = 11) -> str:
    """A count of patients; ``None`` is not shown.

    >>> count(120), count(None)
    ('120', 'not shown')
    """
    return "not shown" if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    """A share.

    >>> percent(0.3333), percent(None)
    ('33 %', '–')
    """
    return "\N{EN DASH}" if value is None else f"{100 * value:.0f} %"


def size(value: float | None) -> str:
    """Bytes in the unit people use.

    >>> size(22194036), size(950), size(None)
    ('22.2 MB', '950 bytes', '–')
    """
    if value is None:
        return "\N{EN DASH}"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} bytes"


def badge(card: Card) -> str:
    """What stands beside every figure of accuracy: the guarantee, never a bare epsilon."""
    bound = ""
    if card.epsilon is not None:
        space = "\N{NO-BREAK SPACE}"
        bound = (
            f"{card.adjacency}-level: \N{GREEK SMALL LETTER EPSILON}{space}={space}{card.epsilon:.3g} at "
            f"\N{GREEK SMALL LETTER DELTA}{space}={space}{card.delta:g}"
        )
    if card.guarantee == "formal":
        return f"formal, {bound}"
    if card.guarantee == "heuristic":
        if card.epsilon is None:
            return "heuristic noise: no bound holds"
        return f"heuristic, {bound} is not proven"
    if card.guarantee == "information-theoretic":
        return "information-theoretic: the sums themselves are not protected"
    return "no privacy bound"


def meaning(card: Any) -> str:
    """What the guarantee means for a patient, in a sentence or two."""
    if card.guarantee == "formal":
        return (
            "Whatever an attacker knows already, seeing everything that left the sites changes the odds of any guess about "
            f"one {card.adjacency} by at most a factor of e^{card.epsilon:.3g} = {2.718281828459045**card.epsilon:.3g}, except "
            f"with probability {card.delta:g}. This is a theorem under the assumptions below."
        )
    if card.guarantee == "heuristic":
        return (
            "Noise was added, but the bound rests on assumptions that are not proven or not true. Do not quote the epsilon "
            "as a protection of patients."
        )
    if card.guarantee == "information-theoretic":
        return (
            "Nobody can tell one site's contribution from those of its honest neighbours. What the sums themselves reveal "
            "about patients is not bounded."
        )
    return (
        "No noise was added. Records stayed at their sites, but nothing bounds what the released sums reveal about a "
        "patient; treat the model as derived from patient data."
    )


def summary(run: RunContents, cards: Sequence[PhenotypeCard] = ()) -> list[str]:
    """The findings of a run, one paragraph each; only from what the report may show."""
    m = run.metrics
    rank = run.rank
    result = f"{rank} {KINDS[run.kind]}" if rank else KINDS[run.kind]
    parties = f"{_spelled(len(run.sites))} sites" if len(run.sites) != 1 else "one site"
    patients = f" from {run.patients:,} patients" if run.patients and not run.owner else ""
    central = run.card.aggregation == "none"
    first = (
        f"{parties[0].upper()}{parties[1:]} learned {result} together{patients}; no patient\N{RIGHT SINGLE QUOTATION MARK}s record left its site."
        if not central
        else f"{result[0].upper()}{result[1:]} were learned{patients} with every record in one place."
    )
    if m.get("bytes_up"):
        first += f" They sent {size(m['bytes_up'])} and received {size(m['bytes_down'])} in all, for {m['rounds']} rounds of learning."
    if run.owner and run.patients:  # an owner's view counts the own patients only
        first += f" {run.patients:,} patients here are those of {run.owner}."
    sources = run.study.get("attrition") or [{"patients": None}]
    if run.patients and sources[-1]["patients"] is not None and run.patients > sources[-1]["patients"]:
        first += " A patient of two sites counts at both."
    missing = _missing(run.study.get("without"))
    # whether anything came back is said before anything else
    out = [first_words(run.findings, run.patients), first, missing, flow(run.study), *_small(run.study.get("small"))]
    out = [text for text in out if text]
    if cards and not run.owner and len(run.sites) > 1:  # one site's counts cannot say what is shared
        out += _where(cards)
    out += _outcome(run.association, cards, verdicts(run.findings, run.patients))
    if run.kind == "phenotypes" and not run.findings.get("replicability"):
        reason = run.study.get("replication", "")
        hint = f": {reason}" if reason and not central else ""
        out.append(f"Whether these phenotypes come back in other patients was not tested{hint}.")
    if run.formal:
        out.append(
            "Only what was paid for out of the privacy budget is shown: the model itself. Counts of patients, fit and "
            "prediction were not released, so they are not here."
        )
    return out


def _spelled(n: int) -> str:
    small = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    return small[n] if n < len(small) else str(n)


def _missing(without: Sequence[str] | None) -> str:
    """Who was asked and took no part; why is the owner's own affair.

    >>> _missing(["west"]), _missing(["east", "west"]), _missing(None)
    ('west was asked and took no part.', 'east and west were asked and took no part.', '')
    """
    if not without:
        return ""
    *most, last = without
    return f"{', '.join(most)}{' and ' if most else ''}{last} {'were' if most else 'was'} asked and took no part."


def _small(small: Mapping[str, Any] | None) -> list[str]:
    """What became of sites too small to take part alone."""
    if not small:
        return []
    if small["skipped"]:
        patients = "fewer than 11" if small["patients_left_out"] is None else number(small["patients_left_out"])
        text = f"{len(small['skipped'])} sites with fewer than {small['minimum']} patients take no part"
        return [f"{text} ({patients} patients together)."]
    joined = small["joined"]
    merged = sum(len(v) for v in joined.values())
    into = "one" if len(joined) == 1 else str(len(joined))
    names = ", ".join(joined) if len(joined) <= 4 else f"{next(iter(joined))} to {list(joined)[-1]}"
    # not "with fewer": a lone remainder takes the smallest other site in, and that one may be large
    text = f"{merged} sites were joined into {into}, {names}, so that none has fewer than {small['minimum']} patients"
    return [f"{text} (see Method)."]


def _where(cards: Sequence[PhenotypeCard]) -> list[str]:
    specific = [c for c in cards if c.where == "site-specific"]
    shared = [c for c in cards if c.where == "shared"]
    if not specific and not shared:
        return []
    names = ", ".join(f"{c.name} ({c.place.removeprefix('specific to ')})" for c in specific[:4])
    text = f"{len(shared)} of {len(cards)} are found at more than one site"
    return [
        text
        + (
            f"; {len(specific)} at one site only: {names}{' and others' if len(specific) > 4 else ''}."
            if specific
            else "."
        )
    ]


def _outcome(a: Mapping[str, Any], cards: Sequence[PhenotypeCard], judged: Sequence[Verdict]) -> list[str]:
    """Of phenotypes that were judged those that failed are neither named nor counted."""
    if not a:
        return []
    name = str(a.get("outcome") or "outcome")
    if not a["effects"]:
        return [f"The outcome that was asked for ({name}) cannot be shown: {a['reason']}."]
    j = a["judged"]
    subject = "the outcome" if name == "outcome" else f"the outcome ({name})"
    text = (
        f"Knowing a patient\N{RIGHT SINGLE QUOTATION MARK}s phenotypes ranks {subject} of patients held out of the regression "
        f"(their records shaped the phenotypes, not their outcomes) with an AUC of {j[0]['auc']:.2f} "
    )
    text += (
        f"(95 % interval {j[0]['low']:.2f} to {j[0]['high']:.2f}); counting events alone reaches {j[1]['auc']:.2f}, "
    )
    text += f"random factors {j[2]['auc']:.2f}."
    effects = [e for e in a["effects"] if not judged or not judged[e["phenotype"]].failed]
    sure = [e for e in effects if e["adjusted"] < 0.05]
    if sure and cards:
        worst = max(sure, key=lambda e: e["coefficient"])
        text += f" {len(sure)} of {len(effects)} phenotypes{' that come back' if judged and all(v.replicable or v.failed for v in judged) else ''} go with the outcome (false-discovery rate 5 %)"
        if worst["coefficient"] > 0:
            import math

            text += (
                f"; the strongest risk is {cards[worst['phenotype']].name} (odds ratio "
                f"{math.exp(worst['coefficient']):.2f} per standard deviation)"
            )
        text += "."
    missing = gaps(a)
    return [f"{text} {missing}" if missing else text]


def rounds(run: RunContents, spent: Sequence[SiteSpending] = ()) -> str:
    """What the numbers of rounds count: those of learning, those of the table, those of the ledgers."""
    learned = run.metrics.get("rounds")
    if not learned:
        return ""
    text = f"Rounds of learning are those that change the model: {learned}."
    last = max((h.get("round") or 0 for h in run.history), default=0)
    if last > learned:
        text += f" The table of rounds goes on to {last}: sums that were taken after the fit and change nothing in the model."
    booked = {c.round for s in spent for _, c in s.charges}
    if booked and min(booked) < 1:
        text += " Ledgers number all rounds of sums: 0 is what was summed before the first one (sizes, the start)"
        text += f", those after {learned} are sums after the fit." if max(booked) > learned else "."
    elif booked and max(booked) > learned:
        text += f" Ledgers number all rounds of sums: those after {learned} are sums after the fit."
    return text


def no_outcome(run: RunContents) -> str:
    """Why an outcome that the study asks for is not in the report; empty where it is, or where none was asked for."""
    study = run.study["study"]
    outcome = study.get("labels") or (study.get("people") or {}).get("outcome")
    if not outcome or run.effects or run.findings.get("outcome"):
        return ""
    if run.association:
        return str(run.association["reason"])
    if run.kind != "phenotypes":
        return (
            f"an outcome is set beside phenotypes, and {run.outcome['class']} learned "
            f"{KINDS[run.kind]} without phenotypes that patients could be placed on"
        )
    if run.formal:
        return "outcomes are records of patients, and nothing of the privacy budget was spent on them ([evaluate] pays for them)"
    return "the patients' outcomes are with the sites and were not released ([evaluate] sums what is asked of them)"


def gaps(a: Mapping[str, Any], minimum: int = 11) -> str:
    """How many patients have no known outcome, and where nobody has one; empty where everybody's is known.

    >>> gaps({"patients": 900, "unknown": 12, "sites_without": []})
    '12 of 900 patients have no known outcome: they are left out of the outcome model only.'
    """
    if not a:
        return ""
    unknown, sites = a.get("unknown", 0), list(a.get("sites_without") or ())
    if unknown == 0:
        return ""
    count = f"Fewer than {minimum}" if unknown is None else number(unknown)
    text = f"{count} of {number(a['patients'])} patients have no known outcome: they are left out of the outcome model only."
    if sites:
        site_names = ", ".join(sites[:5]) + (f" and {len(sites) - 5} more" if len(sites) > 5 else "")
        text += f" Nobody\N{RIGHT SINGLE QUOTATION MARK}s is known at {site_names}."
    return text


def weights(outcome: Mapping[str, Any], presence: Mapping[str, Any]) -> str:
    """How patients were weighed, where it was said."""
    top = presence.get("top1")
    concentration = "" if top is None else f" The heaviest 1 % of patients hold {percent(top)} of the squared cells"
    weighting, n0 = outcome.get("parameters", {}).get("weighting"), outcome.get("saturation")
    if weighting is None:
        return ""
    if n0 is None:
        sentence = (
            "Every patient weighed as much as the square of the record: long records count most (weighting none)."
        )
        return f"{sentence}{concentration}." if concentration else sentence
    return (
        f"A patient\N{RIGHT SINGLE QUOTATION MARK}s weight grows with the record and saturates: half of it is reached at a squared "
        f"size of {number(n0)} (the geometric mean), and nobody weighs more than twice a typical patient. Fit and errors speak of "
        "the cells so weighted."
        + (f"{concentration} as counted, {percent(presence['top1_fitted'])} as weighted." if concentration else "")
    )


def skewed(outcome: Mapping[str, object], presence: Mapping[str, Any]) -> str:
    """A warning where few patients decide and nothing weighs them; else empty."""
    top = presence.get("top1_fitted")
    if top is None or top <= 0.25:
        return ""
    if outcome.get("saturation") is not None:  # weighted already: one patient in a hundred, or the only ones there are
        return (
            f"One patient holds {percent(top)} of the squared weight, although no record counts much more than another: hardly "
            "anybody has codes of all modes together. Use codes that are less fine, or [tensor] window = 'patient'."
        )
    return (
        f"The heaviest 1 % of patients hold {percent(top)} of the squared weight, so they make the phenotypes. Use weighting = "
        "'saturating' or count = 'presence'."
    )


def flow(study: Mapping[str, Any]) -> str:
    """How many of the sources' patients take part, where it was counted and may be shown."""
    steps = list(study.get("attrition") or ())
    visible = [s for s in steps if s["patients"] is not None]
    if len(steps) < 2 or not visible or visible[-1] is not steps[-1]:
        return ""
    if visible[0] is not steps[0] and visible[0]["patients"] == visible[-1]["patients"]:
        return "Almost all patients of the sources take part (who was left out: see Method)."
    place = "in the sources" if visible[0] is steps[0] else f"left after the step {visible[0]['step']!r}"
    last = number(visible[-1]["patients"])
    return f"Of {number(visible[0]['patients'])} patients {place}, {last} take part (who was left out: see Method)."
