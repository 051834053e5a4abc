"""The coordinator's half of a study between hosts: who takes part, deadlines, quorum, attempts, checkpoints.

No engine is imported here: ``ask(site, bytes, seconds)`` carries an ask and brings the answer, or None. After every sum the
public state, the attempt and what each site may commit are on disk, so a killed coordinator resumes at the same sum:
a plain sum is asked again (sites send the stored bytes), a secure sum is a new attempt with new keys and a new charge.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from polyclinic.engines import registry
from polyclinic.engines.flare.desk import setting_from
from polyclinic.engines.flare.folders import append_event, private
from polyclinic.engines.flare.letter import seal_ask
from polyclinic.engines.flare.order import COORDINATOR, Order, host
from polyclinic.engines.flare.pulse import Pulse
from polyclinic.errors import MessageRefused, PeerLost, ProtocolMismatch, SumBurnt
from polyclinic.federation import wire
from polyclinic.federation.envelope import Identity
from polyclinic.federation.fold import Conductor, Outcome, Progress
from polyclinic.federation.protocol import Exchange, Method, Roster, Step, Total
from polyclinic.federation.sums import SECURE, by_name
from polyclinic.federation.sums.plain import Plain, contribution_of
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.files import atomic

__all__ = ["Lead"]

ANSWER: Final = 20.0  # seconds for one answer on the wire; a site that computes longer says "working" in between
GRACE: Final = 12.0  # seconds to wait at the start for sites that are absent although the quorum is there
ATTEMPTS: Final = 50  # of one secure sum, before the run stops (it can be resumed)
LIMIT: Final = 2**40
Ask = Callable[[str, bytes, float], bytes | None]


class Lead:
    """Runs one study from its order to its outcome.

    Parameters
    ----------
    order
        The signed study.
    identity
        The coordinator's signing key.
    folder
        The run folder: checkpoint, progress, events.
    ask
        The transport.
    stopped
        True when the run must stop at the next chance (abort, shutdown).
    """

    def __init__(
        self,
        order: Order,
        identity: Identity,
        folder: Path,
        ask: Ask,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.order, self.identity, self._send, self.stopped = order, identity, ask, stopped
        self.folder = private(folder)
        self.events = folder / "events.jsonl"
        study = order.parsed(private(folder / "files"))
        self.method: Method[Any, Any, Any] = registry.federated(study)
        secure = order.aggregation in SECURE
        self.adder = by_name(order.aggregation, **({"identities": {COORDINATOR: identity}} if secure else {}))
        self.secure = secure
        self.star = order.aggregation not in ("subspace", "cycle")
        self.refused: dict[str, list[str]] = {}
        self.number = 0  # of the sum now taken
        self.attempt = 0
        self.commits: dict[str, list[int]] = {}  # site -> the last sum that its contribution entered, and its attempt
        self.conductor: Conductor | None = None
        self._setting: dict[str, Any] = {}
        self._noise = ""
        self._checked: set[str] = set()  # sites whose codes and shape were compared
        self._serial = 0
        self._lock = threading.Lock()
        self._air: dict[Future[Any], tuple[str, dict[str, Any], Step]] = {}  # asynchronous: asks under way
        self._pool = ThreadPoolExecutor(4 * len(order.sites) + 4, thread_name_prefix="ask")
        self.pulse = Pulse(order.sites, self._hello, self._changed)

    # ---- talking

    def _hello(self, site: str, timeout: float) -> Mapping[str, Any] | None:
        return self._once(site, {"what": "hello", "full": not self._setting}, timeout)

    def _once(self, site: str, value: Mapping[str, Any], timeout: float) -> dict[str, Any] | None:
        """One ask and its answer, or None if none came or it cannot be read."""
        data = seal_ask(self.identity, self.order.id, site, value)
        raw = self._send(site, data, timeout)
        if raw is None:
            return None
        try:
            answer = wire.decode(raw)
        except (MessageRefused, ProtocolMismatch):
            return None
        if not isinstance(answer, dict) or not isinstance(answer.get("state"), str):
            return None
        if value["what"] != "hello" and self.conductor is not None:
            number = int(value.get("round", 0))
            with self._lock:
                self.conductor.traffic.received(site, number, len(data))
                self.conductor.traffic.sent(site, number, len(raw))
        return answer

    def _changed(self, site: str, state: str, reasons: list[str]) -> None:
        append_event(self.events, event=state, site=site, reasons=reasons)
        if state == "refused":
            self.refused[site] = reasons

    def _next_id(self) -> str:
        with self._lock:
            self._serial += 1
            return f"{time.time_ns()}-{self._serial}"

    def _ready(self) -> tuple[str, ...]:
        return tuple(s for s in self.order.sites if s not in self.refused and self.pulse.state(s) == "ready")

    def _check_stop(self) -> None:
        if self.stopped():
            raise PeerLost("the run was stopped", hint="polyclinic coordinator resume")

    def _lost(self, why: str) -> PeerLost:
        states = [f"{s!r}: {'refused' if s in self.refused else self.pulse.state(s)}" for s in self.order.sites]
        return PeerLost(
            f"study {self.order.id!r}: {why}; {self.order.quorum} sites are needed",
            faults=states,
            hint="wait for them and resume: polyclinic coordinator resume",
        )

    # ---- the run

    def run(self) -> Outcome:
        """Take sums until the method is finished; raises :class:`PeerLost` for a clean stop that can be resumed."""
        try:
            started = time.perf_counter()
            self._gather()
            self._restore()
            outcome = self._run_star() if self.star else self._run_ring()
            append_event(self.events, event="finished", seconds=round(time.perf_counter() - started, 3))
            return outcome
        finally:
            self.pulse.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _gather(self) -> None:
        """Wait for the sites; go on without those who refuse, or who are absent although the quorum is there."""
        begin = time.monotonic()
        first_quorum: float | None = None
        while True:
            self._check_stop()
            ready = self._ready()
            open_ = [s for s in self.order.sites if s not in self.refused and s not in ready]
            now = time.monotonic()
            if len(self.order.sites) - len(self.refused) < self._least:
                raise self._lost("too many sites refused")
            if not open_:
                break
            if len(ready) >= self._least:
                first_quorum = first_quorum or now
                coming = [s for s in open_ if self.pulse.state(s) in ("loading", "waiting")]
                if now - first_quorum > (self.order.deadline if coming else min(GRACE, self.order.deadline)):
                    break
            elif now - begin > self.order.deadline:
                raise self._lost(f"{len(ready)} sites are ready after {self.order.deadline:g} s")
            time.sleep(0.05)
        self._setting = self._agree(self._ready())

    @property
    def _least(self) -> int:
        return max(self.order.quorum, 3 if self.secure else 1)

    def _agree(self, sites: tuple[str, ...]) -> dict[str, Any]:
        """One setting for all, or a refusal that names who differs."""
        settings = {s: self.pulse.last(s).get("setting") for s in sites}
        known = {s: v for s, v in settings.items() if v}
        first = next(iter(known.values()))
        other = [s for s, v in known.items() if v["shape"] != first["shape"] or v["digests"] != first["digests"]]
        if other or len(known) < len(sites):
            raise ProtocolMismatch(
                f"study {self.order.id!r}: sites do not fit together",
                faults=[f"{s!r} has another vocabulary or shape than {next(iter(known))!r}" for s in other],
            )
        self._checked = set(sites)
        labels = {str(self.pulse.last(s).get("noise", "")) for s in sites}
        self._noise = labels.pop() if len(labels) == 1 else "different at different sites"
        return {"shape": first["shape"], "axes": first["axes"], "sites": list(self.order.nodes(sites))}

    def _fits(self, site: str) -> bool:
        """Whether a site that came later speaks of the same things."""
        if site in self._checked:
            return True
        answer = self._once(site, {"what": "hello", "full": True}, 5.0) or {}
        theirs = answer.get("setting")
        if not theirs:
            return False
        digests = [Axis.from_json(a).digest() for a in self._setting["axes"]]
        if theirs["shape"] == list(self._setting["shape"]) and theirs["digests"] == digests:
            self._checked.add(site)
            return True
        self._changed(site, "refused", ["another vocabulary or shape than the other sites"])
        return False

    def _restore(self) -> None:
        found = self.folder / "state.ckpt"
        state = wire.decode(found.read_bytes(), limit=LIMIT) if found.exists() else None
        if state is not None:
            self._setting = state["setting"]
            self.number, self.attempt = int(state["number"]), int(state["attempt"])
            self.commits = {s: list(k) for s, k in state["commits"].items()}
        setting = setting_from(self._setting)
        self.conductor = Conductor(
            self.method, setting, self.adder, self.order.roster(setting.sites, 0), self._progress
        )
        if state is not None:
            self.conductor.restore(state["conductor"])
            if self.secure:
                self.attempt += 1  # keys of the interrupted attempt are gone: a new one, charged anew
            append_event(self.events, event="resumed", number=self.number, attempt=self.attempt)

    def _progress(self, p: Progress) -> None:
        event = {"kind": p.kind, "method": p.method, "round": p.round, "rounds": p.rounds, "figures": dict(p.figures)}
        append_event(self.folder / "progress.jsonl", **event)

    def _save(self) -> None:
        assert self.conductor is not None
        value = {
            "setting": self._setting,
            "number": self.number,
            "attempt": self.attempt,
            "commits": self.commits,
            "conductor": self.conductor.state(),
        }
        with atomic(self.folder / "state.ckpt") as temporary:
            temporary.write_bytes(wire.encode(value, limit=LIMIT))
            temporary.chmod(0o600)

    # ---- with a coordinator: plain, masked, robust

    def _run_star(self) -> Outcome:
        c = self.conductor
        assert c is not None
        while (step := c.step()) is not None:
            self._check_stop()
            late = self.order.staleness is not None and step.counts
            total, entered = self._take_as_they_come(step) if late else self._take(step)
            c.commit(step, total)
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
            self._save()  # the attempt is on disk before the first message: a crash never reuses it
            roster = self.order.roster(sites, self.attempt)
            assert self.conductor is not None
            self.conductor.roster = roster
            side = self.adder.side(COORDINATOR, roster, step, None)
            attempt = self.attempt
            self._exchange(step, roster, side)
            result = side.result()
            if isinstance(result, Total):
                members = tuple(getattr(side, "members", None) or getattr(side, "_alive", None) or roster.sites)
                return result, {s: [self.number, attempt] for s in members}
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
        begin = time.monotonic()
        while len(parts) < self._least:
            self._check_stop()
            if time.monotonic() - begin > self.order.deadline:
                raise self._lost(f"round {step.round}: {len(parts)} sites answered in time")
            flying = {site for site, _, _ in self._air.values()}
            for site in self._ready():
                if site not in flying and site not in parts and self._fits(site):
                    ask: dict[str, Any] = {
                        "what": "step",
                        "number": self.number,
                        "attempt": 0,
                        "round": step.round,
                        "id": self._next_id(),
                    }
                    ask |= {"sites": list(roster.sites), "step": wire.pack(step), "public": wire.pack(c.public)}
                    ask["commit"] = self.commits.get(site)
                    self._air[self._pool.submit(self._once, site, ask, ANSWER)] = (site, ask, step)
            done, _ = wait(list(self._air), timeout=0.05, return_when=FIRST_COMPLETED) if self._air else ((), ())
            if not self._air:
                time.sleep(0.05)
            for f in done:
                site, ask, asked = self._air.pop(f)
                answer = f.result()
                state = "none" if answer is None else answer["state"]
                if state == "working":
                    self._air[self._pool.submit(self._once, site, ask, ANSWER)] = (site, ask, asked)
                elif state == "refused" and answer is not None:
                    self._changed(site, "refused", [str(r) for r in answer.get("reasons", [])])
                elif state == "done" and answer is not None:
                    if self.number - int(ask["number"]) > bound:
                        append_event(self.events, event="stale", site=site, number=ask["number"], now=self.number)
                        continue
                    try:
                        letter = wire.decode_message(bytes(answer["mail"][0]), self._protocol)
                        parts[site] = contribution_of(letter, asked)
                        entered[site] = [int(ask["number"]), 0]
                    except (MessageRefused, ProtocolMismatch, IndexError) as e:
                        append_event(self.events, event="message refused", site=site, what=str(e)[:200])
            for f, (site, _, _) in list(self._air.items()):
                if self.pulse.state(site) == "lost":
                    del self._air[f]
        arrays, weight = self.adder.add(step, parts)
        return Total(arrays, weight, len(parts), step.noise_sd * math.sqrt(len(parts))), entered

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
        first = {
            **common,
            "what": "step",
            "sites": list(roster.sites),
            "step": wire.pack(step),
            "public": wire.pack(c.public),
        }
        queue: dict[str, list[dict[str, Any]]] = {
            s: [{**first, "id": self._next_id(), "commit": self.commits.get(s)}] for s in roster.sites
        }
        gone: set[str] = set()  # out of this attempt: refused, or lost its keys
        flights: dict[Future[Any], tuple[str, dict[str, Any]]] = {}
        phase = time.monotonic()
        while side.result() == "pending":
            self._check_stop()
            flying = {s for s, _ in flights.values()}
            for site, asks in queue.items():
                if asks and site not in flying and site not in gone and self.pulse.state(site) == "ready":
                    ask = asks.pop(0)
                    flights[self._pool.submit(self._once, site, ask, ANSWER)] = (site, ask)
            done, _ = wait(list(flights), timeout=0.05, return_when=FIRST_COMPLETED) if flights else ((), ())
            if not flights:
                time.sleep(0.05)
            for f in done:
                site, ask = flights.pop(f)
                answer = f.result()
                state = "none" if answer is None else answer["state"]
                if answer is not None:
                    self.pulse.heard(site)
                if state == "done" and answer is not None:
                    if self._deliver(side, queue, answer.get("mail", []), common):
                        phase = time.monotonic()
                elif state in ("working", "none", "loading", "waiting"):
                    queue[site].insert(0, ask)
                else:
                    gone.add(site)
                    reasons = [str(r) for r in (answer or {}).get("reasons", [])]
                    append_event(self.events, event=state, site=site, number=self.number, reasons=reasons)
                    if state == "refused":
                        self.refused[site] = reasons
            for f, (site, ask) in list(flights.items()):
                if self.pulse.state(site) == "lost":  # its answer may never come; it is asked again when it is back
                    del flights[f]
                    queue[site].insert(0, ask)
            over = time.monotonic() - phase > self.order.deadline
            if over or self._nobody_left(roster, flights, gone):
                self._post(queue, side.deadline(), common)
                phase = time.monotonic()

    def _nobody_left(self, roster: Roster, flights: Mapping[Any, tuple[str, Any]], gone: set[str]) -> bool:
        """Whether waiting is pointless: everybody else has answered, and those who have not are gone.

        With the quorum still reachable a lost site is not waited for; without it, it is, until the deadline.
        """
        if flights:
            return False
        out = {s for s in roster.sites if s in gone or self.pulse.state(s) == "lost"}
        if not out:
            return False
        if len(roster.sites) - len(out) >= self.order.quorum:
            return True
        return self.secure or out <= gone  # a secure attempt cannot be rescued: burn it, then wait for the sites

    def _deliver(
        self, side: Exchange, queue: dict[str, list[dict[str, Any]]], mail: list[Any], common: Mapping[str, Any]
    ) -> bool:
        moved = False
        for raw in mail:
            try:
                out = side.receive(wire.decode_message(bytes(raw), self._protocol))
            except (MessageRefused, ProtocolMismatch) as e:
                append_event(self.events, event="message refused", what=e.what, reasons=list(e.faults))
                continue
            moved = moved or bool(out)
            self._post(queue, out, common)
        return moved

    def _post(self, queue: dict[str, list[dict[str, Any]]], out: list[Any], common: Mapping[str, Any]) -> None:
        by_site: dict[str, list[bytes]] = {}
        for m in out:
            by_site.setdefault(m.to, []).append(wire.encode_message(m, self._protocol))
        for site, letters in by_site.items():
            queue[site].append({**common, "what": "mail", "id": self._next_id(), "letters": letters})

    @property
    def _protocol(self) -> str:
        return f"{self.method.name}/{self.method.version}"

    # ---- without: every node adds and combines for itself; the coordinator only keeps time

    def _run_ring(self) -> Outcome:
        sites = tuple(sorted({host(n) for n in setting_from(self._setting).sites}))
        c = self.conductor
        assert c is not None
        self._all(sites, {"what": "begin", "setting": self._setting})
        self._catch_up(sites)
        c.begin()  # the coordinator's own copy stays at the start: it sees no sum
        failed = 0
        while True:
            self._check_stop()
            self._wait_for(sites)
            self._save()
            common = {"number": self.number, "attempt": self.attempt, "sites": list(sites)}
            answers = self._all(sites, {**common, "what": "step"}, commit=True)
            ended = [a for a in answers.values() if a["state"] == "ended"]
            if len(ended) == len(sites):
                break
            if all(a["state"] == "done" for a in answers.values()) and self._settled(sites, common):
                for site in sites:
                    self.commits[site] = [self.number, self.attempt]
                self.number, self.attempt, failed = self.number + 1, 0, 0
                self._save()
                self._progress(Progress("sum", self.method.name, self.number, 0, {}))
                continue
            append_event(self.events, event="burnt", number=self.number, attempt=self.attempt)
            self.attempt, failed = self.attempt + 1, failed + 1
            if failed >= ATTEMPTS:
                raise SumBurnt(f"sum {self.number}: {ATTEMPTS} attempts were burnt")
        results = self._finish({})
        return self._merge(results)

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
                s: self._pool.submit(self._once, s, {**common, "what": "settle", "id": self._next_id()}, ANSWER)
                for s in waiting
            }
            for s, f in futures.items():
                answer = f.result()
                state = "none" if answer is None else answer["state"]
                if state == "done":
                    waiting.discard(s)
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

    def _all(
        self, sites: tuple[str, ...], value: Mapping[str, Any], *, commit: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Ask all sites the same; a site that works is asked again until the deadline."""

        def one(site: str) -> dict[str, Any]:
            ask = {**value, "id": self._next_id(), **({"commit": self.commits.get(site)} if commit else {})}
            end = time.monotonic() + self.order.deadline
            answer: dict[str, Any] | None = None
            while time.monotonic() < end and not self.stopped():
                answer = self._once(site, ask, ANSWER)
                if answer is not None and answer["state"] != "working":
                    break
                if answer is None and self.pulse.state(site) == "lost":
                    break
            if answer is not None and answer["state"] == "refused":
                self.refused[site] = [str(r) for r in answer.get("reasons", [])]
            if answer is not None and answer["state"] not in ("done", "ended", "working"):
                append_event(self.events, event=answer["state"], site=site, reasons=answer.get("reasons", []))
            return answer or {"state": "none"}

        return dict(zip(sites, self._pool.map(one, sites)))

    # ---- the end

    def _finish(self, more: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        sites = tuple(s for s in self.order.sites if s not in self.refused and self.pulse.state(s) == "ready")
        return self._all(sites, {"what": "close", **more}, commit=True)

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
        from polyclinic.federation.traffic import Traffic

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

    def _outcome(self) -> Outcome:
        c = self.conductor
        assert c is not None
        seconds = float(c.history[-1]["seconds"]) if c.history else 0.0
        return Outcome(c.public, {}, {}, c.history, c.traffic, c.setting, tuple(c.releases), seconds, self._noise)
