"""No count of 1 to 10 patients can be read or derived from a report, its embedded data, or an export."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.simulated.presence import presence
from polyclinic.report.contents import RunContents
from polyclinic.report.export.tables import export
from polyclinic.report.html import render
from polyclinic.studies.run_folder import RunFolder


def _truth(run: RunFolder) -> tuple[np.ndarray, np.ndarray]:
    """What the report must not give away: carriers (R, sites) and patients (sites), from the owners' files."""
    contents = RunContents.read(run)
    mass = np.prod([np.abs(f).sum(0) for f in contents.factors], axis=0)
    counts, sizes = [], []
    for site in contents.presence["sites"]:
        with np.load(run.path / "sites" / site / "memberships.npz") as z:
            a = np.abs(z["memberships"]) * mass
        counts.append((a / np.maximum(a.sum(1, keepdims=True), 1e-300) >= 0.05).sum(0))
        sizes.append(len(a))
    return np.array(counts).T, np.array(sizes)


def test_this_run_has_small_counts_to_hide(plain_run: RunFolder) -> None:
    counts, _ = _truth(plain_run)
    assert ((counts > 0) & (counts < 11)).sum() > 5


def test_shown_counts_are_true_and_never_small(plain_run: RunFolder) -> None:
    counts, sizes = _truth(plain_run)
    shown = json.loads((plain_run.path / "presence.json").read_text())
    for r, row in enumerate(shown["carriers"]):
        for k, c in enumerate(row):
            if c is not None:
                assert c == counts[r, k]
                assert c == 0 or c >= 11
                assert sizes[k] - c == 0 or sizes[k] - c >= 11


def test_hidden_counts_cannot_be_computed_from_totals(plain_run: RunFolder) -> None:
    counts, _ = _truth(plain_run)
    shown = json.loads((plain_run.path / "presence.json").read_text())
    for r, row in enumerate(shown["carriers"]):
        hidden = [k for k, c in enumerate(row) if c is None]
        if hidden and shown["totals"][r] is not None:
            rest = shown["totals"][r] - sum(c for c in row if c is not None)
            assert len(hidden) > 1 and rest >= 11
            assert rest == counts[r, hidden].sum()


class _Numbers(HTMLParser):
    """Every attribute and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, k, v or "") for k, v in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_embedded_data_of_the_page_give_no_small_count(plain_run: RunFolder) -> None:
    counts, sizes = _truth(plain_run)
    page = _Numbers()
    page.feed(render(RunContents.read(plain_run)))
    shares = [float(v) for _, k, v in page.attributes if k == "data-prevalence" and float(v) >= 0]
    assert shares, "the page carries prevalences"
    assert all(round(s * sizes.sum()) == 0 or round(s * sizes.sum()) >= 11 for s in shares)
    named = dict(zip(RunContents.read(plain_run).presence["sites"], sizes))
    said = [v for _, k, v in page.attributes if k == "title" and "of its patients" in v]
    assert said, "the page says how many patients of a site have a phenotype"
    for text in said:
        site, share = text.split(":")[0], float(re.search(r"([\d.]+) % of its", text)[1]) / 100  # type: ignore[index]
        # rounded to a percent: the true count behind it must be one that may be shown
        assert any(
            abs(c / named[site] - share) <= 0.005 + 1e-9 and (c == 0 or c >= 11)
            for c in counts[:, list(named).index(site)]
        )
    assert not re.search(r"\b([1-9]|10) patients\b", " ".join(page.texts).replace("1 to 10 patients", ""))


def test_exports_hold_no_small_count(plain_run: RunFolder, tmp_path: Path) -> None:
    written = export(plain_run, out=tmp_path)
    assert {p.suffix for p in written} == {".csv", ".npz", ".json", ".bib", ".phenotypes"}
    checked = 0
    for path in tmp_path.glob("*.csv"):
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        for row in rows:
            if row.get("patients"):
                checked += 1
                assert int(row["patients"]) == 0 or int(row["patients"]) >= 11, path.name
    assert checked > 5
    assert "memberships" not in "".join(p.name for p in written)


def test_codes_of_single_patients_are_in_no_export(rng: np.random.Generator, tmp_path: Path) -> None:
    """One patient with a code of its own: the code must not be shown as part of a phenotype."""
    coords = [(i, i % 2, i % 2) for i in range(60) for _ in range(3)] + [(0, 2, 2)] * 40
    axes = [["a", "b", "rare procedure"], ["x", "y", "rare disease"]]
    sites = [
        pc.Site(n, tensor=pc.SparseTensor(np.array(coords), np.ones(len(coords)), (60, 3, 3), axes)) for n in ("n", "s")
    ]
    model = pc.CPALS(rank=3, seed=0, rounds=20).fit(sites)
    found = presence(model, sites)
    carried = np.abs(model.factors_[0][2]) > 0.5
    assert carried.any(), "the lone patient has made a phenotype"
    shown = pc.evaluate(model, sites, what=("carriers",)).shown
    assert not shown[0][2][carried].any()
    assert [found.contributors[r] for r in np.flatnonzero(carried)] == [None] * int(carried.sum())


def test_groups_of_a_mixture_are_hidden_with_their_complements(rng: np.random.Generator) -> None:
    sites = [
        pc.Site("north", features=np.concatenate([rng.normal(0, 1, (80, 2)), rng.normal(9, 1, (4, 2))])),
        pc.Site("south", features=np.concatenate([rng.normal(0, 1, (60, 2)), rng.normal(9, 1, (50, 2))])),
        pc.Site("west", features=np.concatenate([rng.normal(0, 1, (30, 2)), rng.normal(9, 1, (40, 2))])),
    ]
    model = pc.GaussianMixture(n_components=2, seed=0).fit(sites)
    found = presence(model, sites)
    small = int(np.argmax([row.count(None) for row in found.carriers]))
    assert None in found.carriers[small]
    for row, total in zip(found.carriers, found.totals):
        assert all(c is None or c == 0 or c >= 11 for c in row)
        assert row.count(None) != 1 or total is None
    for k in range(3):
        column = [row[k] for row in found.carriers]
        assert column.count(None) != 1 or list(found.sites.values())[k] is None


def test_a_site_with_few_patients_is_not_counted(rng: np.random.Generator) -> None:
    sites = pc.datasets.planted_counts(200, 12, 14, phenotypes=2, codes=(4, 4), sites=3, seed=0)
    small = [sites[0].take(range(7)), *sites[1:]]
    found = presence(pc.CPALS(rank=2, seed=0, rounds=10).fit(small), small)
    assert next(iter(found.sites.values())) is None
    assert list(found.sites.values()).count(None) >= 2


@pytest.mark.parametrize("minimum", [5, 20])
def test_the_owners_limit_is_kept(plain_run: RunFolder, minimum: int) -> None:
    sites = pc.datasets.icu_network(patients=300, seed=3)
    sites = pc.align(sites)
    found = presence(pc.LocalTF(rank=4, rounds=4, seed=0).fit(sites), sites, minimum=minimum)
    assert all(c is None or c == 0 or c >= minimum for row in found.carriers for c in row)
