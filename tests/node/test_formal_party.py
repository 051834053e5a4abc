"""One patient moves what a hospital adds to a formal study by at most the announced sensitivity, whatever the record is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.pipelines.evaluate import AnalysisPlan
from polyclinic.analysis.pipelines.pipeline import StudyPipeline
from polyclinic.errors import PolicyRefusal
from polyclinic.methods.moments.standardizing import FederatedPCA, Standardizer
from polyclinic.methods.similarity.private import PrivateUnPSL
from polyclinic.node.site.formal_party import FormalParty, clipped
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Contribution, Method, Step
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site

EPSILON = pc.Privacy(1.0)
LEVELS = {"x0": ["0", "1"], "x1": ["0", "1", "2"]}
FEATURES: dict[str, Callable[[], Method]] = {
    "latent classes": lambda: pc.LatentClass(
        n_components=2, rounds=2, kinds=LEVELS, privacy=EPSILON, max_patients=1000
    ),
    "mixture": lambda: pc.GaussianMixture(n_components=2, rounds=2, radius=3.0, privacy=EPSILON),
    "pca": lambda: FederatedPCA(radius=3.0, privacy=EPSILON),
    "standardizer": lambda: Standardizer(radius=3.0, privacy=EPSILON),
    "similarity": lambda: PrivateUnPSL(
        radius=3.0, rank=1, rounds=2, patients=4000, classes=["ill", "well"], privacy=EPSILON
    ),
}
TENSORS: dict[str, Callable[[], Method]] = {
    "dpem": lambda: pc.DPEM(rank=2, rounds=2, planning_size=1000, privacy=EPSILON),
    "dpem, replication and findings": lambda: StudyPipeline(
        pc.DPEM(rank=2, rounds=2, planning_size=100_000, privacy=pc.Privacy(10.0)),
        AnalysisPlan(what=("carriers",), modes=2, sites=3, part=0.3),
        repeats=1,
    ),
}


def matrix(name: str, rows: np.ndarray[Any, Any]) -> Site:
    labels = np.array([("ill", "well")[i % 2] for i in range(len(rows))])
    return Site(name, None, rows, labels, ("x0", "x1"))


def feature_sites() -> list[Site]:
    rng = np.random.default_rng(0)
    return [matrix(n, np.column_stack([rng.integers(2, size=60), rng.integers(3, size=60)]) * 1.0) for n in "abc"]


def hostile_rows(site: Site) -> Iterator[Site]:
    for x in (0.0, 1.0, 2.0, -1.0, 1e12, 1e300, np.nan):
        for y in (0.0, 2.0, -1e12, np.nan):
            rows = np.vstack([site.matrix(), [x, y]])
            yield replace(site, features=rows, labels=np.append(np.asarray(site.labels), "ill"))


def tensor_sites() -> list[Site]:
    """Three hospitals whose patients have ids, as records between hosts have."""
    planted = pc.datasets.planted_counts(150, 10, 8, phenotypes=2, codes=(3, 3), sites=3, seed=1)
    tensors = {s.name: s.counts() for s in planted}
    return [Site(n, t.with_axes([named(n, t.shape[0]), *t.axes[1:]])) for n, t in tensors.items()]


def named(site: str, patients: int) -> pc.Axis:
    return pc.Axis("patient", tuple(f"{site}/{i}" for i in range(patients)))


def hostile_patients(site: Site) -> Iterator[Site]:
    """One patient more: with one code, with all codes, with none, with counts beyond every bound."""
    tensor = site.counts()
    n, *sizes = tensor.shape
    every = np.stack(np.meshgrid(*(np.arange(k) for k in sizes), indexing="ij"), -1).reshape(-1, len(sizes))
    for cells, value in ((every[:1], 1.0), (every, 1.0), (every, 1e9), (every[:1], 1e15), (every[:0], 0.0)):
        rows = np.column_stack([np.full(len(cells), n), cells])
        more = pc.SparseTensor(
            np.vstack([tensor.coords, rows]),
            np.append(tensor.values, np.full(len(cells), value)),
            (n + 1, *sizes),
            (named(site.name, n + 1), *tensor.axes[1:]),
        )
        yield Site(site.name, more)


def own(method: Method, site: Site, step: Step, public: object) -> Contribution:
    party = FormalParty(method, site, by_name("plain"), ReleaseGate(site.name))
    return party._own(step, public)


def worst_moves(
    method: Method, sites: list[Site], hostile: Callable[[Site], Iterator[Site]], clip: float
) -> Iterator[tuple[Step, float]]:
    """For every sum of a run: how far one hostile patient moves the first site's part, in units of its grid."""
    fold = Simulation(method, sites)
    while (step := fold.step()) is not None:
        step = replace(step, bound=min(step.bound, clip))
        before = own(method, sites[0], step, fold.public)
        unit = step.grid or 1.0
        moves = []
        for site in hostile(sites[0]):
            after = own(method, site, step, fold.public)
            move = [np.rint((after.arrays[k] - before.arrays[k]) / unit).ravel() for k in step.shapes]
            moves.append(float(np.sqrt(sum((m * m).sum() for m in move))) * unit)
        yield step, max(moves)
        fold.advance()


