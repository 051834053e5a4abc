"""The first screen: the answer in one paragraph, the forest plot, the patient flow. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from markupsafe import Markup

from polyclinic.report import words
from polyclinic.report.cards import PhenotypeCard, cards
from polyclinic.report.charts import clinical
from polyclinic.report.charts.cells import rows_of
from polyclinic.report.charts.rows import EffectRow, effect_rows, flow_boxes, replication_rows
from polyclinic.report.contents import RunContents
from polyclinic.report.replication import first_words, too_few
from polyclinic.studies.run_folder import RunFolder

DRAWN: Final = 10  # rows of the forest plot: title, answer and figure fit on one screen


@dataclass(frozen=True)
class FirstScreen:
    """What stands above everything else."""

    sentences: tuple[str, ...]
    forest: Markup
    note: str
    flow: Markup


def answer(run: RunContents, phenotypes: Sequence[PhenotypeCard]) -> FirstScreen | None:
    """The first screen of phenotypes; None where the run learned something else, or nobody counted patients."""
    found = run.findings
    flow = clinical.flow(flow_boxes(run.study, found, run.minimum)) if found else Markup("")
    if run.kind != "phenotypes" or not found.get("prevalence"):
        return None
    rows, pieces, others = _rows(run, phenotypes)
    outcome = found.get("outcome") or {}
    sentences = [_learned(run), *_associations(rows, outcome), prediction(found)]
    sites = [s.site for s in phenotypes[0].sites]
    legend = _legend(rows, outcome, 0 < len(sites) <= clinical.BOXES) if rows else ""
    note = " ".join(n for n in (legend, _not_drawn(rows, pieces, others, found)) if n)
    return FirstScreen(tuple(s for s in sentences if s), clinical.forest(rows[:DRAWN], sites=sites), note, flow)


def _not_drawn(rows: Sequence[EffectRow], pieces: int, others: int, found: Mapping[str, Any]) -> str:
    """How many phenotypes the figure leaves out, by reason."""
    empty = sum(r.ratio is None for r in rows[DRAWN:])
    counts = {
        "whose replication is undecided" if too_few(found) else "that did not replicate": others,
        "without an odds ratio": empty,
        "with odds ratios nearest to 1": len(rows[DRAWN:]) - empty,
        "that are pieces of these": pieces,
    }
    hidden = ", ".join(f"{n} {reason}" for reason, n in counts.items() if n)
    return f"Not drawn: {hidden}. The table below has them." if hidden else ""


def in_words(folder: RunFolder) -> list[str]:
    """Return the answer of a finished run for a terminal: the first screen's sentences, the guarantee, the cost."""
    run = RunContents.read(folder)
    screen = answer(run, cards(run)) if run.kind == "phenotypes" else None
    sent, received = (words.size(run.metrics.get(way)) for way in ("bytes_up", "bytes_down"))
    return [
        *(screen.sentences if screen else ()),
        *words.summary(run),
        f"Privacy: {words.badge(run.card)}.",
        f"Cost: {words.rounds(run)} The hospitals sent {sent} and received {received}.",
    ]


def _rows(run: RunContents, cards: Sequence[PhenotypeCard]) -> tuple[list[EffectRow], int, int]:
    """Rows of the forest plot, how many pieces and how many that did not replicate are not among them."""
    grades = {r.number: r.grade for r in replication_rows(run.findings, [c.name for c in cards])}
    rows = effect_rows(run.findings, [c.name for c in cards], [leading(c) for c in cards])
    drawn = [r for r in rows if grades.get(r.number) != "not replicated" and cards[r.number - 1].piece_of is None]
    pieces = sum(c.piece_of is not None for c in cards)
    if len(drawn) > DRAWN:  # the strongest associations stay, in their order
        nearest = sorted(drawn, key=lambda r: (not r.sure, -abs(r.ratio[0] - 1) if r.ratio else 0.0))
        drawn = [r for r in drawn if r in nearest[:DRAWN]] + [r for r in drawn if r not in nearest[:DRAWN]]
    out = []
    for r in drawn:
        sites = cards[r.number - 1].sites
        present = f"{sum(s.there for s in sites)} of {len(sites)}" if sites else ""
        out.append(replace(r, hospitals=present or r.hospitals, shares=tuple(s.prevalence for s in sites)))
    return out, pieces, len(rows) - len(drawn) - pieces


def leading(card: PhenotypeCard) -> str:
    """The two heaviest codes of every mode, as one line."""
    return "; ".join(", ".join(c.brief for c in codes[:2]) for _, codes in card.codes if codes)


def outcome_words(outcome: Mapping[str, Any]) -> str:
    """The outcome as a sentence names it."""
    name = str(outcome.get("name") or "outcome")
    return name if name.split()[0] in ("mortality", "readmission", "outcome", "the") else f"the outcome ({name})"


