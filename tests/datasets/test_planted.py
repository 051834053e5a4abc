"""Planted counts obey their law."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import polyclinic as pc
from polyclinic.datasets.law import draw_events
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Sites, pooled


@pytest.fixture(scope="module")
def counts() -> Sites:
    return pc.datasets.planted_counts(seed=7, sites=6)


def test_nonzeros_a_patient_have_the_stated_median_and_tail(counts: Sites) -> None:
    each = np.diff(pooled(counts).tensor.indptr)  # type: ignore[union-attr]
    assert 26 <= np.median(each) <= 30
    assert 180 <= each.max() <= 400


def test_outcome_is_predicted_by_loadings_on_the_planted_codes(counts: Sites) -> None:
    """Multinomial loadings with the planted factors and the marginals as background, as in PRIVACY 3.3: AUC 0.82."""
    site = pooled(counts[:3])
    tensor = site.tensor
    codes = []
    for mode, factor in enumerate(counts.truth.factors):
        assert tensor is not None
        marginal = np.bincount(tensor.codes[mode], tensor.values, tensor.shape[mode + 1])
        codes.append(np.column_stack([factor / factor.sum(0), marginal / marginal.sum()]))
    assert tensor is not None
    joint = codes[0][tensor.codes[0]] * codes[1][tensor.codes[1]]
    lengths = np.diff(tensor.indptr)
    loading = np.full((len(tensor.rows), joint.shape[1]), 1 / joint.shape[1])
    for _ in range(15):
        part = np.repeat(loading, lengths, axis=0) * joint
        part *= (tensor.values / part.sum(1))[:, None]
        loading = np.add.reduceat(part, tensor.indptr[:-1]) + 0.05
        loading /= loading.sum(1, keepdims=True)
    labels = site.labels[tensor.rows]  # type: ignore[index]
    half = len(labels) // 2
    model = LogisticRegression(max_iter=300).fit(loading[:half], labels[:half])
    auc = roc_auc_score(labels[half:], model.predict_proba(loading[half:])[:, 1])
    assert auc == pytest.approx(0.82, abs=0.02)
    assert auc < counts.truth.bayes_auc


def test_share_of_background_events(counts: Sites) -> None:
    tensor = pooled(counts).tensor
    first, second = (f > 0 for f in counts.truth.factors)
    assert tensor is not None
    explained = (first[tensor.codes[0]] & second[tensor.codes[1]]).any(1)
    outside = tensor.values[~explained].sum() / tensor.values.sum()
    assert 0.13 <= outside <= 0.15  # a few background pairs fall inside a phenotype by chance


def test_supports_have_the_stated_number_of_codes(counts: Sites) -> None:
    assert [s.sum(0).tolist() for s in (f > 0 for f in counts.truth.factors)] == [[12] * 15, [16] * 15]


def test_sites_share_out_all_patients_and_keep_their_memberships(counts: Sites) -> None:
    assert sum(s.patients for s in counts) == 20_000
    assert {name: len(m) for name, m in counts.truth.memberships.items()} == {s.name: s.patients for s in counts}


def test_events_have_the_mean_of_the_cp_model() -> None:
    rng = np.random.default_rng(0)
    members = np.array([[5.0, 0.0], [2.0, 3.0]])
    codes = [np.array([[0.5, 0.0], [0.5, 1.0]]), np.array([[0.1, 0.9], [0.9, 0.1]])]
    total = np.zeros((2, 2, 2))
    for _ in range(3000):
        coords, values = draw_events(members, codes, rng)
        np.add.at(total, tuple(coords.T), values)
    expected = np.einsum("ir,jr,kr->ijk", members, *codes)
    assert np.abs(total / 3000 - expected).max() < 5 * np.sqrt(expected.max() / 3000)


def test_four_modes_are_planted() -> None:
    net = pc.datasets.planted_four_mode(patients=300, seed=1)
    assert net[0].tensor is not None
    assert net[0].tensor.ndim == 4
    assert len(net.truth.factors) == 3
    assert [a.name for a in net[0].tensor.axes[1:]] == ["procedure", "diagnosis", "drug"]


def test_wrong_sizes_name_every_fault() -> None:
    with pytest.raises(ConfigError) as raised:
        pc.datasets.planted_counts(patients=2, sites=3, procedures=5, background=1.5, events=0)
    assert len(raised.value.faults) == 4


def test_dpfact_tensor_has_the_papers_size_density_and_partition() -> None:
    net = pc.datasets.dpfact_synthetic(seed=1)
    assert [s.tensor.shape for s in net] == [(1000, 300, 800)] * 5
    assert sum(s.tensor.nnz for s in net) == round(1e-5 * 5000 * 300 * 800)
    with pytest.raises(ConfigError):
        pc.datasets.dpfact_synthetic(density=0.5)


def test_unpsl_redundant_features_matter_only_as_printed() -> None:
    right = pc.datasets.unpsl_synthetic(10, 400, 3)
    printed = pc.datasets.unpsl_synthetic(10, 400, 3, variant="paper")
    assert right.features.shape == (400, 30)
    assert np.array_equal(right.features, printed.features)
    changed = right.features.copy()
    changed[:, right.redundant] = 0
    assert np.allclose(changed @ right.metric @ changed.T, right.similarity())
    assert not np.allclose(changed @ printed.metric @ changed.T, printed.similarity())  # ERRATA E3.2
    assert np.linalg.eigvalsh(right.metric).min() > -1e-9
    noise = right.features[:, 20:] - (right.features[:, :10] + right.features[:, 10:20]) / 2
    assert noise.mean() == pytest.approx(-0.1, abs=0.02)
    assert noise.var() == pytest.approx(0.1, abs=0.01)


def test_unpsl_pairs_are_unordered_and_both_labels_occur() -> None:
    data = pc.datasets.unpsl_synthetic(20, 100, 0)
    pairs, label = data.pairs(np.arange(50))
    assert len(pairs) == 50 * 49 // 2
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert 0.3 < (label == 1).mean() < 0.7
