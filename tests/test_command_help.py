"""Help of every command: complete at 80 columns, one style, short first lines."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from polyclinic.cli import _command, main, usage, verbs


def commands() -> dict[str, Any]:
    """Every command and subcommand with its path."""
    paths: dict[str, Any] = {}
    for verb in verbs():
        root = get_command(_command(verb))
        parts = getattr(root, "commands", None)
        paths |= {verb: root} if not parts else {f"{verb} {name}": part for name, part in parts.items()}
    return paths


COMMANDS = commands()


def test_the_overview_names_every_command_within_80_columns() -> None:
    assert all(f"  {verb} " in usage() for verb in verbs())
    assert max(map(len, usage().splitlines())) <= 80


@pytest.mark.parametrize("path", COMMANDS)
def test_help_fits_80_columns_and_loses_no_text(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main([*path.split(), "-h"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert " ".join((COMMANDS[path].help or "").split()) in words  # markup does not remove [section]
    assert not [p.name for p in COMMANDS[path].params if ";" in (getattr(p, "help", "") or "")]
