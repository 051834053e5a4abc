"""The page's server: local or guarded, strict policy, no patient data, one decision for one release."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from polyclinic.cli.node.web import command
from polyclinic.errors import ConfigError
from polyclinic.web.server import PageWatch, create_app

LOCAL, TOKEN = "http://127.0.0.1:8765", "t" * 24


def _client(root: Path) -> TestClient:
    return TestClient(create_app(root, token=TOKEN), base_url=LOCAL, cookies={"polyclinic": TOKEN})


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}: no run in this folder\n.*polyclinic simulate"):
        command(tmp_path, port=0)


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return _client(runs)


def test_runs_are_listed_and_read(client: TestClient) -> None:
    found = client.get("/api/runs").json()
    assert {r["id"] for r in found} == {"first", "second"}
    assert all(r["state"] == "finished" and r["guarantee"] == "none" for r in found)
    run = client.get("/api/run", params={"id": "second"}).json()
    assert [r["round"] for r in run["rounds"] if r["kind"] == "round"] == [1, 2, 3, 4]
    assert len(run["sites"]) == 6


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
    client = TestClient(create_app(runs, token=TOKEN), base_url=LOCAL, follow_redirects=False)
    for path in ("/", "/api/runs", "/static/page.js", "/report?id=first", "/?token=wrong"):
        assert client.get(path).status_code == 401
    assert client.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    entered = client.get("/", params={"token": TOKEN})
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
            "/report?id=first",
        )
    )
    for file in (runs / "first" / "sites").glob("*/memberships.npz"):
        with np.load(file) as z:
            values = z["memberships"][z["memberships"] > 0][:50]
        assert values.size
        assert not [v for v in values if f"{v:.6g}" in served]
    assert "simulation_only" not in served


def test_a_growing_and_broken_progress_file_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    lines = [json.dumps({"kind": "round", "round": n, "rounds": 9, "figures": {"objective": 1.0 / n}}) for n in (1, 2)]
    (tmp_path / "progress.jsonl").write_text("\n".join([*lines, '{"kind": "rou']))
    client = _client(tmp_path)
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
