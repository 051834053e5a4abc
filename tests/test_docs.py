"""Every code block of README and docs runs: Python blocks of a page in one namespace, shell blocks in one folder.

A block after the comment ``<!-- not run: reason -->`` is shown and not run; there must be a reason. A text block right after a
code block is what the code prints. Tutorials show it for every block that prints. ``make outputs`` writes these blocks.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.warm_cli import command

from polyclinic.node.enrolment.processes import free_port

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<skip><!-- not run: .{8,}? -->\s*\n)?^```(?P<kind>python|bash)\n(?P<code>.*?)^```$"
    r"(?:\n\n```text\n(?P<output>.*?)^```$)?",
    re.M | re.S,
)
TUTORIALS = ROOT / "docs" / "tutorials"
CHANGES = re.compile(r"[0-9a-f]{12,}|[-+]?\d[\d.,:]*(?:e[-+]?\d+)?|[-\u2500-\u257f\u2800-\u28ff|]+")
"""What differs between machines: digests, numbers whose last digits are rounding, times, and the widths they give."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(m["kind"], m["code"]) for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if not m["skip"]]


def words(printed: str) -> list[str]:
    return CHANGES.sub(" # ", printed).split()


def check_outputs(page: Path, printed: dict[str, str]) -> None:
    """Compare what blocks printed with what the page shows, or write it into the page on request."""
    text = page.read_text(encoding="utf-8")

    def shown(m: re.Match[str]) -> str:
        code = m[0].partition("\n\n```text\n")[0] if m["output"] is not None else m[0]
        output = printed.get(m["code"], "").rstrip()
        return f"{code}\n\n```text\n{output}\n```" if output and not m["skip"] else code

    if os.environ.get("POLYCLINIC_WRITE_OUTPUTS"):
        page.write_text(BLOCK.sub(shown, text), encoding="utf-8")
        return
    for m in BLOCK.finditer(text):
        if m["code"] in printed and (m["output"] is not None or page.parent == TUTORIALS):
            assert words(printed[m["code"]]) == words(m["output"] or ""), f"run `make outputs`: {m['code']}"


WITH_CODE = [p for p in PAGES if "_build" not in p.parts and blocks(p)]


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
    printed: dict[str, str] = {}
    for kind, code in blocks(page):
        if kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, str(page), "exec", dont_inherit=True), vars(module))
            printed[code] = out.getvalue()
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
            printed[code] = done.stdout.replace(f"{tmp_path}/", "")
    check_outputs(page, printed)


def test_readme_has_blocks() -> None:
    assert len(blocks(ROOT / "README.md")) >= 3
