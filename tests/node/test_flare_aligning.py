"""A study without public lists of codes between hosts: the sites agree on codes first, and nobody shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.node.signed_study import StudyOrder

pytest.importorskip("nvflare")

from tests.node.test_flare_halves import World, _same

from polyclinic.alignment import align
from polyclinic.alignment.ecdh_ring import place
from polyclinic.cli import main
from polyclinic.config import Study
from polyclinic.errors import ConfigError, PeerLost
from polyclinic.node.enrolment.folders import SiteFolder, read_events, read_json
from polyclinic.node.messages import ALIGN, Refused, SumRequest
from polyclinic.protocol.loop import Simulation
from polyclinic.records.ingest import ingest
from polyclinic.records.sites.site import Site
from polyclinic.studies.registry import federated

TRIP = 'name = "trip"\nrank = 3\nrounds = {}\naggregation = "{}"'
DATA = '[tensor]\nmodes = ["drug", "diagnosis"]\nwindow = "visit"\nalignment = "{}"\n{}'


class Listening(World):
    """A world whose relay keeps what it carries."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.carried: list[bytes] = []

    def _post(self, to: str, data: bytes) -> None:
        self.carried.append(data)
        super()._post(to, data)

    def ask(self, site: str, data: bytes, timeout: float) -> bytes | None:
        answer = super().ask(site, data, timeout)
        self.carried += [data, answer or b""]
        return answer

    def raw(self, path: Path) -> list[Site]:
        study = Study.read(path)
        return [ingest(s.node, study, self.root / "in-process" / n).site for n, s in self.sites.items()]

    def placed(self, path: Path, order: StudyOrder) -> list[Site]:
        """The sites in one process, on the places that they agreed on between hosts."""
        out = []
        for s in self.raw(path):
            agreed = read_json(self.sites[s.name].study(order.digest) / "codes.json")["agreed"]
            tensor = s.counts()
            for n, a in enumerate(tensor.axes):
                if a.name in agreed:
                    tensor = place(tensor, n, agreed[a.name]["places"], agreed[a.name]["size"])
            out.append(Site(s.name, tensor))
        return out


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Listening:
    return Listening(tmp_path_factory.mktemp("aligning"))


@pytest.mark.parametrize(
    ("adder", "more"),
    [("plain", ""), ("subspace", 'vocabulary = {diagnosis = "diagnosis.csv"}\n')],
    ids=["all modes", "one mode"],
)
def test_ring_between_hosts_gives_the_model_of_one_process_and_shows_no_code(
    world: Listening, adder: str, more: str
) -> None:
    path = world.study(f"ring-{adder}", TRIP.format(2, adder), data=DATA.format("ring", more))
    order = world.order(path)
    world.open(order)
    world.carried.clear()
    outcome = world.lead(order).run()
    one = align(world.raw(path))  # the same union, in the clear
    assert outcome.setting.shape == one[0].counts().shape[1:]
    placed = world.placed(path, order)
    for a in placed:  # a code has the same place everywhere
        for b in placed:
            for x, y in zip(a.counts().axes[1:], b.counts().axes[1:]):
                names = [(p, q) for p, q in zip(x.names or (), y.names or ()) if p and q]
                assert all(p == q for p, q in names)
    assert _same(outcome.public, Simulation(federated(Study.read(path)), placed).run().public)
    for mode, axis in enumerate(outcome.setting.axes):
        if "vocabulary" not in more or axis.name == "drug":
            assert axis.names is None
            assert set(axis.labels) == {f"{axis.name} {i}" for i in range(outcome.setting.shape[mode])}
            codes = {c.encode() for s in world.raw(path) for c in s.counts().axes[mode + 1].labels}  # type: ignore[union-attr]
            assert not [c for c in codes for text in world.carried if c in text]
    for file in (f for f in world.coordinator.run(order.id).rglob("*") if f.is_file() and "order" not in f.name):
        assert b"DR0" not in file.read_bytes(), file
    for site in world.sites.values():
        assert (site.study(order.digest) / "codes.json").stat().st_mode & 0o077 == 0


