"""The dossier of the rehearsal's DPEM study between real processes: complete, tied to order and book; looked at in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.flare_federation import Federation

pytest.importorskip("nvflare")

from tests.node.dossier.required import check_complete

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def polyclinic(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "polyclinic.cli", *map(str, arguments), "--json"], capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.slow
def test_the_rehearsals_private_study_has_a_complete_dossier_at_the_site(
    federation: Federation, tmp_path: Path
) -> None:
    study = federation.study(
        "dpem-dossier",
        'name = "dpem"\nrank = 6\nrounds = 3\naggregation = "masked"',
        head='deadline = 60\ndescription = "Which drugs and diagnoses occur together?"\n',
        tail="[privacy]\nepsilon = 4.0\ndelta = 1e-6",
    )
    done = polyclinic("coordinator", "submit", federation.coordinator.path, study)
    run, north = Path(done["run"]), federation.sites["north"]
    polyclinic("dossier", run, "--node", north.node_path, "--out", tmp_path)
    value = json.loads((tmp_path / "dossier.json").read_text())
    check_complete(value)
    order = federation.order_named(done["study"])
    assert value["stage"] == "after"
    assert value["digests"]["order"] == order.digest
    assert value["digests"]["coordinator_signature"] == order.signature
    lines = value["parts"]["trail"]
    assert {"reserve", "close"} <= {row[2] for row in lines["lines_north"]["rows"]}
    assert sum(int(row[1]) for row in lines["releases_north"]["rows"]) == len(
        federation.charges("north", "dpem-dossier")
    )
    # the site alone, from its own order and book
    alone = tmp_path / "alone"
    polyclinic("dossier", done["study"], "--node", north.node_path, "--out", alone)
    own = json.loads((alone / "dossier.json").read_text())
    check_complete(own)
    assert own["digests"]["order"] == order.digest
    assert own["stage"] == "after"
    _printed(tmp_path / "dossier.html", tmp_path / "dossier.pdf")


def _printed(page: Path, paper: Path) -> None:
    """In print: some pages, with text, nothing loaded from elsewhere."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium: the paper was not printed")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={paper.parent / 'profile'}"]
    subprocess.run(
        [browser, *flags, f"--print-to-pdf={paper}", page.as_uri()], capture_output=True, timeout=120, check=True
    )
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert 5 <= data.count(b"/Type /Page\n") + data.count(b"/Type /Page ") + data.count(b"/Type /Page/") <= 40
