"""Who is there: asks every site for a sign of life, so that a dead site costs seconds and not a whole deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from polyclinic.federation.refusals import told

__all__ = ["SLOWEST", "Pulse"]

EVERY: Final = 1.0  # seconds between signs of life
SILENT: Final = 6.0  # seconds without one: the site counts as lost until it answers again
SLOWEST: Final = 5e5  # bytes a second (4 Mbit/s): a sign of life waits behind a message that is on its way


class Pulse:
    """A background thread that says hello to all sites.

    Parameters
    ----------
    hello
        Asks one site, with a timeout in seconds; None if it did not answer.
    changed
        Called when a site's state changes ("ready", "waiting", "loading", "refused", "lost").
    """

    def __init__(
        self,
        sites: tuple[str, ...],
        hello: Callable[[str, float], Mapping[str, Any] | None],
        changed: Callable[[str, str, list[str]], None],
    ) -> None:
        self.sites, self._hello, self._changed = sites, hello, changed
        self._heard: dict[str, float] = {}
        self._last: dict[str, Mapping[str, Any]] = {}
        self._life: dict[str, str] = {}
        self._told: dict[str, str] = {}
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max(4, len(sites)), thread_name_prefix="pulse")
        self._busy: set[str] = set()
        self._way: dict[str, int] = dict.fromkeys(sites, 0)  # bytes on their way to a site
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def state(self, site: str) -> str:
        """What a site last said, or "lost", or "absent" if it never answered."""
        if site not in self._heard:
            return "absent"
        # the answer may be as large as the question
        if time.monotonic() - self._heard[site] > SILENT + 2 * self._way[site] / SLOWEST:
            return "lost"
        return str(self._last[site].get("state", "bad"))

    def life(self, site: str) -> str:
        """Which process of a site said hello last; another one does not know what its forerunner was asked."""
        return self._life.get(site, "")

    def last(self, site: str) -> Mapping[str, Any]:
        """The last hello of a site."""
        return self._last.get(site, {})

    def heard(self, site: str, answer: Mapping[str, Any] | None = None) -> None:
        """Any answer is a sign of life; ``answer`` tells that the site is not ready, before the next hello would."""
        if site in self._heard:
            self._heard[site] = time.monotonic()
            if answer is not None:
                self._last[site] = answer

    @contextmanager
    def carrying(self, site: str, size: int) -> Iterator[None]:
        """While a message of so many bytes is out, a slow line may keep the site silent for longer."""
        with self._lock:
            self._way[site] += size
        try:
            yield
        finally:
            with self._lock:
                self._way[site] -= size

    def look(self, sites: tuple[str, ...]) -> None:
        """Ask these sites now: what they last said is out of date."""
        list(self._pool.map(self._one, sites))

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        wait = 0.0
        while not self._stop.wait(wait):
            wait = EVERY
            for site in self.sites:
                if site not in self._busy:
                    self._busy.add(site)
                    try:
                        self._pool.submit(self._one, site)
                    except RuntimeError:
                        return
                now = self.state(site)
                if now != self._told.get(site):
                    self._told[site] = now
                    self._changed(site, now, told(self.last(site)))

    def _one(self, site: str) -> None:
        try:
            answer = self._hello(site, 3.0)
            if answer is not None:
                self._last[site] = answer
                self._life[site] = str(answer.get("life", ""))
                self._heard[site] = time.monotonic()
        finally:
            self._busy.discard(site)
