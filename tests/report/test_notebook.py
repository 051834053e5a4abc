"""In a notebook: models and cards show themselves, phenotypes are a table, plots are Altair charts."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import polyclinic as pc
from polyclinic.cli import console as speaking
from polyclinic.errors import DataError
from polyclinic.protocol.outcome import Progress


@pytest.fixture(scope="module")
def model() -> pc.LocalTF:
    sites = pc.datasets.planted_counts(120, 12, 15, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    return pc.LocalTF(rank=3, rounds=4, seed=0).fit(sites)


def test_models_show_parameters_state_and_guarantee(model: pc.LocalTF) -> None:
    before = pc.LocalTF(rank=3)._repr_html_()
    assert "not fitted yet" in before and "rank=3" in before
    after = model._repr_html_()
    assert "none: no bound" in after and "bytes up" in after and "<script" not in after


def test_tensors_cards_and_phenotypes_show_themselves(model: pc.LocalTF) -> None:
    t = pc.SparseTensor([[0, 1]], [2.0], (2, 3), axes=[["<b>", "x", "y"]])
    assert "<table>" in t._repr_html_() and "<b>" not in t._repr_html_()
    assert "<table" in model.privacy_._repr_html_()
    assert model.phenotypes_.columns[:3] == ("phenotype", "mode", "code")
    assert "<table>" in model.phenotypes_._repr_html_()


def test_plots_are_drawn_without_a_network(model: pc.LocalTF) -> None:
    """A picture, and nothing in it that would be fetched."""
    altair = pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    altair.renderers.enable("default")
    shown = pc.plots.convergence(model)._repr_mimebundle_()
    picture = (shown[0] if isinstance(shown, tuple) else shown)["image/svg+xml"]
    assert picture.startswith("<svg") and "privacy" in picture
    assert not re.findall(r'(?:href|src)="(http[^"]*)"', picture)


@pytest.mark.parametrize("make", ["convergence", "phenotype", "codes", "sites"])
def test_plots_are_charts_that_name_the_guarantee(model: pc.LocalTF, make: str) -> None:
    pytest.importorskip("altair")
    chart = pc.plots.phenotype(model, 0) if make == "phenotype" else getattr(pc.plots, make)(model)
    spec = chart.to_dict()
    assert spec["data"]["values"] and "no bound" in spec["title"]["subtitle"]


def test_figures_of_findings_are_charts_with_intervals_and_names() -> None:
    pytest.importorskip("altair")
    sites = pc.datasets.icu_network(patients=600, seed=0, people=True)
    replicated = pc.replicate(pc.SumALS(rank=4, rounds=6), sites)
    findings = pc.evaluate(replicated, sites)
    assert findings.outcome is not None
    model = replicated.model.result_.rename({0: "My phenotype"})
    rows = {}
    for make in ("forest", "replication", "calibration", "survival"):
        spec = getattr(pc.plots, make)(model, findings).to_dict()
        rows[make] = spec["data"]["values"]
        assert rows[make] and "no bound" in spec["title"]["subtitle"], make
        assert all({"low", "high"} <= r.keys() for r in rows[make]), make
    assert "My phenotype" in {r["name"] for r in rows["replication"]}
    assert {round(r["odds ratio"], 6) for r in rows["forest"]} == {
        round(r["odds_ratio"], 6) for r in findings.outcome.effects if r["odds_ratio"]
    }
    with pytest.raises(DataError, match="no survival of 17"):
        pc.plots.survival(model, findings, 17)


def test_a_report_from_a_notebook_is_the_one_of_a_run_folder(tmp_path: Path) -> None:
    sites = pc.datasets.icu_network(patients=400, seed=0, people=True)
    model = pc.SumALS(rank=4, rounds=6).fit(sites)
    path = pc.write_report(model, sites, tmp_path / "mine.html", name="mine")
    page = path.read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.html"]
    findings = pc.evaluate(model, sites)
    assert findings.outcome is not None and findings.outcome.auc is not None
    assert f"AUC {findings.outcome.auc.value:.2f}" in page and 'aria-label="Forest plot"' in page
    for tab in ("summary", "model", "maps", "findings", "course", "privacy", "method"):
        assert f'id="panel-{tab}"' in page


def test_a_persons_names_are_kept_in_the_model_file_and_shown(tmp_path: Path) -> None:
    sites = pc.datasets.icu_network(patients=200, seed=0)
    model = pc.CPALS(rank=2, seed=0).fit(sites).result_
    named = model.rename({1: "  My phenotype "})
    again = pc.Phenotypes.load(named.save(tmp_path / "model.phenotypes"))
    assert again.names == ("", "My phenotype") and again.rename({0: "Other"}).names == ("Other", "My phenotype")
    assert model.names == () and pc.Phenotypes.load(model.save(tmp_path / "plain.phenotypes")).names == ()
    with pytest.raises(DataError, match="cannot be renamed"):
        model.rename({7: "x"})
    with pytest.raises(DataError, match="not phenotypes"):
        model.rename({0: "same", 1: "same"})


def _shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, seconds: float) -> str:
    out = io.StringIO()
    monkeypatch.setattr(speaking, "console", Console(file=out, force_terminal=terminal, width=100))
    clock = itertools.count(step=seconds)
    monkeypatch.setattr(speaking, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with speaking.follow("TRIP", 3) as progress:
        for n in (1, 2, 3):
            progress(Progress("round", "trip", n, 3, {"seconds": 1.0, "rmse_full": 0.5 / n}))
    return out.getvalue()


def test_progress_shows_rounds_and_figure_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _shown(monkeypatch, terminal=True, seconds=2.0)
    assert "TRIP" in text and "3/3" in text and "rmse_full 0.16667" in text


def test_progress_is_quiet_when_piped_or_short(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, terminal=False, seconds=2.0) == ""
    assert _shown(monkeypatch, terminal=True, seconds=0.0) == ""


def test_progress_reaches_a_fit_through_the_public_name(model: pc.LocalTF) -> None:
    assert pc.follow is speaking.follow
    assert np.isfinite(model.history_[-1]["seconds"])
