"""The sum under the fold is interchangeable: every method gives the same model however its sums are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError, PeerLost
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.loop import Simulation
from polyclinic_papers.decentralised.subspace import Subspace


@pytest.fixture(scope="module")
def ten() -> Any:
    return pc.datasets.planted_counts(
        patients=300, procedures=20, diagnoses=25, phenotypes=3, seed=0, sites=10, events=12
    )


METHODS = {"TRIP": 6, "SumALS": 4, "LocalTF": 3, "DPFact": 3, "DPEM": 4}


@pytest.mark.protocol
@pytest.mark.parametrize("method", METHODS)
def test_ten_sites_plain_masked_subspace_give_the_same_factors(ten: Any, method: str) -> None:
    fits = {
        how: getattr(pc, method)(rank=3, rounds=METHODS[method], seed=0, aggregation=how).fit(ten)
        for how in ("plain", "masked", "subspace")
    }
    for n, plain in enumerate(fits["plain"].factors_):
        scale = np.abs(plain).max()
        np.testing.assert_allclose(fits["masked"].factors_[n], plain, atol=1e-6 * scale)
        np.testing.assert_array_equal(fits["subspace"].factors_[n], fits["masked"].factors_[n])


def test_letters_and_all_nodes_at_once_give_the_same_fit(ten: Any) -> None:
    """The vectorised consensus of the fold equals the exchange of letters, model and bytes."""

    class Slow(Subspace):
        together = None

    sites = ten[:4]
    runs = [
        Simulation(pc.LocalTF(rank=2, rounds=2, seed=0), sites, adder=adder).run() for adder in (Subspace(), Slow())
    ]
    for a, b in zip(runs[0].public.factors, runs[1].public.factors):
        np.testing.assert_array_equal(a, b)
    assert runs[0].traffic.by_site == runs[1].traffic.by_site


def test_masked_goes_on_without_a_silent_site_and_subspace_does_not(ten: Any) -> None:
    quiet = sorted(s.name for s in ten)[1]
    model = pc.TRIP(rank=2, rounds=3, seed=0)

    def silent(step: Any, name: str) -> bool:
        return step.round == 2 and name == quiet  # type: ignore[no-any-return]

    outcome = Simulation(model, ten, adder=by_name("masked"), quorum=7, silent=silent).run()
    assert np.isfinite(outcome.public.factors[0]).all()
    with pytest.raises(PeerLost):
        Simulation(model, ten, adder=by_name("subspace"), quorum=7, silent=silent).run()


def test_two_sites_are_refused_by_secure_sums(ten: Any) -> None:
    for how in ("masked", "subspace"):
        with pytest.raises(ConfigError, match="fewer than 3"):
            pc.TRIP(rank=2, rounds=2, seed=0, aggregation=how).fit(ten[:2])
