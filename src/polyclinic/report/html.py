"""The report: one HTML file that opens from a mail attachment, loads nothing, and shows only what may be shown."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from polyclinic import __version__
from polyclinic.report import words
from polyclinic.report.answer import answer, leading
from polyclinic.report.cards import AtSite, PhenotypeCard, cards
from polyclinic.report.charts.svg import shade
from polyclinic.report.citation import bibtex
from polyclinic.report.contents import RunContents
from polyclinic.report.figures import groups_of, pictures
from polyclinic.report.findings import sections
from polyclinic.report.replication import by_grade, verdicts
from polyclinic.report.section import Tab, log_failure, plugged_sections
from polyclinic.report.spending import spending
from polyclinic.report.tables import NAMES, tables
from polyclinic.studies.run_folder import RunFolder
from polyclinic.util.atomic_files import atomic
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from jinja2 import Environment

CCS: Final = "'ccs' or 'rubric'"
GROUPS: Final = "a CSV of groups, such as ingredients or classes"


@dataclass(frozen=True)
class Hiding:
    """One paragraph each: what is hidden and why; what would help."""

    headline: str
    why: str
    helps: tuple[str, ...]


def hiding(run: RunContents, cards: Sequence[PhenotypeCard]) -> Hiding | None:
    """What this report hides by the small-cell rule; None where it hides nothing (or under a formal guarantee: noise)."""
    if not cards or run.formal or run.owner is not None or not run.presence:
        return None
    unnamed = [c for c in cards if not c.named]
    codes = sum(c.suppressed for c in cards)
    if not unnamed and not codes:
        return None
    lesser = f"{codes} lesser {'code' if codes == 1 else 'codes'} of the {len(cards)} phenotypes {'is' if codes == 1 else 'are'} not shown."
    head = f"{len(unnamed)} of {len(cards)} phenotypes cannot be named here." if unnamed else lesser
    reason = (
        f"A code is shown if at least {run.minimum} patients have it and carry the phenotype, and no two patients hold more than "
        "half of its weight. Otherwise it would describe single patients."
    )
    if run.phenotypes.shown:
        reason += " Codes that the known noise explains are not shown, either."
    counted = Counter(c.why(run.minimum) for c in unnamed)
    if counted:
        reason += (
            " Why they have no name: "
            + ", ".join(f"{text} ({n} of {len(unnamed)})" for text, n in counted.items())
            + "."
        )
    return Hiding(head, reason, tuple(_helps(run, unnamed)) if unnamed else ())


def _helps(run: RunContents, unnamed: Sequence[PhenotypeCard]) -> list[str]:
    study, parameters = run.study["study"], run.outcome["parameters"]
    out = []
    if parameters.get("weighting") == "none":
        out.append(
            "[method] weighting = \N{LEFT DOUBLE QUOTATION MARK}saturating\N{RIGHT DOUBLE QUOTATION MARK}, "
            "so that no few patients make a phenotype"
        )
    if any(c.reason == "held" for c in unnamed) and study.get("tensor"):
        out.append("[tensor] count = 'presence', so that a patient's repeated visits weigh as one")
    grouped = study.get("codes") or {}
    loose = [m for m in (study.get("tensor") or {}).get("modes", ()) if m not in grouped]
    for mode in loose:
        icd = any(word in mode for word in ("diag", "condition", "procedure"))
        out.append(f"coarser codes: [codes.{mode}] to = {CCS if icd else GROUPS}")
    out.append(f"fewer phenotypes (rank is {run.rank}), more patients, or more sites")
    out.append(
        "a report for the owner of a site, which shows everything of its own patients: polyclinic report RUN --local SITE"
    )
    return out


HERE = Path(__file__).parent / "templates"
MODEL = {"phenotypes": "Phenotypes", "mixture": "Groups", "similarity": "Features"}
MERIT = {
    "fit": "fit: 1 - |data - model| / |data|, of the cells as fitted",
    "rmse_full": "root mean squared error over all cells as fitted",
    "rmse_observed": "root mean squared error over recorded cells as fitted",
    "fms_to_truth": "factor match score (recall) to the planted phenotypes",
    "precision_to_truth": "precision of the phenotypes against the planted ones",
    "log_likelihood": "log-likelihood",
    "bic": "BIC (smaller is better)",
    "aic": "AIC (smaller is better)",
}
# the AUC is with the outcome, patients are in the flow, rounds are a sentence
ASIDE = (
    *("epsilon", "delta", "adjacency", "guarantee", "simulation_only", "outcome_unknown", "patients_left_out"),
    *("rounds_most", "converged", "predicts_unseen_codes", "phenotypes_replicable"),
)
PEOPLE = {"phenotypes_named": "phenotypes whose shown codes may name them"}
COST = {
    "rounds": "rounds of training",
    "seconds": "seconds",
    "bytes_up": "bytes from sites",
    "bytes_down": "bytes to sites",
    "payload_bytes_up": "of these, numbers of the model",
    "seconds_at_15_MB_per_s": "seconds at 15 MB/s (the papers' unit)",
}


def write_report(folder: RunFolder, *, out: Path | None = None, failed: Callable[[str], None] = log_failure) -> Path:
    """Write a run's report as one self-contained HTML file and return its path.

    Parameters
    ----------
    folder
        A finished run.
    out
        Where to; default ``report.html`` in the folder.
    failed
        Is told of every section of others that could not be made; the report stands without it.
    """
    path = folder.report if out is None else out
    text = render(RunContents.read(folder), failed=failed)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def render(run: RunContents, *, failed: Callable[[str], None] = log_failure) -> str:
    """The report's HTML; ``failed`` is told of sections of others that could not be made."""
    phenotypes = cards(run) if run.kind == "phenotypes" else ()
    budget = spending(run)
    all_tables = tables(run, phenotypes, budget)
    page_tables = {name: all_tables.get(name) for name in NAMES}
    titles = [title for _, title in _tabs(run)]
    plugged = plugged_sections(_environment(), run, page_tables, own=titles, failed=failed)
    style, script = (HERE / "style.css").read_text("utf-8"), (HERE / "report.js").read_text("utf-8")
    page = _environment().get_template("report.html.j2")
    return str(
        page.render(
            run=run,
            card=run.card,
            cards=by_grade(run.findings, phenotypes),
            answer=answer(run, phenotypes),
            spent=budget,
            tables=page_tables,
            charts=pictures(run, phenotypes, budget),
            tabs=_tabs(run, plugged),
            others=plugged,
            paragraphs=words.summary(run),
            hides=hiding(run, phenotypes),
            round_words=words.rounds(run, budget),
            weights_words=words.weights(run.outcome, run.presence),
            skewed=words.skewed(run.outcome, run.presence),
            figures=_figures(run),
            card_rows=[(k, v) for k, v in run.card.rows() if not k.endswith(" saw")],
            spent_adjacency=budget[0].adjacency if budget else "",
            own_model=run.outcome.get("class"),
            method_words=_method(run),
            citation=bibtex(str(run.outcome["method"])),
            study_text=json.dumps(run.study["study"], indent=1, ensure_ascii=False),
            version=__version__,
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash(style),
            script_hash=_hash(script),
            **_similarity(run, all_tables),
            groups=groups_of(run),
            findings=sections(run.findings, [c.suggested for c in phenotypes]),
            verdicts=verdicts(run.findings),
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "number": words.number,
        "count": words.count,
        "percent": words.percent,
        "badge": lambda card: words.badge(card).replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),
        "meaning": words.meaning,
        "capfirst": lambda s: s[:1].upper() + s[1:],
        "leading": leading,
        "search": _search,
        "shade": _shade,
        "numeric": _numeric,
        "at_site": _at_site,
    }
    return environment


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _tabs(run: RunContents, others: Sequence[Tab] = ()) -> list[tuple[str, str]]:
    tabs = [("summary", "Summary")]
    if run.kind in MODEL:
        tabs.append(("model", MODEL[run.kind]))
    if run.kind == "phenotypes":
        tabs.append(("maps", "Heat maps"))
    if run.findings:
        tabs.append(("findings", "Findings"))
    tabs += [(t.id, t.title) for t in others]
    return [*tabs, ("course", "Fit and cost"), ("privacy", "Privacy"), ("method", "Method")]


