"""Blinded sheets show codes and nothing else; agreement is Fleiss' kappa."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from polyclinic.errors import DataError
from polyclinic.report.cards import cards
from polyclinic.report.contents import RunContents
from polyclinic.report.export.review_sheet import COLUMNS, agreement, write_sheet
from polyclinic.studies.run_folder import RunFolder


def _fill(path: Path, answers: dict[int, str]) -> Path:
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, COLUMNS)
        writer.writeheader()
        writer.writerows({**r, "meaningful?": answers[int(r["phenotype"])]} for r in rows)
    return path


def test_sheets_are_blind_and_in_an_order_of_their_own(plain_run: RunFolder, tmp_path: Path) -> None:
    found = cards(RunContents.read(plain_run))
    texts = [write_sheet(found, tmp_path / f"{n}.csv", reviewer=n).read_text() for n in ("anna", "ben")]
    orders = [[r["phenotype"] for r in csv.DictReader(t.splitlines())] for t in texts]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    for word in ("MICU", "NICU", "odds", "weight", "prevalence"):
        assert word not in texts[0]


def test_perfect_and_chance_agreement(plain_run: RunFolder, tmp_path: Path) -> None:
    found = cards(RunContents.read(plain_run))
    same = {c.number: "yes" if c.number % 2 else "no" for c in found}
    paths = [_fill(write_sheet(found, tmp_path / f"{n}.csv", reviewer=n), same) for n in ("anna", "ben", "carl")]
    a = agreement(paths)
    assert a.kappa == pytest.approx(1.0) and a.meaningful == pytest.approx(0.5) and a.reviewers == 3
    other = {k: {"yes": "no", "no": "yes"}[v] for k, v in same.items()}
    _fill(paths[1], other)
    assert agreement(paths[:2]).kappa == pytest.approx(-1.0)


def test_kappa_equals_fleiss_by_hand(tmp_path: Path) -> None:
    """Two reviewers, four phenotypes: yes/yes, yes/no, no/no, possibly/possibly."""
    for name, answers in (("a", "yes yes no possibly"), ("b", "yes no no possibly")):
        lines = ["phenotype,codes,meaningful?,name", *(f"{k},x,{v}," for k, v in enumerate(answers.split(), 1))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    a = agreement([tmp_path / "a.csv", tmp_path / "b.csv"])
    chance = (3 / 8) ** 2 + (3 / 8) ** 2 + (2 / 8) ** 2
    assert a.observed == pytest.approx(0.75)
    assert a.kappa == pytest.approx((0.75 - chance) / (1 - chance))


def test_every_wrong_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("phenotype,codes,meaningful?,name\n1,x,definitely,\nsix,x,yes,\n")
    with pytest.raises(DataError) as e:
        agreement([tmp_path / "a.csv"])
    assert len(e.value.faults) == 2
