"""The fold: who is refused, what is counted, what a silent site does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.aggregation.plain import Plain
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError, DataError, Divergence, PeerLost, ProtocolMismatch
from polyclinic.protocol.interfaces import Roster, Step
from polyclinic.protocol.loop import Simulation


def test_sites_with_another_vocabulary_are_refused_by_name() -> None:
    sites = example_sites()
    t = sites[1].tensor
    assert t is not None
    codes = t.axes[1]
    other = pc.Axis(codes.name, codes.labels[::-1], None, codes.vocabulary)  # type: ignore[index]
    sites[1] = pc.Site("odd", t.with_axes([t.axes[0], other, t.axes[2]]))
    with pytest.raises(ProtocolMismatch, match=r"'odd' has another vocabulary .* procedure"):
        pc.TRIP(rank=2, rounds=1).fit(sites)


def test_sites_with_other_modes_are_refused_by_name() -> None:
    sites = [*example_sites(), pc.Site("flat", pc.SparseTensor([[0, 0]], [1.0], (1, 10)))]
    with pytest.raises(ProtocolMismatch, match="'flat' has 1 feature modes, the others 2"):
        pc.LocalTF(rank=2, rounds=1).fit(sites)


def test_two_sites_of_one_name_are_refused() -> None:
    sites = example_sites()
    with pytest.raises(ConfigError, match="'site0' appears 2 times"):
        pc.LocalTF(rank=2, rounds=1).fit([*sites, sites[0]])


def test_no_sites_and_sites_without_tensor_are_refused() -> None:
    with pytest.raises(DataError, match="no sites"):
        pc.TRIP(rank=2).fit([])
    with pytest.raises(DataError, match="'x' has no tensor"):
        pc.TRIP(rank=2).fit([pc.Site("x", features=[[1.0]])])


@pytest.mark.parametrize("aggregation", ["masked", "subspace"])
def test_secure_sums_refuse_fewer_than_three_sites(aggregation: str) -> None:
    with pytest.raises(ConfigError, match="fewer than 3"):
        pc.LocalTF(rank=2, rounds=1, aggregation=aggregation).fit(example_sites(sites=2))


def test_all_wrong_parameters_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as e:
        pc.TRIP(rank=0, rounds="x", penalti=3)  # type: ignore[arg-type, call-arg]
    text = str(e.value)
    assert "rank" in text and "rounds" in text and "penalti" in text and "penalty" in text


def test_divergence_names_site_round_rate_and_a_stable_value() -> None:
    sites = example_sites()
    with pytest.raises(Divergence) as e:
        pc.LocalTF(rank=3, rounds=20, zeros="missing", learning_rate=3.0).fit(sites)
    text = str(e.value)
    assert "site 'site" in text and "round" in text and "learning_rate is 3" in text
    stable = float(text.split("try ")[1])
    m = pc.LocalTF(rank=3, rounds=20, zeros="missing", learning_rate=stable).fit(sites)
    assert all(np.isfinite(f).all() for f in m.factors_)


def test_one_upload_is_207200_bytes_for_the_papers_shape() -> None:
    rng = np.random.default_rng(0)
    sites = [
        pc.Site(
            f"s{k}",
            pc.SparseTensor(
                np.column_stack([rng.integers(0, d, 500) for d in (20, 202, 316)]), np.ones(500), (20, 202, 316)
            ),
        )
        for k in range(3)
    ]
    for cls in (pc.LocalTF, pc.DPFact, pc.TRIP):
        m = cls(rank=50, rounds=2).fit(sites)
        assert m.traffic_.payload_bytes_up == 2 * 3 * 207_200, cls
        assert m.traffic_.bytes_up > m.traffic_.payload_bytes_up
        assert m.traffic_.rounds == 2
        assert set(m.traffic_.by_site) == {"s0", "s1", "s2"}


def test_history_has_a_row_a_round_with_bytes_and_figures() -> None:
    m = pc.TRIP(rank=3, rounds=6, warmup=2).fit(example_sites())
    assert [h["round"] for h in m.history_] == [1, 2, 3, 4, 5, 6]
    assert all(h["bytes_up"] > 0 and h["bytes_down"] > 0 and h["objective"] > 0 for h in m.history_)
    assert m.history_[-1]["primal"] >= 0 and m.history_[-1]["dual"] >= 0
    assert sum(h["bytes_up"] for h in m.history_) <= m.traffic_.bytes_up


def test_tolerance_stops_early() -> None:
    sites = example_sites()
    for cls in (pc.TRIP, pc.LocalTF, pc.DPFact):
        assert len(cls(rank=3, rounds=60, tol=1e-2).fit(sites).history_) < 60


def test_events_report_every_round() -> None:
    events: list[object] = []
    pc.LocalTF(rank=2, rounds=3).fit(example_sites(), progress=events.append)
    assert [e.kind for e in events] == ["begin", "round", "round", "round", "end"]  # type: ignore[attr-defined]


def test_a_run_that_lost_its_quorum_says_who_is_silent() -> None:
    with pytest.raises(PeerLost, match="silent: 'site1'"):
        Simulation(
            pc.LocalTF(rank=2, rounds=3), example_sites(), silent=lambda step, name: name == "site1" and step.round == 2
        ).run()


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_sites_work(count: int) -> None:
    m = pc.TRIP(rank=3, rounds=2).fit(example_sites(sites=count, patients=4))
    assert len(m.memberships_) == count


def test_four_modes_work_in_every_method() -> None:
    sites = pc.datasets.planted_four_mode(patients=120, seed=0)
    for cls in (pc.TRIP, pc.LocalTF, pc.DPFact, pc.SumALS):
        m = cls(rank=3, rounds=3).fit(sites)
        assert len(m.factors_) == 3 and np.isfinite(m.weights_).all()


def test_values_too_large_are_a_data_error_that_says_what_to_do() -> None:
    big = [
        pc.Site(s.name, pc.SparseTensor(s.tensor.coords, s.tensor.values * 1e9, s.tensor.shape))  # type: ignore[union-attr]
        for s in example_sites()
    ]
    with pytest.raises(DataError, match="cap or scale"):
        pc.LocalTF(rank=2, rounds=2, weighting="none").fit(big)
    assert np.isfinite(pc.LocalTF(rank=2, rounds=2).fit(big).weights_).all()  # saturating weights have no such limit


def test_sparsity_of_an_unknown_site_is_refused() -> None:
    with pytest.raises(ConfigError, match="'NOPE'"):
        pc.DPFact(rank=2, rounds=2, sparsity={"NOPE": 1.0}).fit(example_sites())


def test_methods_without_noise_refuse_to_be_private() -> None:
    for cls in (pc.TRIP, pc.LocalModel, pc.SumALS):
        with pytest.raises(ConfigError):
            cls(rank=2, privacy=pc.Privacy(1.0, 1e-6)).fit(example_sites())


class _Garbled(Plain):
    """A plain sum in which one site sends a contribution that nobody can read."""

    def exchange(self, me: Any, roster: Roster, step: Step, mine: Any) -> Any:  # type: ignore[override]
        made = super().exchange(me, roster, step, mine)
        if me == "site1":
            made.message.body["weight"] = "heavy"  # type: ignore[index, union-attr]
        return made


def test_refused_message_of_one_site_leaves_it_out_if_the_quorum_allows() -> None:
    sites = example_sites(sites=3)
    method = pc.LocalTF(rank=2, rounds=3)
    outcome = Simulation(method, sites, adder=_Garbled(), quorum=2).run()
    silent = Simulation(method, sites, adder=Plain(), quorum=2, silent=lambda step, site: site == "site1").run()
    for a, b in zip(outcome.public.factors, silent.public.factors):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(PeerLost, match="contribution of 'site1' is malformed"):
        Simulation(method, sites, adder=_Garbled()).run()
