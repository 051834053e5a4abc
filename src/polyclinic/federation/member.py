"""A hospital's half of a study: answers the coordinator, talks to neighbours, keeps its own record. Bytes in, bytes out.

No thread, no clock, no socket: disk through :class:`Record`, values through the doors. The coordinator is believed in nothing but
who is there: it relays the totals of the sums, and this site folds them for itself. Which sum comes next, its number and its
step, and the public state are derived here from the order; an ask that does not fit them gets no contribution. Every ask is
signed and has an id, so that a duplicate gets the same answer. Before an answer leaves, what it promises is on disk.

Under a sum without a coordinator (``subspace``, ``cycle``) letters go from site to site and every site knows the total itself:
what is relayed is then the chain that ALL sites reached, and only with that does a site go on.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol, assert_never

from polyclinic import __version__
from polyclinic.errors import DataError, MessageRefused, PolicyRefusal, PolyclinicError, ProtocolMismatch
from polyclinic.federation import certificate, wire
from polyclinic.federation.certificate import Opened
from polyclinic.federation.envelope import Identity, digest
from polyclinic.federation.fold import Conductor, Folding, SiteParty
from polyclinic.federation.messages import (
    ALIGN,
    Answer,
    Ask,
    Behind,
    Busy,
    Close,
    Differs,
    Done,
    Here,
    Key,
    Letters,
    Look,
    Mail,
    Refused,
    Stage,
    Standing,
    Take,
    encode_answer,
    open_ask,
)
from polyclinic.federation.order import COORDINATOR, Order, host
from polyclinic.federation.protocol import Exchange, Message, Method, Roster, Setting, Step, Sum, Total
from polyclinic.federation.record import Mark, Record
from polyclinic.federation.refusals import Why, why_of
from polyclinic.federation.sums.masked import Masked
from polyclinic.federation.sums.promise import Promise, Promises
from polyclinic.federation.sums.tag import Tag
from polyclinic.federation.words import read_words
from polyclinic.privacy.door import Door
from polyclinic.privacy.release import Contribution
from polyclinic.privacy.studybook import StudyBook
from polyclinic.privacy.watch import Watch
from polyclinic.tensors.blas import one_thread
from polyclinic.tensors.site import Site

__all__ = ["Aligner", "Seat", "SiteStudy"]

ANSWERS: Final = 16  # remembered, should the same be asked again
EARLY: Final = 64  # letters from one node to another that are kept before their sum opens ...
BYTES: Final = wire.LIMIT  # ... and bytes of them from one site, for each node that a site hosts


@dataclass(frozen=True)
class Seat:
    """Everything a site needs for a study that it has agreed to."""

    method: Method[Any, Any, Any]
    sites: dict[str, Site]  # by node; one, unless the study has several nodes at a site
    adder: Sum
    doors: dict[str, Door]
    setting: dict[str, Any]  # what is public about this site: shape, codes, their digests
    min_sites: int = 1  # the owner's floor for every secure sum, and for agreeing on codes
    max_numbers: int = 2**22  # of one release


class Aligner(Protocol):
    """How a site agrees with the others on codes before the first sum."""

    def side(self, seat: Seat, roster: Roster) -> Exchange:
        """The site's mailbox."""

    def agreed(self, side: Exchange, attempt: int) -> dict[str, Any]:
        """What was agreed on, to be kept."""

    def apply(self, agreed: Mapping[str, Any], seat: Seat) -> Seat:
        """The site on the common codes."""


@dataclass(frozen=True)
class Open:
    """The exchange that is open."""

    key: Key
    steps: frozenset[tuple[int, str]]  # rounds and names under which its letters go
    sides: dict[str, Exchange]  # by node
    step: Step | None = None  # of a sum


