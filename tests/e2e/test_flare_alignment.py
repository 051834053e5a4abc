"""A study without public lists of codes between real processes: the sites agree on codes by the ring."""

from __future__ import annotations

import json

import pytest
from tests.e2e.flare_federation import Federation

pytest.importorskip("nvflare")

from tests.e2e.flare_federation import same

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TRIP = 'name = "trip"\nrank = 4\nrounds = 2\naggregation = "masked"'
DATA = '[tensor]\nmodes = ["drug", "diagnosis"]\nwindow = "visit"\nalignment = "ring"\n'


def test_ring_between_real_processes_gives_the_model_of_one_process(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyclinic.alignment import align
    from polyclinic.alignment.ecdh_ring import place
    from polyclinic.cli import main
    from polyclinic.config import Study
    from polyclinic.node.enrolment.folders import read_json
    from polyclinic.node.flare.coordinator_service import order_of
    from polyclinic.protocol.loop import Simulation
    from polyclinic.records.ingest import ingest
    from polyclinic.records.sites.site import Site
    from polyclinic.studies.registry import federated

    path = federation.study("ring", TRIP, data=DATA)
    with pytest.raises(SystemExit) as stop:
        main(["coordinator", "submit", str(federation.coordinator.path), str(path)])
    said = capsys.readouterr().out
    assert stop.value.code == 0, said
    (run,) = (federation.coordinator.path / "runs").glob("ring-*")
    assert f"study {run.name}: finished; {run}" in said
    assert json.loads((run / "metrics.json").read_text())["rounds"] == 2
    order = order_of(federation.coordinator, "ring")
    outcome = federation.outcome(order)
    study = Study.read(path)
    raw = [ingest(s.node, study, federation.root / "in-process" / n).site for n, s in federation.sites.items()]
    placed = []
    for s in raw:
        agreed = read_json(federation.sites[s.name].study(order.digest) / "codes.json")["agreed"]
        tensor = s.counts()
        for n, axis in enumerate(tensor.axes[1:], start=1):
            assert set(agreed[axis.name]["places"]) == set(axis.labels)  # type: ignore[arg-type]
            tensor = place(tensor, n, agreed[axis.name]["places"], agreed[axis.name]["size"])
        placed.append(Site(s.name, tensor))
    assert outcome.setting.shape == align(raw)[0].counts().shape[1:]
    assert same(outcome.public, Simulation(federated(study), placed).run().public)
    codes = {c.encode() for s in raw for a in s.counts().axes[1:] for c in a.labels or ()}
    here = [f for f in federation.coordinator.run(order.id).rglob("*") if f.is_file()]
    assert not [(f, c) for f in here for c in codes if c in f.read_bytes()]
