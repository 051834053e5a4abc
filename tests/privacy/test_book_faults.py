"""The file of a book under faults: what is on disk when, who may read it, what is compared with what."""

from __future__ import annotations

import fcntl
import json
import os
import syslog
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import wait_until

from polyclinic.errors import LedgerError, PolicyRefusal
from polyclinic.privacy.accounting.accountant import Gaussian, Unbounded, epsilon
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.gate.gate import ReleaseGate, Waits
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.ledger import ledger_file as bookfile
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.ledger.entries import Approve, CloseLine, Gap, Note, Unknown, canonical, opened, sealed
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.reader import LedgerReader
from polyclinic.privacy.ledger.signed_head import LedgerKey, SignedHead
from polyclinic.privacy.policy.policy import Policy
from polyclinic.privacy.release import Contribution, Step


def charge(n: int = 0, **more: Any) -> Charge:
    return Charge(more.pop("study", "icu"), "dpem", n, "x", 0, more.pop("event", Gaussian(10.0)), **more)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- on disk before anything leaves


def test_a_line_is_on_disk_before_its_head_and_a_new_file_is_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "l.jsonl", []
    real = os.fsync

    def fsync(handle: Any) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    ledger = Ledger(path, site="n")
    ledger.charge(charge())
    mine = [p for p in synced if p in (path, tmp_path)]
    assert mine[:2] == [path, tmp_path], "the line, then the name of the new file"
    assert mine.count(path) == 2, "the key's line, and the charge"
    synced.clear()
    ledger.charge(charge(1))
    assert synced[0] == path


def test_files_are_closed_and_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "l.jsonl"
    ledger = Ledger(path, anchor=tmp_path / "else" / "where" / "head")
    ledger.charge(charge())
    before = open_files()
    for n in range(8):
        ledger.charge(charge(n))
        _ = ledger.head
    assert open_files() == before
    for suffix in ("", ".lock", ".key"):
        assert path.with_name(path.name + suffix).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "else" / "where" / "head").read_text() == path.with_name("l.jsonl.head").read_text()
    assert Ledger(path, anchor=tmp_path / "else" / "where" / "head").charge(charge(9))


def test_half_written_lines_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:7]))
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge())
    ledger.charge(charge(1))
    monkeypatch.undo()
    assert Ledger(tmp_path / "l.jsonl").verify() == ()
    assert len(Ledger(tmp_path / "l.jsonl").charges()) == 2


def test_a_book_that_another_holds_is_waited_for(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge())
    handle = os.open(tmp_path / "l.jsonl.lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    writer = threading.Thread(target=lambda: ledger.charge(charge(1)))
    writer.start()
    writer.join(0.4)
    assert writer.is_alive()
    assert len((tmp_path / "l.jsonl").read_bytes().splitlines()) == 2
    os.close(handle)
    writer.join(30)
    assert not writer.is_alive()
    assert len(ledger.charges()) == 2


def test_looking_makes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "none" / "l.jsonl", site="n")
    assert (ledger.tally.all.mu2, ledger.count) == (0.0, 0)
    assert not (tmp_path / "none").exists()


def test_a_book_is_read_on_only_where_somebody_else_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads = tmp_path / "l.jsonl", []
    real = LedgerReader.on

    def counted(self: Any, *a: Any) -> Any:
        reads.append(1)
        return real(self, *a)

    monkeypatch.setattr(LedgerReader, "on", counted)
    one = Ledger(path)
    for n in range(3):
        one.charge(charge(n))
    assert len(reads) == 1
    Ledger(path).charge(charge(3))
    reads.clear()
    assert len(one.charges()) == 4
    assert len(one.charges()) == 4
    assert len(reads) == 1
    one.repair()
    one.charge(charge(4))
    assert len(reads) == 1
    with open(path, "ab") as f:
        f.write(b'{"torn')
    two = Ledger(path)
    two.charge(charge(5))
    reads.clear()
    two.charge(charge(6))
    assert not reads


