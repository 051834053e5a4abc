"""Mistakes that newcomers make, each made for real: the answer names the fault and the way out."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

MADE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reference" / "troubleshooting.py"))


@pytest.mark.parametrize("mistake", MADE["MISTAKES"], ids=lambda m: m.title)
def test_the_answer_to_a_mistake_names_it(mistake: Any) -> None:
    assert mistake.words in MADE["answer"](mistake)


def test_there_are_at_least_thirty() -> None:
    assert len({m.title for m in MADE["MISTAKES"]}) >= 30
