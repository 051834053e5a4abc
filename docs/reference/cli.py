"""Write docs/reference/cli.md from the commands themselves: ``python docs/reference/cli.py``."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from polyclinic.cli import EXITS, VERBS, application, module_of, verbs
from polyclinic.plugins import plugged

PAGE = Path(__file__).with_suffix(".md")


def reference() -> str:
    """Every verb with its arguments and options."""
    lines = [
        "# Command line",
        "",
        "This page lists every command with its options. It is generated (`python docs/reference/cli.py`).",
        "`polyclinic COMMAND --help` prints the same. Colours follow `NO_COLOR`. Piped output has no progress bars.",
        "",
        f"{EXITS} With `--json` an error is one JSON object (`error`, `what`, `faults`, `hint`) next to the text.",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`{verb}`](#polyclinic-{verb}) | {what} |" for verb, what in verbs().items() if _there(verb)),
    ]
    for verb, what in verbs().items():
        if _there(verb):
            lines += ["", f"## polyclinic {verb}", "", what]
            lines += _described(_command(verb), f"polyclinic {verb}")
    return "\n".join(lines) + "\n"


def _there(verb: str) -> bool:
    return verb not in VERBS or find_spec(module_of(verb)) is not None


def _command(verb: str) -> Any:
    from typer.main import get_command

    if verb not in VERBS:
        return get_command(plugged("polyclinic.commands")[verb].load())
    module = import_module(module_of(verb))
    if hasattr(module, "app"):
        return get_command(module.app)
    single = application()
    single.command(help=VERBS[verb])(module.command)
    return get_command(single)


def _described(command: Any, name: str) -> list[str]:
    commands = getattr(command, "commands", None)
    if commands:
        lines = []
        for key, sub in commands.items():
            lines += ["", f"### {name} {key}", "", _plain(sub.help), *_described(sub, f"{name} {key}")]
        return lines
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *(_argument(p) for p in arguments), "[OPTIONS]"])
    rows = [f"| `{_argument(p)}` | {_plain(p.help)} | {'required' if p.required else 'none'} |" for p in arguments]
    rows += [_option(p) for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    return ["", f"`{usage}`", "", "| argument or option | meaning | default |", "|---|---|---|", *rows]


def _argument(parameter: Any) -> str:
    label = (parameter.metavar or parameter.name).upper().strip("[]")
    return label if parameter.required else f"[{label}]"


def _option(parameter: Any) -> str:
    name = max(parameter.opts, key=len)
    value = "" if parameter.is_flag else " VALUE"
    default = parameter.default() if callable(parameter.default) else parameter.default
    shown = "required" if parameter.required else "none" if default is None or default is False else f"`{default}`"
    return f"| `{name}{value}` | {_plain(parameter.help)} | {shown} |"


def _plain(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip().replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
