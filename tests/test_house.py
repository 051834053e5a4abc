"""The house stays readable: few ``Any``, nothing asked by name of what is ours, short files, simple functions, names once.

Fast: the syntax trees of ``src`` are read once. What a stranger's object is may be asked by name; each such place is listed here.
"""

from __future__ import annotations

import ast
import runpy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "polyclinic"
HOUSE: Final = runpy.run_path(str(ROOT / "benchmarks" / "house.py"))
LONGEST, ANY = 400, 10.0
REACH = 5_050  # starts and packed sums are 1,300 of it

FOREIGN: Final = {  # file -> attribute: whose it is
    "cli/__init__.py": {"show": "errors of the argument parser", "exit_code": "the same"},
    "methods/moments/standardizing.py": {"index": "a data frame's rows"},
    "methods/latent_classes/fitted.py": {"dtype": "a column of anybody's frame", "categories": "its type"},
    "methods/similarity/metric.py": {"iloc": "a row of a data frame", "columns": "the same"},
    "records/databases/drivers.py": {"sqlstate": "an error of PostgreSQL's driver"},
    "records/sites/from_data.py": {"tocoo": "a sparse matrix of SciPy"},
    "records/sites/frames.py": {
        "column_names": "a table of Arrow",
        "columns": "a data frame",
        "to_numpy": "its column",
    },
    "records/sites/site.py": {"columns": "a data frame"},
    "tensors/simd/jit.py": {"getuid": "the operating system"},
}


@cache
def trees() -> dict[str, list[ast.AST]]:
    """File below src/polyclinic -> all nodes of its syntax tree."""
    return {
        str(p.relative_to(SOURCE)): list(ast.walk(ast.parse(p.read_text(encoding="utf-8"))))
        for p in sorted(SOURCE.rglob("*.py"))
    }


def any_in(nodes: Sequence[ast.AST]) -> int:
    """How often ``Any`` is said: the name itself, ``typing.Any``, and every use of a name that stands for it alone."""
    alone = {"Any"}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == "Any":
            alone |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            alone |= {alias.asname for alias in node.names if alias.name == "Any" and alias.asname}
    names = sum(isinstance(n, ast.Name) and n.id in alone for n in nodes)
    return names + sum(isinstance(n, ast.Attribute) and n.attr == "Any" for n in nodes)


def asked_by_name(nodes: Sequence[ast.AST]) -> list[tuple[int, str]]:
    """Line and attribute of every ``getattr``, ``hasattr`` or ``setattr`` with a literal name."""
    return [
        (node.lineno, str(node.args[1].value))
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr", "setattr")
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
    ]


def test_the_counters_count() -> None:
    tree = ast.parse(
        "import typing\nfrom typing import Any\nX = Any\ndef f(a: Any, b: X) -> dict[str, typing.Any]: ..."
    )
    assert any_in(list(ast.walk(tree))) == 5  # X = Any holds two: the name and what it stands for
    assert any_in(list(ast.walk(ast.parse("from typing import Any as It\nx: It")))) == 1
    assert asked_by_name(list(ast.walk(ast.parse("getattr(a, 'b', 0)\nhasattr(a, name)\nsetattr(a, 'c', 1)")))) == [
        (1, "b"),
        (3, "c"),
    ]


def test_any_is_rare() -> None:
    lines = sum(map(HOUSE["code_lines"], (p.read_text(encoding="utf-8") for p in SOURCE.rglob("*.py"))))
    count = {name: any_in(tree) for name, tree in trees().items()}
    share = 1000 * sum(count.values()) / lines
    most = sorted(count, key=lambda name: -count[name])[:10]
    assert share <= ANY, f"{share:.1f} per 1,000 lines; most in " + ", ".join(f"{n} ({count[n]})" for n in most)


def test_nothing_of_ours_is_asked_by_name() -> None:
    found = {
        f"{name}:{line} {what}"
        for name, tree in trees().items()
        for line, what in asked_by_name(tree)
        if what not in FOREIGN.get(name, {})
    }
    assert not found
    used = {(name, what) for name, tree in trees().items() for _, what in asked_by_name(tree)}
    assert {(n, w) for n, known in FOREIGN.items() for w in known} <= used, "listed, and asked no more"


def test_a_method_reaches_the_protocol_and_the_tensors() -> None:
    """Who reads TRIP needs no ledger, no model file, no estimator: imports that run, without those for type checkers."""
    graph = grimp.build_graph("polyclinic", exclude_type_checking_imports=True, cache_dir=None)
    modules = {"polyclinic.methods.trip", *graph.find_upstream_modules("polyclinic.methods.trip")}
    files = [SOURCE.parent.joinpath(*name.split(".")) for name in modules]
    texts = [(f / "__init__.py" if f.is_dir() else f.with_suffix(".py")).read_text(encoding="utf-8") for f in files]
    assert sum(map(HOUSE["code_lines"], texts)) < REACH
    above = ("models", "studies", "report", "analysis", "aggregation", "privacy.ledger", "privacy.gate", "privacy.card")
    assert not [m for m in modules if m.startswith(tuple(f"polyclinic.{a}" for a in above))]
    assert "polyclinic.protocol.estimator" not in modules


def test_files_are_short() -> None:
    texts = {str(p.relative_to(SOURCE)): p.read_text(encoding="utf-8") for p in SOURCE.rglob("*.py")}
    long = {n: len(t.splitlines()) for n, t in texts.items() if HOUSE["GENERATED"] not in t[:1000]}
    assert not {n: k for n, k in long.items() if k > LONGEST}


def test_functions_are_simple() -> None:
    assert HOUSE["complex_functions"]() == []


def test_only_privacy_decides_what_is_formal_or_exact() -> None:
    """Elsewhere one asks ``formal``, ``exact`` or ``noisy`` of :mod:`polyclinic.privacy.guarantee`, never ``privacy is None``."""
    decides = ("privacy/", "methods/")
    asked = [
        f"{name}:{node.lineno}"
        for name, nodes in trees().items()
        if not name.startswith(decides)
        for node in nodes
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Is | ast.IsNot)
        and ast.unparse(node.left).rpartition(".")[2] in ("privacy", "asked_privacy")
    ]
    assert not asked


def around_a_method(node: ast.ClassDef) -> bool:
    """Whether a class is the estimator of a method, whose name it bears: ``class TRIP(..., trip.TRIP)``."""
    return any(isinstance(base, ast.Attribute) and base.attr == node.name for base in node.bases)


def test_no_class_name_is_used_twice() -> None:
    where: dict[str, list[str]] = {}
    for name, nodes in trees().items():
        for node in nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not around_a_method(node):
                where.setdefault(node.name, []).append(name)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def test_an_owner_has_few_rules_to_write() -> None:
    from polyclinic.privacy.policy.policy import Policy

    assert len(Policy.model_fields) <= 14
