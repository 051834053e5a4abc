"""A book that was cut, put back, rewritten or deleted is found by a witness before anything more leaves."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from polyclinic.errors import LedgerError, MessageRefused
from polyclinic.privacy.accounting.accountant import Gaussian, Unbounded
from polyclinic.privacy.ledger.ledger import Charge, Ledger
from polyclinic.privacy.ledger.recovery import recover, what_is_left
from polyclinic.privacy.ledger.rollback_check import Relay, RollbackCheck, Seen
from polyclinic.privacy.ledger.signed_head import Known, LedgerKey, SignedHead, Witness, vouch_words

NAMES = ("east", "north", "south")


class Party:
    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        self.key = Ed25519PrivateKey.generate()
        self.public = self.key.public_key().public_bytes_raw()

    @property
    def book(self) -> Path:
        return self.folder / "l.jsonl"

    def charge(self, n: int = 1, multiplier: float = 10.0) -> None:
        for _ in range(n):
            Ledger(self.book, site=self.name).charge(Charge("icu", "dpem", 1, "x", 0, Gaussian(multiplier)))

    def watch(self, keys: dict[str, bytes], order: str = "o") -> RollbackCheck:
        witness, ledger = Witness(self.folder / "witness.json"), Ledger(self.book, site=self.name)
        return RollbackCheck(self.name, order, keys, witness, ledger, self.key.sign)


class Round:
    """One order: new processes at every site, and a coordinator that carries."""

    def __init__(self, parties: dict[str, Party], folder: Path, sites: tuple[str, ...] = NAMES) -> None:
        keys = {n: p.public for n, p in parties.items()}
        self.sites = sites
        self.watches = {n: parties[n].watch(keys) for n in sites}
        self.relay = Relay("o", keys, Witness(folder / "coordinator.json"))
        self.faults: list[str] = []

    def gossip(self, times: int = 3) -> None:
        for _ in range(times):
            self.relay.pass_on()
            for n, w in self.watches.items():
                self.faults += self.relay.heard(n, w.hear(self.relay.bundle(n)))

    def take(self, *names: str) -> None:
        for n in names or self.sites:
            self.watches[n].check(self.sites)


@pytest.fixture
def parties(tmp_path: Path) -> Any:
    made = {n: Party(n, tmp_path) for n in NAMES}
    for p in made.values():
        p.charge(3)
    return made


@pytest.fixture
def witnessed(parties: Any, tmp_path: Path) -> Any:
    """A first study went through, and everybody has everybody's head."""
    first = Round(parties, tmp_path)
    first.gossip()
    first.take()
    for p in parties.values():
        p.charge(2)
    first.gossip()
    assert not first.faults
    return parties


def _backup(p: Party, to: Path) -> None:
    shutil.copytree(p.folder, to)


def _put_back(p: Party, saved: Path) -> None:
    for f in saved.iterdir():
        if f.name.startswith("l.jsonl"):
            shutil.copy(f, p.folder / f.name)


def _cut(p: Party) -> None:
    key = LedgerKey.of(p.folder / "l.jsonl.key", make=False)
    lines = p.book.read_bytes().splitlines(keepends=True)[:-1]
    p.book.write_bytes(b"".join(lines))
    (p.folder / "l.jsonl.head").unlink()
    (p.folder / "l.jsonl.state").unlink(missing_ok=True)
    last = json.loads(lines[-1])
    book = json.loads(lines[0])["hash"]
    assert key is not None
    bare = SignedHead(len(lines), last["hash"], p.name, book, key.public)
    head = replace(bare, signature=key.sign(bare.signed_words()).hex())
    (p.folder / "l.jsonl.head").write_text(json.dumps(asdict(head)))
    assert not Ledger(p.book, site=p.name).verify(), "its owner, who has the key, cut it without a trace"


def _rewrite(p: Party) -> None:
    """As many lines, all signed with the right key, and cheaper."""
    n, key = Ledger(p.book).count, (p.folder / "l.jsonl.key").read_bytes()
    for f in p.folder.glob("l.jsonl*"):
        f.unlink()
    (p.folder / "l.jsonl.key").write_bytes(key)
    p.charge(n - 1, multiplier=1000.0)
    assert Ledger(p.book).count == n
    assert not Ledger(p.book).verify()


