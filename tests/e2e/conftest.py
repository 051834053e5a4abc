"""One running federation for all end-to-end tests that do not break it for good."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

NOISE = 11  # seed of the simulated noise at the sites, so that a private run can be compared with one process


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    pytest.importorskip("nvflare")
    from flare_federation import Federation, running

    made = Federation(
        tmp_path_factory.mktemp("flare"),
        rehearsal=True,
        more=f"[ledger]\nsimulated_noise_seed = {NOISE}\n",
        policy="max_epsilon_total = 9\nallow_unproven = true",
    )
    with running(made):
        yield made
