"""The notebooks of the docs: valid, free of machine paths, and what they print is what comes out."""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NEEDS = {"diabetes-from-table-to-report": "diabetes130"}  # notebook -> open data set
NOISY = (
    "privacy-against-utility",
)  # privacy noise is fresh in every run: its numbers, names and codes are not compared
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def words(printed: str) -> list[str]:
    """Return what is printed without its numbers, whose last digits differ by machine, and without the widths they give."""
    return NUMBER.sub("#", printed).replace("-", " ").split()


def test_every_notebook_is_in_the_index() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) >= 4 and all(n.name in index for n in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_valid_and_has_no_machine_in_it(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat reads notebooks (extra dev)")
    nbformat.validate(nbformat.read(path, as_version=4))
    held = read(path)
    code = [c for c in held["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1)), "run make.py again"
    assert not [o for c in code for o in c["outputs"] if o["output_type"] == "error"]
    links = re.findall(r"\]\((?!https?:)[^)]*\)", "".join(text(c["source"]) for c in held["cells"] if c not in code))
    assert not links, "a downloaded notebook has no other pages"
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp|Users|usr|opt|mnt)/", path.read_text(encoding="utf-8"))


def test_at_least_three_notebooks_have_figures() -> None:
    drawn = [p for p in NOTEBOOKS if "image/svg+xml" in p.read_text(encoding="utf-8")]
    assert len(drawn) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_prints_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if path.stem in NEEDS:
        data = request.getfixturevalue("data_path")(NEEDS[path.stem])
        monkeypatch.setenv("POLYCLINIC_DATA", str(data.parent))
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "notebook"}
    for n, cell in enumerate(c for c in read(path)["cells"] if c["cell_type"] == "code"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(text(cell["source"]), f"{path.name}, cell {n}", "exec", dont_inherit=True), space)
        streams = [o for o in cell["outputs"] if o["output_type"] == "stream" and o["name"] == "stdout"]
        shown = "".join(text(o["text"]) for o in streams)
        if path.stem in NOISY:
            assert bool(out.getvalue()) == bool(shown)
        else:
            assert words(out.getvalue()) == words(shown), f"cell {n}: run make.py again"
