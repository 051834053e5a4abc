"""One model of one order: no peer replaces what all have certified, and no coordinator has two certified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hospitals
import numpy as np
import pytest
from tests.attacks.hostile_world import World
from tests.hostile.plain_world import Halves
from tests.ingested import ingest_once

from polyclinic.config import Study
from polyclinic.errors import PeerLost
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.messages import seal_ask
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.preflight import check
from polyclinic.studies.registry import federated

TRIP = 'name = "trip"\nrank = 2\nrounds = 1\naggregation = "{}"'


def _study(shared: World, name: str, adder: str, head: str = "") -> tuple[Study, Any]:
    path = hospitals.study(shared.root / "studies", name, TRIP.format(adder), head=f"deadline = 60\n{head}")
    return Study.read(path), coordination.sign_study(shared.coordinator, Study.read(path))


def _reference(shared: World, study: Study) -> bytes:
    sites = [ingest_once(s.node, study, shared.root / "in-process" / n).site for n, s in shared.sites.items()]
    return wire.encode(wire.pack(Simulation(federated(study), sites).run().public))


def _another(tree: dict[str, Any]) -> dict[str, Any]:
    """The same result with other factors, of the same shapes."""
    public = dict(tree["public"])
    public["factors"] = [np.asarray(f)[::-1].copy() for f in public["factors"]]
    return {**tree, "public": public}


def _told(tree: dict[str, Any]) -> dict[str, Any]:
    """The right model, with a history that nobody else had."""
    return {**tree, "history": [{**h, "objective": 0.0, "seconds": 1e9} for h in tree["history"]]}


LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another model": _another,
    "another model, another digest": lambda t: {**_another(t), "link": {**t["link"], "state": bytes(32)}},
    "another history": _told,
    "bytes of others": lambda t: {**t, "traffic": {**t["traffic"], "up": [["north", 1, 10**15]]}},
    "nothing in it": lambda t: {},
    "no numbers": lambda t: {**t, "number": "x"},
    "a sum more": lambda t: {**t, "number": t["number"] + 1},
    "a clock that is none": lambda t: {**t, "history": [{**h, "seconds": "late"} for h in t["history"]]},
    "releases that are none": lambda t: {**t, "releases": [{"a": 1}]},
}


def test_no_peer_replaces_the_model_that_all_have_certified(shared: World) -> None:
    """East is the first by name: its result was taken for everybody's, because its chain was right."""
    study, order = _study(shared, "one-model", "subspace")
    halves = Halves(shared, order)
    kept: dict[str, bytes] = {}

    def tap(site: str, data: bytes) -> bytes:
        if wire.decode(data)["what"] == "done":
            kept.setdefault(site, data)
        return data

    halves.tap = tap
    right, bits = halves.run(), _reference(shared, study)
    assert wire.encode(wire.pack(right.public)) == bits
    for name, lie in LIES.items():  # the end again and again, with one answer of one site replaced
        done = wire.decode(kept["east"])
        false = wire.encode({**done, "result": lie(dict(done["result"]))})
        halves.tap = lambda site, data, false=false: (  # type: ignore[misc]
            false if site == "east" and wire.decode(data)["what"] == "done" else data
        )
        halves.driver = halves.coordinator()
        outcome = halves.run()
        assert wire.encode(wire.pack(outcome.public)) == bits, name
        assert outcome.certified.sites == tuple(sorted(shared.sites)), name
        assert outcome.traffic.bytes_up < 10**12, name
        assert outcome.seconds < 1e8, name
        assert [h["round"] for h in outcome.history] == [h["round"] for h in right.history], name
        assert [h.get("objective") for h in outcome.history] == [h.get("objective") for h in right.history], name


def test_a_quorum_of_half_or_less_is_raised_so_that_no_two_models_are_certified(shared: World) -> None:
    """With one hospital at a time a coordinator had as many certified models as there are hospitals."""
    study, order = _study(shared, "low", "plain", "quorum = 1\n")
    assert (order.quorum, order.least) == (2, 2)
    forged = shared.forged(order, quorum=1, deadline=3.0)  # a coordinator that signs a lower one
    for alone in ("east", "north"):
        halves = Halves(shared, forged)
        ask = halves.ask
        halves.ask = lambda site, data, ask=ask, alone=alone: ask(site, data) if site == alone else None  # type: ignore
        with pytest.raises(PeerLost, match="2 sites are needed"):
            halves.run()
        halves.sites[alone].watch = None  # nor if the hospital is asked without that coordinator's own program
        begin = {"begin": [alone], "books": b""}
        take = {"what": "take", "number": 0, "attempt": 0, "sites": [alone], **begin}
        answer = wire.decode(halves.sites[alone].answer(seal_ask(shared.key, forged.digest, alone, "evil", take)))
        assert (answer["what"], answer.get("why")) == ("refused", "malformed")
        assert halves.sites[alone].fold is None
    told = check(shared.sites["east"].node, study).remarks
    assert any("more than half" in line for line in told)
