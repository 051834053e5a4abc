"""``polyclinic web`` as a command: on this machine only, and with a token."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "polyclinic.cli", "web", str(folder), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.terminate()
        process.communicate(timeout=15)


def _ask(address: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())

    def answer() -> int:
        try:
            return int(opener.open(address, timeout=60).status)
        except urllib.error.HTTPError as e:
            return e.code
        except urllib.error.URLError:
            return 0  # it does not listen yet

    return wait_until(answer)


def test_the_page_needs_its_token_and_listens_on_this_machine_only(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").touch()
    with _served(tmp_path) as address:
        base, token = address.split("/?token=")
        assert base.startswith("http://127.0.0.1:") and len(token) >= 24
        assert _ask(address) == 200
        assert _ask(base + "/") == 401
        assert _ask(f"{base}/api/runs?token={token}") == 401  # only the page itself takes it from the address
        assert _ask(f"{base}/?token=wrong") == 401
