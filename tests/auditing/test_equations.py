"""Every method says at its four verbs what it computes: the equation stands where the reader looks for it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERBS = ("init_public", "next_step", "update_public", "contribute")
EQUATION = re.compile(r"[=<>]|sum_|\^")  # of the two that compute; a start or the next sum may be said in words


def faults_in(text: str, where: str) -> list[str]:
    """What is missing in the classes of a file that have both halves of a method."""
    found = []
    for c in ast.walk(ast.parse(text)):
        if not isinstance(c, ast.ClassDef):
            continue
        verbs = {f.name: ast.get_docstring(f) for f in c.body if isinstance(f, ast.FunctionDef) and f.name in VERBS}
        if not {"update_public", "contribute"} <= set(verbs) or c.name == "Method":
            continue
        found += [f"{where}: {c.name}.{v} has no docstring" for v, d in verbs.items() if not d]
        computing = {v: verbs[v] for v in ("update_public", "contribute")}
        found += [
            f"{where}: {c.name}.{v}: no equation in {d!r}" for v, d in computing.items() if d and not EQUATION.search(d)
        ]
    return found


def test_every_method_has_its_equation() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "papers/src").rglob("*.py")]
    faults = [f for p in files for f in faults_in(p.read_text(encoding="utf-8"), str(p.relative_to(ROOT)))]
    assert not faults, "\n".join(faults)


def test_what_is_missing_is_found() -> None:
    text = 'class A:\n    def update_public(self):\n        """Adds."""\n    def contribute(self): ...\n'
    assert faults_in(text, "a.py") == [
        "a.py: A.contribute has no docstring",
        "a.py: A.update_public: no equation in 'Adds.'",
    ]
