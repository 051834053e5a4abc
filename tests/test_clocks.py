"""No test asserts a time, and no test sleeps: how long something takes says how busy the machine is.

Times are printed by ``make bench``. A test waits for an event (``tests/waiting.py``) or sets the clock itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
CLOCKS: Final = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "times", "getrusage", "cpu_times"}
CLOCKS_NS: Final = {f"{name}_ns" for name in CLOCKS}
KEEPS: Final = {"abs", "float", "int", "max", "median", "min", "round", "sorted", "sum"}  # a time stays a time
MODULES: Final = {"time", "os", "resource"}
FILES: Final = sorted({*(ROOT / "tests").rglob("*.py"), *(ROOT / "papers" / "tests").rglob("*.py")})

SLEEPS: Final = {  # file -> why a pause is what is meant there
    "tests/e2e/test_flare_hosts.py": "a network cable that is out for a while",
    "tests/node/hostile_carrier.py": "a program that copies files, as somebody else's would",
    "tests/waiting.py": "the one loop that waits for an event",
}


class Clocks:
    """What in one function (or in a file outside its functions) reads a clock: functions, and names bound to a time."""

    def __init__(self, nodes: list[ast.AST], functions: set[str]) -> None:
        self.nodes, self.functions, self.names = nodes, functions, set[str]()
        known = -1
        while known != len(self.names) + len(self.functions):
            known = len(self.names) + len(self.functions)
            self._spread()

    def _spread(self) -> None:
        """Follow a time through one more assignment, ``append``, loop or function that returns it."""
        for node in self.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                if node.value is not None and self.is_time(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self.names |= {name for t in targets for name in self._bound(t, node.value)}
            elif isinstance(node, ast.For | ast.comprehension) and self.is_time(node.iter):
                self.names |= set(self._bound(node.target))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                if any(map(self.is_time, node.args)):
                    self.names |= set(self._bound(node.func.value))
            elif isinstance(node, ast.FunctionDef):
                returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
                if any(map(self.is_time, returned)):
                    self.functions.add(node.name)

    def _bound(self, target: ast.expr, value: ast.expr | None = None) -> Iterator[str]:
        """Names that a time is bound to; of two tuples only the places that hold one."""
        if isinstance(target, ast.Tuple | ast.List):
            known = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            for n, part in enumerate(target.elts):
                if not known or self.is_time(value.elts[n]):  # type: ignore[union-attr]
                    yield from self._bound(part)
        elif isinstance(target, ast.Starred | ast.Subscript):
            yield from self._bound(target.value)
        elif isinstance(target, ast.Name | ast.Attribute):
            yield ast.unparse(target)

    def reads(self, node: ast.AST) -> bool:
        """Whether this node alone is a reading of a clock."""
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Name):
            return node.func.id in self.functions
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in CLOCKS | CLOCKS_NS:
            return False
        return node.func.attr == "cpu_times" or ast.unparse(node.func.value) in MODULES

    def is_time(self, node: ast.AST) -> bool:
        """Whether the value of an expression is a time, or holds one."""
        if self.reads(node) or (isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self.names):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            return name in KEEPS and any(map(self.is_time, node.args))
        if isinstance(node, ast.Compare | ast.Lambda | ast.JoinedStr):
            return False
        return any(map(self.is_time, ast.iter_child_nodes(node))) if isinstance(node, ast.expr) else False

    def holds(self, node: ast.AST) -> bool:
        """Whether a clock is read, or a time named, anywhere in this expression."""
        return any(self.reads(n) or self.is_time(n) for n in ast.walk(node))

    def faults(self) -> Iterator[int]:
        """Lines that assert a time or compare one with a number."""
        for node in self.nodes:
            if isinstance(node, ast.Assert) and (self.holds(node.test) or (node.msg and self.reads(node.msg))):
                yield node.lineno
            elif isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                if any(map(self.holds, sides)) and any(map(_number, sides)):
                    yield node.lineno

    def sleeps(self) -> list[int]:
        """Lines that call ``time.sleep``."""
        return [n.lineno for n in self.nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "time.sleep"]


def clocks_of(code: str) -> list[Clocks]:
    """One for every outermost function of a file, and one for what is outside of them."""
    tree = ast.parse(code)
    functions = {
        a.asname or a.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for a in node.names
        if a.name in CLOCKS | CLOCKS_NS
    }
    inside: list[list[ast.AST]] = []
    outside: list[ast.AST] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef):
            inside.append(list(ast.walk(node)))
        else:
            outside.append(node)
            todo += ast.iter_child_nodes(node)
    known = -1
    while known != len(functions):  # a function that returns a time may be used above its place
        known = len(functions)
        all_of_them = [Clocks(nodes, functions) for nodes in (outside, *inside)]
    return all_of_them


def _number(node: ast.expr) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import time\nassert time.time() < end", [2]),
        ("import time\nb = time.perf_counter()\nwork()\nassert time.perf_counter() - b < 1", [4]),
        ("from time import process_time as p\nb = p()\nassert work()\ntook = p() - b\nassert took < 2", [5]),
        ("import time\ntook = []\ntook.append(time.monotonic() - b)\nassert sorted(took)[2] < 0.1", [4]),
        ("import time\ndef test():\n    assert s() < 3\ndef s():\n    return time.time() - b\nassert b", [3]),
        ("import time\nb = time.monotonic_ns()\nif time.monotonic_ns() - b > 5:\n    fail()", [3]),
        ("import time\nend = time.monotonic() + 60\nwhile not there() and time.monotonic() < end:\n    pass", []),
        ("import time\ndef f():\n    x = time.time()\ndef g():\n    x, y = 3, time.time()\n    assert x == 3", []),
        ("import time\nprint(time.time() - b)\nassert time.strftime('%Y')", []),
        ("assert timer.time == 3 and model.time(4) == 5", []),
    ],
)
def test_a_time_that_is_asserted_is_noticed_and_other_code_is_not(code: str, lines: list[int]) -> None:
    assert sorted({line for clocks in clocks_of(code) for line in clocks.faults()}) == lines


def test_no_test_asserts_a_time_or_sleeps() -> None:
    faults, sleeping = [], set()
    for path in FILES:
        name = str(path.relative_to(ROOT))
        for clocks in clocks_of(path.read_text(encoding="utf-8")):
            faults += [f"{name}:{line} asserts a time" for line in sorted(set(clocks.faults()))]
            sleeping |= {name} if clocks.sleeps() else set()
            faults += [f"{name}:{line} sleeps" for line in clocks.sleeps() if name not in SLEEPS]
    assert not faults, "\n".join(faults)
    assert sleeping == set(SLEEPS), "listed, and sleeps no more"
