"""Processes at a site: our launcher restarts a worker that was killed, and a restarted site goes back to its running study.

``JobLauncherSpec`` is FLARE's public interface; ``engine.start_app`` is not (pinned to 2.9.0, tested; without it a site that
comes back waits for the next leg of the study).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env

from polyclinic.errors import MessageRefused
from polyclinic.node.admission.retention import let_go_closed
from polyclinic.node.enrolment.folders import SiteFolder, append_event, private, write_json
from polyclinic.node.enrolment.processes import Recorded, end, forget, record
from polyclinic.node.flare.executor import NODE

RESTARTS: Final = 5
JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def _folder() -> SiteFolder:
    return SiteFolder.of(Path(os.environ[NODE]))


class _Worker(JobHandleSpec):  # type: ignore[misc]
    """A worker process that is started again if a signal killed it (out of memory, kill -9)."""

    def __init__(self, job: str, argv: list[str], env: dict[str, str], folder: SiteFolder) -> None:
        super().__init__()
        self.job, self.argv, self.env, self.folder = job, argv, env, folder
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        log = open(self.folder.path / "worker.log", "ab")  # noqa: SIM115 - the child keeps it
        process = subprocess.Popen(
            self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        limit = self.folder.node.keys.get("max_memory_mb")
        if limit is not None:  # beyond it an allocation fails, and the site says that it cannot take part
            import resource  # not on Windows

            resource.prlimit(process.pid, resource.RLIMIT_DATA, (int(limit) * 2**20,) * 2)
        record(self.folder.pids / f"worker-{self.job}.json", process.pid)
        return process

    def terminate(self, heartbeat_cleanup: bool = False) -> None:
        """End it for good."""
        with self._lock:
            self._ended.set()
            if self._process.poll() is None:
                self._process.kill()

    def poll(self) -> int:
        """FLARE's code for how it ended."""
        code = self._process.poll()
        if code is None:
            return int(JobReturnCode.UNKNOWN)
        return int(JobReturnCode.SUCCESS if code == 0 else JobReturnCode.EXECUTION_ERROR)

    def wait(self) -> None:
        """Wait until it ends; a worker that was killed by somebody else is started again."""
        for n in range(RESTARTS + 1):
            code = self._process.wait()
            if code >= 0 or self._ended.is_set() or n == RESTARTS:
                break
            append_event(self.folder.events, event="worker restarted", signal=-code)
            time.sleep(0.5)
            with self._lock:  # told to end while it was being started again: then it is not
                if self._ended.is_set():
                    break
                self._process = self._start()
        forget(self.folder.pids / f"worker-{self.job}.json")
        forget(self.folder.pids / f"job-{self.job}.json")
        let_go_closed(self.folder)


class SiteLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts the worker of a study, notes its process and the study for a later :class:`Rejoin`."""

    def launch_job(self, job_meta: dict[str, object], fl_ctx: FLContext) -> JobHandleSpec:
        """Start the worker."""
        folder = _folder()
        job = str(job_meta.get(JobConstants.JOB_ID))
        if not JOB.fullmatch(job):  # the server's word, and part of a name here
            raise MessageRefused("a job whose id is not of letters, digits and hyphens")
        env = {**os.environ, **get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})}
        write_json(
            private(folder.pids) / f"job-{job}.json",
            {"job": job, "meta": json.loads(json.dumps(job_meta, default=str))},
        )
        return _Worker(job, shlex.split(self.get_command(job_meta, fl_ctx)), env, folder)


class Rejoin(FLComponent):  # type: ignore[misc]
    """After a restart of the site: start the workers of studies that were running; the coordinator ends those that are over."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """On start of the system."""
        if event_type != EventType.SYSTEM_START:
            return
        folder, engine = _folder(), fl_ctx.get_engine()
        for note in sorted(folder.pids.glob("job-*.json")) if folder.pids.exists() else ():
            job = json.loads(note.read_text(encoding="utf-8"))
            orphan = Recorded.read(folder.pids / f"worker-{job['job']}.json")
            if orphan is not None:
                end([orphan])
            try:
                answer = engine.start_app(job["job"], job["meta"])
                append_event(folder.events, event="rejoined", job=job["job"], answer=str(answer))
            except Exception as e:  # not rejoining is not an error: the next leg asks this site again
                append_event(folder.events, event="not rejoined", job=job["job"], error=f"{type(e).__name__}: {e}")
                forget(note)
