"""The report: one HTML file that opens from a mail attachment, loads nothing, and shows only what may be shown."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from polyclinic import __version__
from polyclinic.report import words
from polyclinic.report.cards import AtSite, PhenotypeCard, cards
from polyclinic.report.charts.figures import groups_of, pictures
from polyclinic.report.charts.svg import interval
from polyclinic.report.citation import bibtex
from polyclinic.report.contents import RunContents
from polyclinic.report.findings import sections
from polyclinic.report.hiding import hiding
from polyclinic.report.replication import by_flags, verdicts
from polyclinic.report.section import Tab, log_failure, plugged_sections
from polyclinic.report.spending import spending
from polyclinic.report.tables import NAMES, tables
from polyclinic.studies.run_folder import RunFolder
from polyclinic.util.atomic_files import atomic
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render", "write_report"]

HERE = Path(__file__).parent / "templates"
MODEL = {"phenotypes": "Phenotypes", "mixture": "Groups", "similarity": "Features"}
MERIT = {
    "fit": "fit: 1 - |data - model| / |data|, of the cells as fitted",
    "rmse_full": "root mean squared error over all cells as fitted",
    "rmse_observed": "root mean squared error over recorded cells as fitted",
    "auc": "outcome AUC of patients held out of the regression",
    "auc_random_factors": "the same with frozen random factors",
    "fms_to_truth": "factor match score (recall) to the planted phenotypes",
    "precision_to_truth": "precision of the phenotypes against the planted ones",
    "log_likelihood": "log-likelihood",
    "bic": "BIC (smaller is better)",
    "aic": "AIC (smaller is better)",
}
ASIDE = ("epsilon", "delta", "adjacency", "guarantee", "simulation_only")
PEOPLE = {
    "phenotypes_named": "phenotypes whose shown codes may name them",
    "outcome_unknown": "patients without a known outcome",
    "patients_left_out": "patients of the sources who take no part",
}
COST = {
    "rounds": "rounds of learning (sums before and after them not counted)",
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
    merit = {k: run.metrics.get(k) for k in MERIT if run.metrics.get(k) is not None}
    page_tables = {name: all_tables.get(name) for name in NAMES}
    titles = [title for _, title in _tabs(run)]
    plugged = plugged_sections(_environment(), run, page_tables, own=titles, failed=failed)
    style, script = (HERE / "style.css").read_text("utf-8"), (HERE / "report.js").read_text("utf-8")
    page = _environment().get_template("report.html.j2")
    return str(
        page.render(
            run=run,
            card=run.card,
            cards=by_flags(run.findings, phenotypes),
            spent=budget,
            tables=page_tables,
            charts=pictures(run, phenotypes, budget),
            tabs=_tabs(run, plugged),
            others=plugged,
            tiles=_tiles(run),
            paragraphs=words.summary(run, phenotypes),
            hides=hiding(run, phenotypes),
            outcome_gaps=words.gaps(run.association, run.minimum),
            round_words=words.rounds(run, budget),
            outcome_reason=words.no_outcome(run),
            weights_words=words.weights(run.outcome, run.presence),
            skewed=words.skewed(run.outcome, run.presence),
            figures_merit=merit,
            figures=_figures(run),
            effects=_effects(run, phenotypes),
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
            verdicts=verdicts(run.findings, run.patients),
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "number": words.number,
        "count": words.count,
        "percent": words.percent,
        "badge": words.badge,
        "meaning": words.meaning,
        "exp": lambda v: math.exp(min(float(v), 700.0)),
        "capfirst": lambda s: s[:1].upper() + s[1:],
        "search": _search,
        "shade": _shade,
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
    if run.association or words.no_outcome(run):
        tabs.append(("outcome", "Outcome"))
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


def _tiles(run: RunContents) -> list[Tile]:
    m = run.metrics
    tiles = [Tile(str(len(run.sites)), "sites" if len(run.sites) != 1 else "site")]
    if run.patients is not None:
        tiles.append(Tile(words.number(run.patients), "patients"))
    if run.kind == "phenotypes":
        tiles.append(Tile(str(run.rank), "phenotypes"))
    if run.kind == "mixture":
        tiles.append(Tile(str(run.rank), "patient groups"))
    if m.get("rounds"):
        tiles.append(Tile(words.number(m["rounds"]), "rounds of learning"))
    if m.get("bytes_up"):
        tiles.append(Tile(words.size(m["bytes_up"]), "sent by all sites"))
    for key, what in (
        ("auc", "outcome AUC, patients held out of the regression"),
        ("fit", "fit: 1 is perfect, 0 is nothing"),
    ):
        if key in m:
            no_value = "not paid for" if run.formal else words.number(None)
            tiles.append(Tile(no_value if m[key] is None else words.number(m[key]), what, merit=True))
    return tiles


def _figures(run: RunContents) -> list[Tile]:
    no_value = "not paid for" if run.formal else words.number(None)
    other_figures = {k: k.replace("_", " ") for k in run.metrics if k not in {*MERIT, *PEOPLE, *COST, *ASIDE}}
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


def _effects(run: RunContents, found: Sequence[PhenotypeCard]) -> list[dict[str, object]]:
    effects = run.association.get("effects") or ()
    if not effects:
        return []
    edge = max(0.1, sorted(max(abs(e["low"]), abs(e["high"])) for e in effects)[int(0.9 * (len(effects) - 1))])
    rows = []
    for e in sorted(effects, key=lambda e: -e["coefficient"]):
        c = found[e["phenotype"]]
        ratio = "{:.2f} ({:.2f}\N{EN DASH}{:.2f})".format(
            *(math.exp(min(e[k], 700.0)) for k in ("coefficient", "low", "high"))
        )
        rows.append(
            {
                "number": c.number,
                "name": c.name,
                "coefficient": e["coefficient"],
                "ratio": ratio if e["high"] < 20 else "not estimable",
                "chart": interval(
                    e["coefficient"],
                    e["low"],
                    e["high"],
                    (-edge, edge),
                    title=f"coefficient {e['coefficient']:.2f}, 95 % interval {e['low']:.2f} to {e['high']:.2f}",
                ),
                "p": _p(e["p_value"]),
                "q": _p(e["adjusted"]),
                "sure": e["adjusted"] < 0.05,
                "weight": c.weight,
                "prevalence": c.prevalence,
            }
        )
    return rows


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


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
        "subspace": "Neighbouring sites reached the average among themselves behind random masks; nobody coordinated.",
        "none": "One party saw every record.",
    }.get(run.card.aggregation, f"Contributions were combined by {run.card.aggregation}.")
    return f"{run.outcome['class']} ({run.outcome['method']}), seed {run.study['study']['study'].get('seed', 0)}. {descriptions}"


def _search(card: PhenotypeCard) -> str:
    words_ = [card.name, *(t for _, codes in card.codes for c in codes for t in (c.label, c.name))]
    return " ".join(words_).lower()


def _shade(at: AtSite) -> str:
    if at.strength is None:
        return "few"
    level = min(9, round(9 * math.sqrt(at.strength)))
    return f"h{level}"


def _at_site(at: AtSite) -> str:
    if at.few:
        return f"{at.site}: too few patients to show"
    share = "" if at.prevalence is None else f", {words.percent(at.prevalence)} of its patients"
    return f"{at.site}: strength {at.strength:.2f} of the strongest site{share}"
