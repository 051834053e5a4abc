"""The notebooks of the docs: whole, of the pages as they are now, and what they print is what comes out."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
MAKE = runpy.run_path(str(FOLDER / "make.py"))
BOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


def read(book: Path) -> dict[str, Any]:
    return json.loads(book.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def words(printed: str) -> list[str]:
    """What is printed without its numbers, whose last digits are another machine's, and without the widths they give."""
    return NUMBER.sub("#", printed).replace("-", " ").split()


def test_all_are_there() -> None:
    assert {b.stem for b in BOOKS} == set(MAKE["PAGES"])
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert all(b.name in index for b in BOOKS)


@pytest.mark.parametrize("book", BOOKS, ids=lambda b: b.stem)
def test_a_notebook_is_its_page_and_has_no_machine_in_it(book: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat says whether a notebook is whole (extra dev)")
    nbformat.validate(nbformat.read(book, as_version=4))
    held = read(book)
    page = FOLDER.parent / "tutorials" / f"{MAKE['PAGES'][book.stem]}.md"
    assert [(c["cell_type"], text(c["source"])) for c in held["cells"]] == MAKE["cells"](page), "run make.py again"
    links = re.findall(r"\]\((?!https?:)[^)]*\)", "".join(t for kind, t in MAKE["cells"](page) if kind == "markdown"))
    assert not links, "a downloaded notebook has no pages beside it"
    for name in re.findall(r"\(`docs/([^`]+)`\)", book.read_text(encoding="utf-8")):
        assert (FOLDER.parent / name).is_file(), name
    whole = book.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp|Users|usr|opt|mnt)/", whole)


@pytest.mark.parametrize("book", BOOKS, ids=lambda b: b.stem)
def test_a_notebook_runs_and_prints_what_it_shows(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "notebook"}
    for n, cell in enumerate(c for c in read(book)["cells"] if c["cell_type"] == "code"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text(cell["source"]), f"{book.name}, cell {n}", "exec", dont_inherit=True), space)
        assert cell["execution_count"] == n + 1
        assert not [o for o in cell["outputs"] if o["output_type"] == "error"]
        shown = "".join(
            text(o["text"]) for o in cell["outputs"] if o["output_type"] == "stream" and o["name"] == "stdout"
        )
        assert words(out.getvalue()) == words(shown), f"cell {n}: run make.py again"
