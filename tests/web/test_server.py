"""The page's server: local or guarded, strict policy, no patient data, one decision for one release."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.web.server import create_app
from polyclinic.web.watch import PageWatch

LOCAL = "http://127.0.0.1:8765"
DECIDE = {"X-Polyclinic": "decide"}


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return TestClient(create_app(runs), base_url=LOCAL)


def test_runs_are_listed_and_read(client: TestClient) -> None:
    found = client.get("/api/runs").json()
    assert {r["id"] for r in found} == {"first", "second"}
    assert all(r["state"] == "finished" and r["guarantee"] == "none" for r in found)
    run = client.get("/api/run", params={"id": "second"}).json()
    assert [r["round"] for r in run["rounds"] if r["kind"] == "round"] == [1, 2, 3, 4]
    assert len(run["sites"]) == 6 and all(s["releases"] > 0 for s in run["sites"])
    assert run["sites"][0]["spent"]["epsilon"] is None and run["sites"][0]["spent"]["kind"] == "no bound"


def test_two_runs_side_by_side(client: TestClient) -> None:
    c = client.get("/api/compare", params={"a": "first", "b": "second"}).json()
    assert c["methods"] == ["LocalTF", "SumALS"]
    assert 0 <= c["match"] <= 1
    assert all("text" in p and "headline" in p for p in c["privacy"])
    assert client.get("/api/compare", params={"a": "first", "b": "first"}).json()["match"] == pytest.approx(1.0)


def test_policy_headers_are_strict(client: TestClient) -> None:
    for path in ("/", "/static/page.js", "/static/style.css", "/api/runs"):
        answer = client.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    report = client.get("/report", params={"id": "first"})
    assert report.status_code == 200 and "sandbox allow-scripts;" in report.headers["content-security-policy"]


def test_page_has_no_inline_script_and_no_foreign_address(client: TestClient) -> None:
    page, script = client.get("/").text, client.get("/static/page.js").text
    assert "<script>" not in page and "onclick" not in page and "style=" not in page
    assert "innerHTML" not in script and "eval(" not in script
    assert "//" not in page.replace("<!doctype html>", "")


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fserver.py",
        "/static/page.html",
        "/api/run?id=../first",
        "/api/run?id=first/sites",
        "/report?id=/etc",
    ],
)
def test_nothing_but_known_runs_and_files_is_served(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_other_hosts_and_origins_are_refused(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "rebound.example"}).status_code == 403
    assert client.get("/api/runs", headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.get("/api/runs", headers={"Origin": LOCAL}).status_code == 200


def test_without_the_token_nothing_is_served(runs: Path) -> None:
    client = TestClient(create_app(runs, token="t" * 24), base_url="http://hospital.example", follow_redirects=False)
    for path in ("/", "/api/runs", "/static/page.js", "/report?id=first", "/?token=wrong"):
        assert client.get(path).status_code == 401
    assert client.get("/api/runs", headers={"Authorization": f"Bearer {'t' * 24}"}).status_code == 200
    entered = client.get("/", params={"token": "t" * 24})
    assert entered.status_code == 303 and "token" not in entered.headers["location"]
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/api/runs").status_code == 200  # by the cookie


def test_no_membership_and_no_label_is_served(client: TestClient, runs: Path) -> None:
    served = "".join(
        client.get(path).text
        for path in (
            "/api/runs",
            "/api/run?id=first",
            "/api/compare?a=first&b=second",
            "/api/outbox",
            "/report?id=first",
        )
    )
    for file in (runs / "first" / "sites").glob("*/memberships.npz"):
        with np.load(file) as z:
            values = z["memberships"][z["memberships"] > 0][:50]
        assert values.size
        assert not [v for v in values if f"{v:.6g}" in served]
    assert "simulation_only" not in served


TOKEN = "t" * 24


def test_without_a_token_nobody_decides_on_this_machine_either(waiting: Path) -> None:
    """ATTACKS row 27: any local account could approve a release."""
    one = {"outbox": "site/outbox", "id": "r1", "approve": True, "by": "another account"}
    bare = TestClient(create_app(waiting), base_url=LOCAL)
    assert bare.post("/api/outbox", json=one, headers=DECIDE).status_code == 403
    stranger = TestClient(create_app(waiting, token=TOKEN), base_url=LOCAL)
    assert stranger.post("/api/outbox", json=one, headers=DECIDE).status_code in (401, 403)
    assert {p.state for p in Outbox(waiting / "site" / "outbox").all()} == {"pending"}


def _owner(root: Path) -> TestClient:
    return TestClient(create_app(root, token=TOKEN), base_url=LOCAL, cookies={"polyclinic": TOKEN})


def test_one_decision_lets_exactly_one_release_out(waiting: Path) -> None:
    client = _owner(waiting)
    found = client.get("/api/outbox").json()
    assert [r["state"] for r in found] == ["pending", "pending"]
    one = {"outbox": found[0]["outbox"], "id": "r1", "approve": True, "by": "Dr. Owner"}
    assert client.post("/api/outbox", json=one, headers=DECIDE).json()["state"] == "approved"
    box = Outbox(waiting / "site" / "outbox")
    assert [(p.id, p.state, p.decided_by) for p in box.all()] == [
        ("r1", "approved", "Dr. Owner"),
        ("r2", "pending", ""),
    ]
    # a decision is final
    again = client.post("/api/outbox", json={**one, "approve": False}, headers=DECIDE)
    assert again.status_code == 409 and box.get("r1").state == "approved"


def test_a_decision_from_elsewhere_is_refused(waiting: Path) -> None:
    client = _owner(waiting)
    one = {"outbox": "site/outbox", "id": "r1", "approve": True, "by": "x"}
    assert client.post("/api/outbox", json=one).status_code == 403
    assert client.post("/api/outbox", json=one, headers={**DECIDE, "Origin": "http://evil.example"}).status_code == 403
    assert client.post("/api/outbox", json={**one, "by": ""}, headers=DECIDE).status_code == 422
    assert client.post("/api/outbox", json={**one, "outbox": "../outbox"}, headers=DECIDE).status_code == 404
    assert client.post("/api/outbox", json={**one, "id": "../r1"}, headers=DECIDE).status_code == 404
    assert {p.state for p in Outbox(waiting / "site" / "outbox").all()} == {"pending"}


def test_values_of_a_waiting_release_are_not_served(waiting: Path) -> None:
    text = TestClient(create_app(waiting), base_url=LOCAL).get("/api/outbox").text
    assert "1.5" not in text and "2.5" not in text


def test_a_growing_and_broken_progress_file_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    lines = [json.dumps({"kind": "round", "round": n, "rounds": 9, "figures": {"objective": 1.0 / n}}) for n in (1, 2)]
    (tmp_path / "progress.jsonl").write_text("\n".join([*lines, '{"kind": "rou']))
    client = TestClient(create_app(tmp_path), base_url=LOCAL)
    run = client.get("/api/run", params={"id": tmp_path.resolve().name}).json()
    assert [r["objective"] for r in run["rounds"]] == [1.0, 0.5]
    assert run["state"] == "running"


@pytest.mark.parametrize(
    ("said", "shown"),
    [("submitted", "waiting for the sites"), ("running", "running"), ("stopped", "stopped"), ("failed", "stopped")],
)
def test_study_between_hosts_says_itself_how_it_stands(tmp_path: Path, said: str, shown: str) -> None:
    """The coordinator's run folder has a status of its own; the page does not guess from the age of files."""
    (tmp_path / "study.json").write_text(
        json.dumps({"format": 1, "study": {"study": {"name": "icu"}}, "sites": ["north"]})
    )
    (tmp_path / "status.json").write_text(json.dumps({"state": said}))
    assert PageWatch(tmp_path).brief()["state"] == shown
