"""Help of every command: complete at 80 columns, one style, short first lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [("si", ["simulate", "site"]), ("site rev", ["review"]), ("simulate --o", ["--out"])],
)
def test_the_shell_completes_verbs_subcommands_and_options(words: str, expected: list[str]) -> None:
    asked = {"_POLYCLINIC_COMPLETE": "complete_bash", "COMP_WORDS": f"polyclinic {words}"}
    done = subprocess.run(
        [Path(sys.executable).with_name("polyclinic")],
        env={**os.environ, **asked, "COMP_CWORD": str(len(words.split()))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.split() == expected


@pytest.mark.slow
def test_no_kernel_is_compiled_after_warm(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([Path(sys.executable).with_name("polyclinic"), "warm"], env=environment, check=True)
    fits = (
        "import numba.core.event as ev, polyclinic as pc\n"
        "s, n = pc.datasets.icu_network(patients=300, seed=1), []\n"
        "ev.register('numba:compile', type('L', (ev.Listener,), {'on_start': lambda *_: n.append(1), 'on_end': lambda *_: 0})())\n"
        "for m in (pc.TRIP, pc.SumALS, pc.LocalTF, pc.DPFact, pc.Topics): m(rank=14, seed=0, rounds=2).fit(s)\n"
        "pc.DPEM(rank=5, rounds=2, privacy=pc.Privacy(2.0)).fit(s); print(len(n))"
    )
    done = subprocess.run([sys.executable, "-c", fits], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["0"]