def _delete(p: Party) -> None:
    for f in p.folder.glob("l.jsonl*"):
        if not f.name.endswith(".key"):
            f.unlink()


def _delete_with_key(p: Party) -> None:
    for f in p.folder.glob("l.jsonl*"):
        f.unlink()
    p.charge(9)


DAMAGE = {f.__name__.strip("_"): f for f in (_cut, _rewrite, _delete, _delete_with_key)}


def test_honest_books_go_on(witnessed: Any, tmp_path: Path) -> None:
    again = Round(witnessed, tmp_path)
    again.gossip()
    again.take()
    assert not again.faults


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_book_is_found_before_anything_leaves(witnessed: Any, tmp_path: Path, name: str) -> None:
    DAMAGE[name](witnessed["north"])
    second = Round(witnessed, tmp_path)
    second.gossip()
    second.take("east", "south")
    with pytest.raises(LedgerError, match="releases are blocked"):
        second.take("north")
    assert not [k for k in Witness(tmp_path / "coordinator.json").about("north") if k.head.count < 6], (
        "what was not checked is not shown"
    )


def test_a_book_that_was_put_back_is_found(parties: Any, tmp_path: Path) -> None:
    _backup(parties["north"], tmp_path / "backup")
    first = Round(parties, tmp_path)
    first.gossip()
    first.take()
    parties["north"].charge(2)
    first.gossip()
    _put_back(parties["north"], tmp_path / "backup")
    assert not Ledger(parties["north"].book).verify()
    second = Round(parties, tmp_path)
    second.gossip()
    with pytest.raises(LedgerError, match="cut or put back"):
        second.take("north")


def test_one_witness_is_enough_and_the_head_travels_with_the_release(parties: Any, tmp_path: Path) -> None:
    """Nobody passed heads on: only the coordinator heard the light head that left with the release."""
    _backup(parties["north"], tmp_path / "backup")
    first = Round(parties, tmp_path)
    first.gossip()
    first.take()
    parties["north"].charge(1)
    assert first.relay.heard("north", first.watches["north"].hear()) == []
    _put_back(parties["north"], tmp_path / "backup")
    second = Round(parties, tmp_path)
    second.gossip()
    with pytest.raises(LedgerError, match="the coordinator knows of 5"):
        second.take("north")


def test_nothing_leaves_before_everybody_has_told_this_very_process(witnessed: Any, tmp_path: Path) -> None:
    old = Round(witnessed, tmp_path)
    old.gossip()
    new = Round(witnessed, tmp_path)
    new.watches["east"].hear(old.relay.bundle("east"))
    with pytest.raises(MessageRefused, match="north, south"):
        new.take("east")
    statements = [s for (about, _), s in old.relay._seen.items() if about == "east"]
    new.watches["east"].hear(json.dumps({"seen": [s.plain() for s in statements]}).encode())
    assert new.watches["east"].lacking(NAMES) == ("north", "south"), "an old nonce is worth nothing"


def test_statements_and_heads_cannot_be_made_up(witnessed: Any, tmp_path: Path) -> None:
    r = Round(witnessed, tmp_path)
    east = r.watches["east"]
    bare = Seen("east", "north", east.fresh)
    wrong = witnessed["south"].key.sign(bare.words("o")).hex()
    east.hear(json.dumps({"seen": [replace(bare, signature=wrong).plain()]}).encode())
    other_order = witnessed["north"].key.sign(bare.words("another order")).hex()
    east.hear(json.dumps({"seen": [replace(bare, signature=other_order).plain()]}).encode())
    assert "north" in east.lacking(NAMES)
    # a lie about east's book: another key, or no signature of east's under it
    key = LedgerKey(os.urandom(32))
    head = SignedHead(10**6, "ab" * 32, "east", "cd" * 32, key.public)
    head = replace(head, signature=key.sign(head.signed_words()).hex())
    lie = Known(head, witnessed["north"].key.sign(vouch_words(key.public)).hex())
    said = Seen("east", "north", east.fresh, (lie,))
    said = replace(said, signature=witnessed["north"].key.sign(said.words("o")).hex())
    east.hear(json.dumps({"seen": [said.plain()], "known": {"east": [lie.plain()], "south": [lie.plain()]}}).encode())
    assert "north" in east.lacking(NAMES)
    assert lie not in east.witness.about("south")
    r.gossip()
    r.take("east")