@pytest.mark.parametrize("clip", [np.inf, 8.0], ids=["announced bound", "low bound"])
@pytest.mark.parametrize("name", [*FEATURES, *TENSORS])
def test_one_hostile_patient_moves_a_formal_sum_by_at_most_the_sensitivity(name: str, clip: float) -> None:
    method = (FEATURES | TENSORS)[name]()
    world = (feature_sites(), hostile_rows) if name in FEATURES else (tensor_sites(), hostile_patients)
    steps = list(worst_moves(method, *world, clip))
    assert len(steps) >= 1
    for step, move in steps:
        assert step.sensitivity is not None
        assert move <= step.sensitivity * (1 + 1e-12), f"{step.name}: moved by {move}, announced {step.sensitivity}"
    assert any(move > 0 for _, move in steps)  # the patients are counted at all


def test_a_record_that_cannot_be_taken_leaves_out_that_patient_and_the_owner_reads_it() -> None:
    method, site = FEATURES["latent classes"](), feature_sites()[0]
    fold = Simulation(method, feature_sites())
    step = fold.step()
    assert step is not None
    reported: list[str] = []
    bad = replace(
        site, features=np.vstack([site.matrix(), [7.0, 7.0]]), labels=np.append(np.asarray(site.labels), "ill")
    )
    party = FormalParty(method, bad, by_name("plain"), ReleaseGate("a"), reported.append)
    with_bad = party._own(step, fold.public)
    without = own(method, site, step, fold.public)
    assert all(np.array_equal(with_bad.arrays[k], without.arrays[k]) for k in step.shapes)
    assert len(reported) == 1


def test_a_sum_above_the_bound_is_clipped_to_its_grid_and_the_owner_reads_it() -> None:
    step = Step(1, "x", {"x": (3,)}, bound=1.0, sensitivity=1.0, multiplier=1.0, grid=0.3)
    inside = clipped(step, Contribution({"x": np.array([5.0, -5.0, 0.3])})).arrays["x"]
    assert np.allclose(inside, [0.9, -0.9, 0.3])
    method, site = FEATURES["latent classes"](), feature_sites()[0]
    reported: list[str] = []
    fold = Simulation(method, feature_sites())
    announced = fold.step()
    assert announced is not None
    party = FormalParty(method, site, by_name("plain"), ReleaseGate("a"), reported.append)
    party._own(replace(announced, bound=8.0), fold.public)
    assert any("clipped" in text for text in reported)


def test_a_site_without_patients_sends_zeros_with_its_noise() -> None:
    method, site = FEATURES["latent classes"](), feature_sites()[0]
    fold = Simulation(method, feature_sites())
    step = fold.step()
    assert step is not None
    party = FormalParty(method, site.take(np.arange(0)), by_name("plain"), ReleaseGate("a"))
    assert not any(a.any() for a in party._own(step, fold.public).arrays.values())
    assert any(a.any() for a in party.contribute(step, fold.public, fold.roster).arrays.values())


def test_a_step_without_noise_or_theorem_is_refused_in_a_formal_study() -> None:
    """A method that takes exact sums under [privacy] would pass by every rule of exact studies."""
    party = FormalParty(FEATURES["pca"](), feature_sites()[0], by_name("masked"), ReleaseGate("a"))
    counts = Step(1, "counts", {"x": (1,)}, bound=9.0, sensitivity=1.0, multiplier=2.0)
    for step in (replace(counts, multiplier=0.09), replace(counts, sensitivity=None), replace(counts, formal=False)):
        with pytest.raises(PolicyRefusal, match="no noise, or no theorem"):
            party._own(step, None)


def test_a_released_sum_is_sent_again_as_it_was_although_the_records_have_changed(tmp_path: Path) -> None:
    """Another charge, or another release, would say that they have: a coordinator can have a site start again."""
    method, site = FEATURES["latent classes"](), feature_sites()[0]
    fold = Simulation(method, feature_sites())
    step = fold.step()
    assert step is not None
    gate = ReleaseGate("a", store=tmp_path)
    sent = []
    for attempt, records in enumerate((site, site.take(np.arange(5)), site.take(np.arange(0)))):
        party = FormalParty(method, records, by_name("plain"), gate)
        sent.append(party.contribute(step, fold.public, replace(fold.roster, attempt=attempt), 0).arrays)
    assert all(np.array_equal(again[k], sent[0][k]) for again in sent for k in step.shapes)
    assert len(gate.ledger.charges()) == 1
