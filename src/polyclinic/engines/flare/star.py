"""Leading a sum that has a coordinator: plain, masked, robust; and the asynchronous way, as contributions come."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from polyclinic.engines.flare.folders import append_event
from polyclinic.engines.flare.lead import ANSWER, ATTEMPTS, Lead
from polyclinic.engines.flare.order import COORDINATOR, host
from polyclinic.engines.flare.thin import Hashes, thin
from polyclinic.errors import MessageRefused, ProtocolMismatch, SumBurnt
from polyclinic.federation import wire
from polyclinic.federation.fold import Outcome
from polyclinic.federation.protocol import Exchange, Roster, Step, Total
from polyclinic.federation.sums.plain import Plain, contribution_of

__all__ = ["StarLead"]


class StarLead(Lead):
    """Sends the public state to every site, carries their letters to the coordinator's side of the sum, combines."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._air: dict[Future[Any], tuple[str, dict[str, Any], Step, str]] = {}  # asynchronous: asks under way
        self._asked: dict[str, set[str]] = {}  # and the large arrays that they named
        self._hashes = Hashes()
        self._there: dict[str, set[str]] = {}  # large arrays of the public state that a site has, by hash

    def _sums(self) -> Outcome:
        c = self.conductor
        assert c is not None
        while (step := c.step()) is not None:
            self._check_stop()
            late = self.order.staleness is not None and step.counts
            total, entered = self._take_as_they_come(step) if late else self._take(step)
            c.commit(step, total, entered)
            for site, key in entered.items():
                self.commits[site] = key
                if step.counts:
                    c.traffic.payload(site, c.payload(step))
            self.number, self.attempt = self.number + 1, 0
            self._save()
        self._finish({"public": wire.pack(c.public)})
        return self._outcome()

    def _take(self, step: Step) -> tuple[Total, dict[str, list[int]]]:
        """One sum, in as many attempts as it needs."""
        for _ in range(ATTEMPTS):
            sites = self._roster_now()
            if self._saved != (self.number, self.attempt):
                self._save()  # the attempt is on disk before the first message: a crash never reuses it
            roster = self.order.roster(sites, self.attempt)
            assert self.conductor is not None
            self.conductor.roster = roster
            side = self.adder.side(COORDINATOR, roster, step, None)
            attempt = self.attempt
            self._exchange(step, roster, side)
            result = side.result()
            if isinstance(result, Total):
                return result, {s: [self.number, attempt] for s in getattr(side, "members", roster.sites)}
            append_event(self.events, event="burnt", number=self.number, attempt=attempt, step=step.name)
            if not self.secure:
                raise self._lost(f"round {step.round}, step {step.name!r}: too few sites answered in time")
            self.attempt += 1
        raise SumBurnt(f"round {step.round}, step {step.name!r}: {ATTEMPTS} attempts were burnt")

    def _take_as_they_come(self, step: Step) -> tuple[Total, dict[str, list[int]]]:
        """Asynchronous: add as soon as the quorum of contributions is there, each at most ``staleness`` rounds old.

        Slow sites stay in flight over several rounds and do not stop the others; what comes too late is dropped and the
        site is asked anew. The order of arrival decides, so the model is not the same twice.
        """
        c, bound = self.conductor, self.order.staleness or 0
        assert c is not None
        assert isinstance(self.adder, Plain)
        roster = self.order.roster(self.order.sites, 0)
        arrays = self._hashes.of(tree := wire.pack(c.public))
        parts: dict[str, Any] = {}
        entered: dict[str, list[int]] = {}
        rest: dict[str, float] = {}  # a site that cannot do its part is asked again in a second, not at once
        begin = time.monotonic()
        while len(parts) < self._least:
            self._check_stop()
            if time.monotonic() - begin > self.order.deadline:
                raise self._lost(f"round {step.round}: {len(parts)} sites answered in time")
            flying = {site for site, *_ in self._air.values()}
            for site in self._ready():
                if time.monotonic() < rest.get(site, 0.0):
                    continue
                if site not in flying and site not in parts and self._fits(site):
                    ask: dict[str, Any] = {
                        "what": "step",
                        "number": self.number,
                        "attempt": 0,
                        "round": step.round,
                        "id": self._next_id(),
                    }
                    ask |= {"sites": list(roster.sites), "step": wire.pack(step), "commit": self.commits.get(site)}
                    ask["public"] = thin(tree, arrays, self._there.pop(site, set()))
                    self._asked[site] = set(arrays)
                    self._fly(site, ask, step)
            done, _ = wait(list(self._air), timeout=0.05, return_when=FIRST_COMPLETED) if self._air else ((), ())
            if not self._air:
                time.sleep(0.05)
            for f in done:
                site, ask, asked, _ = self._air.pop(f)
                answer = f.result()
                state = "none" if answer is None else answer["state"]
                if state == "working":
                    self._fly(site, ask, asked)
                elif state == "refused" and answer is not None:
                    self._changed(site, "refused", [str(r) for r in answer.get("reasons", [])])
                elif state == "bad" and answer is not None:
                    self._trouble[site] = [str(r) for r in answer.get("reasons", [])]
                    rest[site] = time.monotonic() + 1.0
                elif state == "done" and answer is not None:
                    self._there[site] = self._asked[site]
                    if self.number - int(ask["number"]) > bound:
                        append_event(self.events, event="stale", site=site, number=ask["number"], now=self.number)
                        continue
                    try:
                        letter = wire.decode_message(bytes(answer["mail"][0]), self._protocol)
                        if letter.sender != site:
                            raise MessageRefused(f"{site!r} sent a letter under the name of {letter.sender!r}")
                        parts[site] = contribution_of(letter, asked)
                        entered[site] = [int(ask["number"]), 0]
                    except (MessageRefused, ProtocolMismatch, IndexError) as e:
                        append_event(self.events, event="message refused", site=site, what=str(e)[:200])
            for f, (site, _, _, life) in list(self._air.items()):
                if self._gone(site, life):
                    del self._air[f]
        ages = {s: self.number - number for s, (number, _) in sorted(entered.items())}
        append_event(self.events, event="added", number=self.number, age=ages)
        values, weight = self.adder.add(step, parts)
        return Total(values, weight, len(parts), step.noise_sd * math.sqrt(len(parts))), entered

    def _fly(self, site: str, ask: dict[str, Any], step: Step) -> None:
        self._air[self._pool.submit(self._once, site, ask, ANSWER)] = (site, ask, step, self.pulse.life(site))

    def _roster_now(self) -> tuple[str, ...]:
        """Sites for the next attempt: whoever is ready; a site that came back joins here. Waits for the quorum."""
        begin = time.monotonic()
        while True:
            self._check_stop()
            ready = tuple(s for s in self._ready() if self._fits(s))
            # A site that is merely silent for a moment stays on a plain roster: it is asked again when it answers.
            wanted = (
                ready
                if self.secure
                else tuple(
                    s
                    for s in self.order.sites
                    if s in ready or (s in self._checked and s not in self.refused and self.pulse.state(s) == "lost")
                )
            )
            recent = [s for s in self.order.sites if s not in self.refused and self.pulse.state(s) in ("loading",)]
            if len(ready) >= self._least and not (recent and time.monotonic() - begin < self.order.deadline):
                return wanted
            if not self.secure and len(wanted) >= self._least:
                return wanted
            if time.monotonic() - begin > self.order.deadline:
                raise self._lost(f"{len(ready)} sites are there after {self.order.deadline:g} s")
            time.sleep(0.05)

    def _exchange(self, step: Step, roster: Roster, side: Exchange) -> None:
        """Carry letters between the sites and the coordinator's side until it has a result."""
        c = self.conductor
        assert c is not None
        common = {"number": self.number, "attempt": roster.attempt, "round": step.round}
        arrays = self._hashes.of(tree := wire.pack(c.public))
        first = {**common, "what": "step", "sites": list(roster.sites), "step": wire.pack(step)}

        def opening(site: str) -> dict[str, Any]:
            public = thin(tree, arrays, self._there.pop(site, set()))  # until it answers, nobody knows what it has
            return {**first, "public": public, "id": self._next_id(), "commit": self.commits.get(site)}

        queue: dict[str, list[dict[str, Any]]] = {s: [opening(s)] for s in roster.sites}
        gone: set[str] = set()  # out of this attempt: refused, or lost its keys
        flights: dict[Future[Any], tuple[str, dict[str, Any], str]] = {}
        phase = time.monotonic()
        while side.result() == "pending":
            self._check_stop()
            flying = {s for s, *_ in flights.values()}
            for site, asks in queue.items():
                if asks and site not in flying and site not in gone and self.pulse.state(site) == "ready":
                    ask = asks.pop(0)
                    life = self.pulse.life(site)
                    flights[self._pool.submit(self._once, site, ask, ANSWER)] = (site, ask, life)
            done, _ = wait(list(flights), timeout=0.05, return_when=FIRST_COMPLETED) if flights else ((), ())
            if not flights:
                time.sleep(0.05)
            for f in done:
                site, ask, _ = flights.pop(f)
                answer = f.result()
                state = "none" if answer is None else answer["state"]
                if answer is not None:
                    self.pulse.heard(site, answer if state in ("loading", "waiting") else None)
                if state == "done" and answer is not None:
                    self._trouble.pop(site, None)
                    self._there[site] = set(arrays)
                    try:
                        if self._deliver(site, side, queue, answer.get("mail", []), common):
                            phase = time.monotonic()
                    except (MessageRefused, ProtocolMismatch) as e:
                        append_event(
                            self.events, event="message refused", site=site, what=e.what, reasons=list(e.faults)
                        )
                        self._trouble[site] = [e.what, *e.faults]
                        if not self.secure:  # its one letter of this sum: without it, it is not waited for
                            gone.add(site)
                elif state in ("working", "none", "loading", "waiting"):
                    queue[site].insert(0, ask)
                elif state == "unknown":  # it was restarted: the whole public state
                    queue[site].insert(0, opening(site))
                else:
                    gone.add(site)
                    reasons = [str(r) for r in (answer or {}).get("reasons", [])]
                    self._trouble[site] = reasons
                    append_event(self.events, event=state, site=site, number=self.number, reasons=reasons)
                    if state == "refused":
                        self.refused[site] = reasons
            for f, (site, ask, life) in list(flights.items()):
                if self._gone(site, life):  # its answer may never come; it is asked again when it is back
                    del flights[f]
                    queue[site].insert(0, ask)
            over = time.monotonic() - phase > self.order.deadline
            if over or self._nobody_left(roster, flights, gone):
                self._post(queue, side.deadline(), common)
                phase = time.monotonic()

    def _nobody_left(self, roster: Roster, flights: Mapping[Any, tuple[str, Any, str]], gone: set[str]) -> bool:
        """Whether waiting is pointless: everybody else has answered, and those who have not are gone.

        With the quorum still reachable a lost site is not waited for; without it, it is, until the deadline.
        """
        if flights:
            return False
        out = {s for s in roster.sites if s in gone or self.pulse.state(s) == "lost"}
        if not out:
            return False
        if len(roster.sites) - len(out) >= self.order.least:
            return True
        return self.secure or out <= gone  # a secure attempt cannot be rescued: burn it, then wait for the sites

    def _deliver(
        self,
        site: str,
        side: Exchange,
        queue: dict[str, list[dict[str, Any]]],
        mail: list[Any],
        common: Mapping[str, Any],
    ) -> bool:
        """Hand a site's letters to the coordinator's side; a letter under another's name is refused."""
        moved = False
        for raw in mail:
            letter = wire.decode_message(bytes(raw), self._protocol)
            if host(letter.sender) != site:
                raise MessageRefused(f"{site!r} sent a letter under the name of {letter.sender!r}")
            out = side.receive(letter)
            moved = moved or bool(out)
            self._post(queue, out, common)
        return moved

    def _post(self, queue: dict[str, list[dict[str, Any]]], out: list[Any], common: Mapping[str, Any]) -> None:
        by_site: dict[str, list[bytes]] = {}
        for m in out:
            by_site.setdefault(m.to, []).append(wire.encode_message(m, self._protocol))
        for site, letters in by_site.items():
            queue[site].append({**common, "what": "mail", "id": self._next_id(), "letters": letters})
