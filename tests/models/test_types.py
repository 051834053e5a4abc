"""Types reach the edge: names, keywords, attributes and results are what an editor shows and a checker checks."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.keywords import estimators, rendered

import polyclinic as pc
from polyclinic.protocol import parameter_types as keywords

ROOT = Path(__file__).parents[2]


def test_the_names_for_type_checkers_are_those_that_are_there() -> None:
    tree = ast.parse(Path(pc.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    told = {(a.name, f"{n.module}") for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    here = {(n, m) for n, m in pc._WHERE.items()}
    rooms = {(m.rsplit(".", 1)[1], m.rsplit(".", 1)[0]) for m in pc._ROOMS.values()}
    assert told == here | rooms, "write the new name into both lists of polyclinic/__init__.py"
    for name in pc.__all__:
        assert getattr(pc, name) is not None


def test_keywords_are_the_declared_parameters() -> None:
    one, two = (ast.dump(ast.parse(t)) for t in (rendered(), Path(keywords.__file__).read_text()))
    assert one == two, "run: python tests/models/keywords.py && ruff format src"
    for name, cls in estimators().items():
        assert getattr(keywords, f"{name}Typed") in cls.__mro__


WRONG = """
from dataclasses import dataclass
import polyclinic as pc
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.params import Params
from polyclinic.protocol.interfaces import Step
from polyclinic.methods.mixtures.gaussian_mixture import MixtureParams
from polyclinic.methods.central.als import CPALSParams
from polyclinic.methods.factorization import FactorParams, FederatedFactorization
from polyclinic.methods.trip import TRIPParams
from typing import assert_type
a = pc.TRIP(rnak=3)                      # E
b = pc.TRIP(rank="twelve")               # E
pc.TRIP().fit(3)                         # E
m = pc.TRIP(rank=3).fit(pc.datasets.icu_network(patients=100))
assert_type(m, pc.TRIP)
assert_type(m.seed, int)
assert_type(m.result_, pc.Phenotypes)
m.rank = "x"                             # E
m.nothing_                               # E
x: str = m.score(pc.datasets.icu_network(patients=100))   # E
pc.nothing                               # E


@dataclass(frozen=True)
class Lacking:
    factors: tuple[int, ...]


class Mine(FederatedFactorization[FactorParams, Lacking, Lacking]):  # E
    pass


class Mixed(Estimator[Params, Lacking, Lacking]):
    Public, Private = Lacking, Lacking

    def next_step(self, public: int) -> Step | None:  # E
        return None


assert_type(pc.TRIP().params, TRIPParams)
assert_type(pc.CPALS().params, CPALSParams)
assert_type(pc.GaussianMixture().params, MixtureParams)
pc.DPEM().params.nothing                 # E


pc.GaussianMixture(covariance_type="round")  # E
pc.load("m.phenotypes").transform(pc.datasets.icu_network(patients=100)[0], unseen="ignore")  # E
"""


def blocks(path: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.S))


def cells(path: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(c["source"]) for c in found if c["cell_type"] == "code")


def mypy(tmp_path: Path, files: dict[str, str]) -> tuple[str, int]:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "--config-file",
         str(ROOT / "pyproject.toml"), *(str(tmp_path / n) for n in files)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    return done.stdout, done.returncode


@pytest.mark.slow
def test_wrong_calls_are_type_errors(tmp_path: Path) -> None:
    found, _ = mypy(tmp_path, {"wrong.py": WRONG})
    lines = {int(x) for x in re.findall(r"wrong\.py:(\d+): error", found)}
    expected = {n for n, line in enumerate(WRONG.splitlines(), start=1) if "# E" in line}
    assert lines == expected, found


@pytest.mark.slow
def test_readme_tutorials_and_examples_are_typed(tmp_path: Path) -> None:
    pages = {"readme.py": blocks(ROOT / "README.md")}
    pages |= {f"{p.stem.replace('-', '_')}.py": blocks(p) for p in sorted((ROOT / "docs" / "tutorials").glob("*.md"))}
    pages["own_protocol_page.py"] = pages.pop("own_protocol.py")
    pages |= {f"{p.stem}.py": p.read_text() for p in sorted((ROOT / "examples").glob("**/*.py"))}
    pages |= {
        f"notebook_{p.stem.replace('-', '_')}.py": cells(p)
        for p in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    }
    assert len(pages) >= 15
    found, code = mypy(tmp_path, {n: t for n, t in pages.items() if t.strip()})
    assert code == 0, found
