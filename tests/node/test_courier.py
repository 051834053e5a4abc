"""Studies through folders: the same bits as in one process, whatever a carrier does to the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")  # its enrolment makes the keys' certificates

import hospitals
from tests.enrolled import enrolled
from tests.ingested import ingest_once

from polyclinic.config import Study
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.node.courier.coordinator import office_box, run_by_courier
from polyclinic.node.courier.mailbox import Mailbox, shown
from polyclinic.node.courier.sealed_file import (
    HalfParcel,
    SealedFile,
    card_of,
    open_parcel,
    own_key,
    read_card,
    seal_parcel,
)
from polyclinic.node.courier.site import CourierSite, LetterBox, branch_box
from polyclinic.node.enrolment import federation as coordination
from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder, read_events, read_json
from polyclinic.node.flare.result import read_outcome
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.studies.registry import federated

ROOT = Path(__file__).parents[2]

NOISE = 11
COURIER = f'[ledger]\nsimulated_noise_seed = {NOISE}\n[courier]\ninbox = "in"\noutbox = "out"\nevery = 0.05\n'


# ---- one file


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    home = tmp_path_factory.mktemp("keys")
    names = ("north", "coordinator")
    return {n: (Identity.generate(n), own_key(home / f"{n}.key")) for n in names}


def _sealed(two: Any, data: bytes = b"the marker MARKER-1234") -> bytes:
    parcel = SealedFile("north", "coordinator", "answer", "ab" * 32, "01", data)
    return seal_parcel(parcel, two["north"][0], two["coordinator"][1].public_key().public_bytes_raw())


def _open(two: Any, data: bytes, **other: Any) -> SealedFile:
    args = {"sender": "north", "me": "coordinator", "identity": two["north"][0].public, **other}
    return open_parcel(data, args["sender"], args["me"], two["coordinator"][1], args["identity"])


def test_a_file_opens_for_its_addressee_and_shows_nothing(two: Any) -> None:
    data = _sealed(two)
    assert _open(two, data).data == b"the marker MARKER-1234"
    assert b"MARKER" not in data
    assert b"north" not in data
    assert _sealed(two) != data  # new keys each time


def test_every_changed_byte_is_refused_and_every_cut_waits(two: Any) -> None:
    data = _sealed(two, b"x" * 50)
    for i in range(len(data)):
        changed = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        with pytest.raises((MessageRefused, HalfParcel)):
            _open(two, changed)
    for i in range(12, len(data)):  # anything that changes inside the length is not Half
        changed = data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]
        with pytest.raises(MessageRefused):
            _open(two, changed)
    for n in range(len(data)):
        with pytest.raises(HalfParcel):
            _open(two, data[:n])
    with pytest.raises(MessageRefused):
        _open(two, data + b"x")


def test_another_senders_or_names_are_refused(two: Any) -> None:
    data = _sealed(two)
    with pytest.raises(MessageRefused):
        _open(two, data, identity=Identity.generate("north").public)
    with pytest.raises(MessageRefused):
        _open(two, data, sender="south")


def test_a_card_is_believed_only_from_the_pinned_identity(two: Any) -> None:
    identity, key = two["north"]
    card = card_of(identity, key)
    assert read_card(card, "north", identity.public) == key.public_key().public_bytes_raw()
    with pytest.raises(MessageRefused, match="not signed by the key that was pinned"):
        read_card(card, "north", Identity.generate("north").public)
    with pytest.raises(MessageRefused):
        read_card(card, "south", identity.public)


def test_a_modified_file_is_refused_by_name_and_a_whole_one_is_taken_once(two: Any, tmp_path: Path) -> None:
    said = []
    box = Mailbox(  # type: ignore[call-arg]
        "coordinator",
        *two["coordinator"],
        tmp_path / "in",
        tmp_path / "out",
        tmp_path / "home",
        {"north": two["north"][0].public},
        lambda **e: said.append(e),
    )
    other = Mailbox(  # type: ignore[call-arg]
        "north",
        *two["north"],
        tmp_path / "north-in",
        tmp_path / "north-out",
        tmp_path / "north-home",
        {"coordinator": two["coordinator"][0].public},
    )
    assert other.put(SealedFile("north", "coordinator", "answer", "ab", "01", b"x")) is None  # no card yet
    (tmp_path / "north-in" / "coordinator.card").write_bytes((tmp_path / "out" / "coordinator.card").read_bytes())
    other.take()
    made = other.put(SealedFile("north", "coordinator", "answer", "ab", "01", b"x"))
    assert made is not None
    data = made.read_bytes()
    inbox = tmp_path / "in" / made.name
    inbox.write_bytes(data[:40])
    assert box.take() == []  # half-written: waits, and nobody complains
    assert said == []
    inbox.write_bytes(data)
    assert [p.data for p in box.take()] == [b"x"]
    inbox.write_bytes(data)
    assert box.take() == []  # doubled
    again = other.put(SealedFile("north", "coordinator", "answer", "ab", "01", b"x"))
    assert again is not None
    bad = bytearray(again.read_bytes())
    bad[60] ^= 4
    (tmp_path / "in" / again.name).write_bytes(bytes(bad))
    assert box.take() == []
    assert [e["file"] for e in said] == [again.name]
    assert again.name in said[0]["what"]
    (kept,) = (tmp_path / "north-home" / "sent").glob(f"{made.name}*")
    assert kept.read_bytes().endswith(b"x")  # its owner can look at what left
    assert kept.stat().st_mode & 0o077 == 0


def test_a_card_that_was_cut_is_read_again_when_it_is_whole(two: Any, tmp_path: Path) -> None:
    """However much of it had come, and however often it was looked at; a wrong one is named, and a right one heals it."""
    said = []
    box = Mailbox(  # type: ignore[call-arg, misc]
        "coordinator",
        *two["coordinator"],
        tmp_path / "in",
        tmp_path / "out",
        tmp_path / "home",
        {"north": two["north"][0].public},
        lambda **e: said.append(e),
        patience=0.0,
    )
    card = card_of(*two["north"])
    for size in range(len(card)):
        (tmp_path / "in" / "north.card").write_bytes(card[:size])
        box.take()
        assert not box.knows("north")
    assert said == []
    other = card_of(Identity.generate("north"), two["north"][1])
    (tmp_path / "in" / "north.card").write_bytes(other)
    box.take()
    box.take()
    box.take()
    assert [e["file"] for e in said] == ["north.card"]
    (tmp_path / "in" / "north.card").write_bytes(card)
    box.take()
    assert box.knows("north")
    assert box.waiting()["refused"] == []


def test_a_letter_is_sent_again_until_its_receipt_and_read_once(two: Any, tmp_path: Path) -> None:
    """Between two sites nobody else sends anew: the first copy is lost, the second doubled, the first receipt lost."""
    keys = {"north": two["north"], "south": (Identity.generate("south"), own_key(tmp_path / "south.key"))}
    pinned = {n: i.public for n, (i, _) in keys.items()}
    boxes = {
        n: Mailbox(n, me, key, tmp_path / n / "in", tmp_path / n / "out", tmp_path / n / "home", pinned)
        for n, (me, key) in keys.items()
    }

    def carry(sender: str, to: str) -> list[Path]:
        """Copies what lies in one outbox into the other's inbox; a file stays where it was, as with a synchronised folder."""
        found = sorted((tmp_path / sender / "out").iterdir())
        for f in found:
            (tmp_path / to / "in" / f.name).write_bytes(f.read_bytes())
        return [f for f in found if f.suffix == ".pcf"]

    carry("north", "south")
    carry("south", "north")
    for box in boxes.values():
        box.take()
    north = LetterBox(boxes["north"], threading.Lock(), resend=-1.0)
    south = LetterBox(boxes["south"], threading.Lock(), resend=-1.0)
    north.send("ab" * 32, "south", b"hello")
    (first,) = (tmp_path / "north" / "out").glob("*.pcf")  # lost: nobody carries it
    north.again()
    (second,) = carry("north", "south")
    assert second.name != first.name
    (post,) = boxes["south"].take()
    assert (post.kind, post.data) == ("post", b"hello")
    assert south.take(post)
    for f in (tmp_path / "south" / "out").glob("*.pcf"):  # the receipt is lost
        f.unlink()
    north.again()
    carry("north", "south")
    (again,) = boxes["south"].take()
    assert again.id == post.id
    assert not south.take(again)  # read once ...
    carry("south", "north")  # ... and receipted each time
    (receipt,) = boxes["north"].take()
    assert north.unreceipted() == {"south": 1}
    north.arrived(replace(receipt, sender="east"))  # somebody else's word about it counts for nothing
    assert north.unreceipted() == {"south": 1}
    north.arrived(receipt)
    assert north.unreceipted() == {}
    assert not list((tmp_path / "north" / "out").glob("*.pcf"))
    (lies,) = (tmp_path / "south" / "out").glob("*.pcf")
    assert shown(tmp_path / "south" / "home", lies.name)["kind"] == "receipt"