@dataclass(frozen=True)
class Tile:
    """A figure at the top of the page; ``merit``: a figure of accuracy, which never stands without its guarantee."""

    value: str
    what: str
    merit: bool = False


def _figures(run: RunContents) -> list[Tile]:
    no_value = "not covered by the budget" if run.formal else words.number(None)
    other_figures = {
        k: k.replace("_", " ") for k in run.metrics if k not in {*MERIT, *PEOPLE, *COST, *ASIDE} and k[:3] != "auc"
    }
    tiles = [
        Tile(
            no_value if run.metrics[k] is None else words.number(run.metrics[k]),
            what,
            merit=k not in COST and k not in PEOPLE,
        )
        for k, what in (*MERIT.items(), *other_figures.items(), *PEOPLE.items(), *COST.items())
        if k in run.metrics and isinstance(run.metrics[k], int | float | None)
    ]
    return tiles


def _similarity(run: RunContents, made: dict[str, Table]) -> dict[str, object]:
    if run.kind != "similarity":
        return {"features": (), "selected": 0, "bias": 0}
    rows = list(made["features"])
    top = max((r["weight"] for r in rows), default=1.0) or 1.0
    return {
        "features": [{"name": r["feature"], "weight": r["weight"], "share": r["weight"] / top} for r in rows],
        "selected": sum(bool(r["selected"]) for r in rows),
        "bias": words.number(run.similarity.bias),
    }


def _method(run: RunContents) -> str:
    descriptions = {
        "plain": "The coordinator added what each site sent.",
        "masked": "Contributions were masked pairwise, so that the coordinator could read their sum only.",
        "subspace": "Neighbouring sites computed the average among themselves behind random masks. There was no coordinator.",
        "none": "One party saw every record.",
    }.get(run.card.aggregation, f"Contributions were combined by {run.card.aggregation}.")
    return f"{run.outcome['class']} ({run.outcome['method']}), seed {run.study['study']['study'].get('seed', 0)}. {descriptions}"


def _numeric(table: Table) -> list[bool]:
    """Per column whether it has a number: such a column is aligned to the right."""
    return [any(type(r[k]) in (int, float) for r in table.rows) for k in range(len(table.columns))]


def _search(card: PhenotypeCard) -> str:
    words_ = [card.name, *(t for _, codes in card.codes for c in codes for t in (c.label, c.name))]
    return " ".join(words_).lower()


def _shade(at: AtSite) -> str:
    return "few" if at.prevalence is None else shade(at.prevalence)


def _at_site(at: AtSite) -> str:
    share = (
        "1 to 10 patients, or not shown" if at.prevalence is None else f"{words.percent(at.prevalence)} of its patients"
    )
    return f"{at.site}: {share}"
