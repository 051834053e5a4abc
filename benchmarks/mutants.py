"""Would a test notice? Small faults are put into the code that privacy rests on, one at a time, and its tests are run.

``python benchmarks/mutants.py --sample 200 --seed 1`` prints each fault that no test noticed, and the share that was.

Which test reaches which line is measured once (``coverage``, one context for each test). A fault is then tried by the tests
that reach its line, the quickest first, in a process forked from one that has everything imported: the faulty code takes the
place of the function's. Faults outside of functions (constants, defaults) are tried with the module imported anew. With ``--all``,
what no such test notices is tried by all tests of the list, for tests that start processes of their own. The file on disk is
never touched.

A fault is one of: a comparison turned or moved by one, a sign, ``and`` for ``or``, a condition turned, a number moved by one, a
truth turned, a ``raise`` or a call left out, a result that is not returned. Texts, annotations and what is only printed are
left alone: a test of a wording would notice, and nothing would be learnt.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = ROOT / "src"

BOOK: Final = tuple(
    f"privacy/{name}.py"
    for name in (
        "gate/gate",
        "gate/budget_holder",
        "gate/release_store",
        "gate/review",
        "ledger/ledger",
        "ledger/ledger_file",
        "ledger/entries",
        "ledger/reader",
        "ledger/balance",
        "accounting/accountant",
        "accounting/noise_grid",
        "accounting/mechanisms",
        "gate/data_source",
    )
)
"""The door, the book and the accountant, with the noise inside the charged event."""

MASKED: Final = tuple(f"aggregation/secure/{name}.py" for name in ("masked", "client", "server"))
FOLD: Final = tuple(f"protocol/{name}.py" for name in ("loop", "public_state", "site_party", "schema", "outcome"))
GUARDS: Final = (*BOOK, *MASKED, *FOLD)
"""The files that guard patients."""

TESTS: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    BOOK: (
        "tests/privacy/test_book_details.py",
        "tests/privacy/test_accountant.py",
        "tests/privacy/test_door.py",
        "tests/privacy/test_ledger.py",
        "tests/privacy/test_watch.py",
        "tests/privacy/test_policy.py",
        "tests/privacy/test_owner.py",
        "tests/privacy/test_mechanism.py",
        "tests/privacy/test_book_faults.py",
        "tests/privacy/test_payer.py",
        "tests/privacy/test_book_edges.py",
        "tests/privacy/test_datasource.py",
        "tests/attacks/test_evasion.py",
        "tests/attacks/test_book.py",
    ),
    MASKED: (
        "tests/aggregation/test_masked.py",
        "tests/aggregation/test_masked_details.py",
        "tests/aggregation/test_agreement.py",
        "tests/aggregation/test_malicious.py",
        "tests/aggregation/test_promise.py",
        "tests/aggregation/test_refusals.py",
        "tests/aggregation/test_tag.py",
        "tests/aggregation/test_thresholds.py",
    ),
    FOLD: (
        "tests/protocol/test_fold.py",
        "tests/protocol/test_fold_details.py",
        "tests/protocol/test_setting.py",
        "tests/protocol/test_floor.py",
        "tests/protocol/test_wire.py",
        "tests/privacy/test_overlap.py",
        "tests/aggregation/test_refusals.py",
        "tests/aggregation/test_thresholds.py",
        "tests/node/test_inprocess.py",
        "tests/attacks/test_lying_coordinator.py",
    ),
}

# Faults that change nothing that can be seen, each with the reason.
EQUAL: Final[dict[tuple[str, str, str], str]] = {
    ("privacy/gate/gate.py", "time.sleep(min(0.2, self.wait))", "another number"): "how often a waiting door looks",
    (
        "privacy/accounting/accountant.py",
        "low, high = 1e-12, 1.0",
        "another number",
    ): "where the search for a root begins",
    ("privacy/accounting/accountant.py", "high *= 2", "another number"): "more room for the search",
    (
        "privacy/accounting/accountant.py",
        "while gaussian_delta(epsilon, mu) > delta:  # on the safe side, whatever the solver's last digit",
        "compared otherwise",
    ): "at that very number one more step of 1e-13 is as safe",
    (
        "privacy/accounting/accountant.py",
        "while gaussian_delta(epsilon, high) < delta:",
        "compared otherwise",
    ): "at that very number the search has twice the room",
    (
        "privacy/accounting/accountant.py",
        "return math.exp(a) * -math.expm1(min(b - a, 0.0))",
        "another number",
    ): "the second term is never the larger one (40,000 pairs of mu and epsilon tried)",
    (
        "privacy/accounting/accountant.py",
        "if not faults and gaussian_delta(epsilon, low) > delta:",
        "compared otherwise",
    ): "at that very number the root is where the search begins",
    (
        "privacy/ledger/balance.py",
        "return cost([charge.event]) <= held.left(time.time() if now is None else now) + 1e-12 * held.mu2",
        "compared otherwise",
    ): "the slack is for roundings: at that very number both answers are right",
    (
        "privacy/accounting/mechanisms.py",
        "return np.random.default_rng(secrets.randbits(256))",
        "another number",
    ): "one bit more of a seed that nobody knows",
    ("privacy/ledger/ledger_file.py", "stray.unlink(missing_ok=True)", "truth turned"): "only where two sweep at once",
    (
        "privacy/accounting/mechanisms.py",
        "if not size or not sd:",
        "and/or",
    ): "OpenDP gives nothing of nothing, and zeros of no noise",
    ("privacy/ledger/balance.py", "return False", "nothing returned"): "None is as false",
    ("protocol/public_state.py", "return False", "nothing returned"): "None is as false",
    (
        "privacy/gate/gate.py",
        "self.session = token_hex(8) if session is None else session",
        "another number",
    ): "a random name of another length",
    (
        "privacy/accounting/accountant.py",
        "if mu <= 0 or gaussian_delta(0.0, mu) <= delta:",
        "compared otherwise",
    ): "at that very number the root is 0, too",
    (
        "privacy/accounting/accountant.py",
        "top = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # BS16 bound, always enough",
        "another number",
    ): "more room for the search; less is noticed (test_little_noise_has_its_price_too)",
    (
        "privacy/accounting/accountant.py",
        "while gaussian_delta(root, mu) > delta:",
        "compared otherwise",
    ): "at that very number one more step of 1e-13 is as safe",
    (
        "privacy/ledger/reader.py",
        "self.looked_at = (0, 0) if stat is None else (stat.st_size, stat.st_mtime_ns)",
        "another number",
    ): "no file was changed in 1970: any pair that no file has will do",
    ("privacy/gate/release_store.py", "raise AssertionError", "no raise"): "the count before it has no end",
    (
        "privacy/ledger/ledger_file.py",
        "self._reading = Reading(START if path is not None else secrets.token_hex(32))  # no two books in memory are one",
        "another number",
    ): "a random name of another length",
    ("privacy/ledger/ledger_file.py", "self._holder = 0", "another number"): "no thread has the number 0 or 1",
    (
        "privacy/ledger/ledger_file.py",
        "self._entries_at = 0",
        "another number",
    ): "an empty book is read once more, and is empty",
    (
        "privacy/ledger/entries.py",
        "line = line if at < 0 else line[:at] + line[at + len(part) :]",
        "another number",
    ): "a line begins with a brace: the part is never found at 0",
    (
        "privacy/ledger/entries.py",
        "line = line if at < 0 else line[:at] + line[at + len(part) :]",
        "compared otherwise",
    ): "a line begins with a brace: the part is never found at 0",
    (
        "aggregation/secure/server.py",
        'self._result, self._got, self._sum = "aborted", {}, np.zeros(0, np.uint64)',
        "another number",
    ): "nothing reads the sum of an attempt that is aborted",
    (
        "aggregation/secure/server.py",
        "self.opened, self._sum = total, np.zeros(0, np.uint64)",
        "another number",
    ): "nothing reads the sum once it is opened",
    (
        "protocol/schema.py",
        "if len(size) != len(common[0]):",
        "another number",
    ): "there are as many digests as sizes",
    (
        "protocol/loop.py",
        "class RunOptions(FoldOptions, total=False):",
        "truth turned",
    ): "read by type checkers alone",
    (
        "protocol/loop.py",
        "class FoldOptions(TypedDict, total=False):",
        "truth turned",
    ): "read by type checkers alone",
    (
        "protocol/loop.py",
        "for _ in range(8):  # a secure sum has several phases, each with its own deadline",
        "another number",
    ): "a sum has fewer phases than either",
    (
        "aggregation/secure/masked.py",
        "slots: int = 20,",
        "another number",
    ): "for how many sums secrets are shared at a time: the totals are the same bits",
    ("aggregation/secure/server.py", "return True", "nothing returned"): "who has sent is asked, not what is kept",
    ("aggregation/secure/server.py", "return True", "truth turned"): "who has sent is asked, not what is kept",
    (
        "aggregation/secure/client.py",
        "self._slot = -1  # of the vector that I sent",
        "another number",
    ): "any number below 0 says that none was sent",
    (
        "aggregation/secure/client.py",
        "self._session, self._slot, self._tag = None, -1, None",
        "another number",
    ): "any number below 0 says that none was sent",
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
    reach: tuple[int, int]  # lines of the statement: who runs one of them may notice
    owner: int | None  # first line of the function it is in; None: it is run when the module is imported

    @property
    def key(self) -> tuple[str, str, str]:
        """Its name that survives a change elsewhere in the file."""
        return (self.file, self.text, self.kind)


@dataclass(frozen=True)
class Place:
    """Where a fault can be put."""

    node: ast.AST
    kind: str
    reach: tuple[int, int]
    owner: int | None


class _Places(ast.NodeVisitor):
    """All places of a tree where a fault can be put, in one fixed order."""

    def __init__(self) -> None:
        self.found: list[Place] = []
        self.reach = (1, 1)
        self.owner: int | None = None

    def _put(self, node: ast.AST, kind: str) -> None:
        self.found.append(Place(node, kind, self.reach, self.owner))

    def generic_visit(self, node: ast.AST) -> None:
        before = self.reach, self.owner
        if isinstance(node, ast.stmt):
            self.reach = (node.lineno, _header(node))
        if not _wording(node):
            self._kinds(node)
            self._children(node)
        elif isinstance(node, ast.Raise):
            self._put(node, "no raise")
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.visit(node.value)
        self.reach, self.owner = before

    def _kinds(self, node: ast.AST) -> None:
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not (isinstance(node, ast.If) and _typing(node.test)):
            self._put(node, "condition turned")
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            self._put(node, "compared otherwise")
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS and not _text(node):
            self._put(node, "other sign")
        if isinstance(node, ast.BoolOp):
            self._put(node, "and/or")
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            self._put(node, "another number" if not isinstance(node.value, bool) else "truth turned")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._put(node, "call left out")
        if isinstance(node, ast.AugAssign):
            self._put(node, "not added")
        if isinstance(node, ast.Return) and node.value is not None and not _nothing(node.value):
            self._put(node, "nothing returned")

    def _children(self, node: ast.AST) -> None:
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            if function and name == "body" and self.owner is None:
                assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                self.owner = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)


def _wording(node: ast.AST) -> bool:
    """Texts, annotations and what is only shown."""
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__", "__reduce__")
    return isinstance(
        node, ast.JoinedStr | ast.Raise | ast.AnnAssign | ast.arg | ast.ImportFrom | ast.Import | ast.Assert
    )


def _header(node: ast.stmt) -> int:
    """The last line of a statement, without what it holds."""
    inside = [b for name in ("body", "orelse", "finalbody", "handlers") for b in getattr(node, name, [])]
    first = min((b.lineno for b in inside), default=None)
    return int(node.end_lineno or node.lineno) if first is None else max(node.lineno, first - 1)


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


def places(file: str) -> tuple[ast.Module, list[Place], str]:
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
        Mutant(file, line := p.node.lineno, p.kind, n, lines[line - 1].strip(), p.reach, p.owner)  # type: ignore[attr-defined]
        for n, p in enumerate(found)
    ]


def faulty(m: Mutant) -> CodeType:
    """The module with the fault in it."""
    tree, found, _ = places(m.file)
    made = _Put(found[m.place].node, m.kind).visit(tree)
    return compile(ast.fix_missing_locations(made), str(SOURCE / "polyclinic" / m.file), "exec")


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module other code."""

    def __init__(self, m: Mutant) -> None:
        self.module = "polyclinic." + m.file.removesuffix(".py").replace("/", ".")
        self.path, self.code = SOURCE / "polyclinic" / m.file, faulty(m)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def create_module(self, spec: Any) -> Any:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self.code, module.__dict__)


