"""Every name of NVIDIA FLARE that the source imports exists in the installed version, which is inside the pinned range."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
SOURCE = Path(__file__).parents[2] / "src" / "polyclinic"
IMPORTS = sorted(
    {
        (node.module, alias.name)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "nvflare"
        for alias in node.names
    }
)


def test_flare_is_of_the_version_that_is_supported() -> None:
    assert version("nvflare").startswith("2.9.")
    assert len(IMPORTS) > 10


@pytest.mark.parametrize(("module", "name"), IMPORTS, ids=lambda x: str(x))
def test_an_imported_name_of_flare_exists(module: str, name: str) -> None:
    assert hasattr(import_module(module), name) or import_module(f"{module}.{name}")
