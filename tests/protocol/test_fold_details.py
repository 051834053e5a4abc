"""The fold, step by step: what a follower takes over, what a checkpoint holds, what is counted and who may add."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.aggregation.plain import Plain
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError, DataError, Divergence, MessageRefused, PeerLost, ProtocolMismatch
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Contribution, Message, Roster, Step, Total
from polyclinic.protocol.loop import Simulation, deliver, roster_for
from polyclinic.protocol.outcome import Progress
from polyclinic.protocol.public_state import CoordinatorState, PublicState
from polyclinic.protocol.schema import fits, schema_from, schema_of, shown
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import Opened, grow, state_digest
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis


def method(rounds: int = 3) -> pc.LocalTF:
    return pc.LocalTF(rank=2, rounds=rounds, seed=0)


class Pair:
    """One who conducts and one who follows, with the totals of a run in one process."""

    def __init__(self, how: pc.LocalTF) -> None:
        self.fold = Simulation(how, example_sites(), adder=Plain())
        setting, roster = self.fold.setting, self.fold.roster
        self.lead = CoordinatorState(how, setting, Plain(), roster, chain=b"root")
        self.other = PublicState(how, setting, Plain().noise_share(roster), b"root")

    def opened(self) -> tuple[Step, Opened]:
        """The next sum, taken and relayed."""
        step = self.fold.step()
        assert step is not None and self.lead.step() == step == self.other.step()
        total, members = self.fold._sum(step)
        made = self.lead.commit(step, total, members, dict.fromkeys(members, (self.lead.number, 0)))
        self.fold.commit(step, total, members)
        for name in members:
            self.fold.parties[name].commit()
        assert made is not None
        return step, made


def nearby(state: object, far: float) -> object:
    """The same state with every float moved a little."""

    def moved(tree: object) -> object:
        if isinstance(tree, np.ndarray) and tree.dtype == np.float64:
            return tree * (1.0 + far)
        if isinstance(tree, dict):
            return {k: moved(v) for k, v in tree.items()}
        return [moved(v) for v in tree] if isinstance(tree, list) else tree

    return moved(wire.pack(state))


def test_who_follows_has_the_same_state_number_and_chain() -> None:
    pair = Pair(method())
    for number in range(4):
        before = pair.other.chain
        step, opened = pair.opened()
        assert pair.other.follow(opened, step)
        assert wire.encode(wire.pack(pair.other.public)) == wire.encode(wire.pack(pair.lead.public))
        assert pair.other.number == pair.lead.number == number + 1
        assert pair.other.chain == pair.lead.chain == grow(before, opened.link(step, opened.state))
        assert pair.other.before == pair.lead.before == before != pair.other.chain
        assert opened.state == state_digest(pair.lead.public) and opened.public is None and opened.sites == ()


def test_other_bits_are_not_followed_without_the_senders() -> None:
    pair = Pair(method())
    step, opened = pair.opened()
    before = wire.encode(pair.other.state())
    assert not pair.other.follow(replace(opened, state=bytes(32)), step)
    assert wire.encode(pair.other.state()) == before


def test_the_senders_bits_are_taken_within_the_slack_only() -> None:
    pair = Pair(method())
    step, opened = pair.opened()
    before = wire.encode(pair.other.state())
    near, far = nearby(pair.lead.public, 2.0**-40), nearby(pair.lead.public, 2.0**-10)

    def digest_of(tree: object) -> bytes:
        return state_digest(wire.unpack(pair.other.method.Public, tree))

    for sent, state in ((far, digest_of(far)), (near, digest_of(far)), (near, bytes(32))):
        with pytest.raises(ProtocolMismatch, match="does not follow from the total"):
            pair.other.follow(replace(opened, state=state), step, sent)
        assert wire.encode(pair.other.state()) == before
    assert pair.other.follow(replace(opened, state=digest_of(near)), step, near)
    assert wire.encode(wire.pack(pair.other.public)) == wire.encode(near)
    assert wire.encode(near) != wire.encode(wire.pack(pair.lead.public))
    assert pair.other.chain == grow(b"root", opened.link(step, digest_of(near)))


class Fussy(pc.LocalTF):
    """Asks for another step after the least change of its state."""

    only: bytes = b""

    def next_step(self, public: Any) -> Any:
        step = super().next_step(public)
        if step is None or not self.only or state_digest(public) == self.only:
            return step
        return replace(step, name="other")


def test_bits_that_lead_to_another_step_are_refused() -> None:
    how = Fussy(rank=2, rounds=3, seed=0)
    pair = Pair(how)
    step, opened = pair.opened()
    near = nearby(pair.lead.public, 2.0**-40)
    how.only = opened.state
    state = state_digest(wire.unpack(how.Public, near))
    with pytest.raises(ProtocolMismatch, match="does not follow"):
        pair.other.follow(replace(opened, state=state), step, near)


def test_a_state_that_was_sent_has_the_shapes_of_the_one_before() -> None:
    pair = Pair(method())
    for _ in range(4):
        step, opened = pair.opened()
        assert pair.other.follow(opened, step)
    step, opened = pair.opened()
    tree = wire.pack(pair.lead.public)
    sent = replace(opened, public=tree)
    wrong = pc.LocalTF(rank=3, rounds=3, seed=0)
    other = Simulation(wrong, example_sites(), adder=Plain())
    for _ in range(4):
        other.advance()
    with pytest.raises(MessageRefused, match="other shapes"):
        pair.other.follow(replace(sent, public=wire.pack(other.public)), step)
    assert pair.other.number == 4
    assert pair.other.follow(sent, step)
    assert wire.encode(wire.pack(pair.other.public)) == wire.encode(tree)


# ---- checkpoints


def whole(fold: Simulation) -> bytes:
    out = fold.outcome()
    return wire.encode([wire.pack(out.public), [wire.pack(out.privates[n]) for n in sorted(out.privates)]])


@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_a_checkpoint_goes_on_to_the_same_end(aggregation: str) -> None:
    how = pc.LocalTF(rank=2, rounds=4, seed=0, aggregation=aggregation)
    whole_run = Simulation(how, example_sites())
    whole_run.run()
    first = Simulation(how, example_sites())
    for n in range(3):
        first.advance()
        state: dict[str, Any] = first.state()
        assert len(state["releases"]) == n + 1 == state["number"] == first.number
    asked_twice: Any = first.state()["releases"]
    assert len(asked_twice) == 3  # asked twice, kept once
    later = Simulation(how, example_sites())
    later.restore(state)
    assert later.releases == first.releases and later.number == 3 and later.history == first.history
    assert wire.encode(later.state()["public"]) == wire.encode(state["public"])
    assert later.traffic.state() == first.traffic.state()
    assert {n: p.door.session for n, p in later.parties.items()} == state["sessions"]
    later.run()
    assert whole(later) == whole(whole_run)
    assert later.number == whole_run.number and later.releases == whole_run.releases
    other = ("seconds",) if aggregation == "plain" else ("seconds", "bytes_up", "bytes_down")  # keys are agreed on anew
    strip = [{k: v for k, v in h.items() if k not in other} for h in later.history]
    assert strip == [{k: v for k, v in h.items() if k not in other} for h in whole_run.history]
    if aggregation == "plain":
        assert later.traffic.by_site == whole_run.traffic.by_site
    spent: Any = later.state()["spent"]
    assert state["spent"] <= spent


def test_a_checkpoint_of_a_chain_keeps_it() -> None:
    pair = Pair(method())
    pair.opened()
    state = pair.lead.state()
    assert state["chain"] == pair.lead.chain and state["before"] == b"root"
    again = CoordinatorState(pair.lead.method, pair.lead.setting, Plain(), pair.lead.roster, chain=b"x")
    again.restore(state)
    assert (again.chain, again.before, again.number) == (pair.lead.chain, b"root", 1)
    assert again.link is not None and again.link == pair.lead.link
    assert wire.encode(wire.pack(again.public)) == wire.encode(wire.pack(pair.lead.public))


def test_a_checkpoint_of_other_sites_or_another_method_is_refused() -> None:
    fold = Simulation(method(), example_sites(), adder=Plain())
    fold.advance()
    state = fold.state()
    with pytest.raises(ProtocolMismatch, match="checkpoint of sites"):
        Simulation(method(), example_sites(sites=3), adder=Plain()).restore(state)
    with pytest.raises(ProtocolMismatch, match=r"checkpoint of 'localtf/\d+', this run is 'trip/\d+'"):
        Simulation(pc.TRIP(rank=2, rounds=3, seed=0), example_sites(), adder=Plain()).restore(state)


# ---- what is counted and told


def test_every_letter_is_tapped_and_counted_in_its_round() -> None:
    seen: list[Message] = []
    fold = Simulation(method(2), example_sites(), adder=Plain(), tap=seen.append)
    while fold.advance():
        pass
    sums = len(fold.releases)
    assert len(seen) == 4 * sums and {m.to for m in seen} == {"coordinator"}
    for site, figures in fold.traffic.by_site.items():
        sent = sum(wire.size_message(m, fold.protocol) for m in seen if m.sender == site)
        assert figures["bytes_up"] == sent
    masked: list[Message] = []
    fold = Simulation(method(1), example_sites(), adder=Masked(), tap=masked.append)
    assert fold.advance()
    for site, figures in fold.traffic.by_site.items():
        down = sum(wire.size_message(m, fold.protocol) for m in masked if m.to == site)
        assert figures["bytes_up"] == sum(wire.size_message(m, fold.protocol) for m in masked if m.sender == site)
        assert figures["bytes_down"] > down > 0  # and the opened total


def test_what_goes_down_is_the_opened_sum() -> None:
    pair = Pair(method())
    step, opened = pair.opened()
    lead = pair.lead
    members = sorted(opened.entered)
    entered = dict.fromkeys(members, (lead.number, 0))
    bare = Opened(lead.number, 0, entered, opened.total, bytes(32)).pack()
    assert lead.down(step, opened.total, members) == wire.size(bare)
    words = np.arange(step.size + 2, dtype=np.uint64)
    with_words = Opened(lead.number, 0, entered, opened.total, bytes(32), None, words, lead.roster.sites).pack()
    assert lead.down(step, opened.total, members, words) == wire.size(with_words)
    gathered = replace(step, how="gather")
    public = wire.pack(lead.public)
    assert lead.down(gathered, opened.total, members) == wire.size({**bare, "public": public})


def test_words_travel_with_the_roster_that_sets_their_unit() -> None:
    pair = Pair(method())
    step = pair.lead.step()
    assert step is not None
    pair.fold.step()
    total, members = pair.fold._sum(step)
    words = np.zeros(step.size + 2, np.uint64)
    made = pair.lead.commit(step, total, members, {members[0]: (0, 0), members[1]: (0, 2)}, words)
    assert made is not None
    assert made.sites == pair.lead.roster.sites and made.attempt == 2 and made.words is words
    (release,) = pair.lead.releases
    assert release.members == tuple(sorted(members[:2]))


class Leaky(Plain):
    """A sum that leaks."""

    events: tuple[Event, ...] = ()

    def leakage(self, roster: Roster, step: Step) -> tuple[Event, ...]:
        return self.events


@pytest.mark.parametrize(
    ("events", "leak"),
    [((), 0.0), ((Gaussian(4.0),), 0.25), ((Gaussian(4.0), Unbounded()), float("inf"))],
    ids=["nothing", "a quarter", "no bound"],
)
def test_a_release_says_how_much_the_sum_itself_leaks(events: tuple[Event, ...], leak: float) -> None:
    adder = Leaky()
    adder.events = events
    fold = Simulation(method(1), example_sites(), adder=adder)
    step = fold.step()
    assert step is not None
    plain = Simulation(method(1), example_sites(), adder=Plain())
    assert plain.step() == step
    total, members = plain._sum(step)
    fold.commit(step, total, members)
    (release,) = fold.releases
    assert release.leak == leak
    assert release.number == 0 and release.members == ("site0", "site1", "site2", "site3")
    assert release.by.name == "plain" and release.attempt == 0


def test_rounds_are_told_as_they_end() -> None:
    told: list[Progress] = []
    out = Simulation(method(2), example_sites(), adder=Plain(), progress=told.append).run()
    assert [(p.kind, p.round, p.rounds, p.method) for p in told] == [
        ("begin", 0, 2, "localtf"),
        ("round", 1, 2, "localtf"),
        ("round", 2, 2, "localtf"),
        ("end", 2, 2, "localtf"),
    ]
    assert out.traffic.rounds == 2 and [h["round"] for h in out.history] == [1, 2]
    assert out.seconds == out.history[-1]["seconds"] >= out.history[0]["seconds"] > 0
    for p, h in zip(told[1:3], out.history):
        assert p.figures["bytes_up"] == h["bytes_up"] > 0 and p.figures["bytes_down"] == h["bytes_down"] > 0
    assert (out.noise and out.lines == ()) or all(e.charge is not None for e in out.lines)


def test_arrays_beside_the_model_are_no_payload() -> None:
    step = Step(1, "x", {"a": (3, 4), "b": (5,)}, bound=1.0)
    assert CoordinatorState.payload(step) == 8 * 17
    assert CoordinatorState.payload(replace(step, asides=("b",))) == 8 * 12
    assert CoordinatorState.payload(replace(step, counts=False)) == 0


# ---- who may add


def test_how_many_a_sum_needs() -> None:
    for name in ("masked", "subspace"):
        with pytest.raises(ConfigError, match=r"refuses 2 site\(s\)"):
            roster_for(by_name(name), ["a", "b"])
    assert roster_for(Masked(), ["c", "a", "b"]).sites == ("a", "b", "c")
    assert roster_for(Plain(), ["b", "a"]).threshold == 2
    assert roster_for(Plain(), ["a", "b"], threshold=1).threshold == 1
    assert roster_for(Masked(), list("abcde"), threshold=1).threshold == 4
    assert roster_for(Masked(), list("abcde"), threshold=5, attempt=2).attempt == 2
    assert roster_for(Plain(), ["a", "b"], threshold=2).threshold == 2
    with pytest.raises(ConfigError, match="a sum needs 3 sites, and there are 2"):
        roster_for(Plain(), ["a", "b"], threshold=3)


def test_a_refused_letter_is_an_error_where_nobody_listens() -> None:
    fold = Simulation(method(), example_sites(), adder=Plain())
    step = fold.step()
    assert step is not None
    number = len(fold.releases)
    parts = {n: p.contribute(step, fold.public, fold.roster, number) for n, p in fold.parties.items()}
    sides = {n: fold.adder.exchange(n, fold.roster, step, mine) for n, mine in parts.items()}
    sides["coordinator"] = fold.adder.exchange("coordinator", fold.roster, step, None)
    sides["site1"].message.body["weight"] = "heavy"  # type: ignore[attr-defined]
    with pytest.raises(MessageRefused, match="malformed"):
        deliver(sides)


def test_a_quorum_under_a_secure_sum_is_never_below_the_owners() -> None:
    silent = Simulation(method(1), example_sites(), adder=Plain(), quorum=3, silent=lambda step, name: name == "site2")
    assert silent.advance()
    assert silent.releases[0].members == ("site0", "site1", "site3")
    with pytest.raises(PeerLost, match="2 of 4 sites answered, 3 are needed") as e:
        Simulation(
            method(1), example_sites(), adder=Plain(), quorum=3, silent=lambda step, name: name in ("site0", "site2")
        ).run()
    assert "silent: 'site0'" in str(e.value) and "silent: 'site2'" in str(e.value) and "'site1'" not in str(e.value)


# ---- what is public about sites


def test_columns_in_another_order_are_one_order() -> None:
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((40, 3)) for _ in range(3)]
    names = ("age", "weight", "pulse")
    same = [Site(f"s{k}", features=t, columns=names) for k, t in enumerate(tables)]
    turned = [*same[:2], Site("s2", features=tables[2][:, ::-1], columns=names[::-1])]
    how = pc.GaussianMixture(n_components=2, rounds=3, radius=20.0, seed=0)
    one, other = Simulation(how, same, adder=Plain()).run(), Simulation(how, turned, adder=Plain()).run()
    assert one.setting.columns == other.setting.columns == names and one.setting.shape == (3,)
    assert wire.encode(wire.pack(one.public)) == wire.encode(wire.pack(other.public))
    with pytest.raises(ProtocolMismatch, match="'s2' has 2 features"):
        schema_of(how, [*same[:2], Site("s2", features=tables[2][:, :2])])


def test_what_is_no_list_of_sites_is_told() -> None:
    with pytest.raises(DataError, match="this is a generator"):
        schema_of(method(), (s for s in example_sites()))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="this is a str"):
        schema_of(method(), [*example_sites(), "north"])  # type: ignore[list-item]
    a, b = example_sites(sites=2)
    with pytest.raises(ConfigError) as e:
        schema_of(method(), [a, b, a, b, a])
    assert "'site0' appears 3 times" in str(e.value) and "'site1' appears 2 times" in str(e.value)
    setting = schema_of(method(), [b, a])
    assert setting.sites == ("site0", "site1") and setting.together


def test_sizes_are_named_beside_the_common_ones() -> None:
    sites = example_sites()
    t = sites[2].counts()
    wide = pc.SparseTensor(t.coords, t.values, (t.shape[0], 11, 12))
    with pytest.raises(ProtocolMismatch, match=r"'big' has feature modes of sizes \(11, 12\), the others \(10, 12\)"):
        schema_of(method(), [*sites, Site("big", wide)])


def test_a_setting_travels() -> None:
    axes = [Axis("drug", ("a", "b"), vocabulary="public").to_json()]
    tree = {"shape": [2], "axes": axes, "sites": ["n", "s"], "columns": ["x", "y"], "digests": ["d"]}
    made = schema_from(tree)
    assert (
        made.shape == (2,) and made.sites == ("n", "s") and made.columns == ("x", "y") and made.axes[0].name == "drug"
    )
    assert not made.together
    assert schema_from({**tree, "columns": []}).columns is None
    assert shown(tree) and shown({k: v for k, v in tree.items() if k != "sites"})
    for bad in ({"shape": (2,)}, {"shape": "2"}, {"digests": [1]}, {"digests": None}, {"axes": [3]}, {"shape": ["x"]}):
        assert not shown({**tree, **bad}), bad
    ours = {"shape": [2], "axes": axes, "alignment": None}
    theirs = {"shape": [2], "digests": [made.axes[0].digest()]}
    assert fits(ours, theirs)
    for other in ({"shape": [3]}, {"digests": ["x"]}, {"alignment": "ring"}):
        assert not fits(ours, {**theirs, **other}), other


# ---- a hospital's half


def test_a_bound_may_be_below_one() -> None:
    fold = Simulation(method(), example_sites(), adder=Plain())
    step = fold.step()
    assert step is not None
    party, small = fold.parties["site0"], {k: np.full(shape, 0.25) for k, shape in step.shapes.items()}
    party.method.contribute = lambda s, site, private, *rest: (private, Contribution(small))  # type: ignore[method-assign]
    for bound in (0.25, 0.5):
        party.contribute(replace(step, bound=bound), fold.public, fold.roster, 0)
    with pytest.raises(DataError, match="too large"):
        party.contribute(replace(step, round=0, bound=0.2), fold.public, fold.roster, 1)


def test_a_bound_is_kept_to_the_last_bit_and_not_a_number_is_divergence() -> None:
    fold = Simulation(method(), example_sites(), adder=Plain())
    step = fold.step()
    assert step is not None
    party = fold.parties["site0"]
    largest = max(float(np.abs(a).max()) for a in party.contribute(step, fold.public, fold.roster, 0).arrays.values())
    for round_, kind in ((0, DataError), (1, Divergence)):
        exact = replace(step, round=round_, bound=largest)
        party.method.contribute = lambda s, *rest, **more: type(party.method).contribute(  # type: ignore[method-assign]
            party.method, step, *rest, **more
        )
        fold.parties["site0"].door = type(party.door)("site0")
        party.contribute(exact, fold.public, fold.roster, 0)
        with pytest.raises(kind, match="site 'site0'"):
            party.contribute(replace(exact, bound=np.nextafter(largest, 0.0)), fold.public, fold.roster, 1)


def test_a_party_opens_by_itself_and_closes() -> None:
    fold = Simulation(method(), example_sites(), adder=Plain())
    fold.begin()
    public = fold.public
    party = fold.parties["site0"]
    opened = wire.encode(wire.pack(party.private))
    party.private = None
    party.close(public)
    assert wire.encode(wire.pack(party.private)) == opened
    party.private = None
    step = fold.step()
    assert step is not None
    party.contribute(step, public, fold.roster, 0)
    assert wire.encode(wire.pack(party.private)) == opened
    for _ in range(3):
        fold.advance()
        assert party._next is None and wire.encode(wire.pack(party.private)) == opened  # the start changes nothing
    step = fold.step()
    assert step is not None
    party.contribute(step, fold.public, fold.roster, 3)
    assert party._next is not None and wire.encode(wire.pack(party.private)) == opened  # until the sum is taken
    party.commit()
    assert party._next is None and wire.encode(wire.pack(party.private)) != opened


def test_the_mean_of_nothing_is_nothing() -> None:
    assert Total({"a": np.ones(2)}, 0.0, 0).mean("a").tolist() == [0.0, 0.0]


class Mute:
    """A side that never says anything."""

    def start(self) -> list[Message]:
        return []

    def receive(self, message: Message) -> list[Message]:
        return []

    def deadline(self) -> list[Message]:
        return []

    def result(self) -> Literal["pending"]:
        return "pending"


def test_a_sum_in_which_nothing_moves_ends() -> None:
    deliver({"a": Mute(), "b": Mute()})


def test_all_nodes_at_once_count_the_letters_that_they_save() -> None:
    quick = Simulation(method(1), example_sites(), adder=by_name("subspace"))
    slow = Simulation(method(1), example_sites(), adder=by_name("subspace"))
    slow.adder.aggregate_local = lambda roster, step, parts: None  # type: ignore[method-assign]
    assert quick.advance() and slow.advance()
    assert quick.traffic.by_site == slow.traffic.by_site
    assert wire.encode(wire.pack(quick.public)) == wire.encode(wire.pack(slow.public))