def replace_function(m: Mutant) -> bool:
    """Put the faulty code in the place of its function's, wherever that function is used; whether it could be."""

    def outermost(code: CodeType) -> Iterator[CodeType]:
        for c in code.co_consts:
            if isinstance(c, CodeType):
                yield c
                if "<locals>" not in c.co_qualname and not c.co_flags & CO_OPTIMIZED:  # a class: its methods
                    yield from outermost(c)

    path = str(SOURCE / "polyclinic" / m.file)
    new = next((c for c in outermost(faulty(m)) if c.co_firstlineno == m.owner and c.co_flags & CO_OPTIMIZED), None)
    done = False
    for f in gc.get_objects():
        if isinstance(f, FunctionType) and f.__code__.co_filename == path and f.__code__.co_firstlineno == m.owner:
            if new is None or f.__code__.co_qualname != new.co_qualname:
                continue
            if f.__code__.co_freevars != new.co_freevars:
                return False
            f.__code__ = new
            done = True
    return done


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

    hypothesis.settings.register_profile("mutants", deadline=None, database=None)
    del cryptography, hypothesis, numba, numpy, pandas, pydantic, pyarrow, pytest, scipy, sklearn


OPTIONS: Final = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
    "-p",
    "no:timeout",
    "--no-header",
    "--hypothesis-profile=mutants",
]
FLAKY: Final = 3  # tests that may fail for want of time on a busy machine; they are named, and notice nothing
SKIP: Final = "not long_book and not studies_at_once"  # clocks and races: a busy machine would kill for a fault


