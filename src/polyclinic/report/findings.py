"""The sections that follow the fit: replication, prevalence, Table 1, outcome, survival, hidden codes; from ``findings.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from polyclinic.analysis.replication.rank_table import suggestion
from polyclinic.analysis.survival import COARSE
from polyclinic.report.answer import prediction
from polyclinic.report.charts import clinical
from polyclinic.report.charts.cells import called, p_value, rows_of, span
from polyclinic.report.charts.rows import INFLATED, Found, calibration_rows, replication_rows, survival_groups
from polyclinic.report.replication import replication
from polyclinic.report.words import count
from polyclinic.util.table import Table

HARDLY: Final = 0.02  # nats an event: two per cent
CURVES: Final = 4  # survival curves that are drawn, strongest first
SECTIONS: Final = {
    "replicate": "Replication",
    "carriers": "Prevalence",
    "people": "Table 1",
    "outcome": "Outcome",
    "survival": "Time to event",
    "completion": "Prediction of hidden codes",
}


@dataclass(frozen=True)
class FindingsSection:
    """One section: its words, its tables, or the line of the study that would add it."""

    id: str
    title: str
    words: tuple[str, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    missing: str = ""
    figures: tuple[tuple[str, Markup], ...] = ()


def sections(found: Found, names: Sequence[str] = ()) -> tuple[FindingsSection, ...]:
    """All sections in their order; one that was not asked for says which line of the study adds it."""
    if not found:
        return ()
    missing = found.get("missing", {})
    out = []
    for id_, title in SECTIONS.items():
        reason = found.get("not_bought", {}).get(id_, "")
        if reason and not (found.get(id_) or {}).get("note"):
            out.append(FindingsSection(id_, title, (f"The privacy budget does not cover this section: {reason}.",)))
        elif id_ in missing or not _there(found, id_):
            out.append(FindingsSection(id_, title, missing=missing.get(id_, "")))
        else:
            words, tables = MAKERS[id_](found, names)
            figures = FIGURES[id_](found, names) if id_ in FIGURES else ()
            out.append(FindingsSection(id_, title, tuple(w for w in words if w), tuple(tables), figures=tuple(figures)))
    return tuple(out)


def _there(found: Found, id_: str) -> bool:
    return bool(found.get({"replicate": "replicability", "carriers": "prevalence"}.get(id_, id_)))


def _carriers(found: Found, names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    rows = [
        [called(names, r["phenotype"]), r["patients"], r["share"], span(r["low"], r["high"], 3), r["effective"]]
        for r in rows_of(found["prevalence"])
    ]
    words = [f"N = {found['patients']:,}. Counts are sums over all hospitals. Intervals are Wilson's."]
    if found.get("background"):
        common = ", ".join(called(names, r) for r in found["background"])
        words.append(f"Background, not counted as phenotypes and without odds ratios: {common}.")
    columns = ["phenotype", "patients", "share", "95 % CI", "effective sample size"]
    tables = [("Prevalence", Table(columns, rows)), *_by_hospital(found, names)]
    if found.get("forecast"):  # with a formal guarantee
        columns, rows = columns[:4], [r[:4] for r in rows]
        words = [
            (
                f"N is about {found['patients']:,}. All intervals contain the noise. A patient counts for the strongest phenotypes only. "
                f"{100 * found['over_cap']:.1f} % of patients have more phenotypes than count."
            )
        ]
        forecast_rows = [
            [
                {**SECTIONS, "auc": "AUC"}.get(r["figure"], r["figure"]),
                "\N{EN DASH}" if r["error_95"] is None else f"{r['error_95']:.3g} {r['unit']}",
                r["bought"],
                r["reason"],
            ]
            for r in rows_of(found["forecast"])
        ]
        expected = (
            "Forecast before any budget was spent",
            Table(["figure", "95 % error", "in the budget", "why not"], forecast_rows),
        )
        tables = [("Prevalence", Table(columns, rows)), expected]
    return words, tables


def _by_hospital(found: Found, names: Sequence[str]) -> list[tuple[str, Table]]:
    """Patients with each phenotype at the hospitals whose owners show their counts."""
    counts = {(r["phenotype"], r["hospital"]): r for r in rows_of(found.get("by_hospital"))}
    sites = list(dict.fromkeys(site for _, site in counts))
    rows = [[called(names, p), *(_shown(counts[p, s]) for s in sites)] for p in dict.fromkeys(p for p, _ in counts)]
    return (
        [("Prevalence by hospital, where its owner shows counts", Table(["phenotype", *sites], rows))] if rows else []
    )


def _shown(cell: Found) -> str:
    n, of = cell["patients"], cell["of"]
    return "not shown" if n is None or of is None else f"{n:,} of {of:,} ({100 * n / of:.0f} %)"


def _people(found: Found, names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    """One table a variable: phenotypes are rows, levels columns, and the largest standardised difference is last."""
    rows, tables, noisy = rows_of(found["people"]), [], bool(found.get("forecast"))
    for variable in dict.fromkeys(r["variable"] for r in rows):
        cells = {(r["phenotype"], r["level"]): r for r in rows if r["variable"] == variable}
        levels = list(dict.fromkeys(level for _, level in cells))
        groups = [None, *(g for g in dict.fromkeys(g for g, _ in cells) if g is not None)]
        lines: list[list[object]] = []
        for g in groups:
            difference = [] if noisy else [_difference(cells, levels, g)]
            lines.append([called(names, g), *(_level(cells.get((g, level))) for level in levels), *difference])
        last = [] if noisy else ["largest standardised difference"]
        tables.append((variable.capitalize(), Table(["phenotype", *levels, *last], lines)))
        if not noisy:
            shares = [[called(names, g), *(_part(cells, g, level) for level in levels)] for g in groups[1:]]
            tables.append((f"Prevalence by {variable}", Table(["phenotype", *levels], shares)))
    words = "Patients with each phenotype by public levels. " + (
        "Intervals contain the noise."
        if noisy
        else "A standardised difference compares them with all other patients (0.1 is small). A count from 1 to 10 is not shown, nor one "
        "more of its row, from which it could be computed."
    )
    return [words], tables


def _level(cell: Found | None) -> str:
    if cell is None or cell["patients"] is None:
        return "" if cell is None else "not shown"
    if "low" in cell:
        return f"{100 * cell['share']:.0f} % ({100 * cell['low']:.0f} to {100 * cell['high']:.0f})"
    return f"{cell['patients']:,} ({100 * cell['share']:.0f} %)"


def _part(cells: Mapping[Any, Found], group: int | None, level: str) -> str:
    """The share of the patients of a level who have the phenotype."""
    carriers, everybody = (cells.get((g, level), {}).get("patients") for g in (group, None))
    if carriers is None or everybody is None:
        return "not shown"
    return f"{100 * carriers / everybody:.0f} %" if everybody else ""


def _difference(cells: Mapping[Any, Found], levels: Sequence[str], group: int | None) -> str:
    """The largest standardised difference of a level between patients with the phenotype and all others."""
    own: list[int | None] = [cells.get((group, level), {}).get("patients") for level in levels]
    everybody: list[int | None] = [cells.get((None, level), {}).get("patients") for level in levels]
    counts = [(o, e - o) for o, e in zip(own, everybody) if o is not None and e is not None]
    n, others = sum(o for o, _ in counts), sum(o for _, o in counts)
    if group is None or len(counts) < len(levels) or not n or not others:
        return "\N{EN DASH}"
    shares = [(o / n, r / others) for o, r in counts]
    spreads = [math.sqrt((a * (1 - a) + b * (1 - b)) / 2) for a, b in shares]
    return f"{max(((a - b) / s for (a, b), s in zip(shares, spreads) if s), key=abs, default=0.0):+.2f}"


def _outcome(found: Found, names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    o = found["outcome"]
    if o["note"]:
        return [f"{o['name'].capitalize()}: {o['note']}."], []
    if found.get("forecast"):
        return _outcome_paid(found, names)
    better = [r for r in rows_of(o["baselines"]) if r["gain_high"] is not None and r["gain_high"] < 0]
    size = any(r["model"] == "record size" for r in better)
    joint = o.get("joint")
    words = [
        prediction(found),
        f"Record length may explain this. This line adjusts for it: [evaluate] adjust = {_with_size(o)}"
        if size
        else "",
        (
            f"N = {count(o['patients'])}, {count(o['events'])} with the outcome. {_unknown(o['unknown'])}Adjusted for "
            f"{', '.join(_covariates(o)) or 'nothing'}. Each hospital's intercept stays at the hospital."
        ),
        ""
        if not joint
        else f"All phenotypes together, given the covariates: likelihood-ratio test, {joint['df']} df, p {_p(joint['p'])}.",
        (
            "The AUC compares patients of the same hospital. Each patient is judged by the regression of the other half of the patients. "
            + (
                "The phenotypes are those of the other half, too."
                if o["cross_fitted"]
                else "The phenotypes saw the patient's codes, never an outcome."
            )
        ),
    ]
    alone = not set(o["adjusted_for"]) - {"hospital"}  # without covariates the row of covariates alone says nothing
    rows = []
    for r in rows_of(o["baselines"]):
        if not (alone and r["model"] == "covariates alone"):
            intervals = [r["auc"], span(r["low"], r["high"], 3), r["gain"], span(r["gain_low"], r["gain_high"], 3)]
            rows.append([r["model"].removeprefix("covariates and " if alone else ""), *intervals])
    tables = [
        ("Prediction of the outcome", Table(["model", "AUC", "95 % CI", "gain of the phenotypes", "95 % CI "], rows)),
        ("Odds ratios", _odds_ratios(o, names)),
    ]
    if o["calibration"]:
        lines = [[a, b, span(c, d)] for a, b, c, d in o["calibration"]]
        tables.append(("Calibration", Table(["predicted", "observed", "95 % CI"], lines)))
    if o.get("by_level"):
        judged = [[f"{r['variable']}: {r['level']}", *_judged(r)] for r in rows_of(o["by_level"])]
        if any(r["auc"] is None for r in rows_of(o["by_level"])):
            words.append(
                "A level with 1 to 10 patients with (or without) the outcome is not shown, nor one more level of its kind."
            )
        columns = ["patients by level", "patients", "observed share", "mean predicted risk", "AUC"]
        tables.append(("Prediction by level", Table(columns, judged)))
    words.append(
        "Odds ratios are of patients with the phenotype against all others, adjusted for covariates and the other phenotypes, with a "
        "log-F(1,1) prior. p is by penalised likelihood ratio, q by Benjamini and Hochberg. A dash stands for a figure from which a "
        "count of 1 to 10 patients could be computed. Association is not cause."
    )
    return words, tables


def _odds_ratios(outcome: Found, names: Sequence[str]) -> Table:
    rows = []
    for r in rows_of(outcome["effects"]):
        inseparable, confirmed = (r.get("inflation") or 0) > INFLATED, r["confirmed"] and r["odds_ratio"]
        remark = "cannot be told apart" if inseparable else "confirmed in both halves" if confirmed else ""
        ratio = [r["odds_ratio"], span(r["low"], r["high"]), p_value(r["p"]), p_value(r["q"])]
        rows.append([called(names, r["phenotype"]), *ratio, r.get("crude"), r["events"], remark])
    return Table(
        ["phenotype", "odds ratio", "95 % CI", "p", "q", "crude odds ratio", "patients with both", "remark"], rows
    )


def _covariates(outcome: Found) -> list[str]:
    """What the odds ratios are adjusted for, each variable once."""
    return list(dict.fromkeys(a.split(":")[0] for a in outcome["adjusted_for"]))


def _with_size(outcome: Found) -> str:
    """The covariates of this study and the record size, as the study file has them."""
    return json.dumps(["site" if a == "hospital" else a for a in _covariates(outcome)] + ["size"])


def _judged(row: Found) -> list[object]:
    """Observed share, predicted risk and AUC of one level; not shown where a count is small."""
    if row["auc"] is None:
        return ["not shown"] * 4
    observed = f"{row['observed']:.3f} ({span(row['observed_low'], row['observed_high'], 3)})"
    return [row["patients"], observed, row["predicted"], f"{row['auc']:.3f} ({span(row['low'], row['high'], 3)})"]


def _unknown(n: int | None) -> str:
    number = "Fewer than 11" if n is None else f"{n:,}"
    return "" if n == 0 else f"{number} patients are left out because the outcome or a covariate is unknown. "


def _p(value: float) -> str:
    return p_value(value) if value < 1e-4 else f"= {p_value(value)}"


def _outcome_paid(found: Found, names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    """The outcome with a formal guarantee: few figures, whose intervals contain the noise."""
    o = found["outcome"]
    words = [
        prediction(found),
        f"N is about {o['patients']:,}, about {o['events']:,} with the outcome. Adjusted for {', '.join(_covariates(o)) or 'nothing'}, not for hospitals.",
        (
            "Odds ratios are of patients with the phenotype against all others, with a normal prior of width 0.7. Intervals contain sampling "
            "error and noise. p is by the posterior, q by Benjamini and Hochberg. Association is not cause. The privacy budget does not cover "
            "comparisons with other predictors, calibration and confirmation in halves."
        ),
    ]
    rows = [
        [called(names, r["phenotype"]), r["odds_ratio"], span(r["low"], r["high"]), p_value(r["p"]), p_value(r["q"])]
        for r in rows_of(o["effects"])
    ]
    return words, [("Odds ratios", Table(["phenotype", "odds ratio", "95 % CI", "p", "q"], rows))]


def _survival(found: Found, names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    noisy = bool(found.get("forecast"))
    rows, tables = [], []
    for s in found["survival"]:
        if s["phenotype"] is not None:
            ratio = s["hazard_ratio"] or (None, None, None)
            means = [s["mean"].get(k) for k in ("carriers", "others")]
            tests = [p_value(s["p"]), p_value(s["log_rank_p"])]
            rows.append([called(names, s["phenotype"]), ratio[0], span(ratio[1], ratio[2]), *tests, *means])
        if s["phenotype"] is None or noisy:
            digits = 2 if (s.get("grid_error") or 0.0) > COARSE else 3
            tables.append((called(names, s["phenotype"]).capitalize(), _curve(s, digits)))
    columns = ["phenotype", "hazard ratio", "95 % CI", "p", "log-rank p", "mean days with", "mean days without"]
    warnings = list(dict.fromkeys(w for s in found["survival"] for w in s.get("warnings") or ()))
    if noisy:
        return ["Kaplan-Meier estimate from noisy counts. Intervals contain the noise.", *warnings], tables
    error = max(s.get("grid_error") or 0.0 for s in found["survival"])
    words = (
        f"Actuarial (life-table) estimate on the study's grid. The grid moves no point of a curve by more than {error:.3f}. Hazard ratios are adjusted (Cox model, Efron's ties, stratified by hospital). "
        "Curves are not adjusted. A point of a curve stands for 11 patients or more."
    )
    return [words, *warnings], [("Hazard ratios", Table(columns, rows)), *tables] if rows else tables


def _curve(s: Found, digits: int) -> Table:
    """A curve as a table. A coarse grid does not carry three digits."""
    lines = [
        [r["group"], r["time"], r["at_risk"], round(r["survival"], digits), span(r["low"], r["high"], digits)]
        for r in rows_of(s["curve"])
    ]
    return Table(["group", "days", "at risk", "without the event", "95 % CI"], lines)


def _drawn_survival(found: Found, names: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    """Survival of patients with and without a phenotype, smallest p first; everybody's where no phenotype has one."""
    rated = [s for s in found["survival"] if s["phenotype"] is not None] or list(found["survival"])
    rated.sort(key=lambda s: 1.0 if s["p"] is None else s["p"])
    for s in rated[:CURVES]:
        ratio = s["hazard_ratio"]
        size = f". Hazard ratio {ratio[0]:.2f} ({span(ratio[1], ratio[2])})" if ratio else ""
        groups, unit = survival_groups(s)
        title = f"{called(names, s['phenotype'])}{size}"
        yield title, clinical.survival(groups, unit=unit, title=f"Survival: {title}")


