"""Both halves of a study between hosts, without FLARE: what a site answers, what it refuses, how a run goes on."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import hospitals
import numpy as np
import pytest
from tests.enrolled import enrolled
from tests.gossip import gossip
from tests.ingested import ingest_once
from tests.waiting import wait_until

from polyclinic.config import Study
from polyclinic.errors import ConfigError, MessageRefused, PeerLost, PolicyRefusal, PolyclinicError
from polyclinic.node.admission import membership
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, private, read_events, read_json, write_json
from polyclinic.node.flare.carry import carry, driver_of
from polyclinic.node.flare.result import read_certified, read_model, write_outcome
from polyclinic.node.flare.worker import Worker
from polyclinic.node.messages import Ping, open_ask, seal_ask, tree_of
from polyclinic.node.signed_study import StudyOrder, make_order, read_order
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.interfaces import Step
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import Opened
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.studies.registry import federated

ROOT = Path(__file__).parents[2]

TRIP = 'name = "trip"\nrank = 3\nrounds = {}\naggregation = "{}"'


class Lead:
    """A driver whose asks are carried by function calls."""

    def __init__(self, order: StudyOrder, identity: Any, folder: Path, ask: Any, stopped: Any = lambda: False) -> None:
        self.driver, self.ask, self.stopped = driver_of(order, identity, folder), ask, stopped
        self.folder, self.events = folder, folder / "events.jsonl"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def run(self) -> Any:
        return carry(self.driver, self.ask, self.stopped)


class World:
    """Three enrolled sites and a coordinator whose wire is a function call."""

    def __init__(self, root: Path, policy: str = "", patients: int = 25, **records: Any) -> None:
        os.umask(0o077)
        self.root = root
        hospitals.vocabulary(root / "studies")
        self.coordinator = CoordinatorFolder(root / "coordinator")
        nodes = {
            n: hospitals.hospital(root / n, n, patients=patients, policy=policy, **records) for n in hospitals.NAMES
        }
        self.sites = enrolled(self.coordinator, nodes)
        self.roster = coordination.roster(self.coordinator)
        self.desks: dict[str, Worker] = {}
        self.silent: set[str] = set()
        self.never = threading.Event()

    def study(self, name: str, method: str, head: str = "deadline = 300\n", **options: Any) -> Path:
        return hospitals.study(self.root / "studies", name, method, head=head, **options)

    def order(self, path: Path) -> Any:
        return coordination.sign_study(self.coordinator, Study.read(path))

    def open(self, order: StudyOrder) -> None:
        self.desks = {n: Worker(order, s, self._post) for n, s in self.sites.items()}

    def _post(self, to: str, data: bytes) -> None:
        threading.Thread(target=lambda: self.desks[to].put(data)).start()

    def ask(self, site: str, data: bytes, timeout: float) -> bytes | None:
        if site in self.silent:
            self.never.wait(min(timeout, 0.05))  # as a line that nobody answers: no busy loop
            return None
        return self.desks[site].answer(data)

    def lead(self, order: StudyOrder, stopped: Any = lambda: False) -> Lead:
        return Lead(order, self.coordinator.identity(), self.coordinator.run(order.id), self.ask, stopped)

    def reference(self, path: Path) -> Any:
        study = Study.read(path)
        sites = [ingest_once(s.node, study, self.root / "in-process" / n).site for n, s in self.sites.items()]
        return Simulation(federated(study), sites).run()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("halves"))


def _same(a: Any, b: Any) -> bool:
    return wire.encode(wire.pack(a)) == wire.encode(wire.pack(b))


@pytest.mark.parametrize("adder", ["plain", "masked", "subspace"])
def test_stopped_run_resumes_to_the_same_model(world: World, adder: str) -> None:
    path = world.study(f"stop-{adder}", TRIP.format(3, adder))
    order = world.order(path)
    world.open(order)
    leads: list[Lead] = []
    leads.append(world.lead(order, lambda: bool(leads) and leads[0].number >= 2))  # after two sums
    with pytest.raises(PeerLost, match="stopped"):
        leads[0].run()
    world.open(order)  # the sites' processes are new, too: only files remain
    assert _same(world.lead(order).run().public, world.reference(path).public)


def test_what_goes_down_is_the_total_and_a_new_process_goes_on_in_the_middle(world: World) -> None:
    path = world.study("down", TRIP.format(4, "plain"))
    order = world.order(path)
    world.open(order)
    calls = []

    def stopped() -> bool:
        calls.append(1)
        if len(calls) == 25:  # a new process at one site, in the middle
            world.desks["north"] = Worker(order, world.sites["north"], world._post)
        return False

    outcome = world.lead(order, stopped).run()
    assert len(calls) > 25
    assert _same(outcome.public, world.reference(path).public)
    certificate = read_json(world.coordinator.run(order.id) / "certificate.json")
    assert set(certificate["votes"]) == set(world.sites)
    write_outcome(world.coordinator.run(order.id), outcome)
    card = read_model(world.coordinator.run(order.id), order).privacy_
    assert card.agreement == "3 of 3 sites signed the end of the run; each sum was agreed on before the next"
    lies = {**certificate, "votes": {**certificate["votes"], "east": certificate["votes"]["north"]}}
    (world.coordinator.run(order.id) / "certificate.json").write_text(json.dumps(lies))
    assert read_certified(world.coordinator.run(order.id)).sites == ("north", "south"), "a vote is its own site's"  # type: ignore[union-attr]
    assert not (world.coordinator.run(order.id) / "totals").exists()


def test_site_that_missed_sums_folds_them_when_it_is_back(world: World) -> None:
    path = world.study("missed", TRIP.format(6, "plain"), head="deadline = 60\nquorum = 2\n")
    order = world.order(path)
    world.open(order)
    for desk in world.desks.values():
        desk.loaded.result(60)
    lead = world.lead(order)

    def away() -> None:
        wait_until(lambda: lead.number >= 2, every=0.005)
        world.silent = {"east"}
        wait_until(lambda: lead.number >= 4, every=0.005)
        world.desks["east"] = Worker(order, world.sites["east"], world._post)
        world.silent = set()

    thread = threading.Thread(target=away)
    thread.start()
    try:
        outcome = lead.run()
    finally:
        thread.join()
        world.silent = set()
    assert outcome.public.stage == "end"
    votes = read_json(lead.folder / "certificate.json")["votes"]
    assert len(votes) >= 2
    assert world.desks["north"].study.fold is not None
    assert world.desks["north"].study.fold.chain == lead.conductor.chain
    if "east" in votes:  # it came back before the end, and is where the others are
        assert world.desks["east"].study.fold is not None
        assert world.desks["east"].study.fold.chain == lead.conductor.chain


def test_last_bits_of_another_processor_are_agreed_and_larger_differences_stop_the_site(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One site's arithmetic differs: in the last bits it takes over the coordinator's, beyond them it refuses."""
    from polyclinic.protocol.public_state import PublicState

    for size, name in ((2.0**-40, "bits"), (2.0**-20, "lies")):
        path = world.study(name, TRIP.format(3, "plain"), head="deadline = 5\nquorum = 2\n")
        order = world.order(path)
        world.open(order)
        world.desks["south"].loaded.result(60)
        honest = PublicState.fold

        def other(self: Any, step: Step, total: Any, size: Any = size, honest: Any = honest) -> Any:
            public = honest(self, step, total)
            if type(self) is PublicState and self is world.desks["south"].study.fold:
                public = replace(public, factors=tuple(f * (1 + size) for f in public.factors))
            return public

        monkeypatch.setattr(PublicState, "fold", other)
        lead = world.lead(order)
        outcome = lead.run()
        monkeypatch.setattr(PublicState, "fold", honest)
        events = read_events(lead.events)
        assert any(e["event"] == "differs" and e["site"] == "south" for e in events)
        took = "south" in read_json(lead.folder / "certificate.json")["votes"]
        assert took == (name == "bits")
        if name == "bits":
            assert _same(outcome.public, world.reference(path).public)


