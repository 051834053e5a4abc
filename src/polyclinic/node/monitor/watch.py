"""``python -m polyclinic.node.monitor.watch site|coordinator PATH NOTIFY EVERY``: looks at the node, and writes what it saw, a line a look.

A look computes budgets, opens a TLS line and reads logs. It is a process of its own, so that the one that answers (``serve``) never
waits for it, and it ends when that one does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from polyclinic.node.enrolment.folders import CoordinatorFolder, SiteFolder
from polyclinic.node.monitor.metrics import exposition
from polyclinic.node.monitor.notify import Notices
from polyclinic.node.monitor.page import Page
from polyclinic.node.monitor.snapshot import Snapshot, coordinator_snapshot, site_snapshot

__all__ = ["StudyWatch"]


class StudyWatch:
    """Looks at a node again and again.

    Parameters
    ----------
    look
        Makes a snapshot.
    every
        Seconds between two looks.
    show
        What is done with each page; none are made where nobody serves them.
    """

    def __init__(
        self,
        look: Callable[[], Snapshot],
        every: float,
        notices: Notices | None = None,
        show: Callable[[Page], None] | None = None,
    ) -> None:
        self.look, self.every, self.notices, self.show = look, every, notices, show

    def once(self) -> None:
        """Look, show, and tell what is new."""
        try:
            found = self.look()
            if self.show is not None:
                code = 200 if found.healthy else 503
                self.show(Page(code, found.health(), exposition(found).decode(), found.at))
            if self.notices is not None:
                self.notices.look(found)
        except Exception as e:  # whatever is wrong with the node, the monitor goes on saying so
            if self.show is not None:
                self.show(Page.trouble(f"{type(e).__name__}: {e}"))

    def run(self) -> None:
        """Look for ever."""
        while True:
            self.once()
            time.sleep(self.every)


def watch_of(kind: str, path: str, notify: str, every: float, show: Callable[[Page], None] | None) -> StudyWatch:
    """The watch of a node."""
    folder: SiteFolder | CoordinatorFolder
    look: Callable[[], Snapshot]
    if kind == "site":
        folder = SiteFolder.of(Path(path))
        look = partial(site_snapshot, folder)
    else:
        folder = CoordinatorFolder(Path(path))
        look = partial(coordinator_snapshot, folder)
    notices = Notices(notify, folder.path / "told.json", folder.events) if notify else None
    return StudyWatch(look, every, notices, show)


def main(kind: str, path: str, notify: str, every: float) -> None:
    """Look until whoever reads is gone."""
    os.umask(0o077)
    os.nice(5)  # who asks for an answer goes first

    def until_alone() -> None:
        sys.stdin.buffer.read()  # nothing is ever written: it returns when the other end is gone
        os._exit(0)

    def show(page: Page) -> None:
        sys.stdout.buffer.write(page.encode())
        sys.stdout.buffer.flush()

    threading.Thread(target=until_alone, daemon=True).start()
    watch_of(kind, path, notify, every, show).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
