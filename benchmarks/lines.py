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
import textwrap
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "polyclinic"
ROOMS = ("federation", "engines")
HALVES = "the halves between hosts"
FOLD = "the fold, its certificates and orders"
FEATURES = "features beside the engine, most of them newer"
GROUPS = {
    HALVES: (
        *(
            f"engines/flare/{n}.py"
            for n in ["desk", "kept", "letter", "thin", "lead", "leads", "star", "ring", "pulse", "aligning", "starts"]
        ),
        *(f"engines/flare/{n}.py" for n in ["worker", "carry", "executor", "controller", "result"]),
        *(f"federation/{n}.py" for n in ["messages", "member", "follower", "letterbox", "seat", "record"]),
        *(f"federation/{n}.py" for n in ["driver", "attendance", "attempt", "late", "closing", "totals"]),
    ),
    FOLD: (
        *(f"federation/{n}.py" for n in ["fold", "folding", "party", "setting", "outcome", "protocol"]),
        *(f"federation/{n}.py" for n in ["certificate", "words", "order", "envelope"]),
        "engines/flare/order.py",
    ),
    FEATURES: (
        *(f"federation/{n}.py" for n in ["compose", "halves", "floor", "packing", "keywords", "battery", "weigh"]),
        *(f"federation/{n}.py" for n in ["estimator", "moments", "starts", "refusals"]),
        "studies/analyses.py",
        *(f"engines/flare/{n}.py" for n in ["probe", "probes", "handshake", "retention"]),
        *(f"engines/courier/{n}.py" for n in ["__init__", "branch", "mailbox", "office", "parcel"]),
    ),
}
# Inside files that both commits have, what only the newer one does: functions and methods, counted as code. Equal features are
# the two groups of the engine without these.
ONLY_NOW = {
    "protocol/wire/chain.py": (),  # the whole file: chain, votes, agreed bits
    "node/coordinator/totals.py": (),  # the whole file: what is relayed, and caught up
    "node/site/inbox.py": ("Letterbox._keep",),  # quotas of early letters
    "node/site/replica.py": ("Follower._follow", "Follower._checked", "Follower._check_votes", "Follower._vote"),
    "node/site/worker.py": ("SiteStudy._unheard", "SiteStudy.over"),  # witnesses of books; the end that is remembered
    "node/coordinator/coordinator.py": ("Driver.relayed", "Driver._state_after", "Driver.needs_more", "Driver._held"),
    "node/coordinator/finish.py": ("Closing._certify", "Closing._merge", "Closing._write"),
    "protocol/public_state.py": ("Folding.follow", "Conductor.down"),
    "node/signed_study.py": ("Order.faults", "Order.may_count"),
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


def new(texts: dict[str, str]) -> int:
    """Lines of code of what :data:`ONLY_NOW` names."""
    total = 0
    for file, names in ONLY_NOW.items():
        if not names:
            total += code(texts[file])
            continue
        lines = texts[file].splitlines(keepends=True)
        for node in ast.parse(texts[file]).body:
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef) and f"{node.name}.{part.name}" in names:
                    total += code(textwrap.dedent("".join(lines[part.lineno - 1 : part.end_lineno])))
    return total


def main(commit: str = "2e39abc") -> None:
    """Print the table, and how long all rooms are."""
    whole = [counted(p.read_text(encoding="utf-8")) for p in sorted(SOURCE.rglob("*.py"))]
    print(f"all of src: {sum(x for x, _ in whole):,} lines that are not empty, {sum(y for _, y in whole):,} of code")
    texts = {commit: then(commit), "now": now()}
    grouped = {f for files in GROUPS.values() for f in files}
    rows = {**GROUPS, "everything else": tuple({*texts[commit], *texts["now"]} - grouped)}
    print(f"{'':48}{commit + ': not empty':>20}{'code':>8}{'now: not empty':>18}{'code':>8}")
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for name, files in rows.items():
        for when in texts:
            each = [counted(texts[when][f]) for f in files if f in texts[when]]
            found[name, when] = (sum(x for x, _ in each), sum(y for _, y in each))
    sums = {w: tuple(sum(found[n, w][k] for n in rows) for k in (0, 1)) for w in texts}
    for name in rows:
        (a, b), (c, d) = found[name, commit], found[name, "now"]
        print(f"{name:48}{a:>20,}{b:>8,}{c:>18,}{d:>8,}")
    (a, b), (c, d) = sums[commit], sums["now"]
    print(f"{'federation and engines':48}{a:>20,}{b:>8,}{c:>18,}{d:>8,}")
    engine = {w: found[HALVES, w][1] + found[FOLD, w][1] for w in texts}
    extra = new(texts["now"])
    print(
        f"\nthe engine (halves and fold), lines of code: {engine[commit]:,} then, {engine['now']:,} now; of these only now: {extra:,}"
    )
    print(
        f"at equal features: {engine['now'] - extra:,}, that is {engine['now'] - extra - engine[commit]:+,}; aimed at: -900"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
