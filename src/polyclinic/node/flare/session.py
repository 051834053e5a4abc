"""The coordinator's conversation with FLARE's server: who is connected, submit, revoke. A user never sees FLARE."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.errors import PeerLost
from polyclinic.node.enrolment.folders import CoordinatorFolder
from polyclinic.node.enrolment.startup_files import ADMIN, job_folder
from polyclinic.node.flare_package import need_flare
from polyclinic.node.signed_study import StudyOrder

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """FLARE's interface prints; the command line speaks for itself."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def session(folder: CoordinatorFolder, *, tries: int = 4) -> Iterator[Session]:
    """A logged-in administrator's session."""
    need_flare()
    os.umask(0o077)
    here = ("localhost", "127.0.0.1", folder.read_settings()["host"])
    os.environ.update(no_grpc_proxy=",".join(here))  # gRPC knows no capitals; its server is this machine
    with quiet():
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        made: Any = None
        for n in range(tries):
            try:
                made = new_secure_session(ADMIN, str(folder.admin), timeout=8.0)
                break
            except Exception as e:
                if n == tries - 1:
                    raise _silent(e) from None
                time.sleep(1.0)
    try:
        yield made
    finally:
        with quiet(), contextlib.suppress(Exception):
            made.close()


def connected(api: Session) -> dict[str, float]:
    """Sites that FLARE's server has heard of: name -> time of the last sign of life."""
    with quiet():
        try:
            return {str(c.name): float(c.last_connect_time) for c in api.get_connected_client_list()}
        except Exception as e:  # FLARE raises many kinds when its server dies
            raise _silent(e) from None


def _silent(e: Exception) -> PeerLost:
    return PeerLost(
        "the coordinator's server does not answer",
        faults=[f"{type(e).__name__}: {e}"],
        hint="polyclinic coordinator start, then: polyclinic coordinator resume",
    )


def submit(api: Session, order: StudyOrder, run: Path, sites: list[str], least: int) -> str:
    """Submit one leg of a study as a job without code; returns FLARE's number of it."""
    place = run / "job"
    shutil.rmtree(place, ignore_errors=True)
    job_folder(place, order=order.encode(), sites=sites, quorum=least)
    with quiet():
        try:
            return str(api.submit_job(str(place.resolve())))
        except Exception as e:
            raise _silent(e) from None