def test_union_needs_the_owners_word_and_gives_the_alignment_of_one_process(
    world: Listening, capsys: pytest.CaptureFixture[str]
) -> None:
    path = world.study("union", TRIP.format(2, "plain"), data=DATA.format("union", ""))
    order = world.order(path)
    world.open(order)
    with pytest.raises(PeerLost, match="declined"):
        world.lead(order).run()
    for verb in ("status", "review"):  # the owner's commands say that something was refused, and why
        with pytest.raises(SystemExit) as stop:
            main(["site", verb, "--node", str(world.sites["north"].node_path)])
        assert stop.value.code == 4
        assert "in the clear" in capsys.readouterr().out
    before = {n: s.node_path.read_text() for n, s in world.sites.items()}
    try:
        for n, s in world.sites.items():
            s.node_path.write_text(before[n].replace("[keys]\n", '[keys]\nalignment = "union"\n'))
        world.sites = {n: SiteFolder.of(s.node_path) for n, s in world.sites.items()}
        order = world.order(path)
        world.open(order)
        outcome = world.lead(order).run()
        reference = Simulation(federated(Study.read(path)), align(world.raw(path))).run()
        assert outcome.setting.axes == reference.setting.axes
        assert _same(outcome.public, reference.public)
    finally:
        for n, s in world.sites.items():
            s.node_path.write_text(before[n])
        world.sites = {n: SiteFolder.of(s.node_path) for n, s in world.sites.items()}


def test_site_killed_during_the_ring_makes_a_new_attempt_and_a_late_start_keeps_what_was_agreed(
    world: Listening,
) -> None:
    """One site loses its memory between the start and its tags: everybody begins anew, with new secrets."""
    from polyclinic.node.flare.worker import Worker

    path = world.study("killed", TRIP.format(2, "plain"), head="deadline = 30\n", data=DATA.format("ring", ""))
    order = world.order(path)
    world.open(order)
    for desk in world.desks.values():
        desk.loaded.result(60)
    old = world.desks["north"]
    lost = []  # type: ignore[var-annotated]

    def put(data: bytes) -> None:  # killed when the first letter of a neighbour comes; a new process takes its place
        if not lost:
            lost.append(1)
            world.desks["north"] = Worker(order, world.sites["north"], world._post)

    old.put = put  # type: ignore[method-assign]
    calls = []

    def stopped() -> bool:
        calls.append(1)
        return bool(read_events(world.coordinator.run(order.id) / "events.jsonl")) and any(
            e["event"] == "aligned" for e in read_events(world.coordinator.run(order.id) / "events.jsonl")
        )

    with pytest.raises(PeerLost, match="stopped"):
        world.lead(order, stopped).run()
    events = [e["event"] for e in read_events(world.coordinator.run(order.id) / "events.jsonl")]
    assert "alignment failed" in events
    assert events.count("aligned") == 1
    world.open(order)  # all processes are new: what was agreed is on disk, and is not agreed on again
    outcome = world.lead(order).run()
    events = [e["event"] for e in read_events(world.coordinator.run(order.id) / "events.jsonl")]
    assert events.count("aligned") == 1
    assert _same(outcome.public, Simulation(federated(Study.read(path)), world.placed(path, order)).run().public)


def test_codes_cannot_be_agreed_on_again_after_the_first_sum(world: Listening) -> None:
    path = world.study("again", TRIP.format(1, "plain"), data=DATA.format("ring", ""))
    order = world.order(path)
    world.open(order)
    for desk in world.desks.values():
        desk.loaded.result(60)
    desk = world.desks["north"]
    desk.study.record.file.write_bytes(b"x")
    assert desk.study._guarded("1", SumRequest(ALIGN, 1, ("north", "east"))) == Refused("malformed")
    assert "its codes stay" in read_events(world.sites["north"].events)[-1]["what"]


def test_alignment_is_refused_with_privacy(world: Listening) -> None:
    method = 'name = "dpem"\nrank = 3\nrounds = 1\naggregation = "masked"'
    tail = "[privacy]\nepsilon = 4.0\n"
    with pytest.raises(ConfigError, match="alignment"):
        world.order(world.study("private-ring", method, data=DATA.format("ring", ""), tail=tail))


def test_owner_may_insist_on_public_lists_and_on_enough_sites(world: Listening) -> None:
    from polyclinic.node.admission.admission import doubts

    order = world.order(world.study("insist", TRIP.format(1, "plain"), data=DATA.format("ring", "")))
    site = world.sites["north"]
    assert doubts(order, site) == ([], [])
    text = site.node_path.read_text()
    try:
        site.node_path.write_text(text.replace("[keys]\n", '[keys]\nalignment = "public"\n'))
        (fault,) = doubts(order, SiteFolder.of(site.node_path))[0]
        assert "public lists" in fault
    finally:
        site.node_path.write_text(text)
    world.open(order)
    desk = world.desks["north"]
    desk.loaded.result(60)
    two = SumRequest(ALIGN, 1, ("east", "north"))  # the policy asks for three
    assert desk.study._guarded("1", two) == Refused("malformed")
