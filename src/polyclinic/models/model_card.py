"""The model card inside a file: what a person reads who finds the model without the software."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from polyclinic.models.origin import plain
from polyclinic.privacy.card.card import Card
from polyclinic.safe_text import without_controls
from polyclinic.tensors.axis import Axis

if TYPE_CHECKING:
    from polyclinic.models.base import Value

SHOWN = 5
TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")  # a name that a reader of Markdown would take for HTML


def sensitivity(model: Value) -> str:
    """The first line that anybody should read before passing the file on."""
    axes = [a for a in vars(model).get("axes", ()) if isinstance(a, Axis)]
    data_modes = [a.name for a in axes if a.vocabulary == "data" and a.labels is not None]
    line = f"Privacy: {model.card.headline}."
    if model.origin.censored:
        line = "Censored: codes of few patients were removed before this file was written. " + line
    if data_modes:
        line += f" The lists of codes ({', '.join(data_modes)}) were taken from records: that a code is in them is itself a fact about patients."
    return line


def readme(model: Value) -> str:
    """Markdown with the front matter that model hubs read."""
    o = model.origin
    card = Card.from_dict(json.loads(json.dumps(plain(o.card.to_dict()), sort_keys=True)))  # as a reader will have it
    front = {
        "library_name": "polyclinic",
        "tags": ["federated-learning", "health", model.kind, o.method],
        "privacy": o.card.guarantee,
    }
    head = "\n".join(f"{k}: {json.dumps(v)}" for k, v in front.items())
    table = model.table().from_one("phenotype", "group", "class")
    lines = [f"| {' | '.join(table.columns)} |", "|" + "---|" * len(table.columns)]
    lines += [f"| {' | '.join(_cell(v) for v in row)} |" for row in _some(table.rows)]
    last = {k: v for k, v in (o.history[-1] if o.history else {}).items() if isinstance(v, int | float)}
    figures = [f"- {k}: {v:.6g}" for k, v in sorted(last.items())] or ["- none was kept"]
    text = "\n".join(
        [
            "---",
            head,
            "---",
            f"# {model.kind} learned by {o.method}",
            "",
            sensitivity(model),
            "",
            "No patient, no membership and no identifier is in this file.",
            "",
            "## Use",
            "```python",
            "import polyclinic as pc",
            f'model = pc.load("this-file.{model.kind}")',
            'model.transform(patients, unseen="drop")   # at a hospital, on its own records; nothing leaves',
            "```",
            "Meant for research on groups of patients. It is not a diagnosis, and was not tested as one.",
            "",
            "## What it is",
            *lines,
            "",
            "## Privacy",
            *[f"- {k}: {v}" for k, v in card.rows()],
            "",
            "## Last round",
            *figures,
            "",
            "## Parameters",
            "```json",
            json.dumps(dict(o.parameters), sort_keys=True, indent=1, ensure_ascii=False, default=str),
            "```",
            "",
            f"Written by polyclinic {o.versions.get('polyclinic', '?')}. `polyclinic model verify FILE` checks SHA256SUMS.",
            "",
        ]
    )
    return TAG.sub("&lt;", without_controls(text))


def _some(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """At most a few rows of each phenotype or group and mode, and not more than a page."""
    counts: dict[tuple[object, ...], int] = {}
    out = []
    for row in rows:
        key = row[:2] if isinstance(row[0], int) else ()
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= (SHOWN if key else 40):
            out.append(row)
    return out[:200]


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")