def _drawn_replication(found: Found, names: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    rows = replication_rows(found, [called(names, r) for r in range(len(found["replicability"]["rows"]))])
    chart = clinical.replication(rows)
    if chart:
        yield (
            "Cosine between halves against held-out correlation, one point a phenotype (its number). Dashed: the two gates.",
            chart,
        )


def _drawn_outcome(found: Found, names: Sequence[str]) -> Iterator[tuple[str, Markup]]:
    chart = clinical.calibration(calibration_rows(found))
    if chart:
        yield "Calibration: observed share against predicted risk, in groups of patients", chart


def _completion(found: Found, names: Sequence[str]) -> tuple[list[str], list[tuple[str, Table]]]:
    yes = found["predicts_unseen_codes"]
    rows = [
        [r["model"], r["nats"], span(r["low"], r["high"], 3), r["events"], r["patients"]]
        for r in rows_of(found["completion"])
    ]
    gain, low = rows_of(found["completion"])[0]["nats"], rows[0][2]
    size = f"The right code is {math.exp(gain):.3g} times as probable ({gain:.3f} nats an event, 95 % CI {low})"
    verdict = "hardly predicts" if yes and gain < HARDLY else "predicts" if yes else "is not shown to predict"
    over = (
        "the average patient's placement by the same model, a patient's mean cut to 3 nats"
        if found.get("forecast")
        else "how common a code is"
    )
    words = [
        f"The model {verdict} hidden codes. {size}.",
        f"Half of each patient's codes were hidden. The other half placed the patient. The comparison is with {over}.",
    ]
    blocks = [("Hidden codes", Table(["model", "nats an event", "95 % CI", "hidden events", "patients"], rows))]
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
        columns = ["rank", "nats an event", "95 %", "to the best", "paired error", "replicated", "suggested"]
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
FIGURES: Final = {"replicate": _drawn_replication, "outcome": _drawn_outcome, "survival": _drawn_survival}
