"""Would a test notice? Small faults are put into the code that privacy rests on, one at a time, and its tests are run.

``python benchmarks/mutants.py --sample 200 --seed 1`` prints each fault that no test noticed, and the share that was.

Which test reaches which line is measured once (``coverage``, one context for each test). A fault is then tried by the tests
that reach its line, the quickest first, in a process forked from one that has everything imported: the faulty code takes the
place of the function's. Faults outside of functions (constants, defaults) are tried with the module imported anew. What no such
test notices is tried by all tests of the file's list, for tests that start processes of their own. The file on disk is never
touched.

A fault is one of: a comparison turned or moved by one, a sign, ``and`` for ``or``, a condition turned, a number moved by one, a
truth turned, a ``raise`` or a call left out, a result that is not returned. Texts, annotations and what is only printed are
left alone: a test of a wording would notice, and nothing would be learnt.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import io
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src"

TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "privacy/door.py": (
        "tests/privacy/test_door.py",
        "tests/privacy/test_book_details.py",
        "tests/attacks/test_book.py",
    ),
    "privacy/ledger.py": (
        "tests/privacy/test_book_details.py",
        "tests/privacy/test_ledger.py",
        "tests/privacy/test_watch.py",
        "tests/attacks/test_book.py",
    ),
    "privacy/lines.py": ("tests/privacy/test_ledger.py", "tests/attacks/test_book.py"),
    "privacy/reading.py": ("tests/privacy/test_ledger.py", "tests/privacy/test_watch.py", "tests/attacks/test_book.py"),
    "privacy/tally.py": (
        "tests/privacy/test_book_details.py",
        "tests/privacy/test_ledger.py",
        "tests/privacy/test_door.py",
        "tests/attacks/test_book.py",
    ),
    "privacy/accountant.py": ("tests/privacy/test_accountant.py", "tests/privacy/test_book_details.py"),
    "privacy/grid.py": ("tests/privacy/test_book_details.py", "tests/attacks/test_accounting.py"),
    "federation/sums/masked.py": ("tests/federation/sums/test_masked.py",),
    "federation/sums/masked_site.py": ("tests/federation/sums/test_masked.py",),
    "federation/sums/masked_office.py": ("tests/federation/sums/test_masked.py",),
    "federation/fold.py": ("tests/federation/test_fold.py",),
}
BOOK: Final = tuple(k for k in TARGETS if k.startswith("privacy/"))

# Faults that change nothing that can be seen, each with the reason.
EQUAL: Final[dict[tuple[str, str, str], str]] = {
    ("privacy/door.py", "time.sleep(min(0.2, self.wait))", "another number"): "how often a waiting door looks",
    ("privacy/accountant.py", "low, high = 1e-12, 1.0", "another number"): "where the search for a root begins",
}

SWAPS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One fault: where, what, and which place of its kind in the file."""

    file: str
    line: int
    kind: str
    place: int
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Its name that survives a change elsewhere in the file."""
        return (self.file, self.text, self.kind)


class _Places(ast.NodeVisitor):
    """All places of a tree where a fault can be put, in one fixed order."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.AST, str]] = []

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(
            node, ast.JoinedStr | ast.Raise | ast.AnnAssign | ast.arg | ast.ImportFrom | ast.Import | ast.Assert
        ):
            if isinstance(node, ast.Raise):
                self.found.append((node, "no raise"))
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                self.visit(node.value)
            return
        if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__", "__reduce__"):
            return
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not (isinstance(node, ast.If) and _typing(node.test)):
            self.found.append((node, "condition turned"))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            self.found.append((node, "compared otherwise"))
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _text(node):
            self.found.append((node, "other sign"))
        if isinstance(node, ast.BoolOp):
            self.found.append((node, "and/or"))
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            self.found.append((node, "another number" if not isinstance(node.value, bool) else "truth turned"))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.found.append((node, "call left out"))
        if isinstance(node, ast.AugAssign):
            self.found.append((node, "not added"))
        if isinstance(node, ast.Return) and node.value is not None and not _nothing(node.value):
            self.found.append((node, "nothing returned"))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)


def _typing(test: ast.AST) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _text(node: ast.BinOp) -> bool:
    parts = (node.left, node.right)
    return any(
        isinstance(p, ast.JoinedStr) or (isinstance(p, ast.Constant) and isinstance(p.value, str)) for p in parts
    )


def _nothing(value: ast.AST) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _change(node: Any, kind: str) -> ast.AST:
    match kind:
        case "no raise" | "call left out" | "not added":
            return ast.copy_location(ast.Pass(), node)
        case "condition turned":
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "compared otherwise":
            node.ops = [SWAPS[type(node.ops[0])]()]
        case "other sign" | "and/or":
            node.op = SWAPS[type(node.op)]()
        case "another number":
            node.value = node.value + 1
        case "truth turned":
            node.value = not node.value
        case "nothing returned":
            node.value = ast.Constant(None)
    return node  # type: ignore[no-any-return]


class _Put(ast.NodeTransformer):
    def __init__(self, target: ast.AST, kind: str) -> None:
        self.target, self.kind = target, kind

    def visit(self, node: ast.AST) -> Any:
        if node is self.target:
            return _change(node, self.kind)
        return super().generic_visit(node)


def places(file: str) -> tuple[ast.Module, list[tuple[ast.AST, str]], str]:
    """The tree of a file, its places, and its text."""
    text = (SOURCE / "polyclinic" / file).read_text()
    tree = ast.parse(text)
    finder = _Places()
    finder.visit(tree)
    return tree, finder.found, text