@pytest.mark.timeout(500)
def test_letter_under_another_sites_name_is_refused_and_its_sender_left_out(world: World) -> None:
    """Under a plain sum letters carry no signature of their own: the line on which they came says who speaks."""
    order = world.order(world.study("name", TRIP.format(2, "plain"), head="deadline = 600\nquorum = 2\n"))
    world.open(order)
    honest = world.ask

    def ask(site: str, data: bytes, timeout: float) -> bytes | None:
        out = honest(site, data, timeout)
        value = wire.decode(out)  # type: ignore[arg-type]
        if site == "east" and value.get("letters"):
            letter = wire.decode(bytes(value["letters"][0]))
            value["letters"] = [wire.encode([letter[0], "south", *letter[2:]])]
            return wire.encode(value)
        return out

    lead = Lead(order, world.coordinator.identity(), world.coordinator.run(order.id), ask, lambda: False)
    outcome = lead.run()  # the deadline of 600 s is longer than this test's own limit: the site is not waited for
    refused = [e for e in read_events(lead.events) if e["event"] == "message refused"]
    assert refused
    assert all(e["site"] == "east" and "under the name of 'south'" in e["what"] for e in refused)
    assert all("east" not in r.members for r in outcome.releases)
    assert outcome.public.stage == "end"


