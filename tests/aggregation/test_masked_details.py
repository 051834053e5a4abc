"""Masked sums, letter by letter: what each side refuses of a signed letter, and what is gone when a sum is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.aggregation.promise import Promise, Promises
from polyclinic.aggregation.secure import client as masked_site
from polyclinic.aggregation.secure.key_broadcast import to_bits
from polyclinic.aggregation.secure.masked import Masked, MaskedCoordinator, MaskedSite
from polyclinic.aggregation.secure.shamir import BYTES
from polyclinic.aggregation.secure.survivor_votes import VOTE
from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.protocol.interfaces import Contribution, Message, Roster, Step, Total
from polyclinic.protocol.wire import sealed as envelope
from polyclinic.protocol.wire.sealed import parties_digest

Network = Callable[..., tuple[Roster, Step, dict[str, Contribution]]]
Truth = Callable[..., Total]
Body = dict[str, object]


class Table:
    """Sites and a coordinator around one table; letters are handed over one by one."""

    def __init__(self, adder: Masked, roster: Roster, step: Step, parts: dict[str, Contribution]) -> None:
        self.adder, self.roster, self.step, self.parts = adder, roster, step, parts
        self.promises: dict[str, Promises] = {}
        self.lay()

    def lay(self, attempt: int = 0) -> None:
        """Everybody's side of a new sum."""
        roster = replace(self.roster, attempt=attempt)
        self.sites: dict[str, MaskedSite] = {}
        for s in roster.sites:
            made = self.adder.exchange(s, roster, self.step, self.parts[s], promises=self.promises.get(s))
            assert isinstance(made, MaskedSite)
            self.sites[s] = made
        office = self.adder.exchange("coordinator", roster, self.step, None)
        assert isinstance(office, MaskedCoordinator)
        self.office = office

    def start(self) -> list[Message]:
        return [m for s in self.sites for m in self.sites[s].start()]

    def hand(self, m: Message) -> list[Message]:
        return self.office.receive(m) if m.to == "coordinator" else self.sites[m.to].receive(m)

    def until(self, kind: str, queue: Sequence[Message]) -> list[Message]:
        """Carry everything but letters of one kind; those are left over."""
        queue, left = list(queue), []
        while queue:
            m = queue.pop(0)
            if m.kind == kind:
                left.append(m)
            else:
                queue += self.hand(m)
        return left

    def end(self, queue: Sequence[Message]) -> None:
        assert not self.until("", queue)

    def again(self, m: Message, **other: object) -> Message:
        """The same letter with other words in it, rightly signed by its sender."""
        body = {k: v for k, v in m.body.items() if k != "signature"}
        sender = self.office if m.sender == "coordinator" else self.sites[m.sender]
        return sender.envelope.seal(m.to, m.kind, {**body, **other})

    def refuses(self, m: Message, words: str, **other: object) -> None:
        with pytest.raises(MessageRefused, match=words):
            self.hand(self.again(m, **other))


def own(site: MaskedSite, body: Body) -> Body:
    return {**body, "own": site.envelope.sign("keys", body)}


@pytest.fixture
def table(network: Network) -> Table:
    """Six sites of which five must survive."""
    roster, step, parts = network(6, 3)
    adder = Masked()
    return Table(adder, adder.enrol(replace(roster, threshold=5)), step, parts)


def right(table: Table, truth: Truth, members: Sequence[str] | None = None) -> None:
    """The sum was opened, and is that of its members."""
    total = table.office.result()
    assert isinstance(total, Total)
    want = truth(table.step, table.parts, members)
    assert total.members == want.members == len(table.office.members)
    np.testing.assert_allclose(total.arrays["B"], want.arrays["B"], rtol=1e-12)
    for name in table.office.members:
        seen = table.sites[name].check(table.office.opened, table.office.members)
        np.testing.assert_array_equal(seen.arrays["B"], total.arrays["B"])


