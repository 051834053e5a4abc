"""Leading a sum without a coordinator: every node adds and combines for itself; the lead only keeps time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from polyclinic.engines.flare.desk import setting_from
from polyclinic.engines.flare.folders import append_event, read_events
from polyclinic.engines.flare.lead import ANSWER, ATTEMPTS, LIMIT, Lead
from polyclinic.engines.flare.order import host
from polyclinic.errors import ProtocolMismatch, SumBurnt
from polyclinic.federation import wire
from polyclinic.federation.fold import Outcome, Progress
from polyclinic.federation.traffic import Traffic

__all__ = ["RingLead"]


class RingLead(Lead):
    """Starts every sum, waits until all nodes know it, lets them commit it together; sees the model at the end only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._now = 0  # round of the sum that was settled last

    def _last_round(self) -> int:
        """Shown already, in a leg before this one."""
        return max((int(e.get("round", 0)) for e in read_events(self.folder / "progress.jsonl")), default=0)

    def _sums(self) -> Outcome:
        sites = tuple(sorted({host(n) for n in setting_from(self._setting).sites}))
        c = self.conductor
        assert c is not None
        self._all(sites, {"what": "begin", "begin": self._setting["sites"]})
        self._catch_up(sites)
        c.begin()  # the coordinator's own copy stays at the start: it sees no sum
        failed, shown = 0, self._last_round()
        while True:
            self._check_stop()
            self._wait_for(sites)
            self._save()
            common = {"number": self.number, "attempt": self.attempt, "sites": list(sites)}
            answers = self._each(sites, {**common, "what": "step"})
            ended = [a for a in answers.values() if a["state"] == "ended"]
            if len(ended) == len(sites):
                break
            if all(a["state"] == "done" for a in answers.values()) and self._settled(sites, common):
                for site in sites:
                    self.commits[site] = [self.number, self.attempt]
                self.number, self.attempt, failed = self.number + 1, 0, 0
                self._save()
                if self._now > shown:  # which round it is the sites say; its figures are theirs until the end
                    shown = self._now
                    self._progress(Progress("round", self.method.name, shown, self.method.params.rounds or 0, {}))
                continue
            append_event(self.events, event="burnt", number=self.number, attempt=self.attempt)
            self.attempt, failed = self.attempt + 1, failed + 1
            if failed >= ATTEMPTS:
                raise SumBurnt(f"sum {self.number}: {ATTEMPTS} attempts were burnt")
        results = self._each(sites, {"what": "close"})
        self._signed(results)
        return self._merge(results)

    def _each(self, sites: tuple[str, ...], value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Ask all sites, each with the last sum that it may commit."""

        def one(site: str) -> dict[str, Any]:
            return self._until(site, lambda: {**value, "commit": self.commits.get(site)})

        return dict(zip(sites, self._pool.map(one, sites)))

    def _wait_for(self, sites: tuple[str, ...]) -> None:
        """Every site is needed where there is no coordinator."""
        begin = time.monotonic()
        while not set(sites) <= set(self._ready()):
            self._check_stop()
            gone = [s for s in sites if s in self.refused]
            if gone or time.monotonic() - begin > self.order.deadline:
                raise self._lost("every site of the roster is needed")
            time.sleep(0.05)

    def _catch_up(self, sites: tuple[str, ...]) -> None:
        """After a crash: if every site holds the finished sum, it counts; nobody pays for it twice."""

        def fresh(site: str) -> list[int]:
            return list((self._once(site, {"what": "hello"}, 5.0) or {}).get("prepared", []))

        now = [fresh(s) for s in sites]
        if all(k and k == now[0] and k[0] == self.number for k in now) and self._complete(sites):
            for s in sites:
                self.commits[s] = list(now[0])
            self.number, self.attempt = self.number + 1, 0

    def _complete(self, sites: tuple[str, ...]) -> bool:
        return all((self._once(s, {"what": "hello"}, 5.0) or {}).get("total") for s in sites)

    def _settled(self, sites: tuple[str, ...], common: Mapping[str, Any]) -> bool:
        """Wait until every node knows the sum; burn the attempt if one is lost or too slow."""
        begin = time.monotonic()
        waiting = set(sites)
        warned = 0
        while waiting:
            self._check_stop()
            futures = {
                s: self._pool.submit(self._answered, s, {**common, "what": "settle", "id": self._next_id()}, ANSWER)
                for s in waiting
            }
            for s, f in futures.items():
                answer = f.result()
                state = "none" if answer is None else answer["state"]
                if state == "done" and answer is not None:
                    waiting.discard(s)
                    self._now = int(answer.get("round", 0))
                elif state in ("burnt", "lost", "refused", "bad"):
                    return False
            if any(self.pulse.state(s) == "lost" for s in waiting):
                return False
            if time.monotonic() - begin > self.order.deadline * (1 + warned):
                if warned == 2:
                    return False
                warned += 1
                self._all(sites, {**common, "what": "deadline"})
        return True

    def _merge(self, results: Mapping[str, Mapping[str, Any]]) -> Outcome:
        """The model from the sites, who must all have the same, bit for bit."""
        c = self.conductor
        assert c is not None
        states = {s: r["result"] for s, r in results.items() if "result" in r}
        if not states:
            raise self._lost("no site handed over the result")
        first = min(states)
        reference = wire.encode(states[first]["public"], limit=LIMIT)
        other = [s for s, v in states.items() if wire.encode(v["public"], limit=LIMIT) != reference]
        if other:
            raise ProtocolMismatch(
                f"study {self.order.id!r}: nodes disagree", faults=[f"{s!r} != {first!r}" for s in other]
            )
        c.restore(states[first])
        merged = c.traffic
        for s, v in states.items():
            if s != first:
                t = Traffic.restore(dict(v["traffic"]))
                for (a, r), n in t.up.items():
                    merged.up[a, r] += n
                for (a, r), n in t.down.items():
                    merged.down[a, r] += n
                for a, n in t.payloads.items():
                    merged.payloads[a] += n
        return self._outcome()
