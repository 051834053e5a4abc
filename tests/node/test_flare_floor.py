"""Codes of few patients between hosts: one sum more, the same model as in one process, and what the books say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import hospitals
import numpy as np
import pytest
from tests.ingested import ingest_once
from tests.node.test_flare_halves import TRIP, World, _same

from polyclinic.config import Study
from polyclinic.errors import PeerLost, PolyclinicError
from polyclinic.node.enrolment.folders import SiteFolder, read_json
from polyclinic.node.flare.result import read_model, write_outcome
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.minimum_patients import SUPPORT, MinimumPatients
from polyclinic.records.sites.rare_codes import carriers
from polyclinic.studies.registry import federated

FLOORED = hospitals.TENSOR.replace("minimum_patients = 1 ", "minimum_patients = 30 ")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("floor"))


@pytest.mark.parametrize("adder", ["plain", "masked", "subspace"])
def test_between_hosts_the_same_codes_are_dropped_as_in_one_process(world: World, adder: str) -> None:
    path = world.study(f"floor-{adder}", TRIP.format(3, adder), data=FLOORED)
    order = world.order(path)
    world.open(order)
    outcome = world.lead(order).run()
    assert _same(outcome.public, world.reference(path).public)
    study = Study.read(path)
    sites = [ingest_once(s.node, study, world.root / "alone" / adder / n).site for n, s in world.sites.items()]
    for mode, kept in enumerate(outcome.public.kept, start=1):
        total = np.sum([carriers(s.counts(), mode) for s in sites], axis=0)
        assert np.array_equal(kept, total >= 30) and 0 < kept.sum() < len(kept)
    assert outcome.releases[0].step.name == SUPPORT
    for s in world.sites.values():  # the owner's book has the sum by its name
        assert any(SUPPORT in str(e) for e in ledger_of(s.node).entries)


def test_a_run_that_stops_after_the_support_goes_on_to_the_same_model(world: World) -> None:
    path = world.study("floor-stop", TRIP.format(3, "masked"), data=FLOORED)
    order = world.order(path)
    world.open(order)
    leads: list[Any] = []
    leads.append(world.lead(order, lambda: bool(leads) and leads[0].number >= 1))
    with pytest.raises(PeerLost, match="stopped"):
        leads[0].run()
    world.open(order)
    assert _same(world.lead(order).run().public, world.reference(path).public)


def test_the_coordinator_publishes_the_model_itself(world: World) -> None:
    path = world.study("floor-model", TRIP.format(2, "masked"), data=FLOORED)
    order = world.order(path)
    world.open(order)
    write_outcome(world.coordinator.run(order.id), world.lead(order).run())
    found = read_model(world.coordinator.run(order.id), order)
    assert isinstance(found, MinimumPatients) and found.model_.result_.factors[0].shape[1] == 3
    assert "how many patients have each code" in str(found.privacy_)


def test_several_starts_stand_on_one_floor(world: World) -> None:
    method = 'name = "sumals"\nrank = 3\nrounds = 2\nn_starts = 2\naggregation = "masked"'
    path = world.study("floor-starts", method, data=FLOORED)
    order = world.order(path)
    world.open(order)
    outcome = world.lead(order).run()
    assert [r.step.name for r in outcome.releases].count(SUPPORT) == 1
    write_outcome(world.coordinator.run(order.id), outcome)
    found = read_model(world.coordinator.run(order.id), order)
    assert len(found.models_) == 2 and "how many patients have each code" in str(found.model_.privacy_)
    study = Study.read(path)
    sites = [ingest_once(s.node, study, world.root / "alone" / "starts" / n).site for n, s in world.sites.items()]
    for k, m in enumerate(found.models_):
        one = federated(study).with_params(seed=study.seed + k, n_starts=1)
        one.publish(Simulation(one, sites).run())
        assert all(np.array_equal(a, b) for a, b in zip(m.factors_, one.factors_))


def test_no_code_left_ends_the_study_and_names_the_modes(world: World) -> None:
    none = hospitals.TENSOR.replace("minimum_patients = 1 ", "minimum_patients = 5000 ")
    path = world.study("floor-none", TRIP.format(2, "plain"), data=none)
    order = world.order(path)
    world.open(order)
    with pytest.raises(PolyclinicError, match="no code is left") as e:
        world.lead(order).run()
    assert any("mode 'drug'" in f and "5000" in f for f in e.value.faults)


def test_with_one_nothing_is_added(world: World) -> None:
    path = world.study("floor-off", TRIP.format(2, "plain"))
    assert not isinstance(federated(Study.read(path)), MinimumPatients)
    order = world.order(path)
    world.open(order)
    assert all(r.step.name != SUPPORT for r in world.lead(order).run().releases)
    assert read_json(Path(world.coordinator.run(order.id)) / "order.json")


def test_codes_of_one_hospital_stay_out_where_its_owner_minds(tmp_path: Path) -> None:
    """East's most frequent drug becomes one that nobody else has: its sums are east's alone, unless east leaves them out."""
    world = World(tmp_path)
    events = tmp_path / "east" / "events.parquet"
    with duckdb.connect() as con:
        everywhere = [f"'{tmp_path / n / 'events.parquet'}'" for n in world.sites]
        con.execute(f"CREATE TABLE east AS SELECT * FROM '{events}'")
        found = con.execute("SELECT code FROM east WHERE kind = 'drug' GROUP BY code ORDER BY count(*) DESC").fetchone()
        assert found is not None
        seen = con.execute(f"SELECT DISTINCT code FROM read_parquet([{', '.join(everywhere)}])").fetchall()
        place = next(n for n in range(hospitals.DRUGS) if (f"DR{n:02d}",) not in seen)
        con.execute("UPDATE east SET code = ? WHERE code = ?", [f"DR{place:02d}", found[0]])
        con.execute(f"COPY east TO '{events}' (FORMAT parquet)")
    rows: dict[int, np.ndarray[Any, Any]] = {}
    node = world.sites["east"].node_path
    text = node.read_text()
    for least in (1, 2):
        node.write_text(text.replace("[policy]\n", f"[policy]\nmin_feeders = {least}\n"))
        world.sites["east"] = SiteFolder.of(node)
        method = 'name = "sumals"\nrank = 2\nrounds = 2\nstart = "random"\nwarmup = 0\npacked = false\naggregation = "masked"'
        order = world.order(world.study(f"feeders-{least}", method, data=FLOORED.replace("= 30 ", "= 11 ")))
        world.open(order)
        public = world.lead(order).run().public
        assert public.kept[0][place] and public.support[0][place] >= 11
        rows[least] = public.inner.factors[0][place]
        shared = public.kept[0] & (np.arange(len(public.kept[0])) != place)
        assert (public.inner.factors[0][shared].sum(1) > 0).all()
    assert rows[1].sum() > 0.01
    assert rows[2].max() < 1e-12
    order = world.order(world.study("feeders-uncounted", TRIP.format(2, "masked")))  # no floor: nobody counts first
    world.open(order)
    world.desks["east"].loaded.result(60)
    assert world.desks["east"].study.stage == "refused"
    assert "min_feeders" in str(world.desks["east"].study.reasons)
