"""Write docs/reference/tables.md from the tables of the report: ``python docs/reference/tables.py``."""

from __future__ import annotations

from pathlib import Path

from polyclinic.report.tables import TABLES

PAGE = Path(__file__).with_suffix(".md")
FILTERS = {
    "number": "a figure with three digits, `number(5)` with five; thousands apart, a dash for None",
    "count": 'a count of patients; None is "not shown"',
    "percent": "a share as a whole percentage",
    "exp": "e to the power of it: a log odds ratio as an odds ratio",
    "capfirst": "the first character in upper case",
}


def reference() -> str:
    """Every table with its columns, and what a template may use."""
    lines = [
        "# Every table of the report",
        "",
        "Generated from the report itself (`python docs/reference/tables.py`). A [section of your own](../howto/new-section.md) reads them by",
        'name: `tables["codes"]` is a `polyclinic.util.table.Table` (a sequence of rows; `table["code"]` is a column,',
        "`table.where(phenotype=1)` a part of it), or None where a run has no such table. `polyclinic report RUN --export` writes the same tables",
        "as CSV. Counts of 1 to 10 patients are in none of them.",
        "",
        "| table | columns | what it holds |",
        "|---|---|---|",
    ]
    for name, t in TABLES.items():
        columns = ", ".join(f"`{c}`" for c in t.columns) + (f"; then {t.further}" if t.further else "")
        lines.append(f"| `{name}` | {columns} | {t.meaning} |")
    lines += [
        "",
        "## In a template",
        "",
        "Next to your own values, a template has `run`, `card` and `tables`, Jinja's own filters, and these:",
        "",
    ]
    lines += ["| filter | gives |", "|---|---|", *(f"| `{k}` | {v} |" for k, v in FILTERS.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