@pytest.mark.parametrize("slots", [0, 256])
def test_secrets_for_no_sum_or_too_many_are_refused(slots: int) -> None:
    with pytest.raises(ConfigError, match=f"slots {slots}"):
        Masked(slots=slots)


@pytest.mark.parametrize("slots", [1, 2, 255])
def test_every_number_of_slots_gives_the_sums(table: Table, truth: Truth, slots: int) -> None:
    assert Masked(slots=slots).slots == slots
    if slots < 3:
        table.adder.slots = slots
        for number in range(4):
            table.step = replace(table.step, round=number + 1)
            table.lay()
            table.end(table.start())
            right(table, truth)


def test_who_was_away_reads_the_same_total_from_words_that_others_checked(table: Table, truth: Truth) -> None:
    table.end(table.start())
    opened, members = table.office.opened, tuple(table.office.members)
    total = masked_site.read(table.step, 1.0, opened, Promise(0, members, sites=len(members)), checked=False)
    np.testing.assert_allclose(total.arrays["B"], truth(table.step, table.parts).arrays["B"], rtol=1e-12)
    with pytest.raises(MessageRefused, match="other words"):
        masked_site.read(table.step, 1.0, opened[:-1], Promise(0, members, sites=len(members)), checked=False)


def test_who_has_a_key_keeps_it(table: Table, network: Network) -> None:
    roster, _, _ = network(6, 3)
    keys = table.adder.enrol(roster).keys
    assert keys == table.roster.keys == table.adder.enrol(roster).keys
    larger, _, _ = network(7, 3)
    assert set(table.adder.enrol(larger).keys) == {*larger.sites, "coordinator"}


def test_a_key_has_32_bytes(table: Table) -> None:
    m = table.start()[0]
    for size in (31, 33):
        site = table.sites[m.sender]
        with pytest.raises(MessageRefused, match="malformed") as e:
            table.hand(table.again(m, **own(site, {"line": bytes(size), "bound": []})))
        assert "keys have 32 bytes" in str(e.value)
    other: Body = {"line": bytes(range(32)), "bound": []}
    table.refuses(m, "signature is wrong", **{**own(table.sites[m.sender], other), "line": bytes(32)})


def test_shares_go_to_those_who_were_told(table: Table, truth: Truth) -> None:
    letters = table.until("shares", table.start())
    m, sealed = letters[0], dict(letters[0].body["sealed"])
    assert table.office._board is not None
    keeper = sorted(table.office._board.circle.told(m.sender))[0]  # others may have shares, this one must
    table.refuses(m, "malformed", sealed={k: v for k, v in sealed.items() if k != keeper})
    table.refuses(m, "malformed", sealed={**sealed, "stranger": sealed[keeper]})
    table.refuses(m, "malformed", sealed={**sealed, m.sender: sealed[keeper]})
    words, commits = m.body["table"], bytes(m.body["commits"])
    for bad in (words[:-1], words.astype(np.float64), list(words), np.append(words, words[:1])):
        table.refuses(m, "malformed", table=bad)
    for short in (commits[:-1], commits + b"x", b""):
        table.refuses(m, "malformed", commits=short)
    table.end(letters)
    right(table, truth)


def test_a_vector_is_of_this_sum_and_refused_ones_leave_nothing(table: Table, truth: Truth) -> None:
    letters = table.until("masked", table.start())
    m = letters[0]
    vector = m.body["vector"]
    for bad in (vector[:-1], np.append(vector, vector[:1]), vector[-2:], vector.astype(np.float64), list(vector)):
        table.refuses(m, "malformed", vector=bad)
    table.refuses(m, "malformed", vector=(vector >> np.uint64(33)).astype(np.uint32))
    session, (batch, slot) = bytes(m.body["session"]), m.body["slot"]
    table.refuses(m, "malformed", session=bytes(8))
    table.refuses(m, "malformed", session=session[:7])
    table.refuses(m, "malformed", slot=[batch, slot + 1])
    table.refuses(m, "malformed", slot=[batch + 1, slot])
    table.end(letters)
    right(table, truth)


