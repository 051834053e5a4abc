"""Reports, charts and exports read the model as a value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, DataError
from polyclinic.report.contents import RunContents
from polyclinic.report.export.tables import export
from polyclinic.report.html import render
from polyclinic.studies.run_folder import Run, RunFolder

Copied = Callable[[RunFolder], RunFolder]


def test_the_report_reads_the_model_file_not_the_arrays(plain_run: RunFolder, copied: Copied) -> None:
    run = copied(plain_run)
    now = render(RunContents.read(run))
    run.outcome.unlink()
    assert render(RunContents.read(run)) == now


def mixture_run(place: Path, presence: dict[str, object] | None = None) -> RunFolder:
    rng = np.random.default_rng(0)
    sites = [pc.Site(n, features=rng.standard_normal((80, 2)) + 4 * rng.integers(0, 2, (80, 1))) for n in ("a", "b")]
    model = pc.GaussianMixture(n_components=2, seed=0).fit(sites)
    folder = Run.write(place, model, sites, metrics={})
    study = {"study": {"study": {"name": "two groups"}}, "sites": ["a", "b"]}
    folder.write_json(folder.study, study)
    if presence is not None:
        folder.write_json(folder.path / "presence.json", presence)
    return folder


def test_groups_are_read_exported_and_loaded(tmp_path: Path) -> None:
    run = mixture_run(tmp_path / "run")
    whole = pc.load(run.path)
    export(run)
    assert pc.load(run.path / "exports" / "model.groups") == whole
    with np.load(run.path / "exports" / "outcome.npz") as z:
        np.testing.assert_array_equal(z["means_"], whole.means)  # type: ignore[union-attr]


def test_a_mixture_with_a_hidden_group_is_not_exported_as_a_model(tmp_path: Path) -> None:
    told = {
        "minimum": 11, "sites": {"a": 80, "b": 80}, "carriers": [[80, 74], [0, None]], "totals": [154, None],
        "strength": [[1, 1], [0, None]], "contributors": [150.0, None], "certainty": [0.9, None],
    }  # fmt: skip
    run = mixture_run(tmp_path / "run", told)
    export(run)
    assert not list((run.path / "exports").glob("model.*"))
    with np.load(run.path / "exports" / "outcome.npz") as z:
        assert np.isnan(z["means_"][1]).all() and set(z.files) == {"means_", "weights_"}


def test_charts_draw_loaded_models_too(plain_run: RunFolder) -> None:
    pytest.importorskip("altair")
    model = pc.load(plain_run.path)
    assert pc.plots.convergence(model).to_dict()["mark"]
    assert pc.plots.phenotype(model, 0).to_dict()["data"]["values"]
    values = pc.plots.codes(model, 1).to_dict()["data"]["values"]
    assert values[0]["phenotype"].startswith("1 ")  # as the report and every export number them
    assert pc.plots.phenotype(model, 0).to_dict()["title"]["text"] == "phenotype 1"
    with pytest.raises(DataError, match="no round of this model has 'bic'"):
        pc.plots.convergence(model, "bic")
    with pytest.raises(ConfigError, match="not fitted"):
        pc.plots.codes(pc.CPALS(rank=2))