def _pytest(plugin: object, tests: Sequence[str]) -> int:
    import pytest

    os.chdir(ROOT)
    for p in (ROOT, SOURCE):
        if str(p) not in sys.path:
            sys.path.insert(0, str(p))
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        return int(pytest.main([*OPTIONS, "-m", "not slow and not e2e", "-k", SKIP, *tests], plugins=[plugin]))


def _apart(work: Callable[[], int], seconds: float) -> tuple[int | None, float]:
    """Do it in a process of its own; its answer (None: it had to be ended), and the seconds of processor that it took."""
    begin = os.times()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(max(int(seconds), 1))  # a fault can make a loop without an end
        try:
            os._exit(work())
        except BaseException:
            os._exit(70)
    _, status = os.waitpid(pid, 0)
    end = os.times()
    spent = end.children_user + end.children_system - begin.children_user - begin.children_system
    return (None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), spent


class _Loop:
    """A pytest plugin that does something else with the tests that were collected than to run them once."""

    def __init__(self, work: Callable[[Any], int]) -> None:
        self.work = work

    def pytest_runtestloop(self, session: Any) -> bool:
        if session.testsfailed:  # a test file that does not import
            os._exit(2)
        os._exit(self.work(session))


def _run_items(items: Sequence[Any], session: Any, expected: Mapping[str, float], killer: Path | None = None) -> int:
    """Run tests until one fails; 0: none did. A test that takes far more processor than it did ends the process."""
    for n, item in enumerate(items):
        signal.setitimer(signal.ITIMER_PROF, 5 + 10 * expected.get(item.nodeid, 3.0))
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=items[n + 1] if n + 1 < len(items) else None)
        if session.testsfailed:
            if killer is not None:
                killer.write_text(str(item.nodeid))
            return 1
    return 0


