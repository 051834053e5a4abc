"""Health and metrics: what they say, how fast, and that nothing listens unless the owner asked for it."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

pytest.importorskip("nvflare")
pytest.importorskip("prometheus_client")

import hospitals

from polyclinic.config import Node
from polyclinic.errors import ConfigError
from polyclinic.node.enrolment import folders
from polyclinic.node.enrolment.folders import SiteFolder, append_event, read_events
from polyclinic.node.enrolment.processes import free_port, port_open
from polyclinic.node.monitor.metrics import exposition
from polyclinic.node.monitor.process import begin, finish
from polyclinic.node.monitor.serve import Notices, StatusBoard, StudyWatch, server
from polyclinic.node.monitor.snapshot import Budget, Snapshot, StudyState, _study, site_snapshot
from polyclinic.privacy.accounting.accountant import Gaussian
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.gate.owner_rules import ledger_of

ROOT = Path(__file__).parents[3]

GOOD = Snapshot(
    "north",
    "site",
    "running",
    True,
    (),
    True,
    True,
    200.0,
    (Budget("all", 1e-6, 1.5, 2.5),),
    (StudyState("icu-1", "ready", 7, 9, 1600.0), StudyState("icu-2", "waiting", waiting={"owner": 12.0})),
    asked=("icu-2",),
)


def _samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text.decode())
        for s in family.samples
    }


def test_metrics_are_openmetrics_and_say_what_a_snapshot_says() -> None:
    found = _samples(exposition(GOOD))
    assert found["polyclinic_healthy", ()] == 1
    assert found["polyclinic_certificate_days", ()] == 200
    assert found["polyclinic_epsilon_left", (("cohort", "all"), ("delta", "1e-06"))] == 2.5
    assert found["polyclinic_study_round", (("study", "icu-1"),)] == 7
    assert found["polyclinic_releases_total", (("study", "icu-1"),)] == 9
    assert found["polyclinic_bytes_total", (("study", "icu-1"), ("way", "up"))] == 1600
    assert found["polyclinic_waiting_seconds", (("for", "owner"), ("study", "icu-2"))] == 12
    assert found["polyclinic_study", (("polyclinic_study", "waiting"), ("study", "icu-2"))] == 1


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.fixture
def serving() -> Iterator[Any]:
    made = []

    def start(board: StatusBoard) -> str:
        s = server(board, f"127.0.0.1:{free_port()}")
        threading.Thread(target=s.serve_forever, daemon=True).start()
        made.append(s)
        return f"http://127.0.0.1:{s.server_address[1]}"

    yield start
    for s in made:
        s.shutdown()
        s.server_close()


def test_health_is_200_or_503_and_answers_while_a_look_hangs(serving: Any) -> None:
    state = {"now": GOOD}
    hang, looks, go_on = threading.Event(), threading.Event(), threading.Event()

    def look() -> Snapshot:
        if hang.is_set():
            looks.set()
            go_on.wait(300)
        return replace(state["now"], at=time.time())

    board = StatusBoard(300.0)
    watch = StudyWatch(look, 300.0, show=board.show)
    base = serving(board)
    assert _get(base + "/health")[0] == 503  # not looked at yet
    watch.once()
    code, text = _get(base + "/health")
    assert (code, json.loads(text)["status"]) == (200, "ok")
    hang.set()
    hanging = threading.Thread(target=watch.once, daemon=True)
    hanging.start()
    assert looks.wait(300)
    for page in ("/health", "/metrics") * 10:
        assert _get(base + page)[0] == 200
    assert hanging.is_alive(), "all were answered while a look hung"
    hang.clear()
    go_on.set()
    hanging.join(300)
    state["now"] = replace(GOOD, healthy=False, sentences=("study icu-1: failed",))
    watch.once()
    code, text = _get(base + "/health")
    assert code == 503
    assert json.loads(text)["faults"] == ["study icu-1: failed"]
    assert _get(base + "/elsewhere")[0] == 404


def test_a_look_that_is_old_or_fails_is_not_health() -> None:
    board = StatusBoard(1.0)
    StudyWatch(lambda: replace(GOOD, at=time.time() - 120), 1.0, show=board.show).once()
    code, body = board.health()
    assert code == 503
    assert "the last look was" in body["faults"][0]
    StudyWatch(lambda: replace(GOOD, at=time.time()), 1.0, show=board.show).once()
    assert board.health()[0] == 200

    def broken() -> Snapshot:
        raise OSError(28, "No space left on device")

    StudyWatch(broken, 1.0, show=board.show).once()
    assert board.health()[0] == 503
    assert "No space left" in board.health()[1]["faults"][0]
    assert b"polyclinic_study_round" in board.metrics()  # type: ignore[operator]  # the last figures stay, with the time of their look


def test_bytes_of_a_study_that_runs_are_those_of_its_rounds(tmp_path: Path) -> None:
    for n, up in ((1, 100), (2, 40), (2, 50)):  # the second round was done again after a kill
        append_event(tmp_path / "progress.jsonl", kind="round", round=n, figures={"bytes_up": up, "bytes_down": 2 * up})
    found = _study(tmp_path, {"study": "icu-1", "state": "running", "round": 2})
    assert (found.bytes_up, found.bytes_down) == (150, 300)


def test_a_site_that_has_not_joined_is_no_health_and_its_budget_is_known(tmp_path: Path) -> None:
    node = hospitals.hospital(tmp_path, "north", patients=5, policy="max_epsilon_total = 4.0")
    book = ledger_of(Node.read(node))
    book.charge(Charge("icu", "dpem", 3, "statistics", 0, Gaussian(5.0), run="ab", shapes={"x": (2, 3)}))
    s = site_snapshot(SiteFolder.of(node))
    assert not s.healthy
    assert s.sentences == ("the node is not joined",)
    (b,) = s.budgets
    assert b.spent > 0
    assert b.left == pytest.approx(4.0 - b.spent)
    text = exposition(s).decode()
    assert "patients" not in text  # no number about patients has a name here


def test_news_is_told_once_and_again_when_it_comes_back(tmp_path: Path) -> None:
    out = tmp_path / "said.jsonl"
    hook = tmp_path / "hook.py"
    hook.write_text(f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read())")
    made = Notices(f"{sys.executable} {hook}", tmp_path / "told.json", tmp_path / "events.jsonl")
    assert [n["event"] for n in made.look(GOOD)] == ["owner is asked"]
    again = Notices(f"{sys.executable} {hook}", tmp_path / "told.json", tmp_path / "events.jsonl")  # a new process
    assert again.look(GOOD) == []
    late = replace(GOOD, certificate_days=50.0, studies=(StudyState("icu-1", "failed"),))
    assert {n["event"] for n in again.look(late)} == {"certificate ends soon", "study failed"}
    assert [n["within"] for n in again.look(replace(late, certificate_days=13.0))] == [14]
    again.look(replace(GOOD, asked=()))
    assert [n["event"] for n in again.look(GOOD)] == ["owner is asked"]
    lines = [json.loads(x) for x in out.read_text().splitlines()]
    assert [x["event"] for x in lines].count("owner is asked") == 2
    assert lines[0]["node"] == "north"


def test_a_hook_that_fails_is_in_the_log_and_ends_nothing(tmp_path: Path) -> None:
    made = Notices("/nothing/there --x", tmp_path / "told.json", tmp_path / "events.jsonl")
    made.look(GOOD)
    (line,) = read_events(tmp_path / "events.jsonl")
    assert line["event"] == "notify failed"


def test_the_process_opens_its_port_and_without_the_section_none(tmp_path: Path) -> None:
    port = free_port()
    node = hospitals.hospital(tmp_path, "north", patients=5)
    text = node.read_text()
    node.write_text(text + f'[monitor]\nlisten = "127.0.0.1:{port}"\nevery = 1\n')
    folder = SiteFolder.of(node)
    assert begin("site", node, folder.path, folder.node.monitor) is not None
    try:
        health = f"http://127.0.0.1:{port}/health"
        assert wait_until(lambda: port_open("127.0.0.1", port)), (folder.path / "monitor.log").read_text()
        assert wait_until(lambda: "not looked at yet" not in _get(health)[1])
        code, body = _get(health)
        assert code == 503
        assert json.loads(body)["state"] == "not joined"
    finally:
        assert finish(folder.path)
    assert not port_open("127.0.0.1", port)
    node.write_text(text)
    assert SiteFolder.of(node).node.monitor is None
    assert begin("site", node, folder.path, SiteFolder.of(node).node.monitor) is None


def test_a_wrong_address_is_refused_by_name(tmp_path: Path) -> None:
    node = hospitals.hospital(tmp_path, "north", patients=5)
    node.write_text(node.read_text() + '[monitor]\nlisten = "9464"\n')
    with pytest.raises(ConfigError, match=r"monitor.listen: not HOST:PORT"):
        Node.read(node)


def test_the_log_turns_over_and_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOG", 400)
    path = tmp_path / "events.jsonl"
    for i in range(12):
        append_event(path, event="x", n=i)
    assert (tmp_path / "events.jsonl.1").exists()
    assert [e["n"] for e in read_events(path)] == list(range(12))
    for i in range(12, 200):
        append_event(path, event="x", n=i)
    kept = [e["n"] for e in read_events(path)]
    assert kept == list(range(kept[0], 200))  # the oldest go, nothing in between
    assert len(list(tmp_path.glob("events.jsonl*"))) <= 4
    assert all(os.stat(p).st_mode & 0o077 == 0 for p in tmp_path.glob("events.jsonl*"))