def test_a_vote_for_each_survivor(table: Table, truth: Truth) -> None:
    letters = table.until("signed", table.start())
    votes = bytes(letters[0].body["votes"])
    assert len(votes) == VOTE * 6
    for bad in (votes[:-1], votes + votes[:VOTE], b""):
        table.refuses(letters[0], "malformed", votes=bad)
    table.end(letters)
    right(table, truth)


def test_shares_are_of_the_sites_that_were_announced(table: Table, truth: Truth) -> None:
    first, *rest = table.until("masked", table.start())
    queue = [a for m in rest for a in table.hand(m)]  # the first one is lost
    letters = table.until("unmask", [*queue, *table.office.deadline()])
    m = letters[0]
    seeds, masks = bytes(m.body["seeds"]), bytes(m.body["masks"])
    assert len(masks) == BYTES
    table.refuses(m, "malformed", seeds=seeds + masks, masks=b"")  # as many as there should be, of the wrong kind
    table.refuses(m, "malformed", seeds=seeds[:-BYTES], masks=seeds[-BYTES:] + masks)
    table.refuses(m, "malformed", masks=masks + masks)
    table.refuses(m, "malformed", masks=masks[:-1])
    table.end(letters)
    right(table, truth, [s for s in table.sites if s != first.sender])
    assert not table.adder.boards and not table.adder.sessions  # whoever was lost may not use these keys again


def test_false_shares_burn_the_sum(table: Table) -> None:
    letters = table.until("unmask", table.start())
    bad = [table.again(m, seeds=bytes(len(m.body["seeds"]))) for m in letters]
    table.end(bad)
    assert table.office.result() == "aborted"
    assert not table.adder.boards and not table.office.opened.size


def test_keys_stay_when_all_were_there(table: Table, truth: Truth) -> None:
    table.end(table.start())
    same = parties_digest(table.roster)
    assert set(table.adder.boards) == {same}
    assert set(table.adder.sessions) == {(s, same) for s in table.sites}
    table.step = replace(table.step, round=4)
    table.lay()
    letters = table.start()
    assert {m.kind for m in letters} == {"masked"}
    table.end(letters)
    right(table, truth)


def test_keys_of_which_one_was_revealed_are_forgotten(table: Table, truth: Truth) -> None:
    """A site is lost in the second sum: its secret of that sum was opened, so nobody may mask by these keys again."""
    table.end(table.start())
    same = parties_digest(table.roster)
    assert set(table.adder.boards) == {same}
    table.step = replace(table.step, round=4)
    table.lay()
    letters = table.until("masked", table.start()) or table.start()
    queue = [a for m in letters[:5] for a in table.hand(m)] + table.office.deadline()
    table.end(queue)
    right(table, truth, [m.sender for m in letters[:5]])
    assert table.adder.boards == {}


@pytest.mark.parametrize("first", [True, False])
def test_one_that_forgot_its_keys_makes_all_agree_anew(table: Table, truth: Truth, first: bool) -> None:
    table.end(table.start())
    same, names = parties_digest(table.roster), list(table.sites)
    table.adder.sessions.pop((names[0 if first else -1], same))
    table.step = replace(table.step, round=4)
    table.lay()
    letters = table.start()
    assert sorted(m.kind for m in letters) == ["advertise", *["masked"] * 5]
    table.end(letters)
    right(table, truth)


def test_a_coordinator_that_forgot_its_keys_makes_all_agree_anew(table: Table, truth: Truth) -> None:
    table.end(table.start())
    table.adder.boards.clear()
    table.step = replace(table.step, round=4)
    table.lay()
    table.end(table.start())
    right(table, truth)


def test_nobody_agrees_anew_without_keys_or_after_a_vote(table: Table) -> None:
    name = next(iter(table.sites))
    table.sites[name].start()
    again = table.office.envelope.seal(name, "again", {})
    with pytest.raises(MessageRefused, match="agrees again only if it had keys"):
        table.hand(again)
    table.lay()
    table.until("signed", table.start())
    with pytest.raises(MessageRefused, match="before it voted for a list"):
        table.hand(table.office.envelope.seal(name, "again", {}))


