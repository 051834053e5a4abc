"""Leading a sum that has a coordinator: plain, masked, robust; and the asynchronous way, as contributions come."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from typing import Any

from polyclinic.engines.flare.folders import append_event, write_json
from polyclinic.engines.flare.lead import ANSWER, ATTEMPTS, Lead
from polyclinic.engines.flare.order import COORDINATOR, host
from polyclinic.engines.flare.totals import Totals
from polyclinic.errors import MessageRefused, PeerLost, ProtocolMismatch, SumBurnt
from polyclinic.federation import wire
from polyclinic.federation.certificate import count_votes
from polyclinic.federation.fold import Outcome
from polyclinic.federation.protocol import Exchange, Roster, Step, Total
from polyclinic.federation.refusals import told
from polyclinic.federation.sums.plain import Plain, contribution_of

__all__ = ["StarLead"]


class StarLead(Lead):
    """Relays the totals to every site, which folds them for itself, and carries the sites' letters to the coordinator's side."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._air: dict[Future[Any], tuple[str, dict[str, Any], Step, str]] = {}  # asynchronous: asks under way
        self._at: dict[str, int] = {}  # sums that a site has folded
        self._other: set[str] = set()  # sites whose last bits differ from ours: another processor
        self._ballots: dict[str, bytes] = {}  # votes that came with the contributions to this sum
        self._words: Any = None  # of the last masked sum, with its tag
        self.totals = Totals(self.folder / "totals")

    def _sums(self) -> Outcome:
        c = self.conductor
        assert c is not None
        while (step := c.step()) is not None:
            self._check_stop()
            late = self.order.staleness is not None and step.counts
            total, entered = self._take_as_they_come(step) if late else self._take(step)
            keys = {s: (n, a) for s, (n, a) in entered.items()}
            opened = c.commit(step, total, entered=keys, words=self._words)
            assert opened is not None
            self.totals.put(opened, c.public)
            for site, key in entered.items():
                self.commits[site] = key
                if step.counts:
                    c.traffic.payload(site, c.payload(step))
            self.number, self.attempt = self.number + 1, 0
            self.votes, self._ballots = self._ballots, {}
            self._save()
            known = [self._at.get(s, 0) for s in self.order.sites if s not in self.refused]
            self.totals.prune(min(known, default=0))
        self._close()
        return self._outcome()

    def _public(self, site: str) -> dict[str, Any]:
        """What a site needs to be where we are: who began, the totals that it has not folded, and the others' votes."""
        at = self._at.get(site, int(self.pulse.last(site).get("number", 0)))
        opened = self.totals.since(at, self.number)
        out: dict[str, Any] = {"begin": self._setting["sites"], "opened": opened, "votes": self.votes}
        if site in self._other:
            states = {str(o["number"]): self._state_after(int(o["number"])) for o in opened}
            out["agreed"] = {k: v for k, v in states.items() if v is not None}
        return out

    def _state_after(self, number: int) -> Any | None:
        assert self.conductor is not None
        return wire.pack(self.conductor.public) if number == self.number - 1 else self.totals.state(number)

    def _needs_more(self, site: str, answer: Mapping[str, Any]) -> bool:
        """A site that is behind gets the totals from there on; one whose bits differ, ours, to compare with its own."""
        if answer["state"] not in ("behind", "differs"):
            return False
        number = int(answer["number"])
        if number > self.number:
            raise PeerLost(
                f"study {self.order.id!r}: {site!r} has folded {number} sums and this run {self.number}",
                hint="the run folder is older than the sites': put the newer one back",
            )
        again = answer["state"] == "differs" and site in self._other and self._at.get(site) == number
        self._at[site] = number
        if answer["state"] == "differs":
            self._other.add(site)
            self.totals.states = True
            append_event(self.events, event="differs", site=site, number=number)
        return not again

    def _close(self) -> None:
        """Every site that is there folds the last total, keeps what stays, and votes for the end of the chain."""
        c = self.conductor
        assert c is not None
        sites = tuple(s for s in self.order.sites if s not in self.refused and self.pulse.state(s) == "ready")

        def one(site: str) -> dict[str, Any]:
            return self._until(site, lambda: {"what": "close", **self._public(site)})

        answers = dict(zip(sites, self._pool.map(one, sites)))
        self._signed(answers)
        votes = {s: bytes(a["vote"]) for s, a in answers.items() if isinstance(a.get("vote"), bytes)}
        keys = {s: bytes.fromhex(self.order.keys[s]) for s in self.order.sites}
        good = {
            s: v.hex() for s, v in votes.items() if count_votes({s: v}, keys, self.order.digest, c.number, c.chain) == 1
        }
        write_json(
            self.folder / "certificate.json",
            {
                "order": self.order.digest,
                "sums": c.number,
                "chain": c.chain.hex(),
                "votes": good,
                "needed": self.order.least,
            },
        )
        append_event(
            self.events, event="certified" if len(good) >= self.order.least else "uncertified", sites=sorted(good)
        )
        self.totals.end()

    def _take(self, step: Step) -> tuple[Total, dict[str, list[int]]]:
        """One sum, in as many attempts as it needs."""
        for _ in range(ATTEMPTS):
            sites = self._roster_now(step)
            if self._saved != (self.number, self.attempt):
                self._save()  # the attempt is on disk before the first message: a crash never reuses it
            assert self.conductor is not None
            roster = self.order.roster(sites, self.attempt, paid=bool(step.noise_sd))
            roster = self.conductor.roster = replace(roster, chain=self.conductor.chain)
            side = self.adder.side(COORDINATOR, roster, step, None)
            attempt = self.attempt
            self._exchange(step, roster, side)
            result = side.result()
            if isinstance(result, Total):
                self._words = getattr(side, "opened", None)  # masked: as opened, with its tag
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
                    ask |= {"sites": list(roster.sites), **self._public(site)}
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
                elif answer is not None and self._needs_more(site, answer):
                    continue  # it is asked anew, with what it lacks
                elif state == "refused" and answer is not None:
                    self._changed(site, "refused", told(answer))
                elif state == "bad" and answer is not None:
                    self._trouble[site] = told(answer)
                    rest[site] = time.monotonic() + 1.0
                elif state == "done" and answer is not None:
                    self._at[site] = int(ask["number"])
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

    def _roster_now(self, step: Step) -> tuple[str, ...]:
        """Sites for the next attempt: whoever is ready; a site that came back joins here. Waits for the quorum.

        A secure sum without noise is taken over all who began, or not at all: it waits for whoever is lost.
        """
        begin = time.monotonic()
        all_ = {host(n) for n in self._setting["sites"]} if self.secure and not step.noise_sd else set()
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
            if all_:
                if all_ <= set(ready):
                    return tuple(sorted(all_))
                if all_ & set(self.refused) or time.monotonic() - begin > self.order.deadline:
                    gone = ", ".join(repr(s) for s in sorted(all_ - set(ready)))
                    raise self._lost(
                        f"round {step.round}: an exact secure sum waits for everybody who began, and for {gone}"
                    )
                time.sleep(0.05)
                continue
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
        common = {"number": self.number, "attempt": roster.attempt, "round": step.round}
        first = {**common, "what": "step", "sites": list(roster.sites)}

        def opening(site: str) -> dict[str, Any]:
            return {**first, **self._public(site), "id": self._next_id()}

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
                    self._at[site] = self.number
                    if isinstance(answer.get("vote"), bytes):
                        self._ballots[site] = answer["vote"]
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
                elif answer is not None and self._needs_more(site, answer):
                    queue[site].insert(0, opening(site))
                else:
                    gone.add(site)
                    reasons = told(answer or {})
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
