"""How the command line speaks: a rich console, progress bars for anything over a second, quiet when piped."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from polyclinic.protocol.outcome import Progress as Event
from polyclinic.safe_text import without_controls


class Spelled:
    """Something printed whose text cannot steer the terminal: names of codes and models are somebody else's words."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, on: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for s in on.render(self.inner, options):
            yield s if s.control is not None else Segment(without_controls(s.text), s.style)

    def __rich_measure__(self, on: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(on, options, self.inner)


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Spelled(r) for r in renderables]


console = Console(stderr=False, highlight=False, markup=False)
console.push_render_hook(_Hook())


Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]
Sure = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
NodeFile = Annotated[Path, typer.Option("--node", help="The hospital's node file.")]
NODE = Path("node.toml")


def say(value: Mapping[str, object], as_json: bool, *lines: str) -> None:
    """One JSON object on standard output for machines, or lines for people."""
    if as_json:
        sys.stdout.write(json.dumps(value, default=str) + "\n")
    else:
        for line in lines:
            console.print(line, soft_wrap=True)


def sure(question: str, yes: bool, as_json: bool) -> None:
    """Ask, unless ``--yes`` was given. The command ends if the answer is no."""
    if not yes:
        typer.confirm(question, abort=True, err=as_json)


MERIT = ("rmse_full", "objective", "log_likelihood", "lower_bound", "fit", "rmse_observed", "primal")
PATIENCE = 1.0  # seconds: what is faster needs no bar


@contextmanager
def follow(title: str, rounds: int | None = None, *, quiet: bool = False) -> Iterator[Callable[[Event], None]]:
    """Show a progress bar with rounds, time left and the current figure of merit. Silent when piped or ``quiet``.

    It works in a terminal and in a notebook, and appears after a second.

    Parameters
    ----------
    title
        The text in front of the bar.
    rounds
        The largest number of rounds. None: unknown.
    quiet
        Show nothing.

    Examples
    --------
    >>> with follow("TRIP", 100) as progress:  # model.fit(sites, progress=progress)
    ...     progress(Event("round", "trip", 1, 100, {"rmse_full": 0.5}))
    """
    if quiet or not (console.is_terminal or console.is_jupyter):
        yield lambda event: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figure]}"),
        console=console,
        transient=not console.is_jupyter,
    )
    task = bar.add_task(title, total=rounds, figure="")
    begun = time.monotonic()

    def show(event: Event) -> None:
        bar.update(task, completed=event.round, total=event.rounds or rounds, figure=figure_of(event.figures))
        if not bar.live.is_started and time.monotonic() - begun > PATIENCE:
            bar.start()

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def figure_of(figures: Mapping[str, Any]) -> str:
    """Return the one figure that shows how far a fit is.

    >>> figure_of({"seconds": 3.2, "rmse_full": 0.050307})
    'rmse_full 0.050307'
    """
    known = [k for k in (*MERIT, *figures) if isinstance(figures.get(k), float) and k != "seconds"]
    return f"{known[0]} {figures[known[0]]:.5g}" if known else ""


@contextmanager
def busy(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Show a heartbeat for work without rounds. Silent when piped or ``quiet``."""
    if quiet or not (console.is_terminal or console.is_jupyter):
        yield
        return
    with console.status(title):
        yield
