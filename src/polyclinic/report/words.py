"""Numbers and findings in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from polyclinic.privacy.card.card import Card
from polyclinic.report.contents import RunContents
from polyclinic.report.spending import SiteSpending

SAME: Final = 0.9  # definition: a phenotype as alike that of the start has not changed
KINDS = {
    "phenotypes": "phenotypes",
    "mixture": "patient groups",
    "similarity": "a measure of similarity",
    "other": "a model",
}


def number(value: Any, digits: int = 3) -> str:
    """A figure with a few digits; a dash where there is none.

    >>> number(0.828741), number(None), number(12345), number(0.00001234), number(0.5), number(0.0041)
    ('0.829', '–', '12,345', '1.23e-05', '0.500', '0.004')
    """
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (abs(value) >= 1000 and float(value).is_integer()):
        return f"{int(value):,}"
    if 0.001 <= abs(value) < 1:
        return f"{value:.{digits}f}"  # columns of shares and areas have the same digits in every row
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.{digits}g}".rstrip(".") if value else "0"


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
    """Return the guarantee with adjacency, epsilon, delta and kind: it stands next to every figure of accuracy."""
    bound = ""
    if card.epsilon is not None:
        bound = (
            f"{card.adjacency}-level: \N{GREEK SMALL LETTER EPSILON} = {card.epsilon:.3g} at "
            f"\N{GREEK SMALL LETTER DELTA} = {card.delta:g}"
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
            f"with probability {card.delta:g}. This is a theorem under the assumptions that the Privacy page lists."
        )
    if card.guarantee == "heuristic":
        return (
            "Noise was added, but the bound rests on assumptions that are not proven or not true. Do not quote the epsilon "
            "as a protection of patients."
        )
    if card.guarantee == "information-theoretic":
        return (
            "No party can separate one site's contribution from those of its honest neighbours. What the sums themselves reveal "
            "about patients is not bounded."
        )
    return (
        "No noise was added. Records stayed at their sites, but nothing bounds what the released sums reveal about a "
        "patient. Treat the model as derived from patient data."
    )


def _guided(run: RunContents) -> list[str]:
    columns = run.outcome.get("guided") or {}
    listed = ", ".join(
        f"phenotype {int(r) + 1} by {name}" for name, r in sorted(columns.items(), key=lambda c: int(c[1]))
    )
    return [f"The study guided {listed}: their first codes were given, not learned."] if listed else []


def _changed(run: RunContents) -> list[str]:
    """What a fit that started from a saved model changed, and what it cost."""
    start = run.outcome.get("start")
    if not start:
        return []
    rows = {r["second"] + 1: 1.0 - (r["distance"] or 0.0) for r in start["distances"] if r["second"] is not None}
    moved = {r: likeness for r, likeness in rows.items() if likeness < SAME}
    listed = ", ".join(f"{r} (likeness {likeness:.2f})" for r, likeness in moved.items())
    changes = f" Changed: phenotype {listed}." if moved else ""
    kept = f"{len(rows) - len(moved)} of {len(rows)} phenotypes kept a likeness of {SAME:g} or more"
    cost = f"{run.metrics.get('rounds')} rounds and {size(run.metrics.get('bytes_up'))} from all hospitals together"
    return [f"The fit started from a saved model (sha256 {start['sha256']}). {kept}.{changes} It took {cost}."]


def _renamed(pairs: Mapping[str, Any] | None) -> str:
    """Which local codes were renamed, and how much of the records other hospitals know since."""
    if not pairs:
        return ""
    shares = [f"{100 * x:.1f} %" for x in pairs.get("coverage", ())]
    known = (
        f" Other hospitals knew {' of the codes in these records before and '.join(shares)} after." if shares else ""
    )
    return f"Local codes renamed by pairs that the owner accepted: {pairs['accepted']} (sha256 {pairs['sha256'][:12]}).{known}"


def summary(run: RunContents) -> list[str]:
    """What was learned by whom, one paragraph each; only from what the report may show."""
    rank = run.rank
    result = f"{rank} {KINDS[run.kind]}" if rank else KINDS[run.kind]
    parties = f"{len(run.sites)} hospital{'' if len(run.sites) == 1 else 's'}"
    about = "about " if run.findings.get("forecast") else ""
    patients = f" from {about}{run.patients:,} patients" if run.patients and not run.owner else ""
    first = (
        f"{parties} learned {result} together{patients}. No patient\N{RIGHT SINGLE QUOTATION MARK}s record left its hospital."
        if run.card.aggregation != "none"
        else f"{result[0].upper()}{result[1:]} were learned{patients} with every record in one place."
    )
    if run.owner and run.patients:  # an owner's view counts the own patients only
        first += f" {run.patients:,} patients here are those of {run.owner}."
    if run.patients and not run.owner and (run.study["study"].get("sites") or {}).get("split"):
        first += " A patient of two hospitals counts at both."
    out = [first, _missing(run.study.get("without")), *_small(run.study.get("small")), no_outcome(run)]
    out.append(_renamed(run.study.get("code_pairs")))
    if run.kind == "phenotypes" and not run.findings.get("replicability"):
        reason = run.study.get("replication", "")
        hint = f": {reason}" if reason and run.card.aggregation != "none" else ""
        out.append(f"Replication in other patients was not tested{hint}.")
    out += _guided(run) + _changed(run)
    if run.formal:
        covered = "the model and the findings" if run.findings else "the model"
        out.append(
            f"Only what the privacy budget covers is shown: {covered}. No exact count of patients left a hospital."
        )
    return [text for text in out if text]


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
    text = f"{merged} sites were joined into {into} ({names}), so that none has fewer than {small['minimum']} patients"
    return [f"{text} (see Method)."]


def rounds(run: RunContents, spent: Sequence[SiteSpending] = ()) -> str:
    """What the numbers of rounds count: those that trained the model, and those around them."""
    learned, most = run.metrics.get("rounds"), run.metrics.get("rounds_most")
    if not learned:
        return ""
    last = max([learned, *(h.get("round") or 0 for h in run.history), *(c.round for s in spent for _, c in s.charges)])
    if most:
        text = f"{'Converged' if run.metrics.get('converged') else 'Stopped'} after {learned} of at most {most} rounds."
    else:
        text = f"The model trained for {learned} rounds."
    text += " Round 0 is set-up." if any(c.round < 1 for s in spent for _, c in s.charges) else ""
    after = f"Round {last} is" if last == learned + 1 else f"Rounds {learned + 1} to {last} are"
    return text if last == learned else f"{text} {after} evaluation, after the model was fixed."


def no_outcome(run: RunContents) -> str:
    """Why an outcome that the study asks for is not in the report; empty where it is, or where none was asked for."""
    study = run.study["study"]
    if not (study.get("labels") or (study.get("people") or {}).get("outcome")) or run.findings.get("outcome"):
        return ""
    if bought := run.findings.get("not_bought", {}).get("outcome"):
        reason = f"the privacy budget does not cover it ({bought})"
    elif run.kind != "phenotypes":
        reason = f"{run.outcome['class']} learned {KINDS[run.kind]}, and an outcome is analysed with phenotypes"
    elif run.formal:
        reason = "the privacy budget covers no analysis of an outcome ([evaluate] adds it)"
    else:
        reason = "the study did not analyse it ([evaluate] adds it)"
    return f"The outcome that the study names is not shown: {reason}."


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
        f"size of {number(n0)} (the geometric mean), and no patient weighs more than twice a typical patient. Fit and errors speak of "
        "the cells so weighted."
        + (f"{concentration} as counted, {percent(presence['top1_fitted'])} as weighted." if concentration else "")
    )


def skewed(outcome: Mapping[str, Any], presence: Mapping[str, Any]) -> str:
    """A warning where few patients decide and nothing weighs them; else empty."""
    top, weighting = presence.get("top1_fitted"), outcome.get("parameters", {}).get("weighting")
    if top is None or top <= 0.25 or weighting is None:
        return ""
    if weighting != "none":  # weighted already: one patient in a hundred, or the only ones there are
        return (
            f"1 % of the patients (at least one) hold {percent(top)} of the squared weight: few patients have codes of all kinds "
            "together. Use coarser codes, or [tensor] window = 'patient'."
        )
    return (
        f"The heaviest 1 % of patients hold {percent(top)} of the squared weight, so they make the phenotypes. Use weighting = "
        "'saturating' or count = 'presence'."
    )