def test_snapshots_come_at_their_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bookfile.EVERY == 256
    monkeypatch.setattr(bookfile, "EVERY", 4)
    ledger = Ledger(tmp_path / "l.jsonl")
    counts = []
    for n in range(9):
        ledger.charge(charge(n))
        state = tmp_path / "l.jsonl.state"
        counts.append(json.loads(json.loads(state.read_text())["state"])["count"] if state.exists() else 0)
    assert counts == [0, 0, 4, 4, 4, 4, 8, 8, 8], "the first line is the key's"


def test_heads_go_to_the_system_log_where_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []  # type: ignore[var-annotated]
    monkeypatch.setattr(syslog, "syslog", told.append)
    Ledger(tmp_path / "quiet.jsonl").charge(charge())
    assert not told
    Ledger(tmp_path / "loud.jsonl", site="n", syslog=True).charge(charge())
    assert len(told) == 2
    assert "2 lines" in told[1]


# ---- heads


def test_heads_say_what_was_spent_or_are_light(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    ledger.charge(charge())
    full, light = ledger.head, ledger.light_head
    assert full.sealed and full.valid
    assert not light.sealed and light.valid
    assert (full.count, full.hash, full.site, full.book) == (light.count, light.hash, "n", light.book)
    memory = Ledger()
    memory.charge(charge())
    assert memory.head == SignedHead(1, memory.entries[-1].hash)
    assert memory.verify() == ()


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    for n in range(4):
        ledger.charge(charge(n))
    return ledger


def test_a_head_of_this_book_is_not_held_against_it(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = [book.head]
    for n in range(3):
        book.charge(charge(n))
        heads.append(book.light_head)
    for head in [*heads, SignedHead(0, "")]:
        assert book.against(head, "a friend") == []
        assert book.verify(anchor=head) == ()
    bare = SignedHead(heads[0].count, heads[0].hash)  # as versions before wrote it
    assert book.against(bare, "a friend") == []
    assert "rewritten" in book.against(replace(bare, hash="0" * 64), "a friend")[0]
    assert "cut or put back" in book.against(replace(heads[-1], count=99), "a friend")[0]
    assert "with its key" in book.against(replace(heads[0], key="ab" * 32), "a friend")[0]
    assert book.verify(anchor=replace(bare, hash="0" * 64))
    monkeypatch.setattr(bookfile, "EVERY", 1)
    book.charge(charge(9))
    later = Ledger(book.path, site="n")  # begins from the snapshot: the lines before it are looked up
    assert later.against(heads[0], "a friend") == []
    assert later.against(replace(bare, hash="0" * 64), "a friend")


def test_an_anchor_is_looked_at_when_a_book_is_opened_and_verified(tmp_path: Path) -> None:
    anchor = tmp_path / "head"
    ledger = Ledger(tmp_path / "l.jsonl", anchor=anchor)
    ledger.charge(charge())
    assert ledger.verify() == ()
    good = anchor.read_text()
    anchor.write_text("{")
    assert any("not readable" in f for f in ledger.verify())
    with pytest.raises(LedgerError):
        Ledger(tmp_path / "l.jsonl", anchor=anchor).charge(charge(1))
    anchor.write_text(json.dumps({**json.loads(good), "hash": "0" * 64}))
    assert any("put back or rewritten" in f for f in ledger.verify())
    with pytest.raises(LedgerError):
        Ledger(tmp_path / "l.jsonl", anchor=anchor).charge(charge(1))
    anchor.unlink()
    assert ledger.verify() == ()
    assert Ledger(tmp_path / "l.jsonl", anchor=anchor).charge(charge(1))
    assert anchor.exists()


def test_a_book_without_its_file_or_its_head_is_no_missing_book(book: Ledger) -> None:
    assert book.path is not None
    assert any("no such ledger" in f for f in Ledger(book.path.with_name("none.jsonl")).verify())
    saved = book.path.read_bytes()
    book.path.unlink()
    assert not any("no such ledger" in f for f in book.verify())
    assert book.verify()
    book.path.write_bytes(saved)
    book.path.with_name("l.jsonl.head").unlink()
    assert any("missing" in f for f in book.verify())
    with pytest.raises(LedgerError):
        Ledger(book.path).charge(charge())


def test_another_key_signs_nothing(book: Ledger, tmp_path: Path) -> None:
    other = Ledger(tmp_path / "other.jsonl")
    other.charge(charge())
    (tmp_path / "l.jsonl.key").write_bytes((tmp_path / "other.jsonl.key").read_bytes())
    with pytest.raises(LedgerError, match="another one"):
        Ledger(book.path).charge(charge(9))
    (tmp_path / "l.jsonl.key").unlink()
    with pytest.raises(LedgerError, match="missing"):
        Ledger(book.path).charge(charge(9))
    assert not (tmp_path / "l.jsonl.key").exists(), "no key is made for a book that has one"


def test_what_the_identity_signs_is_the_books_key(book: Ledger) -> None:
    words = []

    def sign(said: bytes) -> bytes:
        words.append(said)
        return b"s" * 64

    book.tie(b"i" * 32, sign)
    assert words == [b"polyclinic/book/2" + bytes.fromhex(book.head.key)]


# ---- questions


def test_charges_and_events_are_of_the_scope_that_was_asked_for(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl", site="n")
    ledger.charge(charge(0, study="a", cohort="x"))
    ledger.charge(charge(1, study="a", cohort="y"))
    ledger.charge(charge(2, study="b", cohort="x", event=Unbounded()))
    ledger.charge(charge(3, study="b", cohort="y", adjacency="entry", formal=False))
    ledger.write(Note("hello"))
    ledger.write(Gap(ledger.count + 2, "ab" * 32, "dpo", "fire", "x", (Gaussian(5.0),)))
    assert [c.round for c in ledger.charges()] == [0, 1, 2, 3]
    assert [c.round for c in ledger.charges(study="a")] == [0, 1]
    assert [c.round for c in ledger.charges(cohort="y")] == [1, 3]
    assert ledger.epsilon(1e-6) == float("inf")
    assert ledger.epsilon(1e-6, bounded=True) == pytest.approx(epsilon([Gaussian(10.0, 2), Gaussian(5.0)], 1e-6))
    assert ledger.epsilon(1e-6, cohort="y") == pytest.approx(epsilon([Gaussian(10.0)], 1e-6)), "the gap is x's"
    assert ledger.epsilon(1e-6, study="a") == pytest.approx(epsilon([Gaussian(10.0, 2)], 1e-6))
    assert ledger.epsilon(1e-6, cohort="y", adjacency="entry") == pytest.approx(
        epsilon([Gaussian(5.0), Gaussian(10.0)], 1e-6)
    ), "an entry pays a patient's charge twice over, and no gap"
    assert Ledger(ledger.path).export()["site"] == "n"
    assert Ledger(ledger.path, site="m").export()["site"] == "m"
    assert len(ledger.export()["lines"]) == ledger.export()["head"]["count"] - 2 == len(ledger.export()["entries"])  # type: ignore[arg-type, index]
    memory = Ledger()
    memory.charge(charge())
    assert memory.export()["lines"] == []


def test_a_newer_line_that_costs_leaves_no_bound(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge())
    ledger.write(Unknown("greeting", {"words": "hello"}))
    assert ledger.epsilon(1e-6) < 1
    ledger.write(Unknown("spent", {"event": {"kind": "new"}}))
    assert ledger.epsilon(1e-6) == float("inf")
    assert ledger.epsilon(1e-6, cohort="other") == float("inf")


def test_a_closed_order_is_closed_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    entry = ledger.close("o", "finished")
    assert entry is not None
    assert isinstance(entry.body, CloseLine)
    assert entry.body.sums == 0
    assert ledger.close("o", "finished") is None


def test_a_line_is_written_in_ascii_and_read_back(tmp_path: Path) -> None:
    entry, line = sealed(0, Note("Straße"), "0" * 64, "Köln")
    assert line.isascii() and line.endswith(b"\n")
    again, fits = opened(line.rstrip(b"\n"))
    assert fits and again == entry
    assert canonical({"b": 1, "a": [1, 2]}) == b'{"a":[1,2],"b":1}'
    spaced = json.dumps(json.loads(line), sort_keys=True).encode()
    assert not opened(spaced)[1], "another spelling is an edit"
    assert asdict(again)["site"] == "Köln"


def test_a_gap_owns_up_to_the_lines_it_speaks_of() -> None:
    tally = Balance()
    tally.gaps.append(["B", 5, 9, ["h1"]])
    assert [tally.owned_up("B", n, "x") for n in (4, 5, 6, 9, 10)] == [False, False, True, True, False]
    assert not tally.owned_up("C", 6, "x")
    assert tally.owned_up("C", 99, "h1")
    assert not Balance().owned_up("B", 6, "h1")


def test_the_head_file_is_signed_by_the_books_own_key(book: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl.head"
    good = book.head

    def verdict(head: SignedHead) -> list[str]:
        file.write_text(json.dumps(asdict(head)))
        return [f for f in Ledger(book.path).verify() if "signed by the book's key" in f]

    assert verdict(good) == []
    assert verdict(SignedHead(good.count, good.hash)), "without a signature whoever cuts lines writes a head, too"
    assert verdict(replace(good, signature="00" * 64))
    other = Ledger(tmp_path / "other.jsonl", site="n")
    other.charge(charge())
    assert verdict(replace(other.head, count=good.count, hash=good.hash))
    key = LedgerKey.of(tmp_path / "other.jsonl.key", make=False)
    assert key is not None
    bare = replace(good, key=key.public, signature="")
    assert verdict(replace(bare, signature=key.sign(bare.signed_words()).hex())), "a good signature of another key"


@pytest.mark.parametrize(("said", "leaves"), [(True, True), (False, False), (None, False)])
def test_a_release_leaves_when_the_owner_agrees_while_it_waits(tmp_path: Path, said: bool | None, leaves: bool) -> None:
    door = ReleaseGate(
        "n",
        policy=Policy(review="names"),
        ledger=Ledger(tmp_path / "l.jsonl"),
        store=tmp_path,
        run="o",
        waits=Waits(0.5 if said is None else 300.0),
    )
    box = Outbox(tmp_path / "outbox")
    step = Step(1, "x", {"x": (3,)}, bound=9.0)

    def owner() -> None:
        wait_until(box.all)
        if said is not None:
            box.decide(box.all()[0].id, approve=said, by="officer")

    person = threading.Thread(target=owner)
    person.start()
    try:
        if leaves:
            door.release(step, Contribution({"x": np.ones(3)}))
            assert [e.body.by for e in door.ledger.entries if isinstance(e.body, Approve)] == ["officer"]
            return
        with pytest.raises(PolicyRefusal, match="rejected" if said is False else "waits"):
            door.release(step, Contribution({"x": np.ones(3)}))
        assert [e.kind for e in door.ledger.entries if e.kind in ("approve", "reject")] == (
            ["reject"] if said is False else []
        )
    finally:
        person.join(300)


def test_agreement_ahead_while_it_waits_lets_it_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    door = ReleaseGate("n", policy=Policy(review="names"), ledger=ledger, store=tmp_path, run="o", waits=Waits(300.0))
    box = Outbox(tmp_path / "outbox")

    def owner() -> None:
        wait_until(box.all)
        Ledger(tmp_path / "l.jsonl").write(Approve("o", "x", "ahead", "officer"))

    person = threading.Thread(target=owner)
    person.start()
    door.release(Step(1, "x", {"x": (3,)}, bound=9.0), Contribution({"x": np.ones(3)}))
    person.join(300)
    assert sum(isinstance(e.body, Approve) for e in ledger.entries) == 1
