"""Every code block of README and docs runs: Python blocks of a page in one namespace, shell blocks in one folder.

A block after the comment ``<!-- not run: reason -->`` is shown and not run; there must be a reason.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.warm_cli import command

from polyclinic.node.doctor.processes import free_port

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<skip><!-- not run: .{8,}? -->\s*\n)?^```(?P<kind>python|bash)\n(?P<code>.*?)^```$", re.M | re.S
)


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(m["kind"], m["code"]) for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if not m["skip"]]


NOTEBOOKS = [
    ROOT / "docs" / "tutorials" / f"{page}.md"
    for page in runpy.run_path(str(ROOT / "docs" / "notebooks" / "make.py"))["PAGES"].values()
]
"""Pages whose blocks ``test_notebooks.py`` runs, one by one, and compares what they print."""

WITH_CODE = [p for p in PAGES if "_build" not in p.parts and p not in NOTEBOOKS and blocks(p)]


STOP = 'code=$?; [ $code = 0 ] || for h in */coordinator.json; do polyclinic coordinator stop "${h%/*}" || true; done; exit $code'
"""A page that fails leaves nobody who listens."""


def on_free_ports(code: str) -> str:
    """A page names its ports; here others may listen on them."""
    return re.sub(r"(?<=port )\d{5}\b", lambda _: str(free_port()), code)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the PATH of shell blocks."""
    with command(tmp_path_factory.mktemp("bin")) as folder:
        yield folder


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_runs(page: Path, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("docs")
    monkeypatch.setitem(sys.modules, "docs", module)  # where a class of a page is looked for when it is pickled
    for kind, code in blocks(page):
        if kind == "python":
            exec(compile(code, str(page), "exec", dont_inherit=True), vars(module))
        elif all(line.startswith("make ") for line in code.strip().splitlines()):
            for line in code.strip().splitlines():  # the set-up commands themselves: their targets exist
                subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, check=True, capture_output=True)
        else:
            path = os.pathsep.join((str(commands), str(Path(sys.executable).parent), os.environ["PATH"]))
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", f"trap '{STOP}' EXIT\n{on_free_ports(code)}"],
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=300,
            )
            assert done.returncode == 0, f"{code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_that_is_a_notebook_is_run_as_one(page: Path) -> None:
    assert {kind for kind, _ in blocks(page)} == {"python"}


def test_readme_has_blocks() -> None:
    assert len(blocks(ROOT / "README.md")) >= 3
