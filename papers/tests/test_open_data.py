"""The open data load with the sizes that their sources state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import DataError
from polyclinic.records.sites.site import Sites

Find = Callable[[str], Path]


def total(sites: Sites) -> tuple[int, int, int, int]:
    assert sites[0].tensor is not None
    return (sum(s.patients for s in sites), *sites[0].tensor.shape[1:], sum(s.tensor.nnz for s in sites))  # type: ignore[misc, return-value, union-attr]


def test_synpuf_samples_are_disjoint_sites_of_top_codes(data_path: Find) -> None:
    sites = pc.datasets.load_synpuf(data_path("cms_desynpuf"))
    assert [s.name for s in sites] == [f"sample 0{k}" for k in range(1, 6)]
    assert total(sites)[:3] == (9908, 202, 316)
    assert sites[0].tensor is not None
    assert sites[0].tensor.axes[1].labels is not None
    assert all(3 <= len(c) <= 4 and c.isdigit() for c in sites[0].tensor.axes[1].labels)
    assert sites[0].tensor.axes[1].vocabulary == "data"  # chosen by looking: never "public"


def test_diabetes_has_the_cohort_of_the_privacy_figures(data_path: Find) -> None:
    sites = pc.datasets.load_diabetes130(data_path("diabetes130"))
    assert total(sites)[:3] == (33_653, 200, 21)
    assert len(sites) == 5
    assert set(np.unique(sites[0].labels)) == {0, 1}


def test_diabetes_with_whole_codes_is_the_tensor_of_its_source(data_path: Find) -> None:
    sites = pc.datasets.load_diabetes130(data_path("diabetes130"), diagnoses=None, digits=5, sites=1)
    assert total(sites) == (33_732, 833, 21, 194_324)


def test_mimic_demo_by_care_unit(data_path: Find) -> None:
    sites = pc.datasets.load_mimic3_demo(data_path("mimic3_demo"))
    assert [s.name for s in sites] == ["CCU", "CSRU", "MICU", "SICU", "TSICU"]
    assert total(sites) == (88, 164, 539, 7133)
    assert sites[0].tensor is not None
    axis = sites[0].tensor.axes[2]
    assert axis.labels is not None
    assert axis.describe(axis.labels.index("4280")) == "Congestive heart failure, unspecified"


def test_aminoacid_is_dense_and_of_rank_three(data_path: Find) -> None:
    tensor = pc.datasets.load_aminoacid(data_path("aminoacid"))
    assert tensor.shape == (5, 201, 61)
    dense = np.zeros(tensor.shape)
    dense[tuple(tensor.coords.T)] = tensor.values
    energy = np.linalg.svd(dense.reshape(5, -1), compute_uv=False) ** 2
    assert energy[:3].sum() / energy.sum() > 0.999


def test_parkinsons_names_subjects_and_leaves_status_out(data_path: Find) -> None:
    xs, y, subjects, features = pc.datasets.load_parkinsons(data_path("parkinsons"))
    assert xs.shape == (195, 22)
    assert (int(y.sum()), len(set(subjects)), len(features)) == (147, 32, 22)
    assert "status" not in features
    assert all(len(set(y[subjects == s])) == 1 for s in set(subjects))


def test_colon_and_leukemia_sizes_and_gene_filter(data_path: Find) -> None:
    colon = pc.datasets.load_colon(data_path("colon_alon1999"))
    assert (*colon.X.shape, int(colon.y.sum()), len(set(colon.subjects))) == (62, 2000, 40, 40)
    folder = data_path("leukemia_golub1999")
    assert pc.datasets.load_leukemia(folder, filtered=False).X.shape == (72, 7129)
    everyone = pc.datasets.load_leukemia(folder)
    assert everyone.X.shape == (72, 3571)
    assert everyone.X.min() == 2.0  # log10 of the floor
    train, test = (pc.datasets.load_leukemia(folder, split=s) for s in ("train", "test"))
    assert (train.X.shape, test.X.shape) == ((38, 3051), (34, 3051))
    assert train.features == test.features


def test_missing_data_say_where_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYCLINIC_DATA", str(tmp_path))
    with pytest.raises(DataError, match="POLYCLINIC_DATA"):
        pc.datasets.load_parkinsons()
    with pytest.raises(DataError, match="sample_09"):
        pc.datasets.load_synpuf(tmp_path, samples=[9])
    (tmp_path / "parkinsons").mkdir()
    assert pc.datasets.open_data("parkinsons") == tmp_path / "parkinsons"
