"""One running federation for all end-to-end tests that do not break it for good."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import wait_until

if TYPE_CHECKING:  # FLARE may be missing
    from tests.e2e.flare_federation import Federation

NOISE = 11  # seed of the simulated noise at the sites, so that a private run can be compared with one process


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    pytest.importorskip("nvflare")
    from tests.e2e.flare_federation import Federation, running

    made = Federation(
        tmp_path_factory.mktemp("flare"),
        rehearsal=True,
        more=f"[ledger]\nsimulated_noise_seed = {NOISE}\n",
        policy="max_epsilon_total = 9\nmax_exact = 1000",
    )
    with running(made):
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """Mounts a folder on a disk of its own; gives a function that fills it and one that frees it."""
    mounted = []

    def mount(path: Path, megabytes: int) -> Any:
        path.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"a disk cannot be mounted here ({done.stderr.strip()})")
        mounted.append(path)
        filler = path / "filler"

        def fill() -> None:
            with open(filler, "wb", buffering=0) as f:
                for size in (2**20, 2**12, 1):
                    try:
                        while True:
                            f.write(bytes(size))
                    except OSError:
                        continue

        return fill, lambda: filler.unlink(missing_ok=True)

    yield mount
    for path in mounted:
        wait_until(lambda path=path: subprocess.run(["umount", path], capture_output=True).returncode == 0, 10)  # type: ignore[misc]
