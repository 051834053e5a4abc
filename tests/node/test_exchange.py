"""A carrier that owns the exchange folders: pipes, links, devices, floods and files without an end; nothing hangs, fills or is written through."""

from __future__ import annotations

import os
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from polyclinic.errors import MessageRefused
from polyclinic.node.courier import mailbox
from polyclinic.node.courier.exchange_folder import ExchangeFolder, HalfFile
from polyclinic.node.courier.mailbox import Mailbox
from polyclinic.node.courier.sealed_file import SealedFile, own_key
from polyclinic.protocol.wire.sealed import Identity

NAMES = ("north", "south", "coordinator")


class Exchange:
    """Three parties, each with its folders; ``said`` is what they log."""

    def __init__(self, root: Path) -> None:
        keys = {n: (Identity.generate(n), own_key(root / f"{n}.key")) for n in NAMES}
        self.root, self.said = root, list[dict[str, Any]]()
        self.boxes = {
            n: Mailbox(
                n,
                *keys[n],
                root / n / "in",
                root / n / "out",
                root / n / "home",
                {k: keys[k][0].public for k in NAMES if k != n},
                lambda **e: self.said.append(e),
            )
            for n in NAMES
        }
        for a in NAMES:
            for b in NAMES:
                shutil.copy(root / a / "out" / f"{a}.card", root / b / "in")
        for box in self.boxes.values():
            assert box.take() == []
        self.inbox = root / "coordinator" / "in"
        self.outbox = root / "coordinator" / "out"

    def sealed(self, data: bytes = b"x", sender: str = "north") -> Path:
        made = self.boxes[sender].put(SealedFile(sender, "coordinator", "answer", "ab", "01", data))
        assert made is not None
        return made

    def carry(self, path: Path) -> Path:
        return Path(shutil.copy(path, self.inbox / path.name))

    def take(self, seconds: float = 20.0) -> list[bytes]:
        """What the coordinator takes; fails if it hangs."""
        found: list[bytes] = []
        work = threading.Thread(
            target=lambda: found.extend(p.data for p in self.boxes["coordinator"].take()), daemon=True
        )
        work.start()
        work.join(seconds)
        assert not work.is_alive(), "the courier hangs"
        return found


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    return Exchange(tmp_path)


def name(n: int = 0, sender: str = "north", end: str = "pcf") -> str:
    return f"coordinator.{sender}.{n:032x}.{end}"


def odd(kind: str, path: Path, secret: Path) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(secret)
        case "dangling":
            path.symlink_to(path.parent / "nowhere")
        case "loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "twin":
            os.link(secret, path)
        case "up":
            path.symlink_to(Path("..") / ".." / secret.name)
        case "huge":
            with open(path, "wb") as f:
                f.truncate(2**40)  # sparse: a terabyte that takes no room
        case "half":
            path.write_bytes(b"PCF1" + struct.pack("<Q", 2**20) + bytes(40))
        case "endless":
            path.write_bytes(b"PCF1" + struct.pack("<Q", 2**62) + bytes(40))


KINDS = ("pipe", "link", "dangling", "loop", "device", "folder", "twin", "up", "huge", "endless")