def mutants(file: str) -> list[Mutant]:
    """Every fault that can be put into a file."""
    _, found, text = places(file)
    lines = text.splitlines()
    return [
        Mutant(file, node.lineno, kind, n, lines[node.lineno - 1].strip())  # type: ignore[attr-defined]
        for n, (node, kind) in enumerate(found)
    ]


def faulty(m: Mutant) -> str:
    """The source with the fault in it."""
    tree, found, _ = places(m.file)
    node, kind = found[m.place]
    made = _Put(node, kind).visit(tree)
    return ast.unparse(ast.fix_missing_locations(made))


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module another source."""

    def __init__(self, module: str, path: Path, source: str) -> None:
        self.module, self.path, self.source = module, path, source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        return None

    def exec_module(self, module: Any) -> None:
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


def _warm() -> None:
    """Import what no fault changes, once for all."""
    import cryptography.hazmat.primitives.asymmetric.ed25519
    import hypothesis
    import numba
    import numpy
    import pandas
    import pyarrow
    import pydantic
    import pytest
    import scipy.optimize
    import scipy.sparse.linalg
    import scipy.stats
    import sklearn.base

    del cryptography, hypothesis, numba, numpy, pandas, pydantic, pyarrow, pytest, scipy, sklearn


def _child(m: Mutant | None, tests: Sequence[str]) -> int:
    """Run the tests against a fault; 0: nobody noticed."""
    import pytest

    os.chdir(ROOT)
    sys.path.insert(0, str(SOURCE))
    sys.path.insert(0, str(ROOT))
    if m is not None:
        path = SOURCE / "polyclinic" / m.file
        name = "polyclinic." + m.file.removesuffix(".py").replace("/", ".")
        sys.meta_path.insert(0, _Loader(name, path, faulty(m)))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow and not e2e", "--no-header"]
    options += [
        "-k",
        "not long_book and not studies_at_once",
    ]  # clocks and races: a busy machine would kill for a fault
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return int(pytest.main([*options, *tests]))


def run(m: Mutant | None, tests: Sequence[str], seconds: float) -> tuple[str, float]:
    """``killed``, ``survived`` or ``too slow`` (noticed as well), and the seconds of processor that it took."""
    begin = os.times()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.alarm(int(seconds))  # a fault can make a loop without an end
        try:
            os._exit(_child(m, tests))
        except BaseException:
            os._exit(70)
    _, status = os.waitpid(pid, 0)
    end = os.times()
    spent = end.children_user + end.children_system - begin.children_user - begin.children_system
    if os.WIFSIGNALED(status):
        return "too slow", spent
    return ("survived" if os.WEXITSTATUS(status) == 0 else "killed"), spent


def existing(file: str) -> list[str]:
    """The tests of a file that exist."""
    return [t for t in TARGETS[file] if (ROOT / t).exists()]


def sample(files: Sequence[str], count: int, seed: int) -> Iterator[Mutant]:
    """Faults drawn over all files alike, without those that are known to change nothing."""
    every = [m for f in files for m in mutants(f) if m.key not in EQUAL]
    return iter(random.Random(seed).sample(every, min(count, len(every))))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", nargs="*", default=list(BOOK), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=600, help="wall clock for one fault's tests")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th fault from K on, to share the work")
    parser.add_argument("--out", type=Path, help="a JSON line for each fault; those that stand there are not run again")
    parser.add_argument("--least", type=float, default=0.95, help="share that has to be noticed")
    parser.add_argument("--again", type=Path, help="run those again that survived in this file")
    options = parser.parse_args()
    _warm()
    chosen = list(sample(options.files, options.sample, options.seed))
    if options.again is not None:
        old = [json.loads(x) for x in options.again.read_text().splitlines()]
        names = {(o["file"], o["text"], o["kind"]) for o in old if o["said"] == "survived"}
        chosen = [m for f in options.files for m in mutants(f) if m.key in names]
    part, parts = (int(x) for x in options.part.split("/"))
    done = {}
    if options.out is not None and options.out.exists():
        done = {(o["file"], o["place"], o["text"]): o for o in map(json.loads, options.out.read_text().splitlines())}
    tests = sorted({t for m in chosen for t in existing(m.file)})
    if run(None, tests, 10 * options.seconds)[0] != "survived":
        print("the tests fail without any fault: nothing can be learnt from them")
        return 2
    told: list[str] = []
    for n, m in enumerate(chosen):
        if n % parts != part:
            continue
        before = done.get((m.file, m.place, m.text))
        if before is not None:
            told.append(before["said"])
            continue
        begin = time.time()
        said, spent = run(m, existing(m.file), options.seconds)
        told.append(said)
        if said == "survived" or len(told) % 20 == 0:
            print(f"{len(told):4d} {said:9s} {m.file}:{m.line} {m.kind}: {m.text}", flush=True)
        if options.out is not None:
            row = {**vars(m), "said": said, "cpu": round(spent, 2), "wall": round(time.time() - begin, 1)}
            with open(options.out, "a") as f:
                f.write(json.dumps(row) + "\n")
    if run(None, tests, 10 * options.seconds)[0] != "survived":  # the machine changed meanwhile
        print("the tests now fail without any fault: what was counted as noticed may not have been")
        return 2
    noticed = sum(t != "survived" for t in told)
    print(f"{noticed} of {len(told)} faults were noticed ({noticed / max(len(told), 1):.1%})")
    return 0 if noticed >= options.least * len(told) else 1


if __name__ == "__main__":
    sys.exit(main())
