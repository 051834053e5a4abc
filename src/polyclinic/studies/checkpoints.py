"""The in-process engine: sites in parallel threads, a checkpoint each round, resume to the same model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from polyclinic.errors import ConfigError
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.interfaces import Method
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site
from polyclinic.util.threads import one_thread

LIMIT = 2**40  # a checkpoint is not a message: it stays on this disk


class Checkpoints(Protocol):
    """Where checkpoints go; a run folder is one."""

    def checkpoints(self) -> list[Path]: ...
    def write_checkpoint(self, number: int, data: bytes) -> Path: ...


def simulate(
    method: Method,
    sites: Sequence[Site],
    *,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    threads: int = 2,
    doors: Mapping[str, ReleaseGate] | None = None,
    quorum: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Run a method over sites in this process.

    The result depends neither on ``threads`` nor on the order of ``sites``. With ``checkpoints``, the state is written
    at the end of every round, so an interruption at any instant leaves a folder that ``resume`` finishes to the same model.
    """
    with one_thread(), ThreadPoolExecutor(max(1, threads)) as pool:
        fold = Simulation(
            method,
            sites,
            doors=doors,
            quorum=quorum,
            progress=progress,
            each=pool.map if threads > 1 else map,
        )
        if resume:
            found = checkpoints.checkpoints() if checkpoints is not None else []
            if not found:
                raise ConfigError(
                    "nothing to resume: no checkpoint is in the folder", hint="start the run without --resume"
                )
            fold.restore(wire.decode(found[-1].read_bytes(), limit=LIMIT))
        rounds = len(fold.history)
        while fold.advance():
            if checkpoints is not None and len(fold.history) > rounds:
                rounds = len(fold.history)
                checkpoints.write_checkpoint(fold.history[-1]["round"], wire.encode(fold.state(), limit=LIMIT))
        return fold.outcome()
