"""The tables of a report: their names, what they are, and their columns. Sections of others read them by these names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polyclinic.report.cards import LEAST, LISTED
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