@dataclass
class Map:
    """Which tests reach which lines, and how long each takes."""

    reach: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests(self, m: Mutant, most: float) -> list[str]:
        """Those that reach a fault, the quickest first, up to ``most`` seconds of processor in all."""
        lines = self.reach.get(m.file, {})
        found = {t for line in range(m.reach[0], m.reach[1] + 1) for t in lines.get(line, ())}
        ordered = sorted(found, key=lambda t: self.seconds.get(t, 0.0))
        spent = accumulate(self.seconds.get(t, 0.0) for t in ordered)
        return [t for t, s in zip(ordered, spent) if s <= most]


def measure(files: Sequence[str], tests: Sequence[str]) -> Map:
    """Run all tests once without a fault. The answer is kept for as long as neither the files nor the tests change."""
    names = [SOURCE / "polyclinic" / f for f in files]
    words = b"".join(p.read_bytes() for p in [*names, *(ROOT / t for t in tests)])
    kept = Path(tempfile.gettempdir()) / f"polyclinic-mutants-{hashlib.sha256(words).hexdigest()[:16]}.json"
    if not kept.exists():
        said, spent = _apart(lambda: _pytest(_Loop(lambda s: _measured(s, names, kept)), tests), 3600)
        if said != 0:
            raise SystemExit("the tests fail without any fault: nothing can be learnt from them")
        print(f"which test reaches which line: {spent:.0f} s", flush=True)
    value = json.loads(kept.read_text())
    reach = {f: {int(n): t for n, t in lines.items()} for f, lines in value["reach"].items()}
    return Map(reach, value["seconds"])


