"""Attacks through labels and cells of a table (ATTACKS rows 9, 23)."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.methods.moments.moments import unit_rows
from polyclinic.methods.similarity.labels import class_texts
from polyclinic.methods.similarity.private import _paired, buckets, pair_gradients
from polyclinic.util.table import Table


@pytest.mark.parametrize("label", [1, 1.0, True, "1", 7, "a longer text"])
def test_one_label_moves_the_private_sum_by_two_pairs_at_most(label: float | bool | str) -> None:
    """Row 9: a float label among whole numbers moved every patient's bucket: 24.5 instead of 1."""
    rng = np.random.default_rng(0)
    n, d = 4000, 4
    X = rng.normal(size=(n, d)) / 8
    y = [int(v) for v in X[:, 0] > 0]
    W = np.linalg.qr(rng.standard_normal((d, 2)))[0]

    def gradient(records: Any, labels: Any) -> Any:
        site = pc.Site("s", features=records, labels=np.array(labels, dtype=object))
        assert site.labels is not None
        texts = np.array(class_texts(site.labels), dtype=object)
        left, right = _paired(buckets(records, texts, key="k", round=1, count=n // 2))
        sign = np.where(texts[left] == texts[right], 1.0, -1.0)
        return unit_rows(pair_gradients(records * 8, left, right, sign, W, 1.0)).sum(0)

    moved = np.linalg.norm(gradient(np.vstack([X, X[:1] + 0.01]), [*y, label]) - gradient(X, y))
    assert moved <= 1.0 + 1e-9


def test_a_patient_whose_label_is_not_on_the_public_list_is_in_no_pair_and_raises_nothing() -> None:
    rng = np.random.default_rng(1)
    sites = []
    for name in ("east", "north", "south"):
        X = rng.normal(size=(400, 2)) / 4
        y = [*(int(v) for v in X[1:, 0] > 0), None if name == "north" else "another"]
        sites.append(pc.Site(name, features=X, labels=np.array(y, dtype=object)))
    from polyclinic.methods.similarity.private import PrivateUnPSL

    model = PrivateUnPSL(patients=1200, radius=2.0, rounds=2, rank=1, privacy=pc.Privacy(8.0), classes=("0", "1"))
    model.fit(sites)
    assert model.privacy_.guarantee == "formal"


@pytest.mark.parametrize("text", ["=cmd|'/c calc'!A1", "@SUM(1+1)", "+1", "-2+3", "\t=1"])
def test_no_exported_cell_is_a_formula(text: str) -> None:
    """Row 23."""
    table = Table(("code", text), [(text, 1.5), ("plain", -2)])
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert all(
        c[:1] not in ("=", "@", "+", "\t") and not (c.startswith("-") and not _number(c)) for r in rows for c in r
    )
    assert rows[1][0] == f"'{text}"
    assert rows[2][1] == "-2", "numbers stay numbers"


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