def test_site_out_of_the_roster_pins_is_asked_of_the_owner(world: World) -> None:
    order = world.order(world.study("pins", TRIP.format(1, "plain"), head="deadline = 2\n"))
    site = world.sites["north"]
    kept = site.pins.read_text()
    site.pins.unlink()
    try:
        world.open(order)
        with pytest.raises(PeerLost):
            world.lead(order).run()
        world.desks["north"].loaded.result(20)  # the site gives up on its own clock
        assert any(s["study"] == order.id and s["state"] == "refused" for s in membership.refusals(site))
        assert any("not known here" in r for e in read_events(site.events) for r in e.get("reasons", []))
    finally:
        site.pins.write_text(kept)


def test_order_of_another_coordinator_is_refused(world: World) -> None:
    path = world.study("forged", TRIP.format(1, "plain"))
    order = world.order(path)
    keys = {n: order.keys[n] for n in order.sites}
    forged = make_order(Study.read(path), order.id, keys, Identity.generate("coordinator"))
    pinned = world.coordinator.identity().public
    assert read_order(order.encode(), pinned) == order
    with pytest.raises(PolicyRefusal, match="not signed"):
        read_order(forged.encode(), pinned)


def test_ask_that_the_coordinator_did_not_sign_for_this_site_is_refused(world: World) -> None:
    order = world.order(world.study("asks", TRIP.format(1, "plain")))
    key = order.keys["coordinator"]
    good = seal_ask(world.coordinator.identity(), order.digest, "north", "1", tree_of(Ping()))
    assert open_ask(good, key, order.digest, "north") == ("1", Ping())
    for data, to in ((good, "south"), (good[:-1], "north"), (b"", "north"), (bytes(64) + good[64:], "north")):
        with pytest.raises(MessageRefused):
            open_ask(data, key, order.digest, to)
    rogue = seal_ask(world.sites["south"].identity(), order.digest, "north", "1", tree_of(Ping()))
    with pytest.raises(MessageRefused):
        open_ask(rogue, key, order.digest, "north")


@pytest.mark.parametrize("forge", ["one unit", "word and tag", "another list"])
def test_a_total_that_the_coordinator_changed_is_folded_by_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, forge: str
) -> None:
    """One unit in one word of the second sum: every site's tag says no, and no further sum is taken."""
    order = world.order(
        world.study(f"forged-{forge.replace(' ', '-')}", TRIP.format(3, "masked"), head="deadline = 5\n")
    )
    world.open(order)
    true = Opened.pack

    def pack(self: Any) -> Any:
        tree: dict[str, Any] = true(self)
        if self.number == 1:
            words = tree["words"].copy()
            words[0] += np.uint64(1)
            if forge == "word and tag":
                words[-1] += np.uint64(1)
            tree["words"] = tree["words"] if forge == "another list" else words
            tree["attempt"] += forge == "another list"
        return tree

    monkeypatch.setattr(Opened, "pack", pack)
    with pytest.raises(PolyclinicError):
        world.lead(order).run()
    assert {d.study.fold.number for d in world.desks.values()} == {1}  # type: ignore[union-attr]


