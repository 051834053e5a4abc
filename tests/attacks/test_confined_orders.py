"""What a coordinator's key alone cannot do with an order: read or write files of a hospital, or run on another's consent.

Rows 15, 16 and 18 of the list of attacks, each with a mutation that the first script did not contain.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.hostile_world import World, files

from polyclinic.config import Study
from polyclinic.errors import ConfigError, MessageRefused, PolyclinicError
from polyclinic.methods.phenotypes import TRIP
from polyclinic.node.admission import membership
from polyclinic.node.admission.admission import doubts
from polyclinic.node.enrolment.folders import SiteFolder, private, write_json
from polyclinic.node.flare.worker import Worker
from polyclinic.node.signed_study import read_order
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.wire.sealed import digest

DPEM = 'name = "dpem"\nrank = 3\nrounds = 3\naggregation = "plain"'
PRIVACY = "[privacy]\nepsilon = 0.5\ndelta = 1e-6\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("orders"), policy="max_epsilon_total = 1.0")


@pytest.fixture(scope="module")
def order(world: World) -> Any:
    return world.order("x", DPEM, tail=PRIVACY)


def _desk(world: World, order: Any) -> str:
    """How a study stands at a site that was handed this order, signature and all."""
    world.workers["east"] = Worker(order, world.sites["east"], lambda *a: None)
    world.workers["east"].loaded.result(60)
    return world.workers["east"].study.stage


def test_order_reads_no_file_of_the_hospital(world: World, order: Any) -> None:
    secret = world.root / "east" / "staff.csv"
    secret.write_text("code,name\nDR00,Dr. Alice Hartmann\nDR01,a password\n")
    digest = hashlib.sha256(secret.read_bytes()).hexdigest()
    for name in (str(secret), "../../../staff.csv", "~/staff.csv", "drug.csv", f"{digest}.csv", "", f"{digest}.csv\0"):
        tensor = {**order.study["tensor"], "vocabulary": {**order.study["tensor"]["vocabulary"], "drug": name}}
        evil = world.forged(order, study={**order.study, "tensor": tensor})
        with pytest.raises(MessageRefused, match="may not be followed") as e:
            read_order(evil.encode(), world.key.public)
        assert any("tensor.vocabulary.drug" in f for f in e.value.faults)
        assert _desk(world, evil) == "refused"  # also where somebody forgot to read it
        assert "Alice" not in str(world.ask(evil, "east", what="look", full=True))


@pytest.mark.parametrize("place", ["ranges", "codes", "labels file", "simulation"])
def test_no_other_section_of_an_order_names_a_file(world: World, order: Any, place: str) -> None:
    secret = world.root / "north" / "node.toml"
    study = dict(order.study)
    if place == "ranges":
        study["tensor"] = {**study["tensor"], "ranges": str(secret)}
    elif place == "codes":
        study["codes"] = {"drug": {"to": str(secret)}}
    elif place == "labels file":
        study["codes"] = {"drug": {"to": "../node.toml"}}
    else:
        study["sites"] = {"nodes": [str(secret)]}
    with pytest.raises(MessageRefused, match="may not be followed"):
        read_order(world.forged(order, study=study).encode(), world.key.public)


def test_file_of_an_order_is_the_file_of_its_digest(world: World, order: Any) -> None:
    name, text = next(iter(order.files.items()))
    for wrong in ({name: text + "X99,other\n"}, {"authorized_keys": text}, {f"../{name}": text}, {name.upper(): text}):
        with pytest.raises(MessageRefused):
            read_order(world.forged(order, files={**order.files, **wrong}).encode(), world.key.public)
    many = {f"{hashlib.sha256(str(n).encode()).hexdigest()}.csv": str(n) for n in range(33)}
    with pytest.raises(MessageRefused):
        read_order(world.forged(order, files={**order.files, **many}).encode(), world.key.public)


def test_id_of_an_order_is_no_path(world: World, order: Any, tmp_path: Path) -> None:
    victim = tmp_path / "shared"
    (victim / ".ssh").mkdir(parents=True)
    (victim / ".bashrc").write_text("x")
    (victim / ".ssh" / ".known").write_text("x")
    victim.chmod(0o755)
    for id in (str(victim), "../../../shared", "..", ".", "a/b", "", "x\0y", "X" * 5, "x" * 65, "~", "a b"):
        before = files(victim)
        evil = world.forged(order, id=id)
        with pytest.raises(MessageRefused):
            read_order(evil.encode(), world.key.public)
        assert _desk(world, evil) == "refused"
        assert files(victim) == before
        assert victim.stat().st_mode & 0o777 == 0o755
    here = world.sites["east"].studies
    assert all(len(p.name) == 32 and set(p.name) <= set("0123456789abcdef") for p in here.iterdir())


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"evaluate": {"ranks": list(range(2, 1000))}}, "evaluate.ranks"),
        ({"people": {"columns": {f"c{i}": ["a"] for i in range(1000)}}}, "people.columns"),
        ({"people": {"survival": {"time": "t", "event": "e", "grid": "1d", "until": "900000000d"}}}, "people.survival"),
    ],
)
def test_an_order_of_endless_work_is_refused_when_it_is_read(section: dict[str, Any], fault: str) -> None:
    asked = {"study": {"name": "endless"}, "tensor": {"modes": ["drug", "diagnosis"]}, **section}
    with pytest.raises(ConfigError, match=fault):
        Study.parse({**asked, "method": {"name": "sumals", "rank": 2, "aggregation": "masked"}})


def test_names_and_numbers_of_an_order_are_bounded(world: World, order: Any) -> None:
    key = order.keys["east"]
    bad = [
        {"quorum": 0},
        {"quorum": 99},
        {"deadline": float("inf")},
        {"deadline": -1.0},
        {"keys": {**order.keys, "../west": key}},
        {"keys": {**order.keys, "west": "zz"}},
        {"keys": {**order.keys, "west": key}},  # one key under two names
        {"edges": (("east", "nobody"),)},
        {"study": []},
        {"files": []},
    ]
    for change in bad:
        try:
            evil = world.forged(order, **change).encode()  # type: ignore[arg-type]
        except TypeError:
            continue
        with pytest.raises(PolyclinicError):
            read_order(evil, world.key.public)


@pytest.mark.parametrize(
    "change",
    [
        *({"quorum": v} for v in (2.5, True, "3", None, [3])),
        *({"deadline": v} for v in (True, "30", None)),
        *({"polyclinic": v} for v in (5, ["0.1"], None)),
        *({"edges": v} for v in ([["east", "north", "south"]], "ab", [[1, 2]], {"a": 1})),
        *({"study": v} for v in ({"method": 5}, {}, [], {"method": None})),  # type: ignore[var-annotated]
        {"id": 5},
        {"files": {"a": 5}},
        {"keys": {"east": 5}},
    ],
    ids=str,
)
def test_every_field_of_an_order_has_its_type_and_no_other(world: World, order: Any, change: Any) -> None:
    body = {**order.body(), "edges": [list(e) for e in order.edges]}
    for value in ({**body, **change}, {**body, "extra": 1}, {k: v for k, v in body.items() if k not in change}):
        signature = world.key.sign(digest(["polyclinic order 1", json.dumps(value, sort_keys=True)])).hex()
        text = base64.b64encode(json.dumps({**value, "signature": signature}).encode()).decode()
        with pytest.raises(MessageRefused, match="not an order"):
            read_order(text, world.key.public)


def test_consent_is_of_one_order(tmp_path: Path) -> None:
    world = World(tmp_path, ask_owner=True)
    east = world.sites["east"]
    good = world.order("asthma", DPEM.replace("plain", "masked"), tail=PRIVACY)
    write_json(private(east.study(good.digest)) / "order.json", {"order": good.encode()})
    assert doubts(good, east)[1]
    membership.decide(east, good.id, accept=True)  # the owner has read: DPEM, epsilon 0.5, masked
    assert doubts(good, east) == ([], [])
    other = world.order("asthma", 'name = "trip"\nrank = 3\nrounds = 3\naggregation = "plain"')
    evil = world.forged(other, id=good.id)
    assert read_order(evil.encode(), world.key.public) == evil
    assert doubts(evil, east)[1]  # asked again
    assert doubts(evil, east)[0]  # and refused, because the name is taken
    world.workers["east"] = Worker(evil, east, lambda *a: None)
    world.workers["east"].loaded.result(60)
    assert world.ask(evil, "east", what="look")["stage"] == "refused"
    # the accepted order with one number changed: still not the one that was read, whatever lies in its folder
    softer = world.forged(good, study={**good.study, "privacy": {**good.study["privacy"], "epsilon": 50.0}})
    write_json(private(east.study(softer.digest)) / "order.json", {"order": softer.encode()})
    write_json(east.study(softer.digest) / "accepted.json", {"accepted": True, "order": softer.digest})
    assert doubts(softer, east)[1]


def test_an_owners_limits_refuse_before_anything_leaves(tmp_path: Path) -> None:
    """Numbers of one release, and the disk of a study."""
    world = World(tmp_path)
    east = world.sites["east"]
    text = east.node_path.read_text()
    for key, word in (("max_numbers = 0", "numbers"), ("max_disk_mb = 0.001", "of disk")):
        east.node_path.write_text(text.replace("[keys]\n", f"[keys]\n{key}\n"))
        world.sites["east"] = SiteFolder.of(east.node_path)
        order = world.order(
            f"limit-{key[:8].replace('_', '-')}", 'name = "trip"\nrank = 3\nrounds = 1\naggregation = "plain"'
        )
        world.open(order)
        sites = list(order.sites)
        answer = world.ask(order, "east", what="take", number=0, attempt=0, sites=sites, begin=sites)
        assert (answer["what"], answer["stage"], answer["why"]) == ("here", "refused", "declined")
        assert word in str(world.workers["east"].study.reasons)
        assert not [c for c in ledger_of(east.node).charges() if c.study == order.study["study"]["name"]]
        assert not list(east.study(order.digest).glob("releases/*.npz"))


def test_a_model_beyond_the_owners_limit_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 columns for 5 codes, or for 100,000 (8 GB): what is asked is known from the order alone."""
    world = World(tmp_path)
    east = world.sites["east"]
    east.node_path.write_text(east.node_path.read_text().replace("[keys]\n", "[keys]\nmax_numbers = 1000\n"))
    world.sites["east"] = SiteFolder.of(east.node_path)
    made: list[int] = []
    begin = TRIP.init_public

    def spied(method: TRIP, *given: Any) -> Any:
        made.append(method.params.columns)
        return begin(method, *given)

    monkeypatch.setattr(TRIP, "init_public", spied)
    for rank, expected in ((3, "letters"), (10_000, "here")):
        order = world.order(
            f"rank-{rank}", f'name = "trip"\nrank = {rank}\nrounds = 1\nstart = "random"\naggregation = "plain"'
        )
        world.open(order)
        sites = list(order.sites)
        answer = world.ask(order, "east", what="take", number=0, attempt=0, sites=sites, begin=sites)
        assert answer["what"] == expected, world.workers["east"].study.reasons
    assert answer["why"] == "declined"
    assert "numbers" in str(world.workers["east"].study.reasons)
    assert set(made) == {3}