# ---- whole studies


class World:
    """Three hospitals and a coordinator; between them nothing but folders and a process that carries."""

    def __init__(self, root: Path) -> None:
        os.umask(0o077)
        self.root = root
        hospitals.vocabulary(root / "studies")
        self.coordinator = CoordinatorFolder(root / "coordinator")
        names = hospitals.NAMES
        nodes = {n: hospitals.hospital(root / n, n, patients=25, rehearsal=True, more=COURIER) for n in names}
        self.sites = enrolled(self.coordinator, nodes)
        for place in (*(root / n for n in hospitals.NAMES), root / "coordinator"):
            for box in ("in", "out"):
                (place / box).mkdir(exist_ok=True)

    def study(self, name: str, method: str, tail: str = "") -> Path:
        return hospitals.study(self.root / "studies", name, method, head="deadline = 60\n", tail=tail)

    def run(
        self, path: Path, *, seed: int, share: float, pace: float = 4.0
    ) -> tuple[dict[str, Any], object, dict[str, Any]]:
        order = coordination.sign_study(self.coordinator, Study.read(path))
        over = threading.Event()
        branches = [CourierSite(s, branch_box(s)) for s in self.sites.values()]
        threads = [threading.Thread(target=b.run, args=(over.is_set,), daemon=True) for b in branches]
        (self.root / "stop").unlink(missing_ok=True)
        carrier = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("hostile_carrier.py"), self.root, str(seed), str(share)]
        )
        try:
            for t in threads:
                t.start()
            box = self.root / "coordinator"
            status = run_by_courier(self.coordinator, order, box / "in", box / "out", pace=pace, every=0.06, resend=1.0)
        finally:
            over.set()
            (self.root / "stop").touch()
            carrier.wait(timeout=20)
            for t in threads:
                t.join(timeout=20)
        return status, order, json.loads((self.root / "carrier.json").read_text())

    def reference(self, path: Path, noise: bool) -> Any:
        study = Study.read(path)
        sites = [ingest_once(s.node, study, self.root / "one" / n).site for n, s in self.sites.items()]
        doors = None
        if noise:
            doors = {
                s.name: ReleaseGate(s.name, noise=SimulatedNoise(np.random.default_rng([NOISE, *s.name.encode()])))
                for s in sites
            }
        return Simulation(federated(study), sites, doors=doors).run()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("courier"))


