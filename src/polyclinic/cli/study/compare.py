"""``polyclinic compare``: two runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.console import Json, say
from polyclinic.errors import ConfigError


def command(
    first: Annotated[Path, typer.Argument(help="A run folder.")],
    second: Annotated[Path, typer.Argument(help="Another run folder.")],
    json_: Json = False,
) -> None:
    """Matched phenotypes of two runs with their distance, and what differs in study, data, figures and card."""
    from polyclinic.cli.study.model import show_difference, told
    from polyclinic.models.phenotypes.compare import compare, differences
    from polyclinic.studies.run_folder import Run

    files = [p for p in (first, second) if p.is_file()]
    if files:
        raise ConfigError(
            f"{', '.join(map(str, files))}: a file, not a run folder",
            hint=f"polyclinic model diff {first} {second}",
        )
    a, b = Run.read(first), Run.read(second)
    found = compare(a.model, b.model)
    study = differences(a.study, b.study)
    left, right = ({k: v for k, v in r.metrics.items() if k != "seconds"} for r in (a, b))
    figures = differences(left, right)
    if not json_:
        show_difference(found)
    lines = []
    for title, rows in (("study", study), ("figures", figures)):
        lines.append(f"{title}: " + ("the same" if not rows else f"{len(rows)} differ"))
        lines += [f"  {what}: {one or '-'} | {two or '-'}" for what, one, two in rows]
    say({**told(found), "study": study, "figures": figures}, json_, *lines)
