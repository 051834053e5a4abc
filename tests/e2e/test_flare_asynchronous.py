"""The asynchronous option between real processes: a slow site does not stop fast ones, nothing too old is added."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from tests.e2e.flare_federation import At, Federation, running

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

NAMES = ("east", "north", "south", "west")
BOUND, BUFFER, ROUNDS = 2, 3, 40


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("four"), NAMES)
    with running(made):
        yield made


class Slow:
    """Holds a site's worker most of the time (SIGSTOP), as a machine does that swaps."""

    def __init__(self, federation: Federation, name: str, *, held: float, free: float) -> None:
        self.federation, self.name, self.held, self.free = federation, name, held, free
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self.free):
            pid = self.federation.worker(self.name)
            if pid:
                os.kill(pid, signal.SIGSTOP)
                self._end.wait(self.held)
                os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()


@pytest.mark.parametrize("method", ["dpfact", "localtf"])
def test_slow_site_does_not_stop_fast_ones(four: Federation, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    from polyclinic.cli import main
    from polyclinic.node.flare.coordinator_service import order_of

    text = f'name = "{method}"\nrank = 4\nrounds = {ROUNDS}\naggregation = "plain"'
    head = f"deadline = 60\nquorum = {BUFFER}\nstaleness = {BOUND}\n"
    study = four.study(f"async-{method}", text, head=head)
    slow = Slow(four, "west", held=2.0, free=0.15)
    begun = At(2, slow.start)

    def watch() -> None:
        from polyclinic.node.enrolment.folders import read_events

        while not done.wait(0.05):
            for order in (four.coordinator.path / "runs").glob(f"async-{method}-*"):
                for event in read_events(order / "progress.jsonl")[-1:]:
                    begun(event)

    done = threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        main(["coordinator", "submit", str(four.coordinator.path), str(study), "--json"])
    except SystemExit as e:
        assert not e.code, capsys.readouterr()
    finally:
        done.set()
        watcher.join()
        slow.end()
    assert begun.done.is_set()
    run = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["run"])
    order = order_of(four.coordinator, run.name)
    outcome = four.outcome(order)
    assert outcome.traffic.rounds == ROUNDS
    assert all(np.isfinite(f).all() for f in outcome.public.factors)
    sums = [e for e in four.events(order) if e["event"] == "added"]
    assert len(sums) == ROUNDS
    assert min(len(e["age"]) for e in sums) >= BUFFER  # never fewer than the buffer
    assert max(max(e["age"].values()) for e in sums) <= BOUND  # never older than the bound
    without = sum("west" not in e["age"] for e in sums)
    assert without > ROUNDS // 4  # the others went on without it ...
    stale = [e for e in four.events(order) if e["event"] == "stale" and e["site"] == "west"]
    assert all(e["now"] - e["number"] > BOUND for e in stale)
    assert stale or any("west" in e["age"] for e in sums)  # ... and what it sent was used, or too old
    for name in NAMES:
        charges = four.charges(name, f"async-{method}")
        assert len({(c.round, c.step, c.attempt) for c in charges}) == len(charges), name
    assert len(four.charges("west", f"async-{method}")) < len(four.charges("east", f"async-{method}"))
    card = json.loads((run / "outcome.json").read_text())["privacy"]
    assert any("not deterministic" in a for a in card["assumptions"]), card
    print(f"FIGURE {method}: {without} of {ROUNDS} sums without the slow site, load {os.getloadavg()[0]:.1f}")
