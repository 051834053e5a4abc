"""The ledger cannot be changed unseen, and never counts too little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.errors import LedgerError
from polyclinic.privacy.accounting.accountant import Gaussian, Unbounded
from polyclinic.privacy.ledger.ledger import Charge, Ledger, SignedHead
from polyclinic.privacy.ledger.signed_head import LedgerKey


def charge(n: int = 1, study: str = "icu", **more: Any) -> Charge:
    return Charge(study, "dpem", n, "statistics", 0, more.pop("event", Gaussian(10.0)), **more)


@pytest.fixture
def full(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.jsonl", site="north")
    for n in range(6):
        ledger.charge(charge(n))
    return ledger


def lines(ledger: Ledger) -> list[bytes]:
    assert ledger.path is not None
    return ledger.path.read_bytes().splitlines(keepends=True)


def test_it_survives_across_studies_and_processes(full: Ledger) -> None:
    full.charge(charge(0, study="sepsis"))
    again = Ledger(full.path, site="north")
    assert again.verify() == ()
    assert again.entries == full.entries
    assert again.epsilon(1e-6) == Ledger(full.path).epsilon(1e-6) > again.epsilon(1e-6, study="icu")
    assert len(again.charges(study="sepsis")) == 1


def edited(old: bytes, new: bytes) -> Any:
    def change(data: list[bytes]) -> list[bytes]:
        assert old in data[2]
        return [*data[:2], data[2].replace(old, new, 1), *data[3:]]

    return change


TAMPERS = {
    "value edited": edited(b'"multiplier":10.0', b'"multiplier":90.0'),
    "study renamed": edited(b'"study":"icu"', b'"study":"icx"'),
    "spelling changed": edited(b'"formal":true', b'"formal": true'),
    "line removed": lambda d: [*d[:2], *d[3:]],
    "first line removed": lambda d: d[1:],
    "last line removed": lambda d: d[:-1],
    "last three lines removed": lambda d: d[:-3],
    "lines swapped": lambda d: [d[0], d[2], d[1], *d[3:]],
    "line doubled": lambda d: [*d[:3], d[2], *d[3:]],
    "everything removed": lambda d: [],
    "last line cut": lambda d: [*d[:-1], d[-1][:40]],
    "garbage": lambda d: [*d[:3], b"hello\n", *d[3:]],
}


@pytest.mark.parametrize("name", TAMPERS)
def test_verify_finds(full: Ledger, name: str) -> None:
    assert full.path is not None
    full.path.write_bytes(b"".join(TAMPERS[name](lines(full))))
    assert full.verify(), name
    with pytest.raises(LedgerError, match="releases are blocked") as e:
        Ledger(full.path).charge(charge(9))
    assert e.value.exit_code == 4


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    ledger = Ledger(tmp_path_factory.mktemp("sample") / "ledger.jsonl", site="north")
    for n in range(4):
        ledger.charge(charge(n))
    assert ledger.path is not None
    return ledger.path, ledger.path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_changed_byte_any_cut_and_any_order_is_found(sample: tuple[Path, bytes], data: Any) -> None:
    path, whole = sample
    kind = data.draw(st.sampled_from(["byte", "cut", "lines"]))
    if kind == "byte":
        at = data.draw(st.integers(0, len(whole) - 1))
        other = data.draw(st.integers(0, 255).filter(lambda b: b != whole[at]))
        broken = whole[:at] + bytes([other]) + whole[at + 1 :]
    elif kind == "cut":
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        parts = whole.splitlines(keepends=True)
        order = data.draw(st.lists(st.integers(0, len(parts) - 1), max_size=6).filter(lambda o: o != [0, 1, 2, 3, 4]))
        broken = b"".join(parts[i] for i in order)
    path.write_bytes(broken)
    try:
        assert Ledger(path).verify()
    finally:
        path.write_bytes(whole)


def rewritten(lines: list[bytes], at: int, key: LedgerKey | None = None, **event: Any) -> list[bytes]:
    """All lines with one changed and everything after it chained anew, signed with a key or with what was there."""
    import hashlib

    from polyclinic.privacy.ledger.entries import canonical, to_sign

    out, previous = [], json.loads(lines[0])["previous"]
    for n, line in enumerate(lines):
        value = json.loads(line)
        signature = value.pop("signature")
        value.pop("hash")
        if n == at:
            value["body"]["event"] |= event
        value["previous"] = previous
        previous = hashlib.sha256(canonical(value)).hexdigest()
        signature = signature if key is None else key.sign(to_sign(previous)).hex()
        out.append(canonical({**value, "hash": previous, "signature": signature}) + b"\n")
    return out


def test_a_line_that_was_edited_with_a_fitting_hash_breaks_the_chain(full: Ledger) -> None:
    data = lines(full)
    data[2] = rewritten(data, 2, multiplier=90.0)[2]
    assert full.path is not None
    full.path.write_bytes(b"".join(data))
    assert any("does not follow" in f for f in full.verify())


def test_a_book_that_is_chained_anew_is_found_without_its_key_by_signatures_and_with_it_by_an_anchor(
    full: Ledger, tmp_path: Path
) -> None:
    """ATTACKS row 24: every line rewritten and re-chained, the head too."""
    from dataclasses import asdict, replace

    anchor = full.head
    kept = lines(full)
    assert full.path is not None
    for key in (None, LedgerKey(os.urandom(32)), LedgerKey.of(full.path.with_name("ledger.jsonl.key"), make=False)):
        data = rewritten(kept, 2, key, multiplier=90.0)
        full.path.write_bytes(b"".join(data))
        head = full.path.with_name("ledger.jsonl.head")
        end = replace(anchor, count=len(data), hash=json.loads(data[-1])["hash"])
        own = key is not None and key.public == anchor.key
        if key is not None:
            end = replace(end, signature=key.sign(end.signed_words()).hex())
        head.write_text(json.dumps(asdict(end)))
        found = Ledger(full.path).verify()
        assert any(f.startswith("line") and "signed" in f for f in found) != own
        assert Ledger(full.path).verify(anchor=anchor)
        full.path.with_name("ledger.jsonl.state").unlink(missing_ok=True)


@pytest.mark.parametrize("what", ["ledger.jsonl", "ledger.jsonl.head", "both", "put back"])
def test_a_book_that_was_deleted_or_put_back_is_found_by_its_anchor(tmp_path: Path, what: str) -> None:
    """ATTACKS row 24: head and lines deleted, or both put back."""
    path, anchor = tmp_path / "ledger.jsonl", tmp_path / "elsewhere" / "head"
    ledger = Ledger(path, anchor=anchor)
    ledger.charge(charge(0))
    old = {p: p.read_bytes() for p in tmp_path.glob("ledger.jsonl*")}
    ledger.charge(charge(1))
    for p in tmp_path.glob("ledger.jsonl*"):
        if what == "put back":
            p.write_bytes(old[p])
        elif p.name == what or (what == "both" and p.suffix != ".key"):
            p.unlink()
    with pytest.raises(LedgerError, match="releases are blocked"):
        Ledger(path, anchor=anchor).charge(charge(2))


def test_head_file_removed_or_changed_is_found(full: Ledger) -> None:
    assert full.path is not None
    head = full.path.with_name("ledger.jsonl.head")
    kept = head.read_text()
    head.unlink()
    assert full.verify()
    assert '"count": 7' in kept, "six charges, and the line that begins the book"
    head.write_text(kept.replace('"count": 7', '"count": 6'))
    assert full.verify()
    head.write_text("{")
    assert full.verify()


def test_a_ledger_put_back_whole_is_found_by_the_exported_head(full: Ledger) -> None:
    assert full.path is not None
    old = {p: p.read_bytes() for p in full.path.parent.iterdir()}
    full.charge(charge(7))
    anchor = SignedHead(**full.export()["head"])  # type: ignore[arg-type]
    assert full.verify(anchor=anchor) == ()
    for p, data in old.items():
        p.write_bytes(data)
    back = Ledger(full.path)
    assert back.verify() == ()
    assert back.verify(anchor=anchor)


def test_crash_after_the_line_and_before_the_head_keeps_the_charge(full: Ledger) -> None:
    assert full.path is not None
    head = full.path.with_name("ledger.jsonl.head")
    old = head.read_bytes()
    full.charge(charge(6))
    head.write_bytes(old)  # as if the process died between the two writes
    again = Ledger(full.path)
    assert again.verify() == ()
    assert len(again.charges()) == 7
    again.charge(charge(7))
    assert Ledger(full.path).verify() == ()


def test_a_second_crash_before_the_head_leaves_a_ledger_that_goes_on(full: Ledger) -> None:
    class Died(BaseException):
        pass

    for n in (6, 7, 8):  # a process that always dies between its line and the head, and starts again

        class Dies(Ledger):
            def _write_head(self) -> None:
                if self._reading.count > n + 1:  # noqa: B023 - used in this turn only
                    raise Died
                super()._write_head()

        with pytest.raises(Died):
            Dies(full.path).charge(charge(n))
    again = Ledger(full.path)
    assert again.verify() == ()
    assert len(again.charges()) == 9


def test_torn_line_of_a_crash_is_repaired_and_noted(full: Ledger) -> None:
    with open(full.path, "ab") as f:  # type: ignore[arg-type]
        f.write(b'{"charge":{"adjac')
    assert any("not complete" in f for f in full.verify())
    again = Ledger(full.path)
    assert [e.kind for e in again.entries][-1] == "note"
    assert len(again.charges()) == 6
    assert again.verify() == ()


def test_a_full_disk_stops_the_release(full: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(LedgerError, match="could not be written"):
        full.charge(charge(6))


def test_concurrent_processes_share_one_chain(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from polyclinic.privacy.accounting.accountant import Gaussian
        from polyclinic.privacy.ledger.ledger import Charge, Ledger
        ledger = Ledger(sys.argv[1])
        for n in range(25):
            ledger.charge(Charge(sys.argv[2], "m", n, "s", 0, Gaussian(10.0)))
    """)
    path = tmp_path / "ledger.jsonl"
    workers = [subprocess.Popen([sys.executable, "-c", code, str(path), f"study {k}"]) for k in range(2)]
    assert [w.wait(60) for w in workers] == [0, 0]
    ledger = Ledger(path)
    assert ledger.verify() == ()
    assert len(ledger.charges()) == 50
    assert len(ledger.charges(study="study 1")) == 25


