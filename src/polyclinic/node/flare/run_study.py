"""A study from its file to its run folder, by one call: in this process, or between hospitals over FLARE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from polyclinic.config import Study
from polyclinic.errors import ConfigError, DataError, PeerLost, PolicyRefusal, PolyclinicError
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.interfaces import Method
from polyclinic.protocol.outcome import Progress
from polyclinic.studies.analyses import replication_words
from polyclinic.studies.halvings import halvings
from polyclinic.studies.publish import publish as write_run
from polyclinic.studies.registry import PROTOCOLS, federated, make, read_study
from polyclinic.studies.run_folder import Run, RunFolder
from polyclinic.studies.simulate import run_study as simulated

ENDS: Final[Mapping[int, type[PolyclinicError]]] = {2: ConfigError, 3: DataError, 4: PolicyRefusal, 5: PeerLost}


def run_study(
    study: str | Path | Study,
    out: str | Path | None = None,
    *,
    federation: str | Path | None = None,
    resume: bool = False,
    threads: int = 2,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Run a study: in this process, or between hospitals. Both give the same model.

    Parameters
    ----------
    study
        A ``study.toml``, or a study.
    out
        The run folder of a simulation: all sites in this process.
    federation
        Instead of ``out``: the folder of a coordinator that was started (``polyclinic coordinator start``). The study is signed for
        all approved sites and followed to its end; the run folder is the coordinator's.
    resume
        Continue an interrupted simulation in ``out``.
    threads
        Sites that work at the same time in a simulation. The model does not depend on it.
    progress
        Called with every round.

    Examples
    --------
    >>> import tempfile
    >>> from polyclinic.config import Study
    >>> what = Study.parse({"study": {"name": "icu"}, "data": {"dataset": "icu_network", "patients": 300},
    ...                     "method": {"name": "sumals", "rank": 3, "rounds": 3, "aggregation": "plain"}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = run_study(what, f"{folder}/run")
    ...     run.model.rank, sorted(p.name for p in run.path.glob("*.json"))[:2]
    (3, ['findings.json', 'metrics.json'])
    """
    if (out is None) == (federation is None):
        raise ConfigError(
            "run_study needs either a run folder or a federation",
            hint="out='runs/icu' simulates in this process; federation='FOLDER' runs between hospitals",
        )
    what = study if isinstance(study, Study) else read_study(study)
    if federation is not None:
        if resume:
            raise ConfigError(
                "resume=True is for simulations",
                hint="polyclinic coordinator resume FOLDER STUDY continues a study between hospitals",
            )
        return _between(what, Path(federation), progress)
    return Run.read(simulate_to(Path(out or ""), what, resume=resume, threads=threads, progress=progress).path)


def simulate_to(
    out: Path, what: Study, *, resume: bool, threads: int, progress: Callable[[Progress], None] | None
) -> RunFolder:
    """The run folder of a simulation; also of a method of which no model is kept."""
    method = federated(what) if what.chosen().name.lower() in PROTOCOLS else make(what)
    folder = RunFolder.create(out, resume=resume)
    try:
        simulated(what, method, folder, resume=resume, threads=threads, progress=progress)
    except PolyclinicError:
        if not resume:
            folder.abandon()  # nothing was learned: no half-empty folder is taken for a run
        raise
    return folder


def _between(study: Study, place: Path, progress: Callable[[Progress], None] | None) -> Run:
    """Sign the study, follow it, and write what it found."""
    from polyclinic.node.enrolment.federation import sign_study
    from polyclinic.node.enrolment.folders import CoordinatorFolder
    from polyclinic.node.flare.coordinator_service import need_running
    from polyclinic.node.flare.jobs import follow
    from polyclinic.node.flare.result import read_model

    home = CoordinatorFolder(place)
    if not home.settings.exists():
        raise ConfigError(
            f"{place}: no federation was founded here", hint="polyclinic coordinator init FOLDER --site NAME ..."
        )
    need_running(home)
    order = sign_study(home, study)

    def tell(event: dict[str, Any]) -> None:
        if progress is not None and event.get("kind") == "round":
            progress(Progress("round", event["method"], event["round"], event["rounds"], event.get("figures", {})))

    value = follow(home, order, tell)
    if value["state"] != "finished":
        kind = ENDS.get(int(value.get("exit", 5)), PeerLost)
        raise kind(
            f"study {order.id}: {value['state']}; {value.get('what', '')}",
            faults=value.get("faults", ()),
            hint=value.get("hint", ""),
        )
    run = home.run(order.id)
    publish(run, order, read_model(run, order), sorted(value.get("refused") or ()))
    return Run.read(run)


def publish(run: Path, order: StudyOrder, model: Any, without: Sequence[str] = (), engine: str = "flare") -> None:
    """Write the run folder of a study between hosts; ``without``: sites that were asked and took no part."""
    from polyclinic.node.enrolment.folders import private

    folder = RunFolder(run)
    study = order.parsed(private(run / "files"))
    head = {
        "study": dict(order.study),
        "sites": [s for s in order.sites if s not in without],
        "replication": replication_words(study),
        "halvings": halvings(study).number,
        **({"without": list(without)} if without else {}),
        "engine": engine,
        "versions": folder.manifest(),
    }
    write_run(folder, model.model_ if isinstance(model, Method) else model, head)