class SiteStudy:
    """One site's side of one study.

    Parameters
    ----------
    order
        The signed study, already checked against the pinned coordinator.
    identity
        The site's signing key.
    record
        Its files of this study.
    post
        Sends bytes to a neighbour; must not block for long.
    log
        Writes an event into the owner's log: the only place where a reason stands in full.
    run
        Runs the work for an ask, by its id; an engine does it elsewhere and answers ``Busy`` meanwhile.
    aligner
        Where the study has modes without a public list.
    watch
        What others know of this site's book, and this site of theirs: nothing leaves before all others have told.
    ended
        Called when the study has ended here and its data may go.
    """

    def __init__(
        self,
        order: Order,
        identity: Identity,
        record: Record,
        *,
        post: Callable[[str, bytes], None] = lambda to, data: None,
        log: Callable[..., None] = lambda **event: None,
        run: Callable[[str, Callable[[], Answer]], Answer] = lambda id, job: job(),
        aligner: Aligner | None = None,
        watch: Watch | None = None,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        self.order, self.identity, self.record = order, identity, record
        self.post, self.log, self.run, self.aligner, self.ended = post, log, run, aligner, ended
        self.me, self.watch = identity.name, watch
        self.stage: Stage = "loading"
        self.reasons: list[str] = []  # the owner's to read
        self.why: Why | None = None  # all that the coordinator hears of them
        self.mark = Mark()
        self.fold: Folding | None = None  # this site's own; a Conductor where there is no coordinator's
        self.seat: Seat | None = None
        self.parties: dict[str, SiteParty] = {}  # by node
        self._last: tuple[Done, Here] | None = None  # the study has ended here
        self._own: Seat | None = None  # before codes were agreed on
        self._states: dict[str, Any] = {}  # private states if the prepared sum enters
        self._open: Open | None = None
        self._out: list[bytes] = []  # letters that wait for the coordinator
        self._early: deque[Message] = deque()
        self._weight: Counter[str] = Counter()  # of early letters: how many from whom to whom, and bytes by site
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._life = secrets.token_hex(8)
        self._missing: tuple[str, ...] = ()  # who has not told yet what is known of this site's book
        self.dropped = 0

    # ---- how the study stands here

    def over(self) -> bool:
        """Whether the study had ended here before this process began: then its data go, and its last answer is all there is."""
        closed = self.record.closed
        if closed is not None:
            self.stage, self._last = "ready", closed
            if self.watch is not None:
                self.watch.ledger.close(self.order.digest, "finished")  # the line first, then the data
            self.ended()
        return closed is not None

    def sit(self, seat: Seat) -> None:
        """The site takes part: the owner agreed, the data are read. Goes on where a process before this one was."""
        self._own = seat
        codes = None if self.aligner is None else self.record.codes
        self._sit(seat if codes is None or self.aligner is None else self.aligner.apply(codes, seat))
        found = self.record.read()
        if found is not None:
            self.mark = found
            kind = self._seat.method.Private
            for node, state in (self.record.get(found.committed, kind) or {}).items():
                self.parties[node].private = state
            if found.prepared is not None:
                self._states = self.record.get(found.prepared, kind) or {}
            if found.fold is not None:
                self._begin(found.begun).restore(found.fold)
            self.log(event="restored", study=self.order.id, committed=list(found.committed or ()))
        self.stage = "ready"
        self.log(event="ready", study=self.order.id)

    def _sit(self, seat: Seat) -> None:
        self.seat = seat
        self.parties = {n: SiteParty(seat.method, s, seat.adder, seat.doors[n]) for n, s in seat.sites.items()}

    @property
    def _seat(self) -> Seat:
        assert self.seat is not None
        return self.seat

    def wait(self, reasons: list[str]) -> None:
        """The owner has been asked."""
        self.stage, self.reasons = "waiting", reasons

    def refuse(self, error: BaseException) -> None:
        """The site takes no part, or no longer: in our log in full; the coordinator hears a word."""
        if isinstance(error, PolyclinicError):
            refused = isinstance(error, PolicyRefusal | MessageRefused | ProtocolMismatch)
            kind, what, faults = "refused" if refused else "failed", error.what, list(error.faults)
            self.log(event=kind, study=self.order.id, code=error.code, what=what, reasons=faults)
        else:
            what, faults = f"{type(error).__name__}: {error}", []
            self.log(event="failed", study=self.order.id, error=what)
        word = why_of(error)
        if self.order.keys.get(self.me) != self.identity.public.hex():
            word = "roster"
        if self.order.polyclinic.split(".")[:2] != __version__.split(".")[:2]:
            word = "version"
        self.stage, self.reasons, self.why = "refused", [what, *faults], word

    def here(self, *, full: bool = False) -> Here:
        """How the site stands; may be read at any time, also while it works."""
        if self._last is not None:
            return replace(self._last[1], life=self._life)
        mark, fold = self.mark, self.fold
        chain = b"" if mark.after is None else bytes(mark.after["chain"])
        out = Here(self.stage, self._life, 0 if fold is None else fold.number, mark.prepared, chain, self.why)
        if full and self.stage == "ready":
            noise = next(iter(self._seat.doors.values())).noise.label
            out = replace(out, setting=self._seat.setting, noise=noise)
        return out

    # ---- asks of the coordinator

    def answer(self, data: bytes) -> bytes:
        """Answer one ask; never raises."""
        try:
            id, ask = open_ask(data, self.order.keys[COORDINATOR], self.order.digest, self.me)
            if isinstance(ask, Look):
                books = b"" if self.watch is None else self.watch.hear(ask.books)
                return encode_answer(replace(self.here(full=ask.full), books=books))
            if self.stage != "ready":
                return encode_answer(self.here())
            if isinstance(ask, Take) and ask.number != ALIGN and self._unheard(ask):
                return encode_answer(Busy())
            found = self._answers.get(id)
            return encode_answer(self.run(id, lambda: self._guarded(id, ask)) if found is None else found)
        except Exception as e:
            return encode_answer(self._refused(e))

    def _unheard(self, ask: Take) -> bool:
        """Whether somebody of this sum has not told yet what is known of this site's book."""
        if self.watch is None:
            return False
        self.watch.hear(ask.books or b"{}")
        missing = self.watch.lacking([s for s in ask.sites if s in self.order.sites])
        if missing and missing != self._missing:
            self.log(event="waiting", study=self.order.id, reasons=list(missing))
        self._missing = missing
        return bool(missing)

    def _guarded(self, id: str, ask: Ask) -> Answer:
        try:
            with one_thread():
                answer = self._act(ask)
        except Exception as e:
            answer = self._refused(e)
        self._answers[id] = answer
        while len(self._answers) > ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _refused(self, e: Exception) -> Answer:
        cause = e if isinstance(e, OSError) else e.__cause__
        if isinstance(cause, OSError):  # a full disk: nothing was released, because charge and state come first
            self.log(event="failed", study=self.order.id, error=f"{cause.strerror}")
            return Refused("disk")
        if isinstance(e, MessageRefused | ProtocolMismatch):
            self.log(event="message refused", study=self.order.id, what=e.what, reasons=list(e.faults))
            return Refused(why_of(e))
        if isinstance(e, PolyclinicError) and self.seat is not None:
            self.refuse(e)
            return self.here()
        self.log(event="failed", study=self.order.id, error=f"{type(e).__name__}: {e}")
        return Refused("malformed")  # an ask that no reader of ours foresaw; nothing of it was kept

    def _act(self, ask: Ask) -> Answer:
        match ask:
            case Take():
                if self._last is not None:  # nothing is released any more
                    return Refused("closed")
                return self._align(ask) if ask.number == ALIGN else self._take(ask)
            case Mail():
                return self._mail(ask)
            case Close():
                return self._close(ask)
            case Look():
                return self.here(full=ask.full)
            case _:
                assert_never(ask)

    # ---- the fold: what this site derives for itself

    def _begin(self, nodes: tuple[str, ...]) -> Folding:
        """The fold from its start; who begins is said once, and is the same ever after."""
        if self.fold is not None:
            if nodes != self.mark.begun:
                raise ProtocolMismatch(f"study {self.order.id!r} began with other sites")
            return self.fold
        order, seat, mine = self.order, self._seat, self._seat.setting
        hosts = {host(n) for n in nodes}
        if nodes != order.nodes(hosts) or not hosts <= set(order.sites) or len(hosts) < order.least:
            raise MessageRefused(
                f"a study that begins with {len(nodes)} nodes, of which the order knows not all, or too few"
            )
        axes = () if seat.method.needs == "features" else next(iter(seat.sites.values())).counts().axes[1:]
        setting = Setting(tuple(mine["shape"]), tuple(axes), nodes)
        chain = certificate.root(order.digest, mine["shape"], mine["digests"], mine.get("alignment"), nodes)
        roster = order.roster(nodes, 0)
        self.fold = (
            Conductor(seat.method, setting, seat.adder, roster, chain=chain)
            if order.peers
            else Folding(seat.method, setting, seat.adder.share(roster), chain)
        )
        self.fold.begin()
        self.mark.begun, self.mark.counted = nodes, self.mark.counted or tuple(sorted(hosts))
        return self.fold

    def _follow(self, ask: Take | Close) -> Answer | None:
        """Fold the totals that were taken since; an answer where this site needs more for it, None when it is there."""
        fold = self._begin(ask.begin)
        number = fold.number
        try:
            for opened in ask.opened:
                if opened.number < fold.number:
                    continue
                step = fold.step()
                if opened.number > fold.number or step is None:
                    return Behind(fold.number)
                mine = opened.entered.get(self.me)
                if mine is not None and self.mark.prepared != mine:
                    raise ProtocolMismatch(f"sum {opened.number} counts a contribution that this site did not make")
                if self.order.peers:
                    after = self.mark.after
                    if mine is None or after is None or after["chain"] != opened.state:
                        raise ProtocolMismatch(f"sum {opened.number} is not the one that is known here")
                    fold.restore(after)
                else:
                    opened = self._checked(opened, step)
                    if not fold.follow(opened, step, ask.agreed.get(str(opened.number))):
                        return Differs(fold.number)
                if self.order.secure and not step.noise_sd:
                    self.mark.counted = tuple(sorted(opened.entered))
                if mine is not None:  # otherwise a later sum may count it, in an asynchronous study
                    self.mark.committed, self.mark.prepared = mine, None
                    for node, party in self.parties.items():
                        party.private = self._states[node]
                self.mark.after, self._open = None, None
        finally:
            if fold.number != number:
                self._save()
        return None

    def _checked(self, opened: Opened, step: Step) -> Opened:
        """A total that the step can have; of a masked sum, from its words, which must carry the tag of the list signed here.

        A site that did not sign that list (it was away) cannot check the tag; it goes on only with the votes of those who could.
        """
        if (opened.words is not None) != isinstance(self._seat.adder, Masked):
            raise MessageRefused(f"sum {opened.number}: words come with a masked sum, and only then")
        if opened.words is not None:
            members, sites = tuple(sorted(opened.entered)), tuple(opened.sites)
            if sites != tuple(sorted(set(sites))) or not set(members) <= set(sites) <= set(self.order.sites):
                raise MessageRefused(f"sum {opened.number}: a roster with strangers or doubles")
            promises = self.mark.signed.get(opened.number, ())
            signed = [p for p in promises if p.attempt == opened.attempt]
            if any(p.members != members for p in promises):
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
        order, adds = self.order, self._seat.adder.adds
        opened.check(step, order.sites, order.least, order.per_site, adds=adds)
        return opened

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

    def _vote(self, fold: Folding) -> bytes:
        return certificate.ballot(self.identity, self.order.digest, fold.number, fold.chain)

    # ---- one sum

    def _take(self, ask: Take) -> Answer:
        seat, order, key = self._seat, self.order, (ask.number, ask.attempt)
        sites = self._among(ask.sites, max(order.least, seat.min_sites if order.secure else 0))
        if self.watch is not None:
            self.watch.check(sites)
        if (more := self._follow(ask)) is not None:
            return more
        fold = self.fold
        assert fold is not None
        if not self.record.file.exists():
            self._save()  # who began; and if the disk is full it is found before anything is released
        if ask.number != fold.number:
            return Behind(fold.number)
        self._check_votes(fold, ask.votes)
        step = fold.step()
        if step is None:
            return Letters(vote=self._vote(fold), standing="ended")
        if step.size > seat.max_numbers:
            raise PolicyRefusal(
                f"step {step.name!r} asks for {step.size:,} numbers; this site allows {seat.max_numbers:,}"
            )
        if order.secure and not step.noise_sd and not order.may_count(sites, self.mark.counted):
            raise MessageRefused(
                f"an exact secure sum over {len(sites)} sites, {len(self.mark.counted)} were in the one before: whoever is "
                "left out of one sum could be computed from it and the one before"
            )
        roster = replace(order.roster(sites, ask.attempt, paid=bool(step.noise_sd)), chain=fold.chain)
        if isinstance(fold, Conductor):
            fold.roster = roster
        if order.secure:
            self._enter(key, digest([list(sites), roster.threshold, sorted([list(e) for e in roster.edges])]).hex())
        mine = self._contributions(step, fold.public, roster, ask.number)
        promises = self._promised(ask.number) if order.secure else None
        sides = {n: seat.adder.side(n, roster, step, x, promises=promises) for n, x in mine.items()}
        states = {n: p._next for n, p in self.parties.items()}
        if self.mark.committed is None:
            self.record.put(None, {n: p.private for n, p in self.parties.items()})
        self.record.put(key, states)
        self._states, self.mark.prepared, self.mark.after = states, key, None
        self._save()
        self.record.prune((self.mark.committed, key), step.round)
        out = self._start(Open(key, frozenset({(step.round, step.name)}), sides, step), self._vote(fold))
        return out if self.watch is None else replace(out, books=self.watch.hear())

    def _among(self, names: tuple[str, ...], least: int) -> tuple[str, ...]:
        """The sites of an attempt, which the order must know, and enough of them."""
        sites = tuple(sorted(set(names)))
        if self.me not in sites or not set(sites) <= set(self.order.sites) or len(sites) < least:
            raise MessageRefused(f"a roster of {len(sites)} sites, of which the order knows not all, or too few")
        return sites

    def _contributions(self, step: Step, public: Any, roster: Roster, number: int) -> dict[str, Contribution]:
        """What each node releases. Whatever goes wrong in here may depend on data: the owner reads it, others hear a word."""
        try:
            return {n: p.contribute(step, public, roster, number) for n, p in self.parties.items()}
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
        if key in self.mark.entered:
            raise MessageRefused(
                f"site {self.me!r} has entered sum {key[0]}, attempt {key[1]} before; ask a new attempt"
            )
        self.mark.entered = {k: v for k, v in self.mark.entered.items() if k[0] >= key[0] - 1} | {key: members}
        self._save()

    def _promised(self, number: int) -> Promises:
        """Lists of survivors that this site signed for a sum; a new one is on disk before its signature leaves."""

        def keep(made: tuple[Promise, ...]) -> None:
            self.mark.signed = {k: v for k, v in self.mark.signed.items() if k >= number - 1} | {number: made}
            self._save()

        return Promises(self.mark.signed.get(number, ()), keep)

    def _align(self, ask: Take) -> Answer:
        """Before the first sum: agree with the other sites on codes."""
        if self.aligner is None or self._own is None or self.record.file.exists():
            raise MessageRefused(f"site {self.me!r} has nothing to align in study {self.order.id!r}, or its codes stay")
        sites = self._among(ask.sites, max(2, self.order.quorum, self._seat.min_sites))
        keys = {n: bytes.fromhex(self.order.keys[n]) for n in (*sites, COORDINATOR)}
        side = self.aligner.side(self._own, Roster(sites, threshold=len(sites), attempt=ask.attempt, keys=keys))
        self.log(event="aligning", study=self.order.id, how=self.order.alignment)
        return self._start(
            Open((ALIGN, ask.attempt), frozenset((0, f"align {m}") for m in self.order.unlisted), {self.me: side})
        )

    # ---- letters

    def _start(self, now: Open, vote: bytes = b"") -> Letters:
        self._open, self._out = now, []
        out = [m for side in now.sides.values() for m in side.start()]
        early, self._early = [m for m in self._early if self._fits(m)], deque()
        self._weight.clear()
        for m in early:
            out += self._receive(m)
        return self._letters(out, vote)

    def _fits(self, m: Message) -> bool:
        now = self._open
        return now is not None and m.attempt == now.key[1] and (m.round, m.step) in now.steps

    def _receive(self, m: Message) -> list[Message]:
        assert self._open is not None
        try:
            if m.to not in self._open.sides:
                raise MessageRefused(f"a letter to {m.to!r}, who is not here")
            return self._open.sides[m.to].receive(m)
        except MessageRefused as e:
            self._drop(e.what)
            return []

    def _drop(self, what: str) -> None:
        self.dropped += 1
        if self.dropped <= 100:  # a hostile neighbour must not fill the disk
            self.log(event="message refused", study=self.order.id, what=what)

    def _dispatch(self, out: list[Message]) -> None:
        """Letters to neighbours go out, one batch for each host; letters to the coordinator wait for its next ask."""
        batches: dict[str, list[bytes]] = {}
        queue = deque(out)
        while queue:
            m = queue.popleft()
            if host(m.to) == self.me:  # two nodes under one roof
                queue.extend(self._receive(m))
            else:
                batches.setdefault(host(m.to), []).append(wire.encode_message(m, self._protocol))
        self._out += batches.pop(COORDINATOR, [])
        for to, letters in sorted(batches.items()):
            self._count("sent", sum(map(len, letters)))
            self.post(to, wire.encode({"order": self.order.digest, "letters": letters}))

    def _count(self, way: str, size: int) -> None:
        if isinstance(self.fold, Conductor) and self._open is not None and self._open.step is not None:
            getattr(self.fold.traffic, way)(self.me, self._open.step.round, size)

    @property
    def _protocol(self) -> str:
        return f"{self._seat.method.name}/{self._seat.method.version}"

    def put(self, data: bytes) -> None:
        """A batch of letters from a neighbour; never raises. Letters that come before their sum opens are kept, within limits."""
        try:
            value = wire.decode(data)
            if value["order"] != self.order.digest or self.seat is None:
                return
            out: list[Message] = []
            for raw in value["letters"]:
                m = wire.decode_message(bytes(raw), self._protocol)
                if self._fits(m):
                    out += self._receive(m)
                else:
                    self._keep(m, len(raw))
            self._count("received", len(data))
            self._dispatch(out)
        except (PolyclinicError, KeyError, TypeError) as e:
            self._drop(str(e)[:200])

    def _keep(self, m: Message, size: int) -> None:
        site, pair = host(m.sender), f"{m.sender} {m.to}"
        if site not in self.order.sites or site == self.me or m.to not in self._seat.sites:
            raise MessageRefused("a letter of a stranger, or to one")
        if self._weight[pair] >= EARLY or self._weight[site] + size > BYTES * self.order.per_site:
            raise MessageRefused(f"too many letters of {site!r} before their sum opens")
        self._weight[pair] += 1
        self._weight[site] += size
        self._early.append(m)

    def _mail(self, ask: Mail) -> Answer:
        now = self._open
        if now is None or now.key != (ask.number, ask.attempt):
            return Behind(0 if self.fold is None else self.fold.number)  # restarted during the sum: its keys are gone
        out = [m for side in now.sides.values() for m in side.deadline()] if ask.late else []
        for raw in ask.letters:
            out += self._receive(wire.decode_message(raw, self._protocol))
        return self._letters(out)

    def _letters(self, out: list[Message], vote: bytes = b"") -> Letters:
        self._dispatch(out)
        standing = self._standing()
        letters, self._out = tuple(self._out), []
        chain = b"" if self.mark.after is None else bytes(self.mark.after["chain"])
        step = None if self._open is None else self._open.step
        return Letters(letters, vote, standing, chain, 0 if step is None else step.round)

    def _standing(self) -> Standing:
        """How the exchange stands, where this site learns its result itself; what it knows is on disk before it says so."""
        now = self._open
        if now is None or not (self.order.peers or now.step is None):
            return "open"
        results = [side.result() for side in now.sides.values()]
        if "burnt" in results:
            return "burnt"
        if "pending" in results:
            return "open"
        if now.step is None:
            assert self.aligner is not None
            assert self._own is not None
            agreed = self.aligner.agreed(now.sides[self.me], now.key[1])
            self._sit(self.aligner.apply(agreed, self._own))
            self.record.codes = agreed
            self.log(event="aligned", study=self.order.id)
            self._open = None
        elif self.mark.after is None:
            fold, total = self.fold, results[0]
            assert isinstance(fold, Conductor)
            assert isinstance(total, Total)
            before = fold.state()
            if now.step.counts:
                fold.traffic.payload(self.me, Conductor.payload(now.step))
            fold.commit(now.step, total, entered={host(n): now.key for n in self.mark.begun})
            self.mark.after = fold.state()
            fold.restore(before)
            self._save()
        return "known"

    # ---- the end

    def _close(self, ask: Close) -> Answer:
        """Keep what stays here (memberships), hand over the model where this site has it, forget the rest."""
        if self._last is None:
            if (more := self._follow(ask)) is not None:
                return more
            fold = self.fold
            if fold is None or fold.step() is not None:
                raise MessageRefused(f"study {self.order.id!r} is not at its end")
            self._check_votes(fold, ask.votes)
            book = b""
            if self.watch is not None:
                sign, ledger = self.identity.sign, self.watch.ledger
                book = StudyBook.of(ledger, self.me, self.order.digest, sign).pack()
            done = Done(self._vote(fold), fold.state() if self.order.peers else None, book)
            closed = {n: p.close(fold.public) for n, p in self.parties.items()}
            kept = {k if len(closed) == 1 else f"{n}/{k}": v for n, part in closed.items() for k, v in part.items()}
            here = self.here(full=True)
            self.record.end(kept, done, here)
            self._last = (done, here)
            self.log(event="finished", study=self.order.id)
        for party in self.parties.values():
            party.door.close("finished")  # the line first, then the data
        self.ended()
        return replace(self._last[0], heads={n: asdict(p.door.ledger.head) for n, p in self.parties.items()})

    def _save(self) -> None:
        self.mark.fold = None if self.fold is None else self.fold.state()
        self.record.write(self.mark)