def test_killing_between_charge_and_release_never_undercounts(tmp_path: Path) -> None:
    """A process that kills itself after the charge and before its release has a name leaves the charge; going on pays nothing."""
    code = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from polyclinic.privacy.gate.gate import ReleaseGate
        from polyclinic.privacy.ledger.ledger import Ledger
        from polyclinic.privacy.release import Contribution, Step
        from polyclinic.privacy.gate.release_store import ReleaseStore
        folder = Path(sys.argv[1])
        door = ReleaseGate("north", ledger=Ledger(folder / "ledger.jsonl"), study="icu", store=folder / "out", run="7f")
        if sys.argv[2] == "die":
            ReleaseStore.keep = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        step = Step(1, "statistics", {"x": (2,)}, bound=9.0, sensitivity=1.0, multiplier=10.0)
        door.release(step, Contribution({"x": np.ones(2)}), share=1.0, attempt=0)
    """)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), "die"], check=False)
    assert done.returncode == -signal.SIGKILL
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.verify() == ()
    assert len(ledger.charges()) == 1
    assert not list((tmp_path / "out").glob("*.npz"))
    subprocess.run([sys.executable, "-c", code, str(tmp_path), "go on"], check=True)
    assert len(ledger.charges()) == 1
    assert len(list((tmp_path / "out").glob("*.npz"))) == 1


def test_unbounded_releases_leave_no_bound_but_stay_visible(full: Ledger) -> None:
    bounded = full.epsilon(1e-6)
    full.charge(charge(6, event=Unbounded()))
    assert full.epsilon(1e-6) == float("inf")
    assert full.epsilon(1e-6, bounded=True) == bounded


def test_cohorts_and_adjacencies_have_their_own_accounts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.jsonl")
    ledger.charge(charge(0, cohort="adults"))
    ledger.charge(charge(0, cohort="children"))
    ledger.charge(charge(0, adjacency="entry", formal=False, cohort="adults"))
    assert ledger.epsilon(1e-6, cohort="adults") == ledger.epsilon(1e-6, cohort="children")
    assert sum(c.adjacency == "entry" for c in ledger.charges()) == 1


def test_files_are_for_the_owner_only(full: Ledger) -> None:
    assert full.path is not None
    assert full.path.stat().st_mode & 0o077 == 0


def test_verify_of_a_missing_ledger_says_so(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none.jsonl").verify()
