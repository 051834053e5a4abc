"""How the command line speaks: a rich console, progress bars for anything over a second, quiet when piped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from polyclinic.federation.fold import Progress as Event

__all__ = ["console", "follow", "say_json"]

console = Console(stderr=False, highlight=False)


def say_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output, for machines."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


@contextmanager
def follow(title: str, rounds: int, *, quiet: bool = False) -> Iterator[Callable[[Event], None]]:
    """A progress bar with rounds, time left and the current figure of merit; silent when piped or ``quiet``."""
    if quiet or not console.is_terminal:
        yield lambda event: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figure]}"),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=rounds, figure="")

        def show(event: Event) -> None:
            figure = next((f"{k} {v:.5g}" for k, v in event.figures.items() if isinstance(v, float)), "")
            bar.update(task, completed=event.round, figure=figure)

        yield show