def test_a_statement_cannot_be_stripped_of_its_heads(witnessed: Any, tmp_path: Path) -> None:
    r = Round(witnessed, tmp_path)
    r.gossip(2)
    seen = r.relay._seen["east", "north"]
    assert seen.known
    keys = r.watches["east"].keys
    assert seen.holds("o", keys)
    assert not replace(seen, known=()).holds("o", keys)


@pytest.mark.parametrize(
    "bundle", [b"[]", b"7", b'{"seen": 3}', b'{"known": {"east": [1]}}', b'{"fresh": {"north": 4}}']
)
def test_bundles_that_say_nothing_are_as_if_they_had_not_come(witnessed: Any, tmp_path: Path, bundle: bytes) -> None:
    r = Round(witnessed, tmp_path)
    r.watches["east"].hear(bundle)
    assert r.relay.heard("east", bundle) == []
    r.gossip()
    r.take()


@pytest.mark.parametrize("bundle", [b"{", b"\xff", b"[" * 100_000, b"0" * (8 * 2**20 + 1)])
def test_bundles_that_cannot_be_read_are_refused(witnessed: Any, tmp_path: Path, bundle: Any) -> None:
    r = Round(witnessed, tmp_path)
    with pytest.raises(MessageRefused):
        r.watches["east"].hear(bundle)


def test_a_coordinator_flags_a_shorter_book_and_a_rewritten_one(witnessed: Any, tmp_path: Path) -> None:
    keep = Witness(tmp_path / "coordinator.json")
    known = max(keep.about("north"), key=lambda k: k.head.count)
    assert keep.shorter("north", replace(known.head, count=known.head.count - 1))
    assert not keep.shorter("north", known.head)
    key = LedgerKey.of(witnessed["north"].folder / "l.jsonl.key", make=False)
    other = replace(known.head, hash="ee" * 32)
    assert key is not None
    other = replace(other, signature=key.sign(other.signed_words()).hex())
    relay = Relay("o", {n: p.public for n, p in witnessed.items()}, keep)
    told = relay.heard("north", json.dumps({"known": [Known(other, known.proof).plain()]}).encode())
    assert any("rewritten" in t for t in told)
    heads = {k.head.hash for k in Witness(keep.path).about("north")}
    assert {known.head.hash, "ee" * 32} <= heads, "it is kept, with both heads as the proof"


def _another_book(p: Party, n: int) -> Known:
    path = p.folder / f"other{n}.jsonl"
    Ledger(path, site=p.name).charge(Charge("icu", "dpem", 1, "x", 0, Gaussian(10.0)))
    head = Ledger(path, site=p.name).head
    return Known(head, p.key.sign(vouch_words(head.key)).hex())


def test_new_books_do_not_push_out_a_head_that_was_kept(witnessed: Any, tmp_path: Path) -> None:
    """Who has a site's identity shows book after book, so that others forget the one in which much was spent."""
    p, witness = witnessed["north"], Witness(witnessed["south"].folder / "witness.json")
    before = witness.about("north")
    said = [witness.keep("north", _another_book(p, n)) for n in range(12)]
    assert set(before) <= set(witness.about("north"))
    assert not any(said[:7])
    assert all("not witnessed" in x for x in said[7:])
    for f in p.folder.glob("l.jsonl*"):
        f.unlink()
    p.charge(1)
    second = Round(witnessed, tmp_path)
    second.gossip()
    with pytest.raises(LedgerError, match="releases are blocked"):
        second.take("north")


def test_a_rewritten_book_of_another_site_is_in_the_log_once(witnessed: Any, tmp_path: Path) -> None:
    p, log = witnessed["north"], []
    head = Ledger(p.book, site="north").head
    key = LedgerKey.of(p.folder / "l.jsonl.key", make=False)
    bare = replace(head, hash="0" * 64, signature="")
    assert key is not None
    fork = Known(replace(bare, signature=key.sign(bare.signed_words()).hex()), p.key.sign(vouch_words(head.key)).hex())
    keys = {n: x.public for n, x in witnessed.items()}
    south = witnessed["south"]
    watch = RollbackCheck(
        "south",
        "o",
        keys,
        Witness(south.folder / "witness.json"),
        Ledger(south.book),
        south.key.sign,
        log=lambda **e: log.append(e),
    )
    for _ in range(2):
        watch.hear(json.dumps({"known": {"north": [fork.plain()], "south": []}}).encode())
    assert len(log) == 1
    assert (log[0]["event"], log[0]["site"]) == ("book", "north")
    assert "rewritten" in log[0]["reasons"][0]


