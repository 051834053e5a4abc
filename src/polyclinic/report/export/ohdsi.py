"""Findings as an OHDSI results data model: one CSV a table, and ``resultsDataModelSpecification.csv`` that describes them.
Shown codes as concept sets that ATLAS and CIRCE read.

Phenotypes are cohorts. A count that may not be shown is the negative of the smallest one that may (-11 reads "fewer than 11"; it
also stands for a larger count that would give such a one away); 0 is a count. A share beside such a count is empty.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from polyclinic.errors import ConfigError
from polyclinic.report.cards import PhenotypeCard, cards
from polyclinic.report.charts.rows import grade
from polyclinic.report.contents import RunContents
from polyclinic.studies.run_folder import RunFolder
from polyclinic.util.atomic_files import atomic
from polyclinic.util.table import spreadsheet_cell

SPECIFICATION: Final = "resultsDataModelSpecification.csv"
EVERYBODY: Final = 0  # cohort of all patients


@dataclass(frozen=True)
class TableField:
    """One column of a results table."""

    table: str
    name: str
    type: Literal["bigint", "int", "float", "varchar"]
    description: str
    required: bool = False
    key: bool = False
    counts: bool = False  # subject to the minimum cell count


def _key(table: str, *more: TableField) -> tuple[TableField, ...]:
    return (TableField(table, "database_id", "varchar", "The study", True, True), *more)


def _cohort(table: str) -> TableField:
    return TableField(table, "cohort_definition_id", "bigint", "Number of the phenotype; 0: everybody", True, True)


def _near(table: str, what: str) -> tuple[TableField, ...]:
    bounds = (("ci_95_lb", "Lower"), ("ci_95_ub", "Upper"))
    return (
        TableField(table, what, "float", what.replace("_", " ")),
        *(TableField(table, n, "float", f"{w} end of its 95 % interval") for n, w in bounds),
    )


MODEL: Final[dict[str, tuple[TableField, ...]]] = {
    "pc_database": _key(
        "pc_database",
        TableField("pc_database", "database_name", "varchar", "Name of the study", True),
        TableField("pc_database", "persons", "bigint", "Patients of all hospitals", counts=True),
        TableField("pc_database", "min_cell_count", "int", "Smallest count that is shown", True),
        TableField("pc_database", "privacy", "varchar", "What is guaranteed about the findings"),
    ),
    "pc_cohort_definition": (
        _cohort("pc_cohort_definition"),
        TableField("pc_cohort_definition", "cohort_name", "varchar", "Name; empty where it did not replicate", True),
        TableField(
            "pc_cohort_definition", "replicable", "varchar", "replicated, uncertain, not replicated, or not tested"
        ),
        TableField("pc_cohort_definition", "agreement", "float", "Cosine of two halves of the patients"),
    ),
    "pc_cohort_count": _key(
        "pc_cohort_count",
        _cohort("pc_cohort_count"),
        TableField("pc_cohort_count", "cohort_subjects", "bigint", "Patients who carry the phenotype", counts=True),
        *_near("pc_cohort_count", "proportion"),
    ),
    "pc_covariate_value": _key(
        "pc_covariate_value",
        _cohort("pc_covariate_value"),
        TableField("pc_covariate_value", "covariate_name", "varchar", "Variable and level", True, True),
        TableField("pc_covariate_value", "sum_value", "bigint", "Patients with the level", counts=True),
        TableField("pc_covariate_value", "mean", "float", "Their share in the cohort"),
    ),
    "pc_outcome": _key(
        "pc_outcome",
        TableField("pc_outcome", "outcome_name", "varchar", "The outcome", True, True),
        TableField("pc_outcome", "target_subjects", "bigint", "Patients with a known outcome", counts=True),
        TableField("pc_outcome", "outcome_subjects", "bigint", "Of them with the outcome", counts=True),
        TableField(
            "pc_outcome", "unknown_subjects", "bigint", "Left out: outcome or a covariate is unknown", counts=True
        ),
        TableField("pc_outcome", "adjusted_for", "varchar", "Covariates of the regressions"),
    ),
    "pc_outcome_result": _key(
        "pc_outcome_result",
        _cohort("pc_outcome_result"),
        *_near("pc_outcome_result", "odds_ratio"),
        TableField("pc_outcome_result", "p", "float", "p value"),
        TableField("pc_outcome_result", "q", "float", "By Benjamini and Hochberg"),
        TableField(
            "pc_outcome_result", "outcome_subjects", "bigint", "Patients with phenotype and outcome", counts=True
        ),
        TableField("pc_outcome_result", "log_rr", "float", "Log odds ratio"),
        TableField("pc_outcome_result", "se_log_rr", "float", "Its standard error"),
    ),
    "pc_prediction": _key(
        "pc_prediction",
        TableField("pc_prediction", "model_name", "varchar", "What predicts", True, True),
        *_near("pc_prediction", "auc"),
        TableField("pc_prediction", "gain", "float", "AUC of covariates and phenotypes minus this one"),
        TableField("pc_prediction", "gain_95_lb", "float", "Lower end of the gain's 95 % interval"),
        TableField("pc_prediction", "gain_95_ub", "float", "Upper end of the gain's 95 % interval"),
    ),
    "pc_kaplan_meier": _key(
        "pc_kaplan_meier",
        _cohort("pc_kaplan_meier"),
        TableField("pc_kaplan_meier", "group_name", "varchar", "carriers, others or everybody", True, True),
        TableField("pc_kaplan_meier", "time_day", "float", "Days since the start", True, True),
        TableField("pc_kaplan_meier", "at_risk", "bigint", "Patients at risk", counts=True),
        *_near("pc_kaplan_meier", "survival"),
    ),
    "pc_hazard_ratio": _key(
        "pc_hazard_ratio",
        _cohort("pc_hazard_ratio"),
        *_near("pc_hazard_ratio", "hazard_ratio"),
        TableField("pc_hazard_ratio", "p", "float", "p value"),
        TableField("pc_hazard_ratio", "log_rank_p", "float", "p value of the log-rank test"),
    ),
    "pc_completion": _key(
        "pc_completion",
        TableField("pc_completion", "model_name", "varchar", "The model, or its rank", True, True),
        *_near("pc_completion", "nats_per_event"),
    ),
}


def write_ohdsi(folder: RunFolder, out: Path, *, minimum: int = 11) -> list[Path]:
    """Write the findings of a run as CSV files that OHDSI's result tools load; returns what was written.

    Parameters
    ----------
    folder
        A run with ``findings.json``.
    out
        Folder to write to.
    minimum
        Smallest count that is shown.
    """
    run = RunContents.read(folder)
    if not run.findings:
        raise ConfigError(
            f"{folder.path} has no findings to write", hint="add [evaluate] to the study, or run polyclinic evaluate"
        )
    out.mkdir(parents=True, exist_ok=True)
    rows = _rows(run, minimum)
    written = []
    for name, columns in MODEL.items():
        if rows[name]:
            written.append(
                _csv(
                    out / f"{name}.csv", [c.name for c in columns], [_checked(columns, r, minimum) for r in rows[name]]
                )
            )
    head = [
        "table_name",
        "column_name",
        "data_type",
        "is_required",
        "primary_key",
        "min_cell_count",
        "optional",
        "empty_is_na",
        "description",
    ]
    specification = [
        [
            f.table,
            f.name,
            f.type,
            _yes(f.required),
            _yes(f.key),
            _yes(f.counts),
            _yes(not f.required),
            "yes",
            f.description,
        ]
        for columns in MODEL.values()
        for f in columns
    ]
    return [*written, _csv(out / SPECIFICATION, head, specification)]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _checked(columns: Sequence[TableField], row: Sequence[Any], minimum: int) -> list[object]:
    """A row as it may be shown: hidden or small counts as minus the minimum."""
    out = []
    for f, v in zip(columns, row, strict=True):
        censored = f.counts and (v is None or 0 < v < minimum)
        out.append(-minimum if censored else "" if v is None else v)
    return out


def _csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([spreadsheet_cell(v) for v in row] for row in rows)
    with atomic(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
    return path


def _of(table: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [] if not table else [dict(zip(table["columns"], r)) for r in table["rows"]]


def _rows(run: RunContents, minimum: int) -> dict[str, list[list[object]]]:
    """Every table's rows, in the order of ``MODEL``'s columns."""
    f, study = run.findings, str(run.study["study"]["study"]["name"])
    names = [c.suggested for c in sorted(cards(run), key=lambda c: c.number)]
    replicability = {r["phenotype"]: r for r in _of(f.get("replicability"))}
    o = f.get("outcome") or {}
    curves = [(s, _cohort_of(s["phenotype"])) for s in f.get("survival") or []]
    card = f.get("privacy") or {}
    return {
        "pc_database": [[study, study, f["patients"], minimum, card.get("headline", "")]],
        "pc_cohort_definition": [
            [
                k + 1,
                name,
                grade(replicability[k]) if k in replicability else "not tested",
                replicability.get(k, {}).get("halves"),
            ]
            for k, name in enumerate(names)
        ],
        "pc_cohort_count": [
            [study, _cohort_of(r["phenotype"]), r["patients"], r["share"], r["low"], r["high"]]
            for r in _of(f.get("prevalence"))
        ],
        "pc_covariate_value": [
            [study, _cohort_of(r["phenotype"]), f"{r['variable']}: {r['level']}", r["patients"], r["share"]]
            for r in _of(f.get("people"))
        ],
        "pc_outcome": [[study, o["name"], o["patients"], o["events"], o["unknown"], "; ".join(o["adjusted_for"])]]
        if o
        else [],
        "pc_outcome_result": [
            [
                study,
                _cohort_of(r["phenotype"]),
                *(r[k] for k in ("odds_ratio", "low", "high", "p", "q", "events", "coefficient", "se")),
            ]
            for r in _of(o.get("effects"))
        ],
        "pc_prediction": [
            [study, *(r[k] for k in ("model", "auc", "low", "high", "gain", "gain_low", "gain_high"))]
            for r in _of(o.get("baselines"))
        ]
        or ([[study, "covariates and phenotypes", *o["auc"], None, None, None]] if o.get("auc") else []),
        "pc_kaplan_meier": [
            [study, c, *(r[k] for k in ("group", "time", "at_risk", "survival", "low", "high"))]
            for s, c in curves
            for r in _of(s["curve"])
        ],
        "pc_hazard_ratio": [
            [study, c, *(s["hazard_ratio"] or (None,) * 3), s["p"], s["log_rank_p"]]
            for s, c in curves
            if s["phenotype"] is not None
        ],
        "pc_completion": [[study, *(r[k] for k in ("model", "nats", "low", "high"))] for r in _of(f.get("completion"))],
    }


def _cohort_of(phenotype: int | None) -> int:
    return EVERYBODY if phenotype is None else phenotype + 1


def concept_sets(found: tuple[PhenotypeCard, ...]) -> list[dict[str, object]]:
    """One set for each phenotype and mode with shown codes; a code is an OMOP ``concept_id``, and its descendants count.

    Raises
    ------
    ConfigError
        A shown code is no concept_id: the records were not read by OMOP's standard concepts, or codes were grouped.
    """
    faults = []
    for mode in dict.fromkeys(m for c in found for m, _ in c.codes):
        labels = {x.label for c in found for m, codes in c.codes if m == mode for x in codes}
        not_concepts = sorted(x for x in labels if not x.isdecimal() or x.startswith("0"))
        if not_concepts:
            faults.append(
                f"mode {mode}: {len(not_concepts)} of {len(labels)} codes are no concept_id, e.g. {not_concepts[0]!r}"
            )
    if faults:
        raise ConfigError(
            "no concept sets can be made of this run's codes",
            faults=faults,
            hint="they are concept_ids where a source of kind 'omop' has codes = 'standard' and [codes] to = 'normal'",
        )
    return [
        {
            "name": f"phenotype {card.number}: {card.name} ({mode})",
            "expression": {
                "items": [
                    {
                        "concept": {"CONCEPT_ID": int(x.label), "CONCEPT_NAME": x.name or x.label},
                        "isExcluded": False,
                        "includeDescendants": True,
                        "includeMapped": False,
                    }
                    for x in codes
                ]
            },
        }
        for card in found
        for mode, codes in card.codes
        if codes
    ]


def write_concept_sets(folder: RunFolder) -> list[Path]:
    """Write ``concept_sets/NUMBER-MODE.json`` of a finished run: the expression alone, as ATLAS imports it; and all of them,
    with their names, as ``all.json``. Codes that may not be shown are in none."""
    run = RunContents.read(folder)
    if run.kind != "phenotypes":
        raise ConfigError(f"the run learned {run.kind}, not phenotypes: there are no concept sets")
    phenotypes = tuple(cards(run))
    sets = concept_sets(phenotypes)
    place = folder.path / "concept_sets"
    place.mkdir(parents=True, exist_ok=True)
    names = [f"{card.number:02d}-{mode}" for card in phenotypes for mode, codes in card.codes if codes]
    written = []
    for name, value in [*((f"{n}.json", s["expression"]) for n, s in zip(names, sets)), ("all.json", sets)]:
        with atomic(place / name) as temporary:
            temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
        written.append(place / name)
    return written
