"""Measure how readable the code is: ``python benchmarks/budgets.py [FOLDER]`` prints the table, a FOLDER lists its places.

The limits are in ``tests/test_budgets.py`` and may only fall. A line of code is neither blank, nor a comment, nor part of
a docstring. Complexity is McCabe's as radon counts it. Loops that a compiler reads (``kernel``, ``njit``) do not count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import grimp
from house import code_lines
from radon.complexity import cc_visit
from radon.visitors import Class, Function

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src" / "polyclinic"
HOSTS: Final = ("node", "web", "auditing", "cli")  # above the core
COMPILED: Final = ("kernel", "njit", "intrinsic", "word")

# Words that point at something instead of naming it. A value called `found` says nothing about what was found.
VAGUE: Final = frozenset(
    """
    above after again ahead all_ alone anew any_ apart aside asked at away back bad before begun below beside both
    bought by carried chosen done each ended entered everybody everything far few found fresh gained given gone got
    had has heard held here hidden how inside it judged kept known lacking late left lifted listed lost made many
    met mine missed more moved much named near none nothing now odd of offered one opened other others own paid
    passed placed ready refused rest said same seen sent several shown so some spent such taken that them there
    these they this those to told torn tried twice under until up used wanted what where which who whole whose why
    wide without wrong
    """.split()  # noqa: SIM905
)
OUTSIDE: Final = re.compile(
    r"\b(?:RECORDS|CONCORD|ENGINE|TRUST|PRIVACY|FINDINGS|HOUSE|FOLD|LEARNED|NETWORK|PAPERS|COMMS|SUMS|DESIGN)"
    r" (?:part )?(?:[A-Z]?\d+(?:\.\d+)*|[A-Z]\b)"
)
TUNED: Final = re.compile(r"^[A-Z][A-Z0-9_]*$")


class Place(NamedTuple):
    """Where something was counted."""

    file: str
    line: int
    text: str


@cache
def texts() -> dict[str, str]:
    """File below src/polyclinic -> its text."""
    return {str(p.relative_to(SOURCE)): p.read_text(encoding="utf-8") for p in sorted(SOURCE.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """File below src/polyclinic -> its syntax tree."""
    return {name: ast.parse(text) for name, text in texts().items()}


def lines(core: bool = False) -> int:
    """Lines of code, of all of src or of the core alone."""
    return sum(code_lines(text) for name, text in texts().items() if not (core and name.split("/")[0] in HOSTS))


def files_in_a_folder() -> Counter[str]:
    """Python files in each folder."""
    return Counter(str(Path(name).parent) for name in texts())


def _functions(block: Class | Function) -> Iterator[Function]:
    if isinstance(block, Function):
        yield block
        for inner in block.closures:
            yield from _functions(inner)
    else:
        for inner in (*block.methods, *block.inner_classes):
            yield from _functions(inner)


def _compiled_lines(tree: ast.Module) -> set[int]:
    """First lines of the functions that a compiler reads."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(word in ast.unparse(d) for d in node.decorator_list for word in COMPILED)
    }


@cache
def _complexities() -> list[tuple[int, Place]]:
    measured = []
    for name, text in texts().items():
        compiled = _compiled_lines(trees()[name])
        blocks = [b for b in cc_visit(text) if isinstance(b, Class) or not b.is_method]
        for function in (f for b in blocks for f in _functions(b)):
            if function.lineno not in compiled:
                measured.append(
                    (function.complexity, Place(name, function.lineno, f"{function.name} {function.complexity}"))
                )
    return measured


def complex_functions(above: int, folder: str = "") -> list[Place]:
    """Functions whose complexity is above a limit."""
    return [place for value, place in _complexities() if value > above and place.file.startswith(folder)]


def parameters(above: int) -> list[Place]:
    """Functions with more parameters than a limit, `self` and the options of a command not counted."""
    places = []
    for name, tree in trees().items():
        compiled = _compiled_lines(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.lineno in compiled:
                continue
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            options = [a for a in given if a.annotation is not None and "typer." in ast.unparse(a.annotation)]
            count = len([a for a in given if a.arg not in ("self", "cls") and a not in options])
            if count > above:
                places.append(Place(name, node.lineno, f"{node.name} {count}"))
    return places


def _cycles(edges: set[tuple[str, str]]) -> int:
    """Groups of two or more names that reach each other."""
    reach: dict[str, set[str]] = defaultdict(set)
    for a, b in edges:
        reach[a].add(b)
    names = sorted({n for edge in edges for n in edge})
    for _ in names:
        before = sum(map(len, reach.values()))
        for a in names:
            reach[a] |= {c for b in tuple(reach[a]) for c in reach[b]}
        if sum(map(len, reach.values())) == before:
            break
    return len({frozenset(b for b in reach[a] if a in reach[b]) for a in names if a in reach[a]})


def import_cycles(by_folder: bool) -> int:
    """Cycles between subjects or between all folders, typing imports not counted."""
    graph = grimp.build_graph("polyclinic", exclude_type_checking_imports=True, cache_dir=None)
    home = {m: _folder(m) if by_folder else m.split(".")[min(1, m.count("."))] for m in graph.modules}
    pairs = {(home[a], home[b]) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)}
    top = {".", "polyclinic"}  # the public names: every module may import the package itself
    return _cycles({(a, b) for a, b in pairs if a != b and not {a, b} & top})


