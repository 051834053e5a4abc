"""How long the engine is: lines that are not empty, and lines of code (no docstrings, no comments), now and at another commit.

    python benchmarks/lines.py [COMMIT]      default: 2e39abc, the commit before sites folded for themselves

Files are set side by side by what they do: the loop between hosts (who asks, who answers, what is kept), the fold, what is signed and
said between them; and, apart from these, features that the older commit did not have.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "polyclinic"
ROOMS = ("federation", "engines")
GROUPS = {
    "the halves between hosts": (
        *(
            f"engines/flare/{n}.py"
            for n in ("desk", "kept", "letter", "thin", "lead", "leads", "star", "ring", "pulse")
        ),
        *(
            f"engines/flare/{n}.py"
            for n in ("aligning", "starts", "worker", "carry", "executor", "controller", "result")
        ),
        *(f"federation/{n}.py" for n in ("messages", "refusals", "member", "record", "driver", "totals", "starts")),
    ),
    "the fold, its certificates and orders": (
        *(f"federation/{n}.py" for n in ("fold", "protocol", "certificate", "words", "order", "envelope")),
        "engines/flare/order.py",
    ),
    "features since then": (
        *(f"federation/{n}.py" for n in ("compose", "halves", "floor", "packing", "keywords", "battery", "weigh")),
        *(f"federation/{n}.py" for n in ("estimator", "moments")),
        "engines/acts.py",
        *(f"engines/flare/{n}.py" for n in ("probe", "probes", "handshake", "retention")),
    ),
}


def code(text: str) -> int:
    """Lines that hold something else than a comment or a docstring."""
    held: set[int] = set()
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        if t.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, 0):
            held |= set(range(t.start[0], t.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                held -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(held)


def counted(text: str) -> tuple[int, int]:
    """Lines that are not empty, and lines of code."""
    return sum(bool(line.strip()) for line in text.splitlines()), code(text)


def now() -> dict[str, str]:
    """Files of both rooms as they are."""
    found = [p for room in ROOMS for p in sorted((SOURCE / room).rglob("*.py"))]
    return {str(p.relative_to(SOURCE)): p.read_text(encoding="utf-8") for p in found}


def then(commit: str) -> dict[str, str]:
    """The same at a commit."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    names = git("ls-tree", "-r", "--name-only", commit, *(f"src/polyclinic/{r}" for r in ROOMS)).splitlines()
    return {n.removeprefix("src/polyclinic/"): git("show", f"{commit}:{n}") for n in names if n.endswith(".py")}


def main(commit: str = "2e39abc") -> None:
    """Print the table."""
    texts = {commit: then(commit), "now": now()}
    grouped = {f for files in GROUPS.values() for f in files}
    rows = {**GROUPS, "everything else": tuple({*texts[commit], *texts["now"]} - grouped)}
    print(f"{'':42}{commit + ': not empty':>20}{'code':>8}{'now: not empty':>18}{'code':>8}")
    sums = dict.fromkeys(texts, (0, 0))
    for name, files in rows.items():
        line = f"{name:42}"
        for when, width in ((commit, 20), ("now", 18)):
            each = [counted(texts[when][f]) for f in files if f in texts[when]]
            a, b = sum(x for x, _ in each), sum(y for _, y in each)
            sums[when] = (sums[when][0] + a, sums[when][1] + b)
            line += f"{a:>{width},}{b:>8,}"
        print(line)
    print(
        f"{'federation and engines':42}{sums[commit][0]:>20,}{sums[commit][1]:>8,}{sums['now'][0]:>18,}{sums['now'][1]:>8,}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
