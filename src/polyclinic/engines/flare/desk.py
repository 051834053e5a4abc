"""A hospital's half of a study between hosts: answers the coordinator, talks to neighbours, keeps its own checkpoint.

No engine is imported here: bytes in, bytes out. The coordinator is believed in nothing but who is there: it relays the totals
of the sums, and this site folds them for itself. Which sum comes next, its number and its step, and the public state are
derived here from the order; an ask that does not fit them gets no contribution. Every ask is signed and has an id, so that a
duplicate gets the same answer and a late one is recognised. Before an answer leaves, the state that it rests on is on disk:

    fold        the public state, number and chain
    committed   the private state up to the last sum that this site's contribution entered
    prepared    the private state if the present sum commits; the opened total says whether it did
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unfinished
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, Final, assert_never

from polyclinic import __version__
from polyclinic.engines.flare.admission import Admission, admit
from polyclinic.engines.flare.aligning import SiteAlignment
from polyclinic.engines.flare.folders import SiteFolder, append_event
from polyclinic.engines.flare.kept import Kept, Key
from polyclinic.engines.flare.letter import open_ask
from polyclinic.engines.flare.order import COORDINATOR, Order, host
from polyclinic.engines.flare.retention import drop_data
from polyclinic.errors import DataError, MessageRefused, PolicyRefusal, PolyclinicError, ProtocolMismatch
from polyclinic.federation import certificate, wire
from polyclinic.federation.certificate import Opened
from polyclinic.federation.envelope import digest
from polyclinic.federation.fold import Conductor, Folding, SiteParty
from polyclinic.federation.messages import Align, Ask, Begin, Close, Deadline, Hello, Mail, Settle, Take, read_ask
from polyclinic.federation.protocol import Exchange, Message, Method, Roster, Setting, Step, Total
from polyclinic.federation.refusals import Why, why_of
from polyclinic.federation.sums.masked import Masked
from polyclinic.federation.sums.promise import Promise, Promises
from polyclinic.federation.sums.tag import Tag
from polyclinic.federation.words import read_words
from polyclinic.privacy.owner import ledger_of, policy_of, witness_of
from polyclinic.privacy.release import Contribution
from polyclinic.privacy.studybook import StudyBook
from polyclinic.privacy.watch import Watch
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.blas import one_thread

__all__ = ["Desk"]

PATIENCE: Final = 5.0  # seconds an ask waits for its answer before it says "working"
ASKS: Final = 16  # of the coordinator, answered or remembered at a time
EARLY: Final = 4096  # letters of neighbours kept before their sum opens


class Desk:
    """One site's side of one study.

    Parameters
    ----------
    order
        The signed study, already checked against the pinned coordinator.
    folder
        The site's folder; data paths and secrets come from its node file only.
    post
        Sends bytes to a neighbour; must not block for long.
    """

    def __init__(self, order: Order, folder: SiteFolder, post: Callable[[str, bytes], None]) -> None:
        self.order, self.folder, self.post = order, folder, post
        self.me = folder.node.name
        self.home = folder.study(order.digest)
        self._kept = Kept(self.home)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="desk")
        self._tasks: OrderedDict[str, Future[dict[str, Any]]] = OrderedDict()
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        self._state: str = "loading"
        self._reasons: list[str] = []  # the owner's to read
        self._why: Why | None = None  # all that the coordinator hears of them
        self._admission: Admission | None = None
        self._parties: dict[str, SiteParty] = {}  # by node
        self._fold: Folding | None = None  # this site's own; a Conductor where there is no coordinator's
        self._begun: list[str] = []  # nodes of the sites that began
        self._committed: Key | None = None
        self._prepared: tuple[Key, dict[str, Any]] | None = None
        self._prepared_public: dict[str, Any] | None = None
        self._entered: dict[Key, str] = {}  # secure sums: attempts this site took part in, and with whom
        self._signed: dict[int, tuple[Promise, ...]] = {}  # secure sums: lists of survivors signed, by number
        self._sides: dict[str, Exchange] = {}  # of the sum now open, by node
        self._key: Key | None = None
        self._step: Step | None = None
        self._early: deque[Message] = deque(maxlen=EARLY)
        self._life = secrets.token_hex(8)  # tells this process from the one before: asks that it took are lost with it
        self._codes = SiteAlignment(order, folder, self._dispatch)
        self.dropped = 0
        self._load = self._pool.submit(self._open)

    # ---- the study is looked at, admitted, and its data read; all of it in the background

    def _open(self) -> None:
        try:
            with one_thread():
                made = admit(self.order, self.folder, self._waiting)
            self._sit(made if self.order.alignment is None else self._codes.kept(made))
            self._restore()
            self._become("ready")
            append_event(self.folder.events, event="ready", study=self.order.id)
        except PolyclinicError as e:
            self._blame(e)
        except Exception as e:  # whatever it was, the coordinator learns only that this site cannot take part
            append_event(self.folder.events, event="failed", study=self.order.id, error=f"{type(e).__name__}: {e}")
            self._become("refused", [f"{type(e).__name__}: {e}"], self._word(e))

    def _sit(self, made: Admission) -> None:
        self._parties = {n: SiteParty(made.method, s, made.adder, made.doors[n]) for n, s in made.sites.items()}
        self._admission = made

    def _align(self, ask: Align) -> dict[str, Any]:
        """Before the first sum: agree with the other sites on codes."""
        if self._kept.file.exists():
            raise MessageRefused(f"site {self.me!r} has taken sums of study {self.order.id!r}: its codes stay")
        out, made = self._codes.answer(vars(ask), self._protocol)
        if made is not None:
            self._sit(made)
        return out

    def _waiting(self, reasons: list[str]) -> None:
        self._become("waiting", reasons)

    def _become(self, state: str, reasons: list[str] | None = None, why: Why | None = None) -> None:
        with self._lock:
            self._state, self._reasons, self._why = state, list(reasons or []), why

    def _word(self, e: BaseException) -> Why:
        if self.order.polyclinic.split(".")[:2] != __version__.split(".")[:2]:
            return "version"
        if self.order.keys.get(self.me) != self.folder.identity().public.hex():
            return "roster"
        return why_of(e)

    def _standing(self) -> dict[str, Any]:
        """State and, of a refusal, its word; nothing else about it leaves."""
        return {"state": self._state, **({} if self._why is None else {"why": self._why})}

    def _blame(self, e: PolyclinicError) -> None:
        """Note an error in our log, in full; the coordinator hears a word."""
        refused = isinstance(e, PolicyRefusal | MessageRefused | ProtocolMismatch)
        append_event(
            self.folder.events,
            event="refused" if refused else "failed",
            study=self.order.id,
            code=e.code,
            what=e.what,
            reasons=list(e.faults),
        )
        self._become("refused", [e.what, *e.faults], self._word(e))

    # ---- asks of the coordinator

    def answer(self, data: bytes) -> bytes:
        """Answer one ask; never raises."""
        try:
            ask = open_ask(data, self.order, self.me)
            return wire.encode(self._answer(ask))
        except PolyclinicError as e:
            append_event(self.folder.events, event="message refused", study=self.order.id, what=e.what)
            return wire.encode({"state": "bad", "why": why_of(e)})
        except Exception as e:
            append_event(self.folder.events, event="failed", study=self.order.id, error=f"{type(e).__name__}: {e}")
            return wire.encode({"state": "bad", "why": why_of(e)})

    def _answer(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        id, ask = read_ask(tree)
        if isinstance(ask, Hello):
            return {**self._hello(full=ask.full), "books": self._watch.hear(ask.books)}
        if self._state != "ready":
            return self._standing()
        if isinstance(ask, Take) and self._unheard(ask):
            return {"state": "working"}
        with self._lock:
            task = self._tasks.get(id)
            if task is None:
                for old in [k for k, t in self._tasks.items() if t.done()][: max(0, len(self._tasks) - ASKS + 1)]:
                    del self._tasks[old]
                if len(self._tasks) >= ASKS:
                    raise MessageRefused(f"{ASKS} asks are being answered; wait for them")
                task = self._tasks[id] = self._pool.submit(self._guarded, ask)
        try:
            return task.result(PATIENCE)
        except Unfinished:
            return {"state": "working"}

    @cached_property
    def _watch(self) -> Watch:
        """What others know of this site's book, and this site of theirs."""
        keys = {n: bytes.fromhex(k) for n, k in self.order.keys.items()}
        witness, ledger = witness_of(self.folder.node), ledger_of(self.folder.node)
        return Watch(self.me, self.order.digest, keys, witness, ledger, self.folder.identity().sign)

    def _unheard(self, ask: Take) -> bool:
        """Whether somebody of this sum has not told yet what is known of this site's book; waits a moment for it."""
        self._watch.hear(ask.books or b"{}")
        end = time.monotonic() + 1.0
        while missing := self._watch.lacking([s for s in ask.sites if s in self.order.sites]):
            if time.monotonic() > end:
                append_event(self.folder.events, event="waiting", study=self.order.id, reasons=list(missing))
                return True
            time.sleep(0.01)
        return False

    def _act(self, ask: Ask) -> dict[str, Any]:
        match ask:
            case Take():
                return self._sum(ask)
            case Mail():
                return self._mail(ask)
            case Settle():
                return self._outcome(ask)
            case Deadline():
                return self._deadline(ask)
            case Close():
                return self._close(ask)
            case Align():
                return self._align(ask)
            case Begin():
                return self._begin(ask)
            case Hello():
                return self._hello(full=ask.full)
            case _:
                assert_never(ask)

    def _guarded(self, ask: Ask) -> dict[str, Any]:
        try:
            with one_thread():
                return self._act(ask)
        except (MessageRefused, ProtocolMismatch) as e:
            append_event(
                self.folder.events, event="message refused", study=self.order.id, what=e.what, reasons=e.faults
            )
            return {"state": "bad", "why": why_of(e)}
        except PolyclinicError as e:
            if isinstance(e.__cause__, OSError):  # the ledger
                return self._unwritten(e.__cause__)
            self._blame(e)
            return self._standing()
        except OSError as e:
            return self._unwritten(e)
        except Exception as e:  # an ask that no reader of ours foresaw; nothing of it was kept
            append_event(self.folder.events, event="failed", study=self.order.id, error=f"{type(e).__name__}: {e}")
            return {"state": "bad", "why": "malformed"}

    def _unwritten(self, e: OSError) -> dict[str, Any]:
        """A full disk: nothing was released, because charge and state come first; the site can be asked again."""
        append_event(self.folder.events, event="failed", study=self.order.id, error=f"{e.strerror}")
        return {"state": "bad", "why": "disk"}

    def _hello(self, *, full: bool) -> dict[str, Any]:
        with self._lock:
            out = self._standing()
            out["life"] = self._life
            out["committed"] = list(self._committed or ())
            out["prepared"] = list(self._prepared[0]) if self._prepared else []
            out["number"] = 0 if self._fold is None else self._fold.number
            out["total"] = self._prepared_public is not None  # the sum is known here, and on disk
            if full and self._state == "ready":
                assert self._admission is not None
                out["setting"] = self._admission.setting
                out["noise"] = next(iter(self._admission.doors.values())).noise.label
        return out

    # ---- the fold: what this site derives for itself

    def _begin(self, ask: Begin) -> dict[str, Any]:
        """Where there is no coordinator's public state: make this site's own, from what is public."""
        self._start_fold(ask.begin)
        return {"state": "done"}

    @property
    def _peers(self) -> bool:
        """Whether every node adds for itself."""
        return self.order.aggregation in ("subspace", "cycle")

    def _start_fold(self, nodes: tuple[str, ...], *, keep: bool = True) -> Folding:
        """The fold from its start; who begins is said once, and is the same ever after."""
        made = self._admission
        assert made is not None
        if self._fold is not None:
            if list(nodes) != self._begun:
                raise ProtocolMismatch(f"study {self.order.id!r} began with other sites")
            return self._fold
        hosts = {host(n) for n in nodes}
        if nodes != self.order.nodes(hosts) or not hosts <= set(self.order.sites) or len(hosts) < self.order.least:
            raise MessageRefused(
                f"a study that begins with {len(nodes)} nodes, of which the order knows not all, or too few"
            )
        mine = made.setting
        axes = () if self._method.needs == "features" else next(iter(made.sites.values())).counts().axes[1:]
        setting = Setting(tuple(mine["shape"]), tuple(axes), nodes)
        chain = certificate.root(self.order.digest, mine["shape"], mine["digests"], mine.get("alignment"), nodes)
        roster = self.order.roster(nodes, 0)
        fold = (
            Conductor(self._method, setting, made.adder, roster, chain=chain)
            if self._peers
            else Folding(self._method, setting, made.adder.share(roster), chain)
        )
        fold.begin()
        self._fold, self._begun = fold, list(nodes)
        if keep:
            self._save()
        return fold

    def _follow(self, ask: Take | Close) -> dict[str, Any] | None:
        """Fold the totals that were taken since; an answer where this site needs more for it, None when it is there."""
        fold, changed = self._start_fold(ask.begin), False
        try:
            for opened in ask.opened:
                if opened.number < fold.number:
                    continue
                step = fold.step()
                if opened.number > fold.number or step is None:
                    return {"state": "behind", "number": fold.number}
                opened = self._checked(opened, step)
                mine = opened.entered.get(self.me)
                if mine is not None and (self._prepared is None or self._prepared[0] != mine):
                    raise ProtocolMismatch(f"sum {opened.number} counts a contribution that this site did not make")
                if not fold.follow(opened, step, ask.agreed.get(str(opened.number))):
                    return {"state": "differs", "number": fold.number}
                changed = True
                if mine is not None:
                    self._commit()
        finally:
            if changed:
                self._save()
        return None

    def _checked(self, opened: Opened, step: Step) -> Opened:
        """A total that the step can have; of a masked sum, from its words, which must carry the tag of the list signed here.

        A site that did not sign that list (it was away) cannot check the tag; it goes on only with the votes of those who could.
        """
        if (opened.words is not None) != isinstance(self._admission_made.adder, Masked):
            raise MessageRefused(f"sum {opened.number}: words come with a masked sum, and only then")
        if opened.words is not None:
            members, sites = tuple(sorted(opened.entered)), tuple(opened.sites)
            if sites != tuple(sorted(set(sites))) or not set(members) <= set(sites) <= set(self.order.sites):
                raise MessageRefused(f"sum {opened.number}: a roster with strangers or doubles")
            signed = [p for p in self._signed.get(opened.number, ()) if p.attempt == opened.attempt]
            if any(p.members != members for p in self._signed.get(opened.number, ())):
                raise ProtocolMismatch(f"sum {opened.number} is over another list than the one signed here")
            if self.me in members and not signed:
                raise ProtocolMismatch(
                    f"sum {opened.number} counts this site, which has signed no list of that attempt"
                )
            if signed and signed[0].sites != len(sites):  # the unit of the words, which the tag does not cover
                raise ProtocolMismatch(f"sum {opened.number}: another roster than that of the attempt signed here")
            roster = self.order.roster(sites, opened.attempt, paid=bool(step.noise_sd))
            tag = Tag(signed[0].key) if signed else None
            opened = replace(opened, total=read_words(step, roster, opened.words, members, tag))
        opened.check(step, self.order.sites, self.order.least, self.order.per_site)
        return opened

    @property
    def _admission_made(self) -> Admission:
        assert self._admission is not None
        return self._admission

    def _commit(self) -> None:
        """The prepared private state is the state."""
        assert self._prepared is not None
        self._committed, states = self._prepared
        for node, party in self._parties.items():
            party.private = states[node]
        self._prepared = None

    def _check_votes(self, fold: Folding, votes: Mapping[str, bytes]) -> None:
        """Enough sites were, one sum ago, where this site was: the coordinator tells everybody the same story."""
        if not fold.number or self.order.staleness is not None:
            return
        keys = {s: bytes.fromhex(self.order.keys[s]) for s in self.order.sites}
        found = certificate.count_votes(votes, keys, self.order.digest, fold.number - 1, fold.before)
        if found < self.order.least:
            raise ProtocolMismatch(
                f"sum {fold.number}: {found} sites voted for the sums before it, {self.order.least} are needed"
            )

    def _vote(self) -> bytes:
        assert self._fold is not None
        return certificate.ballot(self.folder.identity(), self.order.digest, self._fold.number, self._fold.chain)

    # ---- one sum

    @property
    def _method(self) -> Method[Any, Any, Any]:
        assert self._admission is not None
        return self._admission.method

    def _sum(self, ask: Take) -> dict[str, Any]:
        assert self._admission is not None
        if self._kept.closed.exists():  # nothing is released any more
            return {"state": "bad", "why": "closed"}
        key: Key = (ask.number, ask.attempt)
        sites = tuple(sorted(set(ask.sites)))
        least = self.order.least
        if (
            self._admission.adder.reveals == "total"
        ):  # where each part is seen by itself, others in the sum hide nothing
            least = max(least, policy_of(self.folder.node).min_sites)
        if self.me not in sites or not set(sites) <= set(self.order.sites) or len(sites) < least:
            raise MessageRefused(f"a roster of {len(sites)} sites, of which the order knows not all, or too few")
        self._watch.check(sites)
        if self._peers:
            self._settle(ask.commit)
        elif (more := self._follow(ask)) is not None:
            return more
        fold = self._fold
        if fold is None:
            raise MessageRefused(f"site {self.me!r} was not told who begins")
        if key[0] != fold.number:
            return {"state": "behind", "number": fold.number}
        if not self._peers:
            self._check_votes(fold, ask.votes)
        step = fold.step()
        if step is None:
            return {"state": "ended"}
        if (
            self._admission.adder.reveals == "total"
            and not step.noise_sd
            and set(sites) != {host(n) for n in self._begun}
        ):
            raise MessageRefused(
                f"an exact secure sum over {len(sites)} of the {len({host(n) for n in self._begun})} sites that began: whoever "
                "is left out of one sum could be computed from it and the one before"
            )
        roster = replace(self.order.roster(sites, key[1], paid=bool(step.noise_sd)), chain=fold.chain)
        public = fold.public
        if isinstance(fold, Conductor):
            fold.roster = roster
        if self._admission.adder.reveals == "total":
            self._enter(key, digest([list(sites), roster.threshold, sorted([list(e) for e in roster.edges])]).hex())
        mine = self._contributions(step, public, roster, key[0])
        one = self._promised(key[0]) if self._admission.adder.reveals == "total" else None
        sides = {n: self._admission.adder.side(n, roster, step, x, promises=one) for n, x in mine.items()}
        states = {n: p._next for n, p in self._parties.items()}
        if self._committed is None and not self._kept.has(None):
            self._kept.put(None, {n: p.private for n, p in self._parties.items()})
        self._kept.put(key, states)
        with self._lock:
            self._prepared = (key, states)
            self._prepared_public = None
            self._save()
            self._kept.prune((self._committed, key), step.round)
            self._sides, self._key, self._step = sides, key, step
            early, self._early = [m for m in self._early if self._mine(m)], deque(maxlen=EARLY)
            out = [m for side in sides.values() for m in side.start()]
            for m in early:
                out += self._receive(m)
        vote = {} if self._peers else {"vote": self._vote()}
        return {"state": "done", "mail": self._dispatch(out), "books": self._watch.hear(), **vote}

    def _contributions(self, step: Step, public: Any, roster: Roster, number: int) -> dict[str, Contribution]:
        """What each node releases. Whatever goes wrong in here may depend on data: the owner reads it, others hear a word."""
        try:
            return {n: p.contribute(step, public, roster, number) for n, p in self._parties.items()}
        except (MessageRefused, ProtocolMismatch) as e:
            raise DataError(e.what, faults=e.faults, hint=e.hint) from None
        except (PolyclinicError, OSError):
            raise
        except Exception as e:
            raise DataError(f"sum {number}, step {step.name!r}: {type(e).__name__}: {e}") from e

    def _enter(self, key: Key, members: str) -> None:
        """A secure sum is entered once per attempt, and the record of it is on disk before anything leaves.

        Otherwise a coordinator could have the same contribution summed with two sets of sites, and subtract (PRIVACY 3.1).
        """
        if key in self._entered:
            raise MessageRefused(
                f"site {self.me!r} has entered sum {key[0]}, attempt {key[1]} before; ask a new attempt"
            )
        self._entered = {k: v for k, v in self._entered.items() if k[0] >= key[0] - 1}
        self._entered[key] = members
        self._save()

    def _promised(self, number: int) -> Promises:
        """Lists of survivors that this site signed for a sum; a new one is on disk before its signature leaves."""

        def keep(made: tuple[Promise, ...]) -> None:
            self._signed = {k: v for k, v in self._signed.items() if k >= number - 1} | {number: made}
            self._save()

        return Promises(self._signed.get(number, ()), keep)

    def _mine(self, m: Message) -> bool:
        s = self._step
        return (
            s is not None and self._key is not None and (m.round, m.step, m.attempt) == (s.round, s.name, self._key[1])
        )

    def _receive(self, m: Message) -> list[Message]:
        try:
            if m.to not in self._sides:
                raise MessageRefused(f"a letter to {m.to!r}, who is not here")
            return self._sides[m.to].receive(m)
        except MessageRefused as e:
            self._refuse(e.what)
            return []

    def _refuse(self, what: str) -> None:
        self.dropped += 1
        if self.dropped <= 100:  # a hostile neighbour must not fill the disk
            append_event(self.folder.events, event="message refused", study=self.order.id, what=what)

    def _dispatch(self, out: list[Message]) -> list[bytes]:
        """Letters to neighbours go out, one batch for each host; letters to the coordinator are the answer."""
        batches: dict[str, list[bytes]] = {}
        with self._lock:
            queue = deque(out)
            while queue:
                m = queue.popleft()
                if host(m.to) == self.me:  # two nodes under one roof
                    queue.extend(self._receive(m))
                else:
                    batches.setdefault(host(m.to), []).append(wire.encode_message(m, self._protocol))
            for to, letters in batches.items():
                if to != COORDINATOR:
                    self._count("sent", sum(map(len, letters)))
        for to, letters in sorted(batches.items()):
            if to != COORDINATOR:
                self.post(to, wire.encode({"order": self.order.digest, "letters": letters}))
        with self._moved:
            self._moved.notify_all()
        return batches.get(COORDINATOR, [])

    def _count(self, way: str, size: int) -> None:
        if isinstance(self._fold, Conductor) and self._step is not None:
            getattr(self._fold.traffic, way)(self.me, self._step.round, size)

    @property
    def _protocol(self) -> str:
        return f"{self._method.name}/{self._method.version}"

    def put(self, data: bytes) -> None:
        """A batch of letters from a neighbour; never raises. Letters that come before their sum opens are kept."""
        try:
            value = wire.decode(data)
            if value["order"] != self.order.digest or self._admission is None:
                return
            letters = [wire.decode_message(bytes(x), self._protocol) for x in value["letters"]]
            for m in letters:
                if self._codes.mine(m):
                    self._codes.put(m)
            with self._lock:
                out: list[Message] = []
                for m in letters:
                    if self._codes.mine(m):
                        continue
                    if self._sides and self._mine(m):
                        out += self._receive(m)
                    else:
                        self._early.append(m)
                self._count("received", len(data))
            self._dispatch(out)
        except (PolyclinicError, KeyError, TypeError) as e:
            self._refuse(str(e)[:200])

    def _mail(self, ask: Mail) -> dict[str, Any]:
        if not self._sides or self._key != (ask.number, ask.attempt):
            return {"state": "lost"}  # this site was restarted during the sum; its keys are gone
        out: list[Message] = []
        for raw in ask.letters:
            out += self._receive(wire.decode_message(raw, self._protocol))
        return {"state": "done", "mail": self._dispatch(out)}

    def _deadline(self, ask: Deadline) -> dict[str, Any]:
        if self._sides and self._key == (ask.number, ask.attempt):
            with self._lock:
                out = [m for side in self._sides.values() for m in side.deadline()]
            self._dispatch(out)
        return {"state": "done"}

    def _settle(self, commit: Key | None) -> None:
        """Peers: keep or drop what was prepared, as all nodes do."""
        with self._lock:
            if self._prepared is not None and self._prepared[0] == commit:
                self._commit()
                if self._fold is not None and self._prepared_public is not None:
                    self._fold.restore(self._prepared_public)
            self._prepared, self._prepared_public, self._sides = None, None, {}

    def _outcome(self, ask: Settle) -> dict[str, Any]:
        """Wait until this node knows the sum; the state after it is on disk before the coordinator hears of it."""
        key = (ask.number, ask.attempt)
        end = time.monotonic() + PATIENCE * 0.8
        with self._moved:
            if not self._sides or self._key != key:
                return {"state": "lost"}
            while any(side.result() == "pending" for side in self._sides.values()):
                left = end - time.monotonic()
                if left <= 0:
                    return {"state": "pending"}
                self._moved.wait(left)
            results = [side.result() for side in self._sides.values()]
            result = results[0]
            if not isinstance(result, Total) or not all(isinstance(r, Total) for r in results):
                return {"state": "burnt"}
            if self._prepared_public is None:
                fold = self._fold
                assert isinstance(fold, Conductor)
                assert self._step is not None
                before = fold.state()
                if self._step.counts:
                    fold.traffic.payload(self.me, Conductor.payload(self._step))
                fold.commit(self._step, result)
                self._prepared_public = fold.state()
                fold.restore(before)
                self._save()
        return {"state": "done", "round": self._step.round if self._step is not None else 0}

    # ---- the end

    def _close(self, ask: Close) -> dict[str, Any]:
        """Keep what stays here (memberships), hand over the model where this site has it, forget the checkpoint."""
        if self._kept.closed.exists():  # asked again after a crash
            out = dict(self._kept.read(self._kept.closed))
        else:
            if self._peers:
                self._settle(ask.commit)
            elif (more := self._follow(ask)) is not None:
                return more
            fold = self._fold
            if fold is None or fold.step() is not None:
                raise MessageRefused(f"study {self.order.id!r} is not at its end")
            if not self._peers:
                self._check_votes(fold, ask.votes)
            out = {"state": "done", "vote": self._vote()}
            sign = self.folder.identity().sign
            out["book"] = StudyBook.of(ledger_of(self.folder.node), self.me, self.order.digest, sign).pack()
            if self._peers:
                out["result"] = fold.state()
            closed = {n: p.close(fold.public) for n, p in self._parties.items()}
            kept = {k if len(closed) == 1 else f"{n}/{k}": v for n, part in closed.items() for k, v in part.items()}
            self._kept.end(kept, out)
            append_event(self.folder.events, event="finished", study=self.order.id)
        for party in self._parties.values():
            party.door.close("finished")  # the line first, then the data
        self._kept.forget()
        drop_data(self._kept.home)
        return {
            **out,
            "heads": {n: asdict(p.door.ledger.head) for n, p in self._parties.items()},
        }  # receipts of the books

    # ---- the checkpoint

    def _save(self) -> None:
        value: dict[str, Any] = {
            "order": self.order.id,
            "committed": list(self._committed or ()),
            "prepared": list(self._prepared[0]) if self._prepared else None,
            "entered": [[k[0], k[1], v] for k, v in self._entered.items()],
            "signed": [[k, p.attempt, list(p.members), p.key, p.sites] for k, v in self._signed.items() for p in v],
            "fold": None,
        }
        if self._fold is not None:
            value["fold"] = {"begun": self._begun, "now": self._fold.state(), "next": self._prepared_public}
        self._kept.write(self._kept.file, value)

    def _restore(self) -> None:
        self._kept.sweep()
        if not self._kept.file.exists():
            return
        value = self._kept.read(self._kept.file)

        def read(key: Key | None) -> dict[str, Any]:
            trees = self._kept.get(key)
            return {n: None if x is None else wire.unpack(self._method.Private, x) for n, x in trees.items()}

        self._committed = tuple(value["committed"]) or None
        if self._committed is not None or self._kept.has(None):
            for node, state in read(self._committed).items():
                self._parties[node].private = state
        if value["prepared"] is not None:
            key = (int(value["prepared"][0]), int(value["prepared"][1]))
            self._prepared = (key, read(key))
        self._entered = {(a, b): v for a, b, v in value["entered"]}
        for number, attempt, members, secret, n in value.get("signed", ()):
            self._signed[number] = (*self._signed.get(number, ()), Promise(attempt, tuple(members), secret, n))
        if value.get("fold") is not None:
            self._start_fold(tuple(value["fold"]["begun"]), keep=False).restore(value["fold"]["now"])
            self._prepared_public = value["fold"]["next"]
        append_event(self.folder.events, event="restored", study=self.order.id, committed=value["committed"])


def setting_from(tree: Mapping[str, Any]) -> Setting:
    """The setting as it travels."""
    return Setting(
        tuple(int(x) for x in tree["shape"]),
        tuple(Axis.from_json(a) for a in tree["axes"]),
        tuple(str(s) for s in tree["sites"]),
    )