@pytest.mark.parametrize("kind", [*KINDS, "half"])
def test_whatever_lies_in_the_inbox_honest_files_are_taken(exchange: Exchange, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"the owner's own")
    odd(kind, exchange.inbox / name(), secret)
    odd(kind, exchange.inbox / "stranger.card", secret)
    exchange.carry(exchange.sealed(b"honest"))
    assert exchange.take() == [b"honest"]
    assert exchange.take() == []
    named = [e["file"] for e in exchange.said if e["event"] == "message refused"]
    assert named == ([] if kind == "half" else [name()])  # one that is half may become whole
    assert secret.read_bytes() == b"the owner's own"
    assert "owner's own" not in str(exchange.said)
    assert exchange.boxes["coordinator"].waiting()["in_the_inbox"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_is_read_as_carefully(tmp_path: Path, kind: str) -> None:
    keys = {n: (Identity.generate(n), own_key(tmp_path / f"{n}.key")) for n in NAMES}
    pinned = {n: keys[n][0].public for n in NAMES}
    box = Mailbox("south", *keys["south"], *(tmp_path / x for x in ("in", "out", "home")), pinned)  # type: ignore[arg-type, call-arg]
    secret = tmp_path / "secret"
    secret.write_bytes(b"the owner's own")
    odd(kind, tmp_path / "in" / "north.card", secret)
    done = threading.Thread(target=box.take, daemon=True)
    done.start()
    done.join(20)
    assert not done.is_alive()
    assert not box.knows("north")


def test_a_pipe_with_a_writer_and_a_file_that_grows(exchange: Exchange) -> None:
    os.mkfifo(exchange.inbox / name())
    writer = os.open(exchange.inbox / name(), os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"PCF1")
    assert exchange.take() == []
    os.close(writer)
    folder = ExchangeFolder(exchange.inbox)
    path = exchange.inbox / "grows"
    path.write_bytes(bytes(100))

    def grow(head: bytes, size: int) -> bool:
        with open(path, "ab") as f:
            f.write(bytes(5000))
        return False

    with pytest.raises(MessageRefused, match="it grows"):
        folder.read("grows", 1000, grow)
    with pytest.raises(HalfFile):
        folder.read("grows", 10_000, lambda head, size: True)


def test_half_files_are_not_read_again_and_again(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = exchange.sealed(bytes(3_000_000)).read_bytes()
    for n in range(100):  # more than are taken at a time: those who wait do not keep others out
        (exchange.inbox / name(n)).write_bytes(whole[:-1])
    read, count = os.read, [0]

    def counted(handle: int, size: int) -> bytes:
        data = read(handle, size)
        count[0] += len(data)
        return data

    monkeypatch.setattr(os, "read", counted)
    exchange.carry(exchange.sealed(b"honest"))
    assert exchange.take() == [b"honest"]
    assert count[0] < 100_000


def test_a_flood_of_one_sender_delays_nobody_else(exchange: Exchange) -> None:
    made = [exchange.sealed(b"%d" % n) for n in range(mailbox.EACH + 10)]
    for path in made:
        exchange.carry(path)
    exchange.carry(exchange.sealed(b"south", sender="south"))
    first = exchange.take()
    assert len(first) == mailbox.EACH + 1
    assert b"south" in first
    assert len(exchange.take()) == 10


def test_a_flood_of_false_files_fills_neither_log_nor_memory(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "REFUSED", 20)
    for n in range(200):
        (exchange.inbox / name(n)).write_bytes(b"not one of ours" * 4)
        (exchange.inbox / name(n, sender="nobody")).write_bytes(b"")
    exchange.carry(exchange.sealed(b"honest"))
    assert b"honest" in [*exchange.take(), *exchange.take()]
    assert len([e for e in exchange.said if e["event"] == "message refused"]) == 20
    assert len([e for e in exchange.said if e["event"] == "failed"]) == 1
    assert exchange.boxes["coordinator"].waiting()["in_the_inbox"] == 20


def test_answers_that_are_asked_for_again_do_not_fill_the_disk(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "SENT", 70)
    monkeypatch.setattr(mailbox, "KEEP", 50_000)
    for n in range(3 * mailbox.EACH):
        exchange.boxes["north"].withdraw(exchange.sealed(b"%d" % n))
    kept = list((exchange.root / "north" / "home" / "sent").iterdir())
    assert len(kept) <= 70 + mailbox.EACH
    for _ in range(mailbox.EACH):
        exchange.boxes["north"].withdraw(exchange.sealed(bytes(10_000)))
    kept = list((exchange.root / "north" / "home" / "sent").iterdir())
    assert sum(p.stat().st_size for p in kept) <= 50_000 + mailbox.EACH * 10_100
    exchange.sealed(b"last")
    assert any(p.read_bytes().endswith(b"last") for p in (exchange.root / "north" / "home" / "sent").iterdir())


def test_nothing_is_written_through_a_link(exchange: Exchange, tmp_path: Path) -> None:
    """The carrier puts a link in the place of every file that appears in the outbox, as fast as it can."""
    secret, out, stop = tmp_path / "secret", exchange.root / "north" / "out", threading.Event()
    secret.write_bytes(b"the owner's own")
    swapped = [0]

    def carrier() -> None:
        while not stop.is_set():
            for path in list(out.iterdir()):
                if path.name.endswith(".card") or path.is_symlink():
                    continue
                try:
                    path.unlink()
                    path.symlink_to(secret)
                    swapped[0] += 1
                except OSError:
                    continue

    work = threading.Thread(target=carrier, daemon=True)
    work.start()

    def enough() -> bool:
        exchange.boxes["north"].put(SealedFile("north", "coordinator", "answer", "ab", "01", bytes(200_000)))
        return swapped[0] >= 5

    assert wait_until(enough, every=0.0)
    stop.set()
    work.join()
    assert secret.read_bytes() == b"the owner's own"


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "twin", "pipe", "loop"])
def test_a_place_in_the_outbox_that_is_taken_is_no_end(exchange: Exchange, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"the owner's own")
    place = exchange.outbox / "coordinator.card"
    card = place.read_bytes()
    place.unlink()
    odd(kind, place, secret)
    odd(kind, exchange.outbox / f"north.coordinator.{7:032x}.pcf", secret)
    box = exchange.boxes["coordinator"]
    box.show_card()
    if kind == "folder":
        assert [e["event"] for e in exchange.said] == ["failed"]  # said once, and tried again later
        box.show_card()
        assert len(exchange.said) == 1
    else:
        assert place.read_bytes() == card
        assert not place.is_symlink()
    assert secret.read_bytes() == b"the owner's own"
    assert box.waiting()["to_be_carried"] == 1  # what lies there is counted, not opened


def test_folders_that_are_away_come_back(exchange: Exchange) -> None:
    box = exchange.boxes["coordinator"]
    aside = exchange.root / "aside"
    shutil.move(exchange.root / "coordinator" / "in", aside)
    shutil.rmtree(exchange.outbox)
    assert exchange.take() == []
    assert exchange.take() == []
    assert box.put(SealedFile("coordinator", "north", "ask", "ab", "01", b"x")) is None
    box.waiting()
    assert [e["event"] for e in exchange.said] == ["failed", "failed"]
    shutil.move(aside, exchange.root / "coordinator" / "in")
    exchange.outbox.mkdir()
    exchange.carry(exchange.sealed(b"honest"))
    assert exchange.take() == [b"honest"]
    assert box.put(SealedFile("coordinator", "north", "ask", "ab", "01", b"x")) is not None
