"""A source has one book: what counts as the same records, who may pay for them, and what becomes of the register under faults."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.gates import door_of

from polyclinic.config import Node
from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.data_source import Claim, Register, places_of, state_folder
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.policy.policy import Policy, StudyRequest

LIMIT = {"max_epsilon_total": 1.0}


def node(folder: Path, name: str = "north", events: str = "e.csv", **more: Any) -> Node:
    folder.mkdir(parents=True, exist_ok=True)
    source = {"kind": "files", "events": events, **more.pop("source", {})}
    site = {"name": name, **more.pop("site", {})}
    return Node.parse({"site": site, "source": source, "policy": LIMIT, **more}, folder=folder)


def omop(url: str, **more: Any) -> Node:
    return Node.parse({"site": {"name": "n"}, "source": {"kind": "omop", "url": url, **more}})


def admit(owner: Node, study: str = "icu", epsilon: float | None = 0.5) -> ReleaseGate:
    door = door_of(owner)
    door.admit(study, "dpem", None if epsilon is None else Privacy(epsilon), 3, 50)
    return door


# ---- the same records


def test_a_second_node_file_is_no_second_budget(tmp_path: Path, own_state: Path) -> None:
    first = node(tmp_path / "a", events="../e.csv")
    admit(first)
    admit(first, "again", 0.1)  # the same book goes on
    second = node(tmp_path / "b", "south", "../e.csv")
    with pytest.raises(PolicyRefusal) as told:
        admit(second)
    (fault,) = told.value.faults
    assert "'north'" in fault and "second budget" in fault and "[ledger] path" in fault
    assert fault.startswith(f"{tmp_path / 'e.csv'} is paid for by the book {ledger_of(first).path.resolve()}")  # type: ignore[union-attr]
    assert not ledger_of(second).charges() and not ledger_of(second).tally.open
    assert json.loads((own_state / "sources.json").read_text())["books"][0]["book"].endswith("north.ledger.jsonl")
    same = node(tmp_path / "b", "south", "../e.csv", ledger={"path": "../a/north.ledger.jsonl"})
    admit(same, "with the first one's book", 0.1)
    with pytest.raises(PolicyRefusal, match="with this study"):
        admit(same, "and its budget", 0.9)


def test_of_two_that_were_both_looked_at_one_gets_the_records(tmp_path: Path) -> None:
    rules = Policy.model_validate(LIMIT)
    first, second = (BudgetHolder(rules, ledger_of(node(tmp_path / n, n, "../e.csv"))) for n in ("a", "b"))
    for payer in (first, second):
        assert payer.study_faults(StudyRequest("icu", "dpem", Privacy(0.5), 3, 50, "o")) == []
    assert first.reserve("o", "icu", Privacy(0.5), 0.0, 60.0) == []
    assert "is paid for by the book" in second.reserve("o", "icu", Privacy(0.5), 0.0, 60.0)[0]
    assert second.ledger.count == 0


def test_another_name_for_one_node_file_is_no_second_budget(tmp_path: Path) -> None:
    owner = node(tmp_path)
    admit(owner)
    with pytest.raises(PolicyRefusal, match="is paid for by the book"):
        admit(owner.named("south"))


def test_a_file_without_a_limit_does_not_undo_the_limit_of_another(tmp_path: Path) -> None:
    admit(node(tmp_path / "a", events="../e.csv"))
    loose = node(tmp_path / "b", "south", "../e.csv", policy={})
    with pytest.raises(PolicyRefusal, match="is paid for by the book"):
        admit(loose, epsilon=0.5)
    admit(
        loose, epsilon=None
    )  # spends nothing of a budget: whether exact sums leave is for the other rules of its owner


def test_without_any_limit_nothing_is_asked_or_written(tmp_path: Path, own_state: Path) -> None:
    for name in ("a", "b"):
        admit(node(tmp_path / name, name, "../e.csv", policy={}))
    assert not own_state.exists()


def test_no_real_patient_no_budget(tmp_path: Path, own_state: Path) -> None:
    for name in ("a", "b"):
        admit(node(tmp_path / name, name, "../e.csv", site={"rehearsal": True}))
    assert not own_state.exists()


def test_cohorts_that_the_owner_calls_disjoint_have_each_a_book(tmp_path: Path) -> None:
    apart = {**LIMIT, "cohorts_disjoint": True}
    admit(node(tmp_path / "a", "a", "../e.csv", policy=apart, ledger={"cohort": "adults"}))
    admit(node(tmp_path / "b", "b", "../e.csv", policy=apart, ledger={"cohort": "children"}))
    for rules, cohort in ((apart, "adults"), (LIMIT, "elders")):
        with pytest.raises(PolicyRefusal, match="is paid for by the book"):
            admit(node(tmp_path / "c", "c", "../e.csv", policy=rules, ledger={"cohort": cohort}))


def test_other_records_have_other_books(tmp_path: Path) -> None:
    admit(node(tmp_path / "a"))
    admit(node(tmp_path / "b"))
    admit(node(tmp_path / "c", events="../a/e.csv2"))


def test_links_patterns_and_folders_are_what_they_hold(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("x-1.csv", "x-2.csv", "y-1.csv"):
        (data / name).touch()
    (tmp_path / "link.csv").symlink_to(data / "x-1.csv")
    (tmp_path / "way").symlink_to(data)

    def claim(name: str, events: str) -> Claim:
        return Claim(name, name, places_of(node(tmp_path / "n", events=f"../{events}")))

    whole, xs, ys = claim("1", "data"), claim("2", "data/x-*.csv"), claim("3", "data/y-?.csv")
    assert xs.places == (str(data / "x-1.csv"), str(data / "x-2.csv"))
    assert whole.shares(xs) and xs.shares(whole) and ys.shares(whole)
    assert not xs.shares(ys) and not ys.shares(xs)
    assert claim("4", "link.csv").shares(xs) == [str(data / "x-1.csv")]
    assert claim("5", "way/y-1.csv").shares(ys)
    assert not claim("6", "data2").shares(whole), "a name that begins alike is another folder"
    assert not whole.shares(claim("1", "data")), "its own claim"


def test_a_database_is_its_host_name_schema_and_people(monkeypatch: pytest.MonkeyPatch) -> None:
    base = places_of(omop("postgresql://me:secret@db.local/ehr"))
    assert base == ("postgresql://db.local:5432/ehr public.person",)
    for url in ("postgres://you@DB.local:5432/ehr?sslmode=require", "env:URL"):
        monkeypatch.setenv("URL", "postgresql://other:pw@db.local/ehr")
        assert places_of(omop(url)) == base
    assert places_of(omop("postgresql://db.local/ehr", tables={"drug_exposure": "drugs"})) == base
    others = [
        omop("postgresql://db.local:5433/ehr"),
        omop("postgresql://db2.local/ehr"),
        omop("postgresql://db.local/ehr2"),
        omop("postgresql://db.local/ehr", schema="cdm"),
        omop("postgresql://db.local/ehr", tables={"person": "person_south"}),
    ]
    assert len({base, *map(places_of, others)}) == 6
    warehouse = places_of(omop("databricks://host/sql/1.0/warehouses/a?catalog=main"))
    assert warehouse == places_of(omop("databricks://host/sql/1.0/warehouses/b?catalog=main"))
    assert warehouse != places_of(omop("databricks://host/sql/1.0/warehouses/a?catalog=other"))
    odbc = places_of(omop("odbc:DSN=hospital;UID=me;PWD=secret"))
    assert odbc == places_of(omop("odbc:dsn=Hospital;Uid=you")) != places_of(omop("odbc:DSN=other;UID=me"))
    monkeypatch.delenv("URL")
    with pytest.raises(ConfigError, match="URL"):
        places_of(omop("env:URL"))
    odd = places_of(omop("host=db password=hunter2"))
    assert "hunter2" not in odd[0] and odd != places_of(omop("host=db2 password=hunter2"))


def test_a_database_without_a_host_is_its_words() -> None:
    found = [places_of(omop(u)) for u in ("postgresql:///clinic", "postgresql:///other", "//host/clinic")]
    assert all(p.startswith("database:") for (p,) in found) and len(set(found)) == 3


def test_options_of_a_plugged_source_are_the_same_in_any_order() -> None:
    plain = omop("x")

    def place(options: dict[str, object]) -> tuple[str, ...]:
        return places_of(plain.model_copy(update={"source": plain.source.model_copy(update={"options": options})}))

    assert place({"a": 1, "b": 2}) == place({"b": 2, "a": 1}) != place({"a": 1, "b": 3})


def test_where_the_users_state_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYCLINIC_STATE", str(tmp_path))
    assert state_folder() == tmp_path
    monkeypatch.delenv("POLYCLINIC_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "polyclinic"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local/state/polyclinic"


# ---- the register


def claims(n: int, place: str = "") -> Claim:
    return Claim(f"/books/{n}.jsonl", f"s{n}", (place or f"/data/{n}",))


def test_of_many_that_ask_at_once_one_gets_the_records(tmp_path: Path) -> None:
    register, won, gate = Register(tmp_path / "sources.json"), [], threading.Barrier(8)

    def ask(n: int) -> None:
        gate.wait()
        if not register.claim(claims(n, "/data/one")) and not register.claim(claims(100 + n)):
            won.append(n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(won) == 1
    written = json.loads((tmp_path / "sources.json").read_text())
    books = written["books"]
    assert written["version"] == 1
    assert sorted(b["site"] for b in books) == sorted([f"s{won[0]}", f"s{100 + won[0]}"])


def test_a_book_whose_records_moved_is_written_once(tmp_path: Path) -> None:
    register = Register(tmp_path / "s" / "sources.json")
    assert register.claim(claims(1)) == []
    before = (tmp_path / "s" / "sources.json").stat().st_mtime_ns
    assert register.claim(claims(1)) == []
    assert (tmp_path / "s" / "sources.json").stat().st_mtime_ns == before, "nothing new, nothing written"
    assert register.claim(claims(1, "/elsewhere")) == []
    assert register.faults(claims(2, "/data/1")) == []
    assert register.faults(claims(2, "/elsewhere/part.csv"))
    assert (os.stat(tmp_path / "s").st_mode & 0o077, os.stat(tmp_path / "s/sources.json").st_mode & 0o077) == (0, 0)


def test_a_book_that_is_gone_still_paid(tmp_path: Path) -> None:
    register = Register(tmp_path / "sources.json")
    register.claim(claims(1))
    (fault,) = register.faults(claims(2, "/data/1"))
    assert "which is gone" in fault and "backup" in fault
    (tmp_path / "1.jsonl").touch()
    register.claim(Claim(str(tmp_path / "1.jsonl"), "t", ("/data/t",)))
    assert "which is gone" not in register.faults(claims(2, "/data/t"))[0]


@pytest.mark.parametrize("words", ["{", "[]", '{"books": [{}]}', '{"books": 3}', ""])
def test_a_register_that_is_not_readable_refuses(tmp_path: Path, words: str) -> None:
    (tmp_path / "sources.json").write_text(words)
    register = Register(tmp_path / "sources.json")
    assert "not readable" in register.faults(claims(1))[0]
    assert "not readable" in register.claim(claims(1))[0]
    assert (tmp_path / "sources.json").read_text() == words


def test_where_nothing_can_be_written_a_site_goes_on_and_its_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert Register(tmp_path / "file" / "sources.json").claim(claims(1)) == []
    assert "not written down" in caplog.text
    caplog.clear()
    assert Register(None).claim(claims(1)) == []
    assert "not written down" in caplog.text


def test_a_register_that_cannot_be_opened_is_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sources.json").mkdir()  # in the place of the file: also root cannot read it
    mine = Claim("b.jsonl", "north", ("file:/e.csv",), "")
    assert Register(tmp_path / "sources.json").faults(mine) == []
    assert "which book pays for which records cannot be read" in caplog.text