def test_in_one_process_two_sites_compute_their_key_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[set[str]] = []

    def agree(key: X25519PrivateKey, other: bytes, id: bytes, use: str, me: str, peer: str) -> bytes:
        pairs.extend([{me, peer}] if use == "pair" else [])
        return envelope.agree(key, other, id, use, me, peer)

    monkeypatch.setattr(masked_site, "agree", agree)
    table.until("inbox", table.start())
    assert len(pairs) == 6 * 5 // 2 and not table.adder.agreed


def test_keys_come_once(table: Table) -> None:
    letters = table.until("keys", table.start())
    m = letters[0]
    table.hand(m)
    site = table.sites[m.to]
    site.envelope.forget("keys")
    site.envelope.lines.clear()
    with pytest.raises(MessageRefused, match="expects no keys now"):
        table.hand(m)


def test_a_key_that_i_gave_away_before_is_not_mine(table: Table) -> None:
    """Shown its older key, rightly signed, a site would mask by a secret that is gone: it refuses."""
    letters = table.start()
    name = letters[0].sender
    table.sites[name].start()  # started anew: it has another key
    shown = next(m for m in table.until("keys", letters) if m.to == name)
    with pytest.raises(MessageRefused, match="another key as its own"):
        table.hand(shown)


def test_lists_have_no_strangers_no_doubles_and_are_long_enough(table: Table, truth: Truth) -> None:
    letters = table.until("inbox", table.start())
    m, names = letters[0], list(table.sites)
    others = [n for n in names if n != m.to]
    for bad in ([*names[:-1], "stranger"], [*names, names[-1]], names[::-1], ["a", *names]):
        table.refuses(m, "strangers or doubles", sites=bad)
    for bad in ([m.to, *others[:3]], others):
        table.refuses(m, "the threshold is 5", sites=sorted(bad))
    table.end(letters)
    right(table, truth)


def test_survivors_are_enough_and_with_me(table: Table, truth: Truth) -> None:
    letters = table.until("survivors", table.start())
    m, names = letters[0], tuple(table.sites)
    others = [n for n in names if n != m.to]
    for bad in ([m.to, *others[:3]], others):
        table.refuses(m, "the threshold is 5", sites=to_bits(sorted(bad), names))
    table.end(letters)
    right(table, truth)


def test_too_few_burn_and_everybody_is_told(table: Table) -> None:
    letters = table.until("masked", table.start())
    told = [a for m in letters[:4] for a in table.hand(m)] + table.office.deadline()
    assert sorted((m.kind, m.to) for m in told) == [("abort", s) for s in table.sites]
    assert table.office.result() == "aborted"
    assert table.office.deadline() == []
    for m in told:
        assert table.sites[m.to].result() == "pending"
        assert table.hand(m) == []
        assert table.sites[m.to].result() == "aborted"
    assert not table.adder.boards and not table.adder.sessions


def test_exactly_the_threshold_is_enough(table: Table, truth: Truth) -> None:
    letters = table.until("masked", table.start())
    queue = [a for m in letters[:5] for a in table.hand(m)] + table.office.deadline()
    table.end(queue)
    right(table, truth, [m.sender for m in letters[:5]])


def test_an_abort_after_my_part_is_over_changes_nothing_and_other_letters_are_refused(table: Table) -> None:
    letters = table.until("unmask", table.start())
    site = table.sites[letters[0].sender]
    assert site.result() == "done"
    assert table.hand(table.office.envelope.seal(site.me, "abort", {})) == []
    assert site.result() == "done"
    with pytest.raises(MessageRefused, match="had ended"):
        table.hand(table.office.envelope.seal(site.me, "again", {}))