def _measured(session: Any, names: Sequence[Path], kept: Path) -> int:
    import coverage

    cov = coverage.Coverage(data_file=None, include=[str(p) for p in names], config_file=False)
    seconds: dict[str, float] = {}
    failed: list[str] = []
    cov.start()
    for item in session.items:
        cov.switch_context(item.nodeid)
        begin = time.process_time()
        if _run_items([item], session, {item.nodeid: 100.0}) == 0:
            seconds[item.nodeid] = time.process_time() - begin
        else:
            failed.append(item.nodeid)
            session.testsfailed = 0
    signal.setitimer(signal.ITIMER_PROF, 0)
    cov.stop()
    os.write(2, "".join(f"fails without any fault, so it is not asked: {t}\n" for t in failed).encode())
    if len(failed) > FLAKY:
        return 1
    data = cov.get_data()
    reach = {}
    for p in names:
        lines = data.contexts_by_lineno(str(p))
        asked = {n: [c for c in some if c in seconds] for n, some in lines.items()}
        reach[str(p.relative_to(SOURCE / "polyclinic"))] = asked
    kept.write_text(json.dumps({"reach": reach, "seconds": seconds}))
    return 0


class Trial:
    """Tries faults, each in a process of its own.

    Parameters
    ----------
    tests
        All test files of the list.
    known
        Which test reaches what.
    every
        Whether what those do not notice is tried by all.
    most
        Seconds of processor for the tests of one fault; slower tests are not asked, so a fault may wrongly count as unnoticed.
    """

    def __init__(self, tests: Sequence[str], known: Map, every: bool, most: float) -> None:
        self.tests, self.known, self.every, self.most = tests, known, every, most
        self.killer = Path(tempfile.mkstemp(prefix="killer-")[1])

    def inside(self, session: Any, m: Mutant) -> tuple[str, float]:
        """A fault in a function: forked from the process that has the tests collected."""
        by_name = {i.nodeid: i for i in session.items}
        reach = self.known.tests(m, self.most)
        first = [by_name[t] for t in reach if t in by_name]
        rest = [i for i in session.items if i.nodeid in self.known.seconds and i.nodeid not in set(reach)]

        def work(items: Sequence[Any]) -> int:
            return _run_items(items, session, self.known.seconds, self.killer) if replace_function(m) else 71

        total = 0.0
        for items in (first, rest) if self.every else (first,):
            expected = sum(self.known.seconds.get(i.nodeid, 1.0) for i in items)
            said, spent = _apart(lambda some=items: work(some), 60 + 10 * expected)  # type: ignore[misc]
            total += spent
            if said == 71:
                return self.outside(m)
            if said != 0:
                return ("killed" if said is not None else "too slow"), total
        return "survived", total

    def _quick(self, items: Sequence[Any]) -> list[Any]:
        asked = [i for i in items if i.nodeid in self.known.seconds]
        ordered = sorted(asked, key=lambda i: self.known.seconds[i.nodeid])
        spent = accumulate(self.known.seconds[i.nodeid] for i in ordered)
        return [i for i, s in zip(ordered, spent) if s <= 2 * self.most]

    def outside(self, m: Mutant) -> tuple[str, float]:
        """A fault in what is run on import: everything is imported anew."""

        def work() -> int:
            sys.meta_path.insert(0, _Loader(m))
            for name in [n for n in sys.modules if n.split(".")[0] in ("polyclinic", "tests")]:
                del sys.modules[name]
            return _pytest(
                _Loop(lambda s: _run_items(self._quick(s.items), s, self.known.seconds, self.killer)), self.tests
            )

        said, spent = _apart(work, 900)
        return ("survived" if said == 0 else "killed" if said is not None else "too slow"), spent


