"""The page of errata and the code agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC, PAPERS = ROOT / "src" / "polyclinic", ROOT / "papers" / "src"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "errata.md").read_text("utf-8").splitlines()
    if re.match(r"\| E\d", line)
]


def cites(text: str, number: str) -> bool:
    return re.search(rf"\b{re.escape(number)}(?![0-9])", text) is not None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_named_modules_cite_the_erratum(row: list[str]) -> None:
    number, *_, modules = row
    for module in re.findall(r"`([^`]+)`", modules):
        file = (ROOT if module.startswith("papers/") else SRC) / module
        assert cites(file.read_text("utf-8"), number), f"{module} does not mention {number}"


def test_every_erratum_cited_in_the_code_is_on_the_page() -> None:
    listed = {row[0] for row in ROWS}
    cited = {
        number
        for room in (SRC, PAPERS)
        for file in room.rglob("*.py")
        for number in re.findall(r"\bE[0-4]\.[0-9]+", file.read_text("utf-8"))
    }
    assert cited <= listed
    assert len(listed) == len(ROWS) > 50
