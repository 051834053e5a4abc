"""The sections of a report that follow the fit: what comes back, Table 1, outcome, survival, unseen codes; from ``findings.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from polyclinic.analysis.replication.rank_table import suggestion
from polyclinic.report.cells import called, p_value, rows_of, span
from polyclinic.report.replication import replication
from polyclinic.report.words import number
from polyclinic.util.table import Table

__all__ = ["SECTIONS", "FindingsSection", "sections"]

HARDLY: Final = 0.02  # nats an event: two per cent
SECTIONS: Final = {
    "replicate": "What comes back",
    "carriers": "Who has the phenotypes",
    "people": "Table 1",
    "outcome": "Outcome",
    "survival": "Time to the event",
    "completion": "Codes that patients have not shown",
}


@dataclass(frozen=True)
class FindingsSection:
    """One section: its words, its tables, or the line of the study that would add it."""

    id: str
    title: str
    words: tuple[str, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    missing: str = ""


def sections(found: Mapping[str, Any], names: Sequence[str] = ()) -> tuple[FindingsSection, ...]:
    """All sections in their order; one that was not asked for says which line of the study adds it."""
    if not found:
        return ()
    missing = found.get("missing", {})
    out = []
    for id_, title in SECTIONS.items():
        reason = found.get("not_bought", {}).get(id_, "")
        if reason and not (found.get(id_) or {}).get("note"):
            out.append(FindingsSection(id_, title, (f"Not bought under this epsilon: {reason}.",)))
        elif id_ in missing or not _there(found, id_):
            out.append(FindingsSection(id_, title, missing=missing.get(id_, "")))
        else:
            words, tables = MAKERS[id_](found, names)
            out.append(FindingsSection(id_, title, tuple(w for w in words if w), tuple(tables)))
    return tuple(out)


def _there(found: Mapping[str, Any], id_: str) -> bool:
    return bool(found.get({"replicate": "replicability", "carriers": "prevalence"}.get(id_, id_)))


def _carriers(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    rows = [
        [called(names, r["phenotype"]), r["patients"], r["share"], span(r["low"], r["high"], 3), r["effective"]]
        for r in rows_of(found["prevalence"])
    ]
    words = [f"Of {found['patients']:,} patients; counts are sums over all hospitals. Intervals are Wilson's, 95 %."]
    if found.get("background"):
        common = ", ".join(called(names, r) for r in found["background"])
        words.append(f"Background, not counted as phenotypes and without odds ratios: {common}.")
    columns = ["phenotype", "patients", "share", "95 %", "effective patients"]
    tables = [("Prevalence", Table(columns, rows))]
    if found.get("forecast"):  # with a formal guarantee
        columns, rows = columns[:4], [r[:4] for r in rows]
        words = [
            (
                f"About {found['patients']:,} patients, with noise: {found['privacy']['headline']}. All intervals (95 %) contain the "
                "noise. A patient counts for the strongest phenotypes only; "
                f"{100 * found['over_cap']:.1f} % carry more than count, and are missing from the weakest ones they carry."
            )
        ]
        forecast_rows = [
            [
                r["figure"],
                "\N{EN DASH}" if r["error_95"] is None else f"{r['error_95']:.3g} {r['unit']}",
                r["bought"],
                r["reason"],
            ]
            for r in rows_of(found["forecast"])
        ]
        expected = (
            "Expected before anything was spent",
            Table(["figure", "error of 95 %", "bought", "why not"], forecast_rows),
        )
        tables = [("Prevalence", Table(columns, rows)), expected]
    return words, tables


def _people(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    rows = rows_of(found["people"])
    groups = list(dict.fromkeys(r["phenotype"] for r in rows))
    groups = [None, *(g for g in groups if g is not None)]
    tables = []
    for variable in dict.fromkeys(r["variable"] for r in rows):
        level_rows = [r for r in rows if r["variable"] == variable]
        cell = {(r["level"], r["phenotype"]): r for r in level_rows}
        lines: list[list[object]] = []
        for level in dict.fromkeys(r["level"] for r in level_rows):
            cells = [cell.get((level, g)) for g in groups]
            texts = [
                ""
                if c is None
                else "not shown"
                if c["patients"] is None
                else f"{100 * c['share']:.0f} % ({100 * c['low']:.0f} to {100 * c['high']:.0f})"
                if "low" in c
                else f"{c['patients']:,} ({100 * c['share']:.0f} %)"
                for c in cells
            ]
            lines.append([level, *texts])
        tables.append((variable, Table([variable, *(called(names, g) for g in groups)], lines)))
    words = "Carriers of each phenotype by public levels; small counts and those that give them away are not shown."
    if found.get("forecast"):
        words = "Carriers of each phenotype by public levels; intervals (95 %) contain the noise."
    return [words], tables


def _outcome(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    o = found["outcome"]
    if o["note"]:
        return [f"{o['name']}: {o['note']}."], []
    adds, tables = o["adds"], []
    words = []
    if adds is not None:
        sure = "they add" if adds[1] > 0 else "it is not shown that they add anything"
        words.append(
            f"{o['name'].capitalize()}: phenotypes change the AUC of the covariates by {adds[0]:+.3f} ({span(adds[1], adds[2], 3)}): {sure}. "
            f"With them it is {o['auc'][0]:.3f} ({span(o['auc'][1], o['auc'][2], 3)})."
        )
    if found.get("forecast"):
        return _outcome_paid(found, names)
    better = [r for r in rows_of(o["baselines"]) if r["gain_high"] is not None and r["gain_high"] < 0]
    if better:
        better_models = ", ".join(f"{r['model']} ({r['auc']:.3f})" for r in better)
        size = any("numbers of events" in r["model"] for r in better)
        hint = (
            ' How long a record is may be all they tell: [evaluate] adjust = ["size", ...] holds it fixed.'
            if size
            else ""
        )
        words.append(f"Better without phenotypes: {better_models}.{hint}")
    words.append(
        f"{o['patients']:,} patients, {o['events']:,} with the outcome, {o['unknown']:,} left out because outcome or a covariate is unknown. "
        f"Adjusted for {', '.join(o['adjusted_for']) or 'nothing'}; a hospital's own level never leaves it."
    )
    placing = (
        "placed by phenotypes of the other half, too"
        if o["cross_fitted"]
        else "placed by phenotypes that saw their codes, never an outcome"
    )
    words.append(f"Every patient is judged by the regression of the other half of the patients, and {placing}.")
    rows = [
        [r["model"], r["auc"], span(r["low"], r["high"], 3), r["gain"], span(r["gain_low"], r["gain_high"], 3)]
        for r in rows_of(o["baselines"])
    ]
    tables.append(("What predicts the outcome", Table(["model", "AUC", "95 %", "phenotypes add", "95 % "], rows)))
    effects = [
        [
            called(names, r["phenotype"]),
            r["odds_ratio"],
            span(r["low"], r["high"]),
            p_value(r["p"]),
            p_value(r["q"]),
            r["events"],
            "yes" if r["confirmed"] else "no",
        ]
        for r in rows_of(o["effects"])
    ]
    columns = [
        "phenotype",
        "odds ratio of carriers",
        "95 %",
        "p",
        "q",
        "carriers with the outcome",
        "confirmed in the other half",
    ]
    tables.append(("Odds ratios", Table(columns, effects)))
    if o["calibration"]:
        lines = [[a, b, span(c, d)] for a, b, c, d in o["calibration"]]
        tables.append(("Calibration", Table(["predicted", "observed", "95 %"], lines)))
    words.append(
        "Odds ratios are of carriers against others, the other phenotypes and covariates held fixed, with a log-F(1,1) prior; p by "
        "penalised likelihood ratio, q by Benjamini and Hochberg. Association is not cause."
    )
    return words, tables


def _outcome_paid(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    """The outcome with a formal guarantee: few figures, whose intervals contain the noise."""
    o = found["outcome"]
    area = (
        ""
        if o["auc"] is None
        else f" AUC {o['auc'][0]:.3f} ({span(o['auc'][1], o['auc'][2], 3)}), of the patients it was learned from."
    )
    words = [
        f"{o['name'].capitalize()}: about {o['patients']:,} patients, {o['events']:,} with the outcome.{area}",
        (
            f"Adjusted for {', '.join(o['adjusted_for']) or 'nothing'}, and not for hospitals: their levels have no bounded row. What "
            "phenotypes add to covariates, calibration and the other half's confirmation were not bought."
        ),
        (
            "Odds ratios are of carriers against others, from paid moments and two paid gradients, with a normal prior of width 0.7; "
            "intervals contain sampling and noise; p by the posterior, q by Benjamini and Hochberg. Association is not cause."
        ),
    ]
    rows = [
        [called(names, r["phenotype"]), r["odds_ratio"], span(r["low"], r["high"]), p_value(r["p"]), p_value(r["q"])]
        for r in rows_of(o["effects"])
    ]
    return words, [("Odds ratios", Table(["phenotype", "odds ratio of carriers", "95 %", "p", "q"], rows))]


def _survival(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    rows, tables = [], []
    for s in found["survival"]:
        ratio = s["hazard_ratio"]
        mean = s["mean"]
        texts = "; ".join(f"{k} {v:.0f}" for k, v in mean.items())
        if s["phenotype"] is not None:
            ratio_text = "\N{EN DASH}" if ratio is None else f"{ratio[0]:.2f} ({span(ratio[1], ratio[2])})"
            rows.append([called(names, s["phenotype"]), ratio_text, p_value(s["p"]), p_value(s["log_rank_p"]), texts])
        else:
            tables.append(("Everybody", _curve(s)))
    first = (
        [("Hazard ratios", Table(["phenotype", "hazard ratio of carriers", "p", "log-rank p", "mean days"], rows))]
        if rows
        else []
    )
    words = [
        "Kaplan-Meier on the study's grid; Cox's model with Efron's ties. A point of a curve stands for 11 patients or more."
    ]
    if found.get("forecast"):
        words = [
            "Kaplan-Meier from paid counts; intervals contain the noise, and a curve ends where they are 30 points wide."
        ]
        curves = [(called(names, s["phenotype"]), _curve(s)) for s in found["survival"] if s["phenotype"] is not None]
        return words, [*tables, *curves]
    return words, [*first, *tables]


def _curve(s: Mapping[str, Any]) -> Table:
    lines = [[r["time"], r["at_risk"], r["survival"], span(r["low"], r["high"])] for r in rows_of(s["curve"])]
    return Table(["days", "at risk", "without the event", "95 %"], lines)


def _completion(found: Mapping[str, Any], names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    yes = found["predicts_unseen_codes"]
    rows = [
        [r["model"], r["nats"], span(r["low"], r["high"], 3), r["events"], r["patients"]]
        for r in rows_of(found["completion"])
    ]
    gain = rows[0][1]
    hardly = (
        f", hardly: the right code is {100 * (math.exp(gain) - 1):.1f} % more probable" if yes and gain < HARDLY else ""
    )
    words = [
        f"Predicts codes the patient has not shown: {'yes' if yes else 'no'}{hardly}.",
        (
            "Half of each patient's codes were hidden, not single cells, and probabilities are over codes that the patient had not shown; "
            f"the gain is over how common a code is ({number(rows[0][1])} nats an event)."
        ),
    ]
    if found.get("forecast"):
        words[1] = (
            "Half of each patient's codes were hidden, not single cells; the gain is over the average patient's placement by the same "
            f"model, a patient's mean cut to 3 nats ({number(rows[0][1])} nats)."
        )
    blocks = [("Hidden codes", Table(["model", "nats an event", "95 %", "hidden events", "patients"], rows))]
    if found.get("ranks"):
        table = Table(found["ranks"]["columns"], found["ranks"]["rows"])
        words.append(suggestion(table))
        lines = [
            [
                r["rank"],
                r["nats"],
                span(r["low"], r["high"], 3),
                r["to_best"],
                r["se"],
                "\N{EN DASH}" if r["replicable"] is None else r["replicable"],
                "yes" if r["suggested"] else "",
            ]
            for r in table
        ]
        columns = ["rank", "nats an event", "95 %", "to the best", "paired error", "come back", "suggested"]
        blocks.append(("Ranks", Table(columns, lines)))
    return words, blocks


MAKERS: Final = {
    "replicate": replication,
    "carriers": _carriers,
    "people": _people,
    "outcome": _outcome,
    "survival": _survival,
    "completion": _completion,
}
