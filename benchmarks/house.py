"""How the house stands, in numbers: ``python benchmarks/house.py [--list]``.

Lines of code are lines that are neither blank, nor a comment, nor part of a docstring (what ``cloc`` counts, docstrings apart): src
without papers. ``Any`` is counted as a name in the syntax tree (annotations, casts, imports), so are ``hasattr`` and ``getattr``; those
with a default or a literal name are the ones that ask what a thing is. Complexity is McCabe's, as ruff's rule C901, of functions
that Python runs: a compiler's kernels (decorated as such) are exempt. So is the length of a file that a script writes.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "polyclinic"
LONGEST, DEEPEST, ANY = 400, 15, 10
KERNELS = ("kernel", "njit", "intrinsic", "word")  # decorators: loops that a compiler reads
GENERATED = "Written by ``python"  # in the docstring of a file that a script writes and a test keeps equal


def code_lines(text: str) -> int:
    """Lines that hold code: no blanks, comments, docstrings."""
    tree = ast.parse(text)
    said: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                said |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            held |= set(range(token.start[0], token.end[0] + 1))
    return len(held - said)


def names(tree: ast.AST) -> Counter[str]:
    """How often ``Any``, ``hasattr`` and ``getattr`` are used."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "Any":
            found["Any"] += 1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            found[node.func.id] += 1
    return found


def complex_functions() -> list[str]:
    """Functions above the limit, as ruff finds them, outside kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901", "--config", f"lint.mccabe.max-complexity={DEEPEST}",
         "--output-format", "concise", "--exit-zero", str(SOURCE)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "C901" in line]
    return [line for line in lines if not is_kernel(ROOT / line.split(":")[0], int(line.split(":")[1]))]


def is_kernel(path: Path, line: int) -> bool:
    """Whether the function that begins at a line is compiled."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.lineno == line:
            return any(k in ast.unparse(d) for d in node.decorator_list for k in KERNELS)
    return False


def twice() -> dict[str, list[str]]:
    """Class names that two files of src define, private ones apart."""
    where: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    return {name: at for name, at in where.items() if len(at) > 1}


def main() -> None:
    """Print the numbers, and with ``--list`` what is behind them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="Name the files and functions.")
    parser.add_argument("--check", action="store_true", help="Exit code 1 where a limit is passed.")
    asked = parser.parse_args()
    files = {p: p.read_text(encoding="utf-8") for p in sorted(SOURCE.rglob("*.py"))}
    lines = {p: code_lines(text) for p, text in files.items()}
    used = {p: names(ast.parse(text)) for p, text in files.items()}
    total, found = sum(lines.values()), sum(used.values(), Counter())
    physical = sum(len(text.splitlines()) for text in files.values())
    long = {
        p: len(t.splitlines()) for p, t in files.items() if len(t.splitlines()) > LONGEST and GENERATED not in t[:1000]
    }
    deep, double = complex_functions(), twice()
    share = 1000 * found["Any"] / total
    print(f"files                       {len(files):>7,}")
    print(f"lines of code               {total:>7,}  (with comments and docstrings {physical:,})")
    print(f"Any per 1,000 lines         {share:>7.1f}  (at most {ANY}; {found['Any']:,} in all)")
    print(f"hasattr, getattr            {found['hasattr']:>7,}, {found['getattr']}")
    print(f"files over {LONGEST} lines         {len(long):>7,}  (but for what scripts write)")
    print(f"functions over complexity {DEEPEST} {len(deep):>5,}  (outside kernels)")
    print(f"class names used twice      {len(double):>7,}")
    if asked.list:
        by_any = sorted(used, key=lambda p: -used[p]["Any"])[:30]
        print("\nmost Any:", *(f"  {used[p]['Any']:>4} {p.relative_to(SOURCE)}" for p in by_any), sep="\n")
        asks = [p for p in used if used[p]["hasattr"] or used[p]["getattr"]]
        print(
            "\nhasattr, getattr:",
            *(f"  {used[p]['hasattr']:>3} {used[p]['getattr']:>3} {p.relative_to(SOURCE)}" for p in asks),
            sep="\n",
        )
        print("\nlong files:", *(f"  {n:>4} {p.relative_to(SOURCE)}" for p, n in long.items()), sep="\n")
        print("\ncomplex functions:", *(f"  {line}" for line in deep), sep="\n")
        print("\nclass names used twice:", *(f"  {name}: {', '.join(at)}" for name, at in double.items()), sep="\n")
    if asked.check and (share > ANY or long or deep):
        sys.exit(1)


if __name__ == "__main__":
    main()
