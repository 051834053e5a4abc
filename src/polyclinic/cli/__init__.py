"""The command line: one file per verb, all with ``--json``; errors become one message and a documented exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

from polyclinic.plugins import did_you_mean, next_door, plugged

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["VERBS", "main", "module_of", "verbs"]

GROUPS: Final = {  # group -> verb -> what it does. A verb's module is imported only when the verb is used.
    "Try": {
        "warm": "Compile the kernels once, so that first fits are fast.",
        "demo": "Fit and compare methods on generated hospitals, write a report.",
        "simulate": "Run a study over several sites in one process.",
        "align": "Propose which common code each local code stands for.",
        "overlap": "Count patients at one, two, three ... hospitals.",
    },
    "Results": {
        "report": "Write the report of a run as one HTML file.",
        "evaluate": "Analyse a fitted model: prevalence, outcome, survival.",
        "replicate": "Test which phenotypes replicate, with a control.",
        "model": "Inspect a model file: show, diff, verify.",
        "apply": "Compute phenotype scores of a hospital's patients.",
        "adapt": "Compare a hospital with the model: drift, own phenotypes.",
        "compare": "Compare two runs: matched phenotypes, differences.",
        "web": "Show a live page of a run.",
    },
    "Hospital": {
        "check": "Check a hospital's node file and database. Sends nothing.",
        "ingest": "Turn a hospital's records into a tensor.",
        "site": "Run a hospital's node: init, join, start, review, stop.",
        "courier": "Run studies through exchanged folders, without a network.",
        "dossier": "Write the dossier for an ethics board.",
    },
    "Coordinator": {
        "coordinator": "Run a coordinator: init, start, submit, status, stop.",
    },
    "Privacy": {
        "ledger": "Show, verify or export a site's privacy ledger.",
        "audit": "Audit privacy empirically: canaries, known attacks.",
    },
}
VERBS: Final = {verb: text for group in GROUPS.values() for verb, text in group.items()}
# in cli/node, the others in cli/study
NODE: Final = ("check", "coordinator", "courier", "dossier", "ledger", "site", "web")

COMPLETE: Final = "_POLYCLINIC_COMPLETE"
EXITS: Final = "Exit codes: 0 done, 2 configuration, 3 data, 4 refused, 5 peer lost."


def application(help: str | None = None, **more: bool) -> Typer:
    """Return an empty typer application in the style of all commands. Markup would remove [section] from texts."""
    import typer

    return typer.Typer(
        help=help,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **more,  # type: ignore[arg-type]
    )


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
    lines = ["Usage: polyclinic COMMAND [OPTIONS]", "", "Many clinics, one model, no shared records."]
    for group, members in (GROUPS | {"Plugins": {v: text for v, text in known.items() if v not in VERBS}}).items():
        lines += ["", group, *(f"  {verb:<{width}}  {text}" for verb, text in members.items())] if members else []
    return "\n".join([*lines, "", "Options of a command: polyclinic COMMAND --help", EXITS, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command ``polyclinic``."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETE in os.environ:  # asked by the shell: eval "$(_POLYCLINIC_COMPLETE=source_bash polyclinic)"
        _completion(os.environ.get("COMP_WORDS", "").split()[1:2])(args=[], prog_name="polyclinic")
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
        sys.stderr.write(f"unknown command {args[0]!r}{': ' if near else ''}{near}\n\n{usage()}")
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


def _completion(typed: Sequence[str]) -> Typer:
    """Return all verbs for the shell's completion. Only the verb that was typed is imported with its options."""
    import typer

    app = typer.Typer(add_completion=True)
    for verb, text in verbs().items():
        command = _command(verb) if verb in typed else application()
        only = command.registered_commands[0].callback if len(command.registered_commands) == 1 else None
        if only is not None and not command.registered_groups:
            app.command(verb, help=text)(only)
        else:
            app.add_typer(command, name=verb, help=text)
    return app


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
    single = application()
    single.command(help=VERBS[verb])(module.command)
    return single
