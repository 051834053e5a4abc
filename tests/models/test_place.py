"""New patients are placed by the labels of their codes; what cannot be read is counted, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError, DataError, ProtocolMismatch


def shuffled(site: pc.Site, seed: int = 0) -> pc.Site:
    """The same records with every mode's codes in another order."""
    t, rng = site.counts(), np.random.default_rng(seed)
    for mode in range(1, t.ndim):
        order = rng.permutation(t.shape[mode])
        place = np.argsort(order)
        t = t.recode(mode, place, t.axes[mode].take([int(i) for i in order]), t.shape[mode])
    return pc.Site(site.name, t)


def renamed(site: pc.Site, mode: int, every: int) -> tuple[pc.Site, list[int]]:
    t = site.counts()
    labels = list(t.axes[mode].labels or ())
    changed = list(range(0, len(labels), every))
    for i in changed:
        labels[i] = f"local {i}"
    axes = [a if n != mode else pc.Axis(a.name, tuple(labels)) for n, a in enumerate(t.axes)]
    return pc.Site(site.name, t.with_axes(axes)), changed


@pytest.mark.parametrize("name", ["TRIP", "DPEM", "CPALS missing"])
def test_codes_in_another_order_are_placed_bit_for_bit(name: str, fitted: Any) -> None:
    p, site = fitted(name).result_, example_sites("tensor", seed=3)[0]
    turned = shuffled(site)
    assert turned.counts().axes[1].labels != site.counts().axes[1].labels
    a, cover = p.transform(turned, coverage=True)
    assert a.tobytes() == p.transform(site).tobytes()
    assert cover.events == 1.0
    assert not any(cover.unseen.values())
    assert p.score(turned) == p.score(site)


def test_modes_in_another_order_are_found_by_name(fitted: Any) -> None:
    p, t = fitted("TRIP").result_, example_sites("tensor", seed=3)[0].counts()
    turned = pc.SparseTensor(
        t.coords[:, [0, 2, 1]], t.values, [t.shape[i] for i in (0, 2, 1)], [t.axes[i] for i in (0, 2, 1)]
    )
    assert p.transform(turned).tobytes() == p.transform(t).tobytes()


def test_a_tenth_unknown_codes_are_covered_to_the_event() -> None:
    net = pc.align(pc.datasets.icu_network(patients=600, seed=0))
    p = pc.TRIP(rank=6, rounds=20, seed=0).fit(net[1:]).result_
    new, changed = renamed(shuffled(net[0]), 2, 10)
    with pytest.raises(ProtocolMismatch, match=r'unseen="drop"') as e:
        p.transform(new)
    assert "diagnosis" in str(e.value)
    assert "'local " in str(e.value)
    a, cover = p.transform(new, unseen="drop", coverage=True)
    t = new.counts()
    kept = ~np.isin(t.coords[:, 2], changed)
    assert cover.read == t.values[kept].sum()
    assert cover.total == t.values.sum()
    assert cover.events == t.values[kept].sum() / t.values.sum()
    assert 0.5 < cover.events < 1.0
    occurs = np.unique(t.coords[:, 2])
    assert cover.codes["diagnosis"] == (int((~np.isin(occurs, changed)).sum()), len(occurs))
    assert set(cover.unseen["diagnosis"]) == {f"local {i}" for i in changed if i in occurs}
    by_hand = pc.SparseTensor(t.coords[kept], t.values[kept], t.shape, t.axes)
    np.testing.assert_array_equal(a, p.transform(by_hand, unseen="drop"))
    # the part of a phenotype that this hospital can see, by hand
    seen = []
    for n, (axis, f) in enumerate(zip(p.axes, p.factors), start=1):
        here = {t.axes[n].labels[i] for i in np.unique(t.coords[kept][:, n])}  # type: ignore[index]
        mask = np.array([x in here for x in axis.labels or ()])
        seen.append(f[mask].sum(0) / f.sum(0))
    np.testing.assert_allclose(cover.weight, np.prod(seen, axis=0), rtol=1e-12)
    assert cover.without == len(np.unique(t.coords[:, 0])) - len(np.unique(t.coords[kept][:, 0]))
    assert "events read" in repr(cover)


def test_another_vocabulary_is_refused_by_the_names_of_its_codes(fitted: Any) -> None:
    p = fitted("TRIP").result_
    new, _ = renamed(example_sites("tensor", seed=3)[0], 2, 1)
    with pytest.raises(ProtocolMismatch, match=r"only 0\.0% of the new patients' events") as e:
        p.transform(new, unseen="drop")
    assert "'local " in str(e.value)
    assert p.transform(new, unseen="drop", min_coverage=0.0).shape == (new.patients, 3)


def test_what_cannot_be_placed_is_told(fitted: Any) -> None:
    p = fitted("TRIP").result_
    with pytest.raises(ConfigError, match="neither 'error' nor 'drop'"):
        p.transform(example_sites("tensor")[0], unseen="ignore")
    with pytest.raises(ProtocolMismatch, match="feature modes"):
        p.transform(pc.SparseTensor([[0, 0]], [1.0], (1, 2)))
    with pytest.raises(ProtocolMismatch, match="without names"):
        p.transform(pc.SparseTensor([[0, 0, 0]], [1.0], (1, 3, 3)))
    with pytest.raises(DataError, match="from_numpy"):
        p.transform(np.ones((2, 3)))
    with pytest.raises(ProtocolMismatch, match="5 features"):
        fitted("FederatedPCA").result_.transform(np.ones((2, 5)))


def test_columns_of_a_matrix_go_by_name() -> None:
    import pandas as pd

    sites = [pc.Site(s.name, features=s.matrix(), columns=["age", "sbp", "lac"]) for s in example_sites("features")]
    frame = pd.DataFrame(example_sites("features", seed=4)[0].matrix(), columns=["age", "sbp", "lac"])
    for made in (pc.Standardizer(), pc.FederatedPCA(n_components=2), pc.GaussianMixture(n_components=2, rounds=3)):
        p = made.fit(sites).result_
        whole = p.transform(frame)
        np.testing.assert_array_equal(p.transform(frame[["lac", "age", "sbp"]]), whole)
        more = frame.assign(extra=1.0)
        with pytest.raises(ProtocolMismatch, match="extra"):
            p.transform(more)
        np.testing.assert_array_equal(p.transform(more, unseen="drop"), whole)
        with pytest.raises(ProtocolMismatch, match="lac"):
            p.transform(frame[["age", "sbp"]], unseen="drop")