@pytest.mark.parametrize("name", ["cut", "delete", "rewrite", "delete_with_key"])
def test_after_recovery_the_site_goes_on_and_pays_what_was_lost(witnessed: Any, tmp_path: Path, name: str) -> None:
    north = witnessed["north"]
    true = Ledger(north.book).tally.all.mu2
    DAMAGE[name](north)
    second = Round(witnessed, tmp_path)
    second.gossip()
    with pytest.raises(LedgerError):
        second.take("north")
    own = [k.head for k in second.watches["north"].witness.about("north")]
    assert own
    ledger = Ledger(north.book, site="north")
    found = what_is_left(ledger, own)
    assert found.faults
    recover(ledger, found, by="dpo", why="disk failure")
    after = Ledger(north.book, site="north")
    assert not after.verify()
    if name == "delete_with_key":
        assert after.tally.all.unbounded == 1
        assert Unbounded() in [e for x in after.entries if x.kind == "gap" for e in x.body.events]  # type: ignore[union-attr]
    else:
        assert after.tally.all.mu2 >= true * (1 - 1e-12)
    third = Round(witnessed, tmp_path)
    third.gossip()
    third.take()
    third.gossip()
    assert not third.faults


def test_recovery_keeps_what_was_spent_after_the_book_was_put_back(
    parties: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost: 2 charges; charged since: 1 more. All three are in the sum."""
    north = parties["north"]
    _backup(north, tmp_path / "backup")
    north.charge(2)
    known = Ledger(north.book).head
    summary = LedgerKey.of(north.folder / "l.jsonl.key", make=False).unseal(known.sealed)  # type: ignore[union-attr]
    _put_back(north, tmp_path / "backup")
    with monkeypatch.context() as m:  # a line's clock has whole seconds
        m.setattr("time.time", lambda: summary["time"] + 2.0)  # type: ignore[index]
        north.charge(1)
    ledger = Ledger(north.book, site="north")
    found = what_is_left(ledger, [known])
    assert found.spent == pytest.approx(2 / 100)
    recover(ledger, found, by="dpo", why="restored")
    assert Ledger(north.book).tally.all.mu2 == pytest.approx(6 / 100)


def test_many_processes_keep_one_witness_file(tmp_path: Path, parties: Any) -> None:
    one, two = Witness(tmp_path / "w.json"), Witness(tmp_path / "w.json")
    for n, w in (("north", one), ("south", two), ("east", one)):
        head = Ledger(parties[n].book, site=n).head
        proof = parties[n].key.sign(vouch_words(head.key)).hex()
        assert Known(head, proof).holds(n, parties[n].public)
        w.keep(n, Known(head, proof))
    assert all(len(w.about(n)) == 1 for w in (one, two) for n in NAMES)


def test_who_was_away_at_the_first_sum_is_heard_before_the_next(witnessed: Any, tmp_path: Path) -> None:
    """A book that was put back, and a coordinator that asks first over those who know nothing of it."""
    north = witnessed["north"]
    shutil.copytree(north.folder, tmp_path / "saved")
    north.charge(1)
    later = Round(witnessed, tmp_path)
    later.gossip()
    later.take()
    later.gossip()
    (witnessed["east"].folder / "witness.json").unlink()  # east has lost what it knew
    _put_back(north, tmp_path / "saved")
    now = Round(witnessed, tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    south = now.watches.pop("south")
    now.gossip()
    now.watches["north"].check(("east", "north"))  # nobody of these knows better
    now.watches["south"] = south
    now.gossip()
    with pytest.raises(LedgerError, match="others know more"):
        now.watches["north"].check(NAMES)
    assert not json.loads(now.watches["north"].hear())["known"]  # nor is its head shown any more
