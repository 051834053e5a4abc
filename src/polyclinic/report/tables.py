"""Every table of a report by its name: what the page shows beside its charts, and what is exported as CSV."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np

from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.privacy.accounting.accountant import multiplier_of
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import ADJACENCY, Card
from polyclinic.report.cards import LEAST, LISTED, PhenotypeCard
from polyclinic.report.charts.rows import natural
from polyclinic.report.contents import RunContents
from polyclinic.report.spending import SiteSpending
from polyclinic.util.table import Table


@dataclass(frozen=True)
class ReportTable:
    """One table of the report.

    Attributes
    ----------
    meaning
        What a row is, and what is left out.
    columns
        Their names, in order.
    further
        Which columns follow, where they depend on the run.
    """

    meaning: str
    columns: tuple[str, ...]
    further: str = ""

    def of(self, rows: Sequence[Sequence[object]], further: Sequence[str] = ()) -> Table:
        """The table with these rows."""
        return Table([*self.columns, *further], rows)


_PHENOTYPE: Final = ("phenotype", "suggested name")

COMPARED: Final = {
    "model": "model",
    "sees": "coordinator sees",
    "fit": "fit",
    "rmse_full": "RMSE of all cells",
    "rmse_observed": "RMSE of recorded cells",
    "fms_to_truth": "factor match score",
    "rounds": "rounds",
    "bytes_up": "bytes from sites",
    "seconds": "seconds",
}
COMPARED_PRIVATE: Final = {
    "model": "model",
    "guarantee": "guarantee",
    "fms_to_truth": "factor match score",
    "precision_to_truth": "precision",
    "seconds": "seconds",
}
TABLES: Final[dict[str, ReportTable]] = {
    "figures": ReportTable(
        "Figures of merit (fit, errors, bytes), each with its privacy guarantee.",
        ("figure", "value", "guarantee", "epsilon", "delta", "adjacency"),
    ),
    "phenotypes": ReportTable(
        "One row per phenotype. Patients and prevalence are empty if the privacy budget does not cover them or if they are below 11.",
        (
            *_PHENOTYPE,
            *(
                "weight",
                "where",
                "place",
                "patients",
                "prevalence",
                "effective contributors",
                "codes not shown",
                "codes may name it",
            ),
            *("share of squared weight shown", "why no name is suggested"),
        ),
    ),
    "codes": ReportTable(
        f"The TOP codes of each phenotype and mode, not all: at most {LISTED}, each with at least {100 * LEAST:g} % of the "
        "phenotype's weight in that mode (`share` is of the whole mode, so the shares listed add up to less than 1). `lift` is the "
        "share over the code's share of all phenotypes together. A row with `shown` false stands for all codes that may not be shown.",
        (*_PHENOTYPE, "mode", "code", "description", "weight", "share", "lift", "shown"),
    ),
    "sites": ReportTable(
        "One row a phenotype and site: patients with it, and their share of the site's patients.",
        (*_PHENOTYPE, "site", "patients", "prevalence"),
    ),
    "groups": ReportTable(
        "Mixtures: one row a group, its centre; empty where a group has too few patients.",
        ("group", "share"),
        "one for each feature",
    ),
    "group_sizes": ReportTable("Mixtures: patients of each group at each site.", ("group", "site", "patients")),
    "features": ReportTable(
        "Similarity: every feature, heaviest first, and whether it counts.", ("feature", "weight", "selected")
    ),
    "neighbours": ReportTable("Similarity: figures of the nearest neighbours.", ("figure", "value")),
    "explanation": ReportTable(
        "Similarity: how much of a distance each feature makes up.",
        ("feature", "part in pairs of one class", "part in pairs of two classes"),
    ),
    "rounds": ReportTable(
        "One row a round: of `learning` (the `rounds` of the figures count these), or of sums `after the fit`. Ledgers number all "
        "rounds of sums, from 0 for what comes before the first.",
        ("round", "part"),
        "the method's figures (`objective`, `fit`, ...), `bytes_up`, `bytes_down`, `seconds since the start`",
    ),
    "traffic": ReportTable("Bytes on the wire, by site.", ("site", "bytes up", "bytes down")),
    "comparison": ReportTable(
        "Other models on the same data, where the study asked for them.", tuple(COMPARED.values())
    ),
    "comparison_private": ReportTable("The same under patient-level privacy.", tuple(COMPARED_PRIVATE.values())),
    "privacy": ReportTable("The privacy card, line by line.", ("what", "text")),
    "ledger": ReportTable(
        "One row a release: what left a site.",
        (
            *("site", "time", "round", "step", "attempt", "numbers", "how", "noise", "event", "multiplier"),
            *("adjacency", "proven"),
        ),
    ),
    "spending": ReportTable(
        "What was spent after every round, by site.",
        ("site", "adjacency", "round", "epsilon (tight)", "epsilon (Renyi)"),
    ),
    "parameters": ReportTable("The method's parameters.", ("parameter", "value")),
    "people": ReportTable("Who is left after every rule of the cohort.", ("step", "patients left")),
    "attrition": ReportTable(
        "Rows of the sources, step by step; fewer than 11 rows left out are said as that.",
        ("source", "step", "rows in", "rows out", "left out because", "rows left out"),
    ),
    "small_sites": ReportTable("Sites too small to take part alone.", ("site", "part of")),
    "versions": ReportTable("What the result depends on.", ("what", "version or fingerprint")),
}


NAMES: Final = tuple(TABLES)
MERIT = ("objective", "rmse_full", "rmse_observed", "fit", "log_likelihood", "primal", "dual", "noise_sd")


def tables(
    run: RunContents, cards: Sequence[PhenotypeCard] = (), spent: Sequence[SiteSpending] = ()
) -> dict[str, Table]:
    """All tables that have rows; small counts are not in any of them."""
    out = {
        "figures": _figures(run),
        **(_phenotypes(run, cards) if run.kind == "phenotypes" else {}),
        **(_mixture(run) if run.kind == "mixture" else {}),
        **(_similarity(run) if run.kind == "similarity" else {}),
        **_found(run, cards),
        "rounds": _rounds(run),
        "traffic": _traffic(run),
        **_comparison(run),
        "privacy": TABLES["privacy"].of(run.card.rows()),
        **_ledger(spent),
        "parameters": _parameters(run),
        "people": TABLES["people"].of(
            [(a["step"], "not shown" if a["patients"] is None else a["patients"]) for a in run.flow]
        ),
        "attrition": _attrition(run),
        "small_sites": _small_sites(run),
        "versions": TABLES["versions"].of(_manifest(run)),
    }
    return {name: t for name, t in out.items() if len(t) or name == "codes"}


def _found(run: RunContents, cards: Sequence[PhenotypeCard]) -> dict[str, Table]:
    """The tables of the findings, as the report shows them."""
    from polyclinic.report.findings import sections  # it imports this package's cards

    names = [c.suggested for c in cards]
    out = {}
    for s in sections(run.findings, names):
        for title, table in s.tables:
            word = "".join(c if c.isalnum() else "_" for c in title.lower())
            out[f"findings_{s.id}_{word}"] = table
    return out


def _manifest(run: RunContents) -> list[tuple[str, str]]:
    """What a result depends on: packages, and fingerprints of the study and of the lists of codes."""
    study = hashlib.sha256(json.dumps(run.study["study"], sort_keys=True).encode()).hexdigest()
    return [
        *((str(k), str(v)) for k, v in run.study.get("versions", {}).items()),
        ("study (SHA-256)", study[:16]),
        *((f"codes of {a.name} (SHA-256)", a.digest()[:16]) for a in run.axes),
    ]


def _parameters(run: RunContents) -> Table:
    """Parameters in words; one called privacy never as a bare epsilon."""
    rows = [
        (k, privacy_words(v, run.card) if k == "privacy" and isinstance(v, dict) else spelled(v))
        for k, v in run.outcome["parameters"].items()
    ]
    return TABLES["parameters"].of(rows)


def _figures(run: RunContents) -> Table:
    c = run.card
    rows = [
        (k, v, c.guarantee, c.epsilon, c.delta, c.adjacency)
        for k, v in run.metrics.items()
        if not isinstance(v, dict | list | str) and k not in ("epsilon", "delta", "adjacency", "guarantee")
    ]
    return TABLES["figures"].of(rows)


def _phenotypes(run: RunContents, cards: Sequence[PhenotypeCard]) -> dict[str, Table]:
    codes: list[tuple[object, ...]] = []
    for c in cards:
        for (mode, listed), gone in zip(c.codes, c.hidden_share):
            codes += [(c.number, c.name, mode, k.label, k.name, k.weight, k.share, k.lift, True) for k in listed]
            if gone >= LEAST and not run.formal:  # that there is more, and how much of it: not which
                codes.append((c.number, c.name, mode, None, "codes that may not be shown", None, gone, None, False))
    columns = (
        "number",
        "name",
        "weight",
        "where",
        "place",
        "carriers",
        "prevalence",
        "contributors",
        "suppressed",
        "named",
        "kept",
    )
    about = [(*attrgetter(*columns)(c), c.why(run.minimum)) for c in cards]
    site_rows = [(c.number, c.name, s.site, s.carriers, s.prevalence) for c in cards for s in c.sites]
    return {
        "phenotypes": TABLES["phenotypes"].of(about),
        "codes": TABLES["codes"].of(codes),
        "sites": TABLES["sites"].of(site_rows),
    }


def _attrition(run: RunContents) -> Table:
    rows: list[tuple[object, ...]] = []
    for source, steps in run.attrition.items():
        for s in steps:
            rows.append((source, s["step"], s["rows_in"], s["rows_out"], None, None))
            rows += [
                (source, s["step"], None, None, why, "fewer than 11" if n is None else n)
                for why, n in s["dropped"].items()
            ]
    return TABLES["attrition"].of(rows)


def _small_sites(run: RunContents) -> Table:
    small = run.study.get("small") or {"joined": {}, "skipped": ()}
    rows = [(site, new) for new, old in small["joined"].items() for site in old]
    return TABLES["small_sites"].of([*rows, *((s, "takes no part") for s in small["skipped"])])


def _rounds(run: RunContents) -> Table:
    figures = [k for k in (*MERIT, "bytes_up", "bytes_down", "seconds") if any(k in h for h in run.history)]
    learned = run.metrics.get("rounds")
    rows = [
        (
            h.get("round"),
            "after the fit" if learned and h.get("round", 0) > learned else "learning",
            *(h.get(k) for k in figures),
        )
        for h in run.history
    ]
    return TABLES["rounds"].of(rows, ["seconds since the start" if k == "seconds" else k for k in figures])


def _traffic(run: RunContents) -> Table:
    by_site = (run.outcome.get("traffic") or {}).get("by_site") or {}
    sites = sorted(by_site.items(), key=lambda item: natural(item[0]))
    return TABLES["traffic"].of([(s, t["bytes_up"], t["bytes_down"]) for s, t in sites])


def _comparison(run: RunContents) -> dict[str, Table]:
    models, private = run.comparison.get("models", ()), run.comparison.get("patient_level", ())
    return {
        "comparison": TABLES["comparison"].of([[r.get(k) for k in COMPARED] for r in models]),
        "comparison_private": TABLES["comparison_private"].of([[r.get(k) for k in COMPARED_PRIVATE] for r in private]),
    }


def _ledger(spent: Sequence[SiteSpending]) -> dict[str, Table]:
    facts = attrgetter("round", "step", "attempt", "scalars", "how", "noise")
    lines = [
        (s.site, when, *facts(c), type(c.event).__name__, multiplier_of(c.event), c.adjacency, c.formal)
        for s in spent
        for when, c in s.charges
    ]
    by_round = [(s.site, s.adjacency, a.round, a.tight, a.renyi) for s in spent for a in s.by_round]
    return {"ledger": TABLES["ledger"].of(lines), "spending": TABLES["spending"].of(by_round)}


def feature_names(run: RunContents, d: int) -> list[str]:
    """Names of the columns of a feature matrix, where the run or the study gives them."""
    names = None if run.model is None or isinstance(run.model, Phenotypes) else run.model.columns
    columns = names or (run.study["study"].get("features") or {}).get("columns") or ()
    return [str(c) for c in columns] if len(columns) == d else [f"feature {k + 1}" for k in range(d)]


def _mixture(run: RunContents) -> dict[str, Table]:
    weights, means = run.groups.weights, run.groups.means
    names = feature_names(run, means.shape[1])
    p = run.presence
    sizes = [
        (j + 1, site, p["carriers"][j][k])
        for j in range(len(weights))
        for k, site in enumerate(p.get("sites") or ())
        if p.get("carriers")
    ]
    centre, share = run.shown_groups
    rows = [
        (j + 1, float(w) if share[j] else None, *((float(x) if centre[j] else None) for x in means[j]))
        for j, w in enumerate(weights)
    ]
    return {"groups": TABLES["groups"].of(rows, names), "group_sizes": TABLES["group_sizes"].of(sizes)}


def _similarity(run: RunContents) -> dict[str, Table]:
    components = run.similarity.components
    lengths = np.sqrt((components**2).sum(0))
    names = feature_names(run, components.shape[1])
    order = np.argsort(-lengths, kind="stable")
    rows = [(names[k], float(lengths[k]), bool(lengths[k] > 0)) for k in order]
    n = run.neighbours
    parts = [(names[k], n["same"][k], n["different"][k]) for k in order if lengths[k] > 0] if n else []
    figures = [(k, v) for k, v in n.get("figures", {}).items()]
    return {
        "features": TABLES["features"].of(rows),
        "neighbours": TABLES["neighbours"].of(figures),
        "explanation": TABLES["explanation"].of(parts),
    }


def spelled(value: object) -> str:
    """A parameter's value as a study file has it, without the marks of a programming language.

    >>> spelled(None), spelled(True), spelled(0.05), spelled(["a", 2]), spelled({"north": 0.1, "south": 0.2})
    ('not set', 'true', '0.05', 'a, 2', 'north: 0.1, south: 0.2')
    """
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case Mapping():
            return ", ".join(f"{k}: {spelled(v)}" for k, v in value.items())
        case list() | tuple():
            return ", ".join(spelled(v) for v in value)
        case _:
            return str(value)


def privacy_words(asked: Mapping[str, Any], card: Card) -> str:
    """The privacy that was asked for, with its adjacency, its delta, and the kind of guarantee that was reached.

    >>> card = Card("dpem", "heuristic", 2.0, 1e-6, "patient")
    >>> privacy_words({"epsilon": 2.0, "delta": 1e-6, "level": "patient", "max_sites_per_patient": 2}, card)
    'asked for: patient-level, epsilon 2 at delta 1e-06 (one patient added or removed), one patient at no more than 2 sites. Guarantee reached: heuristic'
    """
    p = Privacy(**asked)
    sites = f"one patient at no more than {p.max_sites_per_patient} site{'s' if p.max_sites_per_patient > 1 else ''}"
    bounds = [f"{what} {v:g}" for what, v in (("gradients up to", p.clip), ("counts up to", p.count_cap)) if v]
    facts = [
        f"{p.level}-level",
        f"epsilon {p.epsilon:.4g} at delta {p.delta:g} ({ADJACENCY[p.level]})",
        *([sites] if p.level == "patient" else []),
        *bounds,
    ]
    return f"asked for: {', '.join(facts)}. Guarantee reached: {card.guarantee}"
