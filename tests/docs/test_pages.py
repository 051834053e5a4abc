"""Pages agree with the code: generated references, links, names of functions and errata; the configuration imports."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path

import pytest

import polyclinic as pc

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if "_build" not in p.parts and "gallery" not in p.parts),
]
PAPERS = sorted(p for p in (DOCS / "papers").glob("*.md") if p.stem not in ("index", "results", "literal", "coverage"))
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.mark.parametrize("name", ["cli", "files", "methods", "tables", "troubleshooting"])
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    made = runpy.run_path(str(DOCS / "reference" / f"{name}.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["reference"](), (
        f"write it again: python docs/reference/{name}.py"
    )


def test_every_key_that_the_engine_reads_of_keys_is_on_the_page() -> None:
    page = runpy.run_path(str(DOCS / "reference" / "files.py"))
    source = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r"node\.keys\.get\(\"(\w+)\"", source)) == set(page["KEYS"])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    targets = [m[1] for m in LINK.finditer(prose(page)) if not re.match(r"[a-z]+:", m[1])]
    assert not [t for t in targets if not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAPERS, ids=lambda p: p.stem)
def test_functions_and_errata_beside_an_equation_exist(page: Path) -> None:
    errata = set(re.findall(r"^\| (E\d\.\d+)", (DOCS / "errata.md").read_text(encoding="utf-8"), flags=re.M))
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if re.match(r"\| .*\.py\)", line)]
    assert len(rows) >= 4
    for row in rows:
        assert set(re.findall(r"E\d\.\d+", row)) <= errata
        for path, names in re.findall(r"\]\(([^)]+\.py)\)((?:,? ?`\w+`)+)", row):
            source = (page.parent / path).read_text(encoding="utf-8")
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"\b(def|class) {name}\b", source) or re.search(rf"import .*\b{name}\b", source), (
                    f"{path} has no {name}"
                )


def test_every_public_name_is_on_the_reference_page() -> None:
    text = (DOCS / "reference" / "public.md").read_text(encoding="utf-8")
    names = {n for n in pc.__all__ if n[0] != "_" and n not in pc._MODULES}
    listed = set(re.findall(r"^   (\w+)$", text, flags=re.M))
    assert listed == names


def test_every_package_is_on_the_reference_page() -> None:
    text = (DOCS / "reference" / "packages.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   polyclinic\.(\w+)$", text, flags=re.M))
    packages = {p.stem for p in (ROOT / "src" / "polyclinic").iterdir() if p.is_dir() or p.suffix == ".py"}
    assert listed == packages - {"__init__", "__pycache__", "py", "cli"}


def test_the_configuration_imports_and_loads_nothing_from_a_network() -> None:
    config = runpy.run_path(str(DOCS / "conf.py"))
    assert config["html_math_renderer"] == "mathml"
    assert "http" not in (DOCS / "conf.py").read_text(encoding="utf-8")
    assert "<msup>" in config["_mathml"]("x^2", block=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_formulas_can_be_drawn(page: Path) -> None:
    draw = runpy.run_path(str(DOCS / "conf.py"))["_mathml"]
    text = prose(page)
    for formula in re.findall(r"\$\$(.+?)\$\$", text, flags=re.S):
        draw(formula, block=True)
    for formula in re.findall(r"(?<![\\$])\$([^$\n]+)\$(?!\$)", re.sub(r"\$\$.+?\$\$", "", text, flags=re.S)):
        draw(formula, block=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_an_epsilon_with_a_number_is_never_alone(page: Path) -> None:
    """A number for epsilon in a sentence or a table's paragraph comes with adjacency or delta in the same paragraph."""
    for paragraph in re.split(r"\n\s*\n", prose(page)):
        for found in re.findall(r"\bepsilon (?:of )?\d[\d.]*", paragraph):
            assert re.search(r"patient|entry|delta", paragraph), f"{page.name}: {found!r} stands alone"


def test_pictures_are_what_their_script_draws() -> None:
    made = runpy.run_path(str(DOCS / "images" / "diagrams.py"))
    stale = [n for n in made["FLOWS"] if (DOCS / "images" / f"{n}.svg").read_text("utf-8") != made["drawing"](n)]
    assert not stale, "draw them again: make pictures"


def test_every_picture_is_on_a_page_and_has_a_caption() -> None:
    text = "\n".join(p.read_text("utf-8") for p in PAGES)
    unused = [p.name for p in (DOCS / "images").glob("*.svg") if f"images/{p.name}" not in text]
    assert not unused
    figures = re.findall(r"^```\{figure\} (\S+)\n((?::.*\n)*)\n(.+)\n```$", text, flags=re.M)
    assert len(figures) == len(re.findall(r"^```\{figure\}", text, flags=re.M)), "a figure has no caption"


ESTIMATORS = [
    c for c in (getattr(pc, name) for name in sorted(pc.__all__)) if isinstance(c, type) and hasattr(c, "fit")
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_help_of_an_estimator_explains_every_parameter(estimator: type) -> None:
    text = inspect.getdoc(estimator) or ""
    assert "Parameters\n----------" in text and "Attributes\n----------" in text
    named = {name.strip() for line in text.splitlines() for name in line.partition(" : ")[0].split(",")}
    assert not set(inspect.signature(estimator).parameters) - named