def test_secure_sum_is_entered_once_per_attempt(world: World) -> None:
    """Otherwise the same contribution could be summed with two sets of sites, and subtracted."""
    order = world.order(world.study("once", TRIP.format(1, "masked")))
    world.open(order)
    desk = world.desks["north"]
    desk.loaded.result(60)
    gossip(order, world.coordinator.identity(), world.desks, world.root)

    def ask(id: str, sites: Any, attempt: int = 0, number: int = 0) -> Any:
        value = {"what": "take", "number": number, "attempt": attempt, "sites": sites}
        value |= {"begin": list(order.sites), "opened": [], "votes": {}}
        data = seal_ask(world.coordinator.identity(), order.digest, "north", id, value)
        return wire.decode(desk.answer(data))

    first = ask("a", list(order.sites))
    assert first["what"] == "letters"
    assert ask("a", list(order.sites)) == first  # a duplicate gets the same answer
    assert ask("b", list(order.sites))["what"] == "refused"
    assert ask("c", list(order.sites)[:2])["what"] == "refused"  # fewer than the quorum
    assert ask("d", list(order.sites), attempt=1)["what"] == "letters"
    assert ask("e", list(order.sites), number=1) == {"what": "behind", "number": 0}


def test_policy_refusal_reaches_both_logs_and_the_study_goes_on(world: World) -> None:
    site = world.sites["south"]
    text = site.node_path.read_text()
    site.node_path.write_text(text.replace("min_sites = 3", 'min_sites = 3\nmethods = ["dpem"]'))
    try:
        order = world.order(world.study("policy", TRIP.format(1, "plain"), head="deadline = 30\nquorum = 2\n"))
        world.sites["south"] = SiteFolder.of(site.node_path)
        world.open(order)
        lead = world.lead(order)
        lead.run()
        assert set(lead.refused) == {"south"}
        assert any(e["event"] == "refused" and e.get("site") == "south" for e in read_events(lead.events))
        assert [s["study"] for s in membership.refusals(site)][-1:] == [order.id]
    finally:
        site.node_path.write_text(text)
        world.sites["south"] = SiteFolder.of(site.node_path)


@pytest.mark.timeout(800)
def test_silent_site_with_quorum_costs_no_deadline(world: World) -> None:
    order = world.order(world.study("silent", TRIP.format(2, "plain"), head="deadline = 900\nquorum = 2\n"))
    world.open(order)
    world.silent = {"east"}
    try:
        assert world.lead(order).run().public.stage == "end"  # the deadline is longer than this test's own limit
    finally:
        world.silent = set()


def test_exact_secure_sums_wait_for_a_lost_site(world: World) -> None:
    order = world.order(world.study("lost-wait", TRIP.format(6, "masked"), head="deadline = 2\n"))
    world.open(order)
    for desk in world.desks.values():
        desk.loaded.result(60)
    lead = world.lead(order)

    def gone() -> bool:
        if lead.number == 2:
            world.silent = {"east"}
        return False

    lead.stopped = gone
    try:
        with pytest.raises(PeerLost, match="waits for all who began, and for 'east'"):
            lead.run()
    finally:
        world.silent = set()


