"""Measure how plain the texts are: ``python benchmarks/plain.py`` prints the table and fails above a limit. ``--list`` shows places.

Texts are the guide pages (docs without decisions and results), README, CONTRIBUTING, SECURITY, error messages, command
help, and the words of report and dossier. A private word is a word that the field does not use for the thing. The limits
may only fall. The style guide is in CONTRIBUTING.md, the words are in docs/glossary.md.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PRIVATE: Final = {  # pattern -> what the field says
    r"\bbooks?\b": "ledger",
    r"\bdoors?\b": "release gate",
    r"\bletters?\b": "message",
    r"\bfold(?:s|ed|ing)?\b(?! of)": "update, aggregate (fold only for cross-validation)",
    r"\bcomes? back\b": "replicates",
    r"\bholds? together\b": "is consistent, verifies",
    r"\bbeside\b": "next to, compared with",
    r"\banew\b": "again",
    r"\btold\b|\btells?\b": "reports, shows",
    r"\bgoes? on\b|\bgo on\b": "continues",
    r"\brooms?\b": "package",
    r"\blaws?\b": "simulated data set",
    r"\bpaid\b|\bbuys?\b|\bbought\b": "is covered by the budget",
    r"\bcarriers?\b": "patients with the phenotype",
    r"\baudition(?:s|ed)?\b": "candidate selection",
    r"\bburnt\b": "aborted",
    r"\bhalvings?\b": "split-half repeats",
    r"\bcourses?\b": "trajectory",
    r"\bmade-up\b": "synthetic",
    r"\bsigns? of life\b": "heartbeat",
    r"\bset aside\b": "reserve",
    r"\bnobody\b|\bsomebody\b|\bwhoever\b": "the party's name",
}
TERMS: Final = (
    *("secure aggregation", "SecAgg", "federated averaging", "FedAvg", "zCDP", "differential privacy", "non-IID"),
    *("membership inference", "heterogene", "CP decomposition", "PARAFAC", "Byzantine", "dropout", "secret sharing"),
    *("cohort", "glossary", "architecture"),
)
LIMITS: Final = {
    "private words": 55,
    "semicolons per 1,000 words": 2.0,
    "sentences over 30 words, percent": 5.5,
    "sentences over 60 words": 0,
    "terms of the field without a guide page": 0,
}


def prose(text: str) -> str:
    """Return a page without code blocks, headings, tables and link targets."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"^\|.*$|^#.*$", "", text, flags=re.M)
    return re.sub(r"`[^`]*`", "X", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))


def sentences(text: str) -> list[str]:
    """Return the sentences of a page that have more than three words."""
    return [s for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z*\[(])", prose(text)) if len(s.split()) > 3]


def guide_pages() -> dict[str, str]:
    """Return path -> text of every page that a reader is sent to."""
    pages = [
        p
        for p in (ROOT / "docs").rglob("*.md")
        if not {"_build", "decisions"} & set(p.parts) and "results" not in p.stem
    ]
    pages += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in sorted(pages)}


def _strings(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _docstrings(tree: ast.Module) -> set[int]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return {
        id(n.body[0].value)
        for n in ast.walk(tree)
        if isinstance(n, kinds) and n.body and isinstance(n.body[0], ast.Expr)
    }


def _texts_in(path: Path) -> Iterator[str]:
    """Yield what a person reads of one Python file: errors, command help, words of report and dossier."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    folders = path.relative_to(ROOT).parts  # the checkout itself may be in a folder of that name
    if {"report", "dossier"} & set(folders):
        docstrings = _docstrings(tree)
        nodes = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docstrings)
        yield from (n.value for n in nodes if isinstance(n.value, str))
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _strings(node.exc)
        elif "cli" in folders and isinstance(node, ast.keyword) and node.arg == "help":
            yield from _strings(node.value)
        elif "cli" in folders and isinstance(node, ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def shown_texts() -> dict[str, str]:
    """Return path -> everything that a person reads, of pages, sources and templates."""
    texts = guide_pages()
    for path in sorted((ROOT / "src").rglob("*.py")):
        texts[str(path.relative_to(ROOT))] = "\n".join(_texts_in(path))
    for path in sorted((ROOT / "src").rglob("*.j2")):
        words = re.sub(r"<[^>]+>|\{[%#].*?[%#]\}", " ", path.read_text(encoding="utf-8"), flags=re.S)
        texts[str(path.relative_to(ROOT))] = words
    return texts


def private_words() -> list[tuple[str, str, str]]:
    """Return path, word and the field's word of every private word."""
    return [
        (path, match[0], better)
        for path, text in shown_texts().items()
        for pattern, better in PRIVATE.items()
        for match in re.finditer(pattern, text, re.I)
    ]


def table() -> dict[str, float]:
    """Return every figure that has a limit."""
    pages = guide_pages()
    lengths = [(len(s.split()), s.count(";")) for text in pages.values() for s in sentences(text)]
    words = sum(n for n, _ in lengths)
    return {
        "private words": len(private_words()),
        "semicolons per 1,000 words": round(1000 * sum(k for _, k in lengths) / words, 1),
        "sentences over 30 words, percent": round(100 * sum(n > 30 for n, _ in lengths) / len(lengths), 1),
        "sentences over 60 words": sum(n > 60 for n, _ in lengths),
        "terms of the field without a guide page": sum(
            not any(re.search(term, text, re.I) for text in pages.values()) for term in TERMS
        ),
    }


def main() -> int:
    """Print the table, and return 1 if a limit is passed."""
    if "--list" in sys.argv:
        for path, word, better in private_words():
            print(f"{path}: {word} -> {better}")
        return 0
    figures = table()
    for figure, value in figures.items():
        print(f"{figure:42} {value:>8,} of {LIMITS[figure]:,}")
    return int(any(value > LIMITS[figure] for figure, value in figures.items()))


if __name__ == "__main__":
    sys.exit(main())
