"""The command line: one file per verb, all with ``--json``; errors become one message and a documented exit code."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click
import typer
from typer.core import TyperGroup

__all__ = ["app", "main"]

# verb -> (module, what it does); a module is imported only when its verb is used
VERBS = {
    "demo": ("demo", "Six intensive care units learn phenotypes together; ends with a report."),
    "check": ("check", "Check a hospital's node file and database; nothing is sent."),
    "ingest": ("ingest", "Turn a hospital's records into a tensor."),
    "simulate": ("simulate", "Run a study over several sites in this process."),
    "coordinator": ("coordinator", "Run a federation: init, start, status, submit, resume, stop."),
    "site": ("site", "Run a hospital's node: init, join, start, status, review, stop."),
    "report": ("report", "Write the report of a run folder as one HTML file."),
    "ledger": ("ledger", "Show, verify or export a site's privacy ledger."),
    "audit": ("audit", "Attack our own privacy: canaries and known attacks."),
    "papers": ("papers", "The five papers' experiments: list, run, report."),
    "web": ("web", "A live page of a run."),
}


class _Lazy(TyperGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        module, text = VERBS[name]
        try:
            made: Any = import_module(f"polyclinic.cli.{module}")
        except ModuleNotFoundError as e:
            if e.name != f"polyclinic.cli.{module}":
                raise
            return None
        if hasattr(made, "app"):
            command = typer.main.get_group(made.app)
        else:
            single = typer.Typer(add_completion=False)
            single.command(name)(made.command)
            command = typer.main.get_command(single)
        command.name = name
        command.help = command.help or text
        command.short_help = text
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


app = typer.Typer(cls=_Lazy, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def _root() -> None:
    """Polyclinic: many clinics, one model, no shared patients.

    Exit codes: 0 done, 2 configuration, 3 data, 4 refused by policy or budget, 5 a peer was lost.
    """


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command ``polyclinic``."""
    from polyclinic.errors import PolyclinicError

    try:
        returned = app(arguments, standalone_mode=False)  # click returns the code of typer.Exit here
        if isinstance(returned, int) and returned:
            sys.exit(returned)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.ClickException as e:
        e.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except PolyclinicError as e:
        if "--json" in (arguments if arguments is not None else sys.argv):
            import json

            sys.stdout.write(
                json.dumps({"error": e.code, "what": e.what, "faults": list(e.faults), "hint": e.hint}) + "\n"
            )
        sys.stderr.write(f"{e}\n")
        sys.exit(e.exit_code)