@pytest.mark.parametrize("key", ["staleness = 2", 'lost = "group"', "nodes_per_site = 8"])
def test_an_option_that_is_gone_is_refused_by_its_name(world: World, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Study.read(world.study("gone", TRIP.format(1, "plain"), head=f"{key}\n"))
    assert any(f"study.{key.split()[0]}: unknown key" in f for f in refused.value.faults)


def test_study_without_public_codes_is_refused_before_it_is_signed(world: World) -> None:
    data = '[tensor]\nmodes = ["drug", "diagnosis"]\nwindow = "visit"\n'
    with pytest.raises(ConfigError, match="no public vocabulary"):
        world.order(world.study("codes", TRIP.format(1, "plain"), data=data))


def test_no_key_of_a_site_is_on_the_coordinators_disk(world: World) -> None:
    secrets = []
    for site in world.sites.values():
        secrets += [(site.path / "identity.key").read_bytes(), (site.path / "identity.key").read_bytes().hex().encode()]
        key = site.path / "request" / f"{site.node.name}.key"
        secrets.append(b"".join(key.read_bytes().splitlines()[1:-1])[:200])
        assert key.stat().st_mode & 0o077 == 0
    for file in world.coordinator.path.rglob("*"):
        if file.is_file():
            data = b"".join(file.read_bytes().split())
            assert not any(s in data for s in secrets), file


def test_card_of_a_private_study_between_hosts_is_that_of_one_process(world: World) -> None:
    """The masks of a subspace sum have a finite variance, and what they leak is on the card here, too."""
    from polyclinic.node.flare.result import read_outcome, write_outcome

    method = 'name = "dpem"\nrank = 2\nrounds = 1\naggregation = "subspace"'
    path = world.study("card", method, tail="[privacy]\nepsilon = 2.0\ndelta = 1e-6")
    order = world.order(path)
    world.open(order)
    write_outcome(world.coordinator.run(order.id), world.lead(order).run())
    here, there = federated(Study.read(path)), federated(Study.read(path))
    here.publish(world.reference(path))
    there.publish(read_outcome(world.coordinator.run(order.id), there))
    assert there.privacy_.guarantee == here.privacy_.guarantee == "formal"
    assert there.privacy_.epsilon == pytest.approx(here.privacy_.epsilon, rel=1e-9)
    assert there.privacy_.noise.startswith("exact")


def test_what_was_spent_survives_erasing_the_site_and_joining_anew(tmp_path: Path) -> None:
    from polyclinic.cli import main
    from polyclinic.node.enrolment.invitation import invite
    from polyclinic.privacy.gate.owner_rules import ledger_of

    world = World(tmp_path, policy="max_epsilon_total = 2.4")
    method = 'name = "dpem"\nrank = 2\nrounds = 1\naggregation = "plain"'
    tail = "[privacy]\nepsilon = 2.0\ndelta = 1e-6"
    order = world.order(world.study("first", method, tail=tail))
    world.open(order)
    world.lead(order).run()
    site = world.sites["south"]
    spent, count = ledger_of(site.node).epsilon(1e-6), len(ledger_of(site.node).charges())
    assert count > 0
    assert 1.5 < spent <= 2.0
    with pytest.raises(SystemExit, match="0"):
        main(["site", "erase", str(site.node_path), "--all", "--yes"])
    assert not site.path.exists()
    coordination.revoke_on_file(world.coordinator, "south")
    request, marks = membership.request(site, invite(world.coordinator, "south"))
    approval, _ = coordination.approve(world.coordinator, request, marks["site"])
    membership.complete(site, approval)
    membership.pin(site, coordination.roster(world.coordinator))
    assert ledger_of(site.node).verify() == ()
    assert (ledger_of(site.node).epsilon(1e-6), len(ledger_of(site.node).charges())) == (spent, count)
    order = world.order(world.study("second", method, tail=tail))
    world.open(order)
    world.desks["south"].loaded.result(60)
    assert world.desks["south"].study.stage == "refused"
    assert any("budget" in r or "epsilon" in r for r in world.desks["south"].study.reasons), world.desks[
        "south"
    ].study.reasons


def test_request_with_another_fingerprint_or_key_is_not_approved(world: World, tmp_path: Path) -> None:
    site = world.sites["north"]
    request = site.path / "north.request.json"
    with pytest.raises(ConfigError, match="fingerprint"):
        coordination.approve(world.coordinator, request, "0000-0000")
    twin = SiteFolder.of(hospitals.hospital(tmp_path / "twin", "north", patients=5))
    other, _ = membership.request(twin, world.coordinator.path / "invites" / "north.invite.json")
    with pytest.raises(ConfigError, match="other keys"):
        coordination.approve(world.coordinator, other, None)


def test_full_disk_at_a_site_releases_nothing_and_the_run_can_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state comes first: a site that cannot write it answers that it cannot, and no release has left."""
    path = world.study("disk", TRIP.format(2, "plain"), head="deadline = 6\n")
    order = world.order(path)
    world.open(order)
    desk = world.desks["north"]
    desk.loaded.result(60)

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(desk.study, "_save", full)
    with pytest.raises(PeerLost):
        world.lead(order).run()
    assert not list((desk.study.record.home / "releases").glob("*.npz"))
    assert any("No space left" in str(e.get("error")) for e in read_events(world.sites["north"].events))
    world.open(order)
    assert _same(world.lead(order).run().public, world.reference(path).public)


def test_release_waits_for_the_owner_where_the_policy_says_so(world: World) -> None:
    site = world.sites["east"]
    text = site.node_path.read_text()
    site.node_path.write_text(text.replace("min_sites = 3", 'min_sites = 3\nreview = "names"'))
    world.sites["east"] = SiteFolder.of(site.node_path)
    try:
        path = world.study("review", TRIP.format(1, "plain"))
        order = world.order(path)
        world.open(order)

        over, asked, words = threading.Event(), [], []

        def owner() -> None:  # the first release of every step name waits
            while not over.wait(0.1):
                for box, item in membership.pending(world.sites["east"]):
                    box.decide(item.id, approve=True, by="owner")
                    asked.append(item.facts["step"])
                    words.extend(item.facts["words"])

        person = threading.Thread(target=owner)
        person.start()
        try:
            outcome = world.lead(order).run()
        finally:
            over.set()
            person.join()
        assert asked
        assert len(asked) == len(set(asked))  # once per name
        assert any(w.startswith("here: ") and "have fewer than 11 patients" in w for w in words)
        assert _same(outcome.public, world.reference(path).public)
        assert not membership.pending(world.sites["east"])
    finally:
        site.node_path.write_text(text)
        world.sites["east"] = SiteFolder.of(site.node_path)


def test_accepting_a_study_covers_every_release_of_it(world: World) -> None:
    site = world.sites["east"]
    text = site.node_path.read_text()
    site.node_path.write_text(text.replace("min_sites = 3", 'min_sites = 3\nreview = "names"'))
    world.sites["east"] = SiteFolder.of(site.node_path)
    try:
        head = "deadline = 60\nreplicate = 1\n"
        path = world.study("accepted", TRIP.format(1, "plain"), head=head, tail="[evaluate]\n")
        path.write_text(path.read_text().replace("minimum_patients = 1 ", "minimum_patients = 11 "))
        order = world.order(path)
        write_json(private(site.study(order.digest)) / "order.json", {"order": order.encode()})
        membership.decide(world.sites["east"], order.id, accept=True, by="officer")
        world.open(order)
        world.lead(order).run()  # nobody decides about a release
        book = ledger_of(site.node)
        steps = {c.step for c in book.charges() if c.run == order.digest}
        assert any("+" in s for s in steps)
        assert {"support"} <= {s.rpartition("/")[2] for s in steps}
        assert all(book.tally.approves(order.digest, s, "") for s in steps)
        assert not book.tally.approves(order.digest, "support+something else", "")
        assert not membership.pending(world.sites["east"])
    finally:
        site.node_path.write_text(text)
        world.sites["east"] = SiteFolder.of(site.node_path)


def test_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from polyclinic.errors import MissingExtra
    from polyclinic.node.flare_package import need_flare

    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(MissingExtra, match=r"polyclinic\[nvflare\]"):
        need_flare()


def test_study_waits_until_the_owner_accepts_it(world: World) -> None:
    """Without `[keys] studies = "policy"` the owner is asked about every study."""
    site = world.sites["north"]
    text = site.node_path.read_text()
    asked = text.replace('studies = "policy"', 'studies = "ask"')
    site.node_path.write_text(asked.replace("[policy]\n", '[policy]\nreview = "none"\n'))  # else names are shown, too
    world.sites["north"] = SiteFolder.of(site.node_path)
    try:
        path = world.study("asked", TRIP.format(1, "plain"))
        order = world.order(path)
        world.open(order)
        assert wait_until(lambda: world.desks["north"].study.stage == "waiting")
        (shown,) = [s for s in membership.studies(site) if s["study"] == order.id]
        assert shown["state"] == "waiting"
        assert shown["method"]["name"] == "trip"
        assert set(shown["roster"]) == set(world.sites)
        membership.decide(world.sites["north"], order.id, accept=True)
        assert _same(world.lead(order).run().public, world.reference(path).public)
    finally:
        site.node_path.write_text(text)
        world.sites["north"] = SiteFolder.of(site.node_path)
