"""Types reach the edge: names, keywords, attributes and results are what an editor shows and a checker checks."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.models.keywords import STUB, rendered

import polyclinic as pc

ROOT = Path(__file__).parents[2]


def test_the_stub_has_the_public_names_and_the_declared_parameters() -> None:
    assert shape(rendered()) == shape(STUB.read_text(encoding="utf-8")), "run: python tests/models/keywords.py"
    for name in pc.__all__:
        assert getattr(pc, name) is not None


def shape(text: str) -> list[str]:
    """The statements of a file, imports one by one, in an order that a formatter does not change."""
    statements = []
    for node in ast.parse(text).body:
        imported = [(node.module, n.name, n.asname) for n in node.names] if isinstance(node, ast.ImportFrom) else []
        statements += [str(one) for one in imported] or [ast.dump(node)]
    return sorted(statements)


WRONG = """
from dataclasses import dataclass
import polyclinic as pc
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.params import Params
from polyclinic.protocol.interfaces import Step
from polyclinic.methods.mixtures.gaussian_mixture import MixtureParams
from polyclinic.methods.central.als import CPALSParams
from polyclinic.methods.rounds.factorization import FactorParams, FederatedFactorization
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
