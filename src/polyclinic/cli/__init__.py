"""The command line: one file per verb, all with ``--json``; errors become one message and a documented exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from polyclinic.plugins import did_you_mean, next_door, plugged

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["VERBS", "main", "module_of", "verbs"]

VERBS: Final = {  # verb -> what it does; its module is imported only when the verb is used
    "demo": "Six intensive care units learn phenotypes together; ends with a report.",
    "check": "Check a hospital's node file and database; nothing is sent.",
    "ingest": "Turn a hospital's records into a tensor.",
    "simulate": "Run a study over several sites in this process.",
    "coordinator": "Run a federation: init, start, status, submit, resume, stop.",
    "site": "Run a hospital's node: init, join, start, status, review, stop.",
    "courier": "Studies through folders that somebody carries; no socket is opened.",
    "evaluate": "What follows the fit, of a stored model: prevalence, outcome, survival.",
    "replicate": "Which phenotypes come back and hold together, and how many would by chance.",
    "report": "Write the report of a run folder as one HTML file.",
    "model": "Look into a model file: show, diff, verify.",
    "apply": "Place a hospital's patients on phenotypes learned elsewhere; nothing is sent.",
    "adapt": "Set a hospital beside the network: drift, own phenotypes; nothing is sent.",
    "compare": "Two runs side by side: matched phenotypes, what differs.",
    "dossier": "What an ethics board reads and signs, before a study and after it.",
    "ledger": "Show, verify or export a site's privacy ledger.",
    "audit": "Attack our own privacy: canaries and known attacks.",
    "web": "A live page of a run.",
}

NODE: Final = (
    "check",
    "coordinator",
    "courier",
    "dossier",
    "ledger",
    "site",
    "web",
)  # of cli/node; the others of cli/study

EXITS: Final = "Exit codes: 0 done, 2 configuration, 3 data, 4 refused by policy or budget, 5 a peer was lost."


def module_of(verb: str) -> str:
    """Where a verb's file is.

    >>> module_of("site"), module_of("demo")
    ('polyclinic.cli.node.site', 'polyclinic.cli.study.demo')
    """
    return f"polyclinic.cli.{'node' if verb in NODE else 'study'}.{verb}"


def verbs() -> dict[str, str]:
    """Every verb and what it does: built in, and of other distributions (entry point group ``polyclinic.commands``)."""
    return VERBS | {name: _told(name) for name in plugged("polyclinic.commands") if name not in VERBS}


def usage() -> str:
    """The overview that ``polyclinic --help`` prints."""
    known = verbs()
    width = max(map(len, known))
    lines = [f"  {name:<{width}}  {text}" for name, text in known.items()]
    return "\n".join(
        [
            "Usage: polyclinic VERB [OPTIONS]",
            "",
            "Many clinics, one model, no shared records.",
            "",
            *lines,
            "",
            "polyclinic VERB --help tells the rest. " + EXITS,
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command ``polyclinic``."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        sys.exit(0 if args else 2)
    if args[0] == "--version":
        from polyclinic import __version__

        sys.stdout.write(f"polyclinic {__version__}\n")
        sys.exit(0)
    others = plugged("polyclinic.commands")
    if args[0] not in VERBS and args[0] not in others:
        near = next_door(args[0]) or did_you_mean(args[0], [*VERBS, *others])
        sys.stderr.write(f"unknown verb {args[0]!r}{': ' if near else ''}{near}\n\n{usage()}")
        sys.exit(2)
    sys.exit(_run(args[0], args[1:]))


def _run(verb: str, args: list[str]) -> int:
    import typer

    from polyclinic.errors import PolyclinicError

    try:
        command = _command(verb)
        code = command(args=args, prog_name=f"polyclinic {verb}", standalone_mode=False)
        return int(code or 0) if isinstance(code, int) else 0
    except PolyclinicError as e:
        if "--json" in args:
            import json

            fault = {"error": e.code, "what": e.what, "faults": list(e.faults), "hint": e.hint}
            sys.stdout.write(json.dumps(fault) + "\n")
        sys.stderr.write(f"{e}\n")
        return e.exit_code
    except typer.Exit as e:
        return int(e.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return 130
    except OSError as e:  # a folder that cannot be written, a disk that is full
        sys.stderr.write(f"[PC200] {e.filename or verb}: {e.strerror or e}\n")
        return 2
    except Exception as e:
        if hasattr(e, "show") and hasattr(e, "exit_code"):  # a usage error of the argument parser
            e.show()
            return 2
        raise


def _told(verb: str) -> str:
    """What a plugged command says of itself: the help of its typer application."""
    from polyclinic.errors import ConfigError

    try:
        help_ = _plugged_command(verb).info.help
    except ConfigError as e:  # the other verbs are shown; this one says it again when it is called
        return e.what
    return help_ if isinstance(help_, str) else ""


def _plugged_command(verb: str) -> Typer:
    import typer

    from polyclinic.errors import ConfigError

    entry = plugged("polyclinic.commands")[verb]
    found = entry.load()
    if not isinstance(found, typer.Typer):
        raise ConfigError(f"command {verb!r} of {entry.package} is no typer.Typer: {entry.value}")
    return found


def _command(verb: str) -> Typer:
    import typer

    if verb not in VERBS:
        return _plugged_command(verb)
    module = import_module(module_of(verb))
    app = vars(module).get("app")
    if isinstance(app, typer.Typer):
        return app
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(help=VERBS[verb])(module.command)
    return single