def _folder(module: str) -> str:
    path = SOURCE / "/".join(module.split(".")[1:])
    return str((path if path.is_dir() else path.parent).relative_to(SOURCE))


def tuned_constants() -> list[Place]:
    """Upper-case numbers in methods and analysis that tune something and do not name the page that chose them.

    The comment names the page (``docs/...``), or says why nothing was tuned: ``definition:`` or ``limit:``.
    """
    places = []
    for name, tree in trees().items():
        if not name.startswith(("methods/", "analysis/")):
            continue
        rows = texts()[name].splitlines()
        for node in tree.body:
            target = (
                node.targets[0]
                if isinstance(node, ast.Assign)
                else node.target
                if isinstance(node, ast.AnnAssign)
                else None
            )
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if not isinstance(target, ast.Name) or not TUNED.match(target.id) or not _is_number(value):
                continue
            near = " ".join(rows[max(node.lineno - 2, 0) : (node.end_lineno or node.lineno)])
            if not any(word in near for word in ("docs/", "definition:", "limit:")):
                places.append(Place(name, node.lineno, target.id))
    return places


def _is_number(value: ast.expr | None) -> bool:
    try:
        numbers = ast.literal_eval(value) if value is not None else None
    except ValueError:
        return isinstance(value, ast.BinOp) and _is_number(value.left) and _is_number(value.right)
    numbers = numbers if isinstance(numbers, tuple | list) and numbers else (numbers,)
    return all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)


def _targets(node: ast.expr) -> Iterator[ast.Name]:
    if isinstance(node, ast.Name):
        yield node
    elif isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            yield from _targets(part)
    elif isinstance(node, ast.Starred):
        yield from _targets(node.value)


def assigned_names() -> list[Place]:
    """Every name that is given a value by an assignment."""
    places = []
    for name, tree in trees().items():
        for node in ast.walk(tree):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign | ast.NamedExpr)
                else []
            )
            places += [Place(name, t.lineno, t.id) for target in targets for t in _targets(target)]
    return places


def vague_names() -> list[Place]:
    """Assignments to a word that does not name the value."""
    return [p for p in assigned_names() if p.text.strip("_") in VAGUE]


def outside_references() -> list[Place]:
    """References to documents that are not in this repository."""
    return [
        Place(name, number, match[0])
        for name, text in texts().items()
        for number, row in enumerate(text.splitlines(), start=1)
        for match in OUTSIDE.finditer(row)
    ]


def table() -> dict[str, float]:
    """Every figure that has a limit."""
    folders, assigned = files_in_a_folder(), assigned_names()
    return {
        "code lines": lines(),
        "code lines of the core": lines(core=True),
        "files in a folder": max(folders.values()),
        "functions above complexity 15": len(complex_functions(15)),
        "functions above complexity 10": len(complex_functions(10)),
        "methods above complexity 15": len(complex_functions(15, "methods/")),
        "methods above complexity 10": len(complex_functions(10, "methods/")),
        "functions above 12 parameters": len(parameters(12)),
        "import cycles between subjects": import_cycles(by_folder=False),
        "import cycles between folders": import_cycles(by_folder=True),
        "constants without a page": len(tuned_constants()),
        "vague names, percent of assignments": round(100 * len(vague_names()) / len(assigned), 1),
        "references outside the repository": len(outside_references()),
    }


def main() -> None:
    """Print the table, or the places of one folder."""
    if len(sys.argv) == 1:
        for figure, value in table().items():
            print(f"{figure:40} {value:>10,}")
        return
    folder = sys.argv[1]
    count = sum(code_lines(text) for name, text in texts().items() if name.startswith(folder))
    print(f"code lines: {count:,}")
    kinds = {
        "complexity above 10": complex_functions(10),
        "above 8 parameters": parameters(8),
        "constants without a page": tuned_constants(),
        "vague names": vague_names(),
        "outside references": outside_references(),
    }
    for kind, places in kinds.items():
        mine = [p for p in places if p.file.startswith(folder)]
        print(f"{kind}: {len(mine)}")
        for place in mine:
            print(f"  {place.file}:{place.line} {place.text}")


if __name__ == "__main__":
    main()