def _same(a: Any, b: Any) -> bool:
    return wire.encode(wire.pack(a)) == wire.encode(wire.pack(b))


STUDIES = {
    "trip": ('name = "trip"\nrank = 3\nrounds = 3\naggregation = "masked"', ""),
    "dpem": (
        'name = "dpem"\nrank = 3\nrounds = 1\naggregation = "masked"',
        "[privacy]\nepsilon = 4.0\ndelta = 1e-6\n",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["dpem", pytest.param("trip", marks=pytest.mark.slow)])
def test_a_hostile_carrier_changes_no_bit(world: World, name: str) -> None:
    method, tail = STUDIES[name]
    path = world.study(f"{name}-MARKERSTUDY", method, tail)
    status, order, faults = world.run(path, seed=3, share=0.2)
    assert status["state"] == "finished", (status, read_events(world.coordinator.run(order.id) / "events.jsonl")[-5:])  # type: ignore[attr-defined]
    assert all(n > 0 for n in faults.values()), faults  # it did each of them
    run = world.coordinator.run(order.id)  # type: ignore[attr-defined]
    found = read_outcome(run, federated(order.parsed(run / "files")))  # type: ignore[attr-defined]
    reference = world.reference(path, bool(tail))
    assert _same(found.public, reference.public)
    for s in world.sites.values():  # and each release was paid for once
        charged = ledger_of(s.node).charges(study=f"{name}-MARKERSTUDY")
        assert len({(c.number, c.release) for c in charged}) == len(reference.releases)
    carried = list((world.root / "seen").iterdir())
    assert len(carried) > 20
    text = b"".join(p.read_bytes() for p in carried)
    for marker in (b"MARKERSTUDY", b"DR00", b"diagnosis", b"drug", name.encode() + b"-"):
        assert marker not in text, marker
    assert all("MARKER" not in p.name for p in carried)


def test_a_file_that_the_carrier_changes_is_named_in_the_log(world: World) -> None:
    """In the middle of nothing: an authentic file of the coordinator, one bit flipped, in a site's inbox."""
    north = world.sites["north"]
    box = branch_box(north)
    office = office_box(world.coordinator, world.root / "coordinator" / "in", world.root / "coordinator" / "out", print)
    (world.root / "coordinator" / "in" / "north.card").write_bytes(
        (world.root / "north" / "out" / "north.card").read_bytes()
    )
    office.take()
    made = office.put(SealedFile("coordinator", "north", "ask", "ab" * 32, "01", b"hello"))
    assert made is not None
    data = bytearray(made.read_bytes())
    data[-1] ^= 1
    (world.root / "north" / "in" / made.name).write_bytes(bytes(data))
    CourierSite(north, box).once()
    assert any(e.get("file") == made.name for e in read_events(north.events))
    office.withdraw(made)


def test_a_node_without_the_section_is_told_what_to_write(tmp_path: Path) -> None:
    site = SiteFolder.of(hospitals.hospital(tmp_path, "north", patients=5))
    with pytest.raises(ConfigError, match="has no courier"):
        branch_box(site)


def test_who_is_awaited_is_written_down(world: World) -> None:
    """With nobody there, the coordinator says for whom it waits."""
    path = world.study("alone", STUDIES["trip"][0])
    order = coordination.sign_study(world.coordinator, Study.read(path))
    seen: list[dict[str, Any]] = []
    run = world.coordinator.run(order.id)

    def stopped() -> bool:
        if (run / "courier.json").exists():
            seen.append(read_json(run / "courier.json"))
        return bool(seen and seen[-1]["awaited"])

    box = world.root / "coordinator"
    status = run_by_courier(world.coordinator, order, box / "in", box / "out", pace=4.0, every=0.02, stopped=stopped)
    assert status["state"] == "stopped"
    assert status["exit"] == 5
    assert set(seen[-1]["awaited"]) == set(hospitals.NAMES)


def test_the_owner_looks_at_what_left_and_status_says_how_studies_stand(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    from polyclinic.cli import _run

    north = world.sites["north"]
    sent = sorted((north.path / "courier" / "sent").glob("*.open"))
    assert sent, "the studies before left copies of their answers"
    big = max(sent, key=lambda p: p.stat().st_size).name.removesuffix(".open")
    assert _run("courier", ["show", big, "--node", str(north.node_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "answer"
    assert any("bytes" in v or "array" in v for v in told["content"].values())
    assert _run("courier", ["show", "nothing", "--node", str(north.node_path)]) == 2
    capsys.readouterr()
    assert _run("courier", ["status", str(world.coordinator.path), "--json"]) == 0
    states = {s["study"].rsplit("-", 1)[0]: s["state"] for s in json.loads(capsys.readouterr().out)["studies"]}
    assert states["alone"] == "stopped"
    assert states["dpem-markerstudy"] == "finished"
    assert _run("courier", ["status", "--node", str(north.node_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cards"] is not None
    assert _run("courier", ["status"]) == 2