def sample(files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Faults drawn over all files alike, without those that are known to change nothing."""
    every = [m for f in files for m in mutants(f) if m.key not in EQUAL]
    return random.Random(seed).sample(every, min(count, len(every)))


def tests_of(files: Sequence[str]) -> tuple[str, ...]:
    """The test files for these files, those that exist."""
    return tuple(t for some, tests in TESTS.items() if set(some) & set(files) for t in tests if (ROOT / t).exists())


@dataclass
class Report:
    """What came of the faults, on paper as it goes."""

    out: Path | None
    screen: int
    told: list[str]

    def add(self, m: Mutant, said: str, spent: float, killer: str) -> None:
        """One fault was tried."""
        self.told.append(said)
        if said == "survived" or len(self.told) % 20 == 0:
            words = f"{len(self.told):4d} {said:9s} {spent:5.1f} s  {m.file}:{m.line} {m.kind}: {m.text}\n"
            os.write(self.screen, words.encode())
        if self.out is not None:
            with open(self.out, "a") as f:
                f.write(json.dumps({**vars(m), "said": said, "cpu": round(spent, 2), "by": killer}) + "\n")


def trials(group: Sequence[Mutant], files: Sequence[str], report: Report, every: bool, most: float) -> int:
    """Try faults of files that share a list of tests."""
    tests = tests_of(files)
    trial = Trial(tests, measure(files, tests), every, most)

    def one(m: Mutant, session: Any) -> None:
        trial.killer.write_text("")
        said, spent = trial.outside(m) if m.owner is None else trial.inside(session, m)
        report.add(m, said, spent, trial.killer.read_text())

    def loop(session: Any) -> int:
        for m in group:
            one(m, session)
        told = "\n".join(report.told)
        trial.killer.write_text(told)
        return 0

    said, _ = _apart(lambda: _pytest(_Loop(loop), tests), 10**6)
    report.told[:] = [t for t in trial.killer.read_text().splitlines() if t]
    return 2 if said != 0 else 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", nargs="*", help="below src/polyclinic; default: door, book and accountant")
    parser.add_argument(
        "--guards", action="store_true", help="all files that guard patients: masked sums and fold, too"
    )
    parser.add_argument("--out", type=Path, help="a JSON line for each fault")
    parser.add_argument("--least", type=float, default=0.95, help="share that has to be noticed")
    parser.add_argument("--all", action="store_true", help="try survivors by all tests")
    parser.add_argument("--most", type=float, default=4.0, help="seconds of processor for the tests of one fault")
    parser.add_argument("--part", default="0/1", help="K/N: every N-th fault from K on")
    parser.add_argument("--again", type=Path, help="only those that survived in this file")
    options = parser.parse_args()
    files = options.files or list(GUARDS if options.guards else BOOK)
    chosen = sample(files, options.sample, options.seed)
    if options.again is not None:
        old = [json.loads(x) for x in options.again.read_text().splitlines()]
        names = {(o["file"], o["text"], o["kind"]) for o in old if o["said"] == "survived"}
        chosen = [m for f in files for m in mutants(f) if m.key in names]
    part, parts = (int(x) for x in options.part.split("/"))
    chosen = chosen[part::parts]
    _warm()
    report = Report(options.out, os.dup(1), [])
    for some in TESTS:
        group = [m for m in chosen if m.file in some]
        if group and trials(group, some, report, options.all, options.most) != 0:
            print("the trial broke off")
            return 2
    noticed = sum(t != "survived" for t in report.told)
    print(f"{noticed} of {len(report.told)} faults were noticed ({noticed / max(len(report.told), 1):.1%})")
    return 0 if noticed >= options.least * len(report.told) else 1


if __name__ == "__main__":
    sys.exit(main())