def test_a_site_gives_up_after_two_deadlines_without_a_word(table: Table) -> None:
    letters = table.until("keys", table.start())
    m = letters[0]
    site = table.sites[m.to]
    site.deadline()
    table.hand(m)
    site.deadline()
    assert site.result() == "pending"
    site.deadline()
    assert site.result() == "aborted"


def bound_to(table: Table, names: Sequence[str], lost: str | None) -> list[Message]:
    """A second attempt after a list was signed in the first; the letters after ``lost``'s vector went missing."""
    table.promises = {s: Promises([Promise(0, tuple(names))]) if s in names else Promises() for s in table.sites}
    table.lay(attempt=1)
    letters = table.until("masked", table.start())
    answers = [a for m in letters if m.sender != lost for a in table.hand(m)]
    return answers if lost is None else [*answers, *table.office.deadline()]


def test_the_list_that_was_signed_before_or_none(table: Table, truth: Truth) -> None:
    names = list(table.sites)[1:]
    table.end(bound_to(table, names, None))
    right(table, truth, names)


def test_one_of_a_signed_list_is_missing(network: Network) -> None:
    roster, step, parts = network(6, 3)
    adder = Masked()
    table = Table(adder, adder.enrol(replace(roster, threshold=5)), step, parts)
    names = list(table.sites)
    told = bound_to(table, names, names[2])  # five vectors are enough, but not of the list that was signed
    assert {m.kind for m in told} == {"abort"}
    assert table.office.result() == "aborted"


def test_letters_before_their_time_are_refused_with_the_reason(table: Table, truth: Truth) -> None:
    name = next(iter(table.sites))
    queue = table.start()

    def early(kind: str, words: str, **body: object) -> None:
        with pytest.raises(MessageRefused, match=words):
            table.hand(table.office.envelope.seal(name, kind, body))

    early("inbox", "expects no shares now", sites=list(table.sites), sealed={})
    early("survivors", "after its vector was sent", sites=b"\xff")
    early("signatures", "has signed no list of survivors yet", voters=b"\xff", votes=b"")
    letters = table.until("survivors", queue)
    early("signatures", "has signed no list of survivors yet", voters=b"\xff", votes=b"")
    site = table.sites[name]
    site.envelope.forget("inbox")
    early("inbox", "expects no shares now", sites=list(table.sites), sealed={})
    signed = table.until("signed", letters)
    site.envelope.forget("survivors")
    early("survivors", "signs one list", sites=to_bits(list(table.sites), tuple(table.sites)))
    table.end(signed)
    right(table, truth)


def test_who_is_told_to_agree_anew_forgets_its_keys_at_once(table: Table) -> None:
    table.end(table.start())
    table.adder.boards.clear()
    table.step = replace(table.step, round=4)
    table.lay()
    name = next(iter(table.sites))
    assert table.sites[name].envelope.lines
    (vector,) = table.sites[name].start()
    (again,) = table.hand(vector)
    (fresh,) = table.hand(again)
    assert (vector.kind, again.kind, fresh.kind) == ("masked", "again", "advertise")
    assert (name, parties_digest(table.roster)) not in table.adder.sessions
    assert not table.sites[name].envelope.lines


def test_shares_come_once_also_where_there_are_secrets_for_one_sum_only(table: Table, truth: Truth) -> None:
    table.adder.slots = 1
    table.lay()
    letters = table.until("survivors", table.start())
    name = letters[0].to
    table.sites[name].envelope.forget("inbox")
    with pytest.raises(MessageRefused, match="expects no shares now"):
        table.hand(table.office.envelope.seal(name, "inbox", {"sites": list(table.sites), "sealed": {}}))
    table.end(letters)
    right(table, truth)


def test_the_coordinator_is_a_party_apart(table: Table) -> None:
    name = next(iter(table.sites))
    for other in (None, name):
        with pytest.raises(ConfigError, match="must be a party apart from the sites"):
            table.adder.exchange(name, replace(table.roster, coordinator=other), table.step, table.parts[name])