def _learned(run: RunContents) -> str:
    found = run.findings
    if found.get("replicability"):
        return first_words(found, len(run.sites))
    about = "about " if found.get("forecast") else ""
    noise = " All figures contain the noise of the guarantee." if found.get("forecast") else ""
    return (
        f"{run.rank} phenotypes were learned from {about}{found['patients']:,} patients at {len(run.sites)} hospitals. "
        f"Replication was not tested.{noise}"
    )


def _associations(rows: Sequence[EffectRow], outcome: Mapping[str, Any]) -> list[str]:
    """Which phenotypes go with the outcome, by adjusted p-value, and where adjustment reverses the crude ratio."""
    if not outcome:
        return []
    what = outcome_words(outcome)
    if outcome.get("note"):
        return [f"The analysis of {what} is not shown: {outcome['note']}."]
    if not rows:
        return []
    sure = sorted((r for r in rows if r.sure and r.ratio), key=lambda r: -r.ratio[0] if r.ratio else 0.0)
    unclear = [r for r in rows if r.inseparable]
    text = _strongest(sure, len(rows), what) if sure else []
    if not sure and len(rows) > len(unclear):
        text = [f"No association of {len(rows) - len(unclear)} phenotypes with {what} was shown (q < 0.05)."]
    return [*text, *_remarks(rows, unclear, what)]


def _remarks(rows: Sequence[EffectRow], unclear: Sequence[EffectRow], what: str) -> Iterator[str]:
    """What a reader must know of single odds ratios: which cannot be told apart, and which adjustment turns around."""
    if unclear:
        ratios = ", ".join(f"{r.name} {r.crude:.2f}" for r in unclear if r.crude is not None)
        yield (
            f"The effects of {len(unclear)} phenotypes on {what} cannot be told apart, because their patients exclude each other or "
            f"are the same.{f' Crude odds ratios: {ratios}.' if ratios else ''}"
        )
    for row in rows:
        if row.reversed and row.ratio:
            yield f"{row.name}: adjustment reverses it (crude {row.crude:.2f}, adjusted {row.ratio[0]:.2f})."


def _strongest(sure: Sequence[EffectRow], of: int, what: str) -> list[str]:
    """How many phenotypes go with the outcome, and those with the highest and the lowest odds."""
    number = "The one that is drawn" if of == 1 else f"{len(sure)} of these {of}"
    text = [f"{number} {'is' if len(sure) == 1 else 'are'} associated with {what} after adjustment."]
    for row, word in ((sure[0], "highest"), (sure[-1], "lowest")):
        value, low, high = row.ratio or (1.0, 1.0, 1.0)
        if low > 1 if word == "highest" else high < 1:  # an interval that contains 1 would contradict the sentence
            name = f"\N{LEFT DOUBLE QUOTATION MARK}{row.name}\N{RIGHT DOUBLE QUOTATION MARK}"
            text.append(f"The odds are {word} with {name} (odds ratio {value:.2f}, 95 % CI {low:.2f} to {high:.2f}).")
    return text


def best_baseline(outcome: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The comparison with the largest AUC, whichever it is."""
    rows = [r for r in rows_of(outcome.get("baselines"))[1:] if r["auc"] is not None]
    return max(rows, key=lambda r: r["auc"], default=None)


def prediction(found: Mapping[str, Any]) -> str:
    """AUC with its interval, the best baseline, and which of three things may be said."""
    outcome = found.get("outcome") or {}
    if not outcome.get("auc"):
        return ""
    area = "AUC {:.2f}, 95 % CI {:.2f} to {:.2f}".format(*outcome["auc"])
    if found.get("forecast"):
        return f"As predictors they reach {area}, in the patients that the regression was fitted on."
    best = best_baseline(outcome)
    other = ", with the covariates" if set(outcome.get("adjusted_for") or ()) - {"hospital"} else ""
    if best is None:
        return f"As predictors{other}, they reach {area} in held-out patients."
    compared = f"{best['model']} ({best['auc']:.2f})"
    if best["gain_low"] > 0:
        verdict = f"predict better than every comparison. The best of these is {compared}"
    elif best["gain_high"] < 0:
        verdict = f"predict worse than {compared}"
    else:
        verdict = f"are not shown to predict better than {compared}"
    return f"As predictors{other} ({area}), they {verdict}."


def _legend(rows: Sequence[EffectRow], outcome: Mapping[str, Any], boxes: bool) -> str:
    text = []
    if any(r.ratio for r in rows):
        adjusted = list(dict.fromkeys(a.split(":")[0] for a in outcome.get("adjusted_for") or ()))
        text.append(
            f"Odds ratio for {outcome_words(outcome)}, of patients with the phenotype against all others, adjusted for "
            f"{', '.join(adjusted)}{' and ' if adjusted else ''}the other phenotypes. Colour and * mark an adjusted p-value (q) below 0.05."
        )
    if any(r.reversed for r in rows):
        text.append("\N{DAGGER} Adjustment reverses the crude odds ratio.")
    if boxes:
        text.append("Hospitals: share of the patients who have the phenotype, hatched where 1 to 10 patients have it.")
    return " ".join(text)
