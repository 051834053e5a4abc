"""The coordinator's half of a study between hosts: who takes part, deadlines, quorum, attempts, checkpoints.

No engine is imported here: ``ask(site, bytes, seconds)`` carries an ask and brings the answer, or None. After every sum the
public state, the attempt and what each site may commit are on disk, so a killed coordinator resumes at the same sum:
the sum is asked again, a secure one in a new attempt with new keys, and the sites send the stored bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unfinished
from pathlib import Path
from typing import Any, Final

from polyclinic.engines import registry
from polyclinic.engines.flare.aligning import agree_on_codes
from polyclinic.engines.flare.desk import setting_from
from polyclinic.engines.flare.folders import append_event, private
from polyclinic.engines.flare.letter import seal_ask
from polyclinic.engines.flare.order import COORDINATOR, Order, host
from polyclinic.engines.flare.pulse import SLOWEST, Pulse
from polyclinic.engines.flare.result import read_books, write_books
from polyclinic.errors import MessageRefused, PeerLost, ProtocolMismatch
from polyclinic.federation import certificate, wire
from polyclinic.federation.envelope import Identity
from polyclinic.federation.fold import Conductor, Outcome, Progress
from polyclinic.federation.protocol import Method
from polyclinic.federation.refusals import told
from polyclinic.federation.sums import by_name
from polyclinic.privacy.head import Head, heads_of
from polyclinic.privacy.watch import Relay
from polyclinic.privacy.witness import Witness
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.files import atomic

__all__ = ["Lead"]

ANSWER: Final = 20.0  # seconds for one answer on the wire; a site that computes longer says "working" in between
GRACE: Final = 12.0  # seconds to wait at the start for sites that are absent although the quorum is there
ATTEMPTS: Final = 50  # of one secure sum, before the run stops (it can be resumed)
LIMIT: Final = 2**40
Ask = Callable[[str, bytes, float], bytes | None]


class Lead:
    """Runs one study from its order to its outcome; what differs between ways to add is in ``star`` and ``ring``.

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
        self.adder = by_name(order.aggregation, identities={COORDINATOR: identity})
        self.secure = self.adder.reveals == "total"
        self.refused: dict[str, list[str]] = {}
        self.heads: dict[str, Head] = {}  # of the books of sites that have ended the study
        self._trouble: dict[str, list[str]] = {}  # what a site last said when it could not do its part
        self.number = 0  # of the sum now taken
        self.attempt = 0
        self._saved: tuple[int, int] | None = None  # number and attempt that are on disk
        self.commits: dict[str, list[int]] = {}  # site -> the last sum that its contribution entered, and its attempt
        self.votes: dict[str, bytes] = {}  # sites' signatures under the chain before the last sum
        self.conductor: Conductor | None = None
        self._setting: dict[str, Any] = {}
        self._noise: set[str] = set()  # kinds of noise at the sites; one that is not private is enough for the card
        self._checked: set[str] = set()  # sites whose codes and shape were compared
        self._serial = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(4 * len(order.sites) + 4, thread_name_prefix="ask")
        self._largest: dict[str, int] = {}  # bytes of a site's largest answer so far
        keys = {n: bytes.fromhex(k) for n, k in order.keys.items()}
        self.books = Relay(order.digest, keys, Witness(folder.parent / "witness.json"))
        self.pulse = Pulse(order.sites, self._hello, self._changed)

    # ---- talking

    def _hello(self, site: str, timeout: float) -> Mapping[str, Any] | None:
        return self._once(site, {"what": "hello", "full": not self._setting}, timeout)

    def _once(self, site: str, value: Mapping[str, Any], timeout: float) -> dict[str, Any] | None:
        """One ask and its answer, or None if none came or it cannot be read."""
        if value["what"] in ("hello", "step"):
            value = {**value, "books": self.books.bundle(site)}
        data = seal_ask(self.identity, self.order.digest, site, value)
        if value["what"] == "hello":
            raw = self._send(site, data, timeout)
        else:
            size = max(len(data), self._largest.get(site, 0))
            with self.pulse.carrying(site, size):
                raw = self._send(site, data, timeout + 2 * size / SLOWEST)
        if raw is None:
            return None
        self._largest[site] = max(len(raw), self._largest.get(site, 0))
        try:
            answer = wire.decode(raw)
        except (MessageRefused, ProtocolMismatch):
            return None
        if not isinstance(answer, dict) or not isinstance(answer.get("state"), str):
            return None
        if isinstance(answer.get("books"), bytes) and (faults := self.books.heard(site, answer["books"])):
            self._changed(site, "refused", faults)
        if value["what"] != "hello" and self.conductor is not None:
            number = int(value.get("round", 0))
            with self._lock:
                self.conductor.traffic.received(site, number, len(data))
                self.conductor.traffic.sent(site, number, len(raw))
        return answer

    def _answered(self, site: str, value: Mapping[str, Any], timeout: float) -> dict[str, Any] | None:
        """As :meth:`_once`, but a site that is lost, or was restarted meanwhile, is not waited for."""
        life, asked = self.pulse.life(site), self._pool.submit(self._once, site, value, timeout)
        while True:
            try:
                return asked.result(0.1)
            except Unfinished:
                if self._gone(site, life):
                    return None

    def _gone(self, site: str, life: str) -> bool:
        """Whether the process that was asked can no longer answer."""
        return self.pulse.state(site) == "lost" or self.pulse.life(site) != life

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
        states = []
        for s in self.order.sites:
            said = self.refused.get(s) or self._trouble.get(s) or []
            state = "refused" if s in self.refused else self.pulse.state(s)
            states.append(f"{s!r}: {state}{': ' if said else ''}{'; '.join(said)}")
        return PeerLost(
            f"study {self.order.id!r}: {why}; {self.order.least} sites are needed",
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
            outcome = self._sums()
            self.pulse.look(self._ready())  # the ends of all books, and then everybody has them
            self.books.pass_on()
            self.pulse.look(self._ready())
            append_event(self.events, event="finished", seconds=round(time.perf_counter() - started, 3))
            return outcome
        finally:
            self.pulse.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _sums(self) -> Outcome:
        raise NotImplementedError

    def _gather(self) -> None:
        """Wait for the sites; go on without those who refuse, or who are absent although the quorum is there."""
        begin = time.monotonic()
        first_quorum: float | None = None
        first_refusal: float | None = None
        while True:
            self._check_stop()
            ready = self._ready()
            open_ = [s for s in self.order.sites if s not in self.refused and s not in ready]
            now = time.monotonic()
            if len(self.order.sites) - len(self.refused) < self._least:
                first_refusal = first_refusal or now  # the others may have reasons, too: all of them at once
                coming = [s for s in open_ if self.pulse.state(s) in ("absent", "loading", "refused")]
                if not coming or now - first_refusal > min(GRACE, self.order.deadline):
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
        for _ in range(3):  # nonces, statements, and once more for who came late; the pulse goes on with it
            if not self.books.complete(self._ready()):
                self.pulse.look(self._ready())
        if self.order.alignment is not None:
            agree_on_codes(self)
        self._setting = self._agree(self._ready())

    @property
    def _least(self) -> int:
        return max(1, self.order.least)

    def _agree(self, sites: tuple[str, ...]) -> dict[str, Any]:
        """One setting for all, or a refusal that names who differs."""
        settings = {s: self.pulse.last(s).get("setting") for s in sites}
        known = {s: v for s, v in settings.items() if v}
        first = next(iter(known.values()))
        axes = [self.order.axis(a["name"]) if a["vocabulary"] == "public" else Axis.from_json(a) for a in first["axes"]]
        keys = ("shape", "digests", "alignment")
        other = [s for s, v in known.items() if any(v.get(k) != first.get(k) for k in keys)]
        if [a.digest() for a in axes] != first["digests"]:
            other = [next(iter(known)), *other]
        if other or len(known) < len(sites):
            raise ProtocolMismatch(
                f"study {self.order.id!r}: sites do not fit together",
                faults=[
                    f"{s!r} has another vocabulary, shape or other columns than {next(iter(known))!r}" for s in other
                ],
                hint=""
                if first["axes"]
                else "list what all sites have in [features] columns: a site that lacks one says so",
            )
        self._checked = set(sites)
        self._noise |= {str(self.pulse.last(s).get("noise", "")) for s in sites}
        common = {k: first[k] for k in ("shape", "alignment") if k in first}
        return {**common, "axes": [a.to_json() for a in axes], "sites": list(self.order.nodes(sites))}

    def _fits(self, site: str) -> bool:
        """Whether a site that came later speaks of the same things."""
        if site in self._checked:
            return True
        answer = self._once(site, {"what": "hello", "full": True}, 5.0) or {}
        theirs = answer.get("setting")
        if not theirs:
            return False
        digests = [Axis.from_json(a).digest() for a in self._setting["axes"]]
        same = theirs.get("alignment") == self._setting.get("alignment")
        if same and theirs["shape"] == list(self._setting["shape"]) and theirs["digests"] == digests:
            self._checked.add(site)
            self._noise.add(str(answer.get("noise", "")))
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
            self._noise |= set(state["noise"])
            self.votes = dict(state.get("votes", {}))
        setting = setting_from(self._setting)
        digests = [a.digest() for a in setting.axes]
        names = self._setting.get("alignment")
        chain = certificate.root(self.order.digest, setting.shape, digests, names, setting.sites)
        roster = self.order.roster(setting.sites, 0)
        self.conductor = Conductor(self.method, setting, self.adder, roster, self._progress, chain)
        if state is not None:
            self.conductor.restore(state["conductor"])
            if self.secure:
                self.attempt += 1  # keys of the interrupted attempt are gone: a new one
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
            "noise": sorted(self._noise),
            "votes": self.votes,
            "conductor": self.conductor.state(),
        }
        with atomic(self.folder / "state.ckpt") as temporary:
            temporary.write_bytes(wire.encode(value, limit=LIMIT))
            temporary.chmod(0o600)
        self._saved = (self.number, self.attempt)

    @property
    def _protocol(self) -> str:
        return f"{self.method.name}/{self.method.version}"

    def _all(self, sites: tuple[str, ...], value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Ask all sites the same; a site that works is asked again until the deadline."""
        return dict(zip(sites, self._pool.map(lambda s: self._until(s, lambda: value), sites)))

    def _until(self, site: str, value: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Ask one site until it has an answer, or the deadline has passed."""
        ask = {**value(), "id": self._next_id()}
        end = time.monotonic() + self.order.deadline
        answer: dict[str, Any] | None = None
        while time.monotonic() < end and not self.stopped():
            answer = self._answered(site, ask, ANSWER)
            if answer is not None and self._needs_more(site, answer):
                ask = {**value(), "id": self._next_id()}
            elif answer is not None and answer["state"] != "working":
                break
            if answer is None and self.pulse.state(site) == "lost":
                break
        if answer is not None and answer["state"] == "refused":
            self.refused[site] = told(answer)
        if answer is not None and answer["state"] == "done":
            self.heads |= {n: h for n, h in heads_of(answer.get("heads")).items() if host(n) == site}
        if answer is not None and answer["state"] not in ("done", "ended", "working"):
            append_event(self.events, event=answer["state"], site=site, reasons=told(answer))
        return answer or {"state": "none"}

    def _needs_more(self, site: str, answer: Mapping[str, Any]) -> bool:
        """Whether a site lacks something of the public state that this lead can still send."""
        return False

    # ---- the end

    def _finish(self, more: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        sites = tuple(s for s in self.order.sites if s not in self.refused and self.pulse.state(s) == "ready")
        return self._all(sites, {"what": "close", **more})

    def _signed(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what the sites signed of their books: the card is made from it."""
        write_books(
            self.folder, self.order, {s: a["book"] for s, a in answers.items() if isinstance(a.get("book"), bytes)}
        )

    def _outcome(self) -> Outcome:
        c = self.conductor
        assert c is not None
        seconds = float(c.history[-1]["seconds"]) if c.history else 0.0
        noise = "; ".join(sorted(self._noise))
        return Outcome(
            c.public,
            {},
            {},
            c.history,
            c.traffic,
            c.setting,
            tuple(c.releases),
            seconds,
            noise,
            heads=dict(sorted(self.heads.items())),
            books=read_books(self.folder),
        )
