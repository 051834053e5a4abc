"""Exit codes that can drive a script: who declined, how far a study is, whether it has to be waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.flare_federation import Federation
from tests.waiting import wait_until

pytest.importorskip("nvflare")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def polyclinic(*arguments: object) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "polyclinic.cli", *map(str, arguments), "--json"], capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.slow
def test_sites_that_declined_are_named_with_exit_code_4_and_no_reason(federation: Federation) -> None:
    study = federation.study(
        "too-much",
        'name = "dpem"\nrank = 3\nrounds = 2\naggregation = "masked"',
        tail="[privacy]\nepsilon = 50.0\ndelta = 1e-6",  # every owner's limit is 9
    )
    code, told, text = polyclinic("coordinator", "submit", federation.coordinator.path, study)
    assert code == 4
    assert told["declined"] == sorted(federation.names)
    assert told["exit"] == 4
    assert "allowed 9" not in text  # the reason is the site's own
    north = federation.sites["north"].node_path
    code, value, _ = polyclinic("site", "status", "--node", north)
    assert (code, value["state"]) == (4, "study refused")
    assert "allowed 9" in json.dumps(value["problems"])  # there it is said
    assert polyclinic("site", "review", "--node", north)[0] == 4
    # nobody waits for this one, and it goes well: the old refusal does not stick
    study = federation.study("alone", 'name = "trip"\nrank = 3\nrounds = 2\naggregation = "masked"')
    code, told, _ = polyclinic("coordinator", "submit", federation.coordinator.path, study, "--wait", "0")
    assert code == 0
    assert told["state"] not in ("finished", "failed", "stopped")
    run = Path(told["run"])
    assert wait_until((run / "metrics.json").exists), (run / "follow.log").read_text()
    code, told, _ = polyclinic("coordinator", "resume", federation.coordinator.path, run.name, "--wait", "60")
    assert (code, told["state"], told["declined"]) == (0, "finished", [])
    code, value, _ = polyclinic("site", "status", "--node", north)
    assert (code, value["state"]) == (0, "running"), value
    assert polyclinic("site", "review", "--node", north)[0] == 0
    assert polyclinic("coordinator", "submit", federation.coordinator.path, study, "--wait", "soon")[0] == 2
