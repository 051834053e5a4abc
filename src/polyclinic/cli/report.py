"""``polyclinic report DIR``: what a run found, as one HTML file for people; tables and citations beside it on request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    folder: Annotated[Path, typer.Argument(help="A run folder, as demo, simulate or coordinator write it.")],
    out: Annotated[Path | None, typer.Option("--out", help="HTML file to write; default: report.html there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write the report of a run folder as one HTML file."""
    from polyclinic.cli.console import console, say_json
    from polyclinic.report.html import write_report
    from polyclinic.run import RunFolder

    path = write_report(RunFolder(folder), out=out)
    if as_json:
        say_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        console.print(f"report: {path}", soft_wrap=True)
