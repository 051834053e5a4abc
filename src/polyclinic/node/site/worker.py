"""A hospital's half of a study: answers the coordinator, talks to neighbours, keeps its own record. Bytes in, bytes out.

No thread, no clock, no socket: disk through :class:`Record`, values through the doors. The coordinator is believed in nothing but
who is there: it relays the totals of the sums, and this site folds them for itself. Which sum comes next, its number and its
step, and the public state are derived here from the order; an ask that does not fit them gets no contribution. Every ask is
signed and has an id, so that a duplicate gets the same answer. Before an answer leaves, what it promises is on disk.

Under a sum without a coordinator (``subspace``, ``cycle``) letters go from site to site and every site knows the total itself:
what is relayed is then the chain that ALL sites reached, and only with that does a site go on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final, assert_never

from polyclinic.errors import MessageRefused, PolicyRefusal, PolyclinicError, ProtocolMismatch
from polyclinic.node.messages import (
    ALIGN,
    Answer,
    Ask,
    Busy,
    Deliver,
    Done,
    EndStudy,
    Letters,
    OutOfDate,
    Ping,
    Refused,
    Standing,
    SumRequest,
    encode_answer,
    open_ask,
)
from polyclinic.node.refusals import why_of
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.node.site.context import Aligner, SiteContext
from polyclinic.node.site.inbox import Inbox, Open
from polyclinic.node.site.record import Record
from polyclinic.node.site.replica import StandingReplica
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.privacy.ledger.rollback_check import RollbackCheck
from polyclinic.protocol.interfaces import Roster, Total
from polyclinic.protocol.public_state import CoordinatorState
from polyclinic.protocol.wire.sealed import Identity, digest
from polyclinic.util.threads import one_thread

ANSWERS: Final = 16  # remembered, should the same be asked again


class SiteStudy(StandingReplica):
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
        order: StudyOrder,
        identity: Identity,
        record: Record,
        *,
        post: Callable[[str, bytes], None] = lambda to, data: None,
        log: Callable[..., None] = lambda **event: None,
        run: Callable[[str, Callable[[], Answer]], Answer] = lambda id, job: job(),
        aligner: Aligner | None = None,
        watch: RollbackCheck | None = None,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(order, identity, record, log=log, watch=watch, ended=ended)
        self.run, self.aligner = run, aligner
        self.box = Inbox(order, self.me, identity.sign, post, log, self._count)
        self.put = self.box.put
        self._unaligned: SiteContext | None = None  # before codes were agreed on
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._missing: tuple[str, ...] = ()  # who has not told yet what is known of this site's book

    def take_part(self, context: SiteContext) -> None:
        """The site takes part: the owner agreed, the data are read. Goes on where a process before this one was."""
        if self.why == "closed":  # cancelled while the data were read
            return
        self._unaligned = context
        codes = None if self.aligner is None else self.record.codes
        self._use(context if codes is None or self.aligner is None else self.aligner.apply(codes, context))
        if self._restore():
            self.log(event="restored", study=self.order.id, committed=list(self.mark.committed or ()))
        self.stage, self.why = "ready", None
        self.log(event="ready", study=self.order.id)

    def _use(self, context: SiteContext) -> None:
        super()._use(context)
        self.box.protocol = f"{context.method.name}/{context.method.version}"

    # ---- asks of the coordinator

    def answer(self, data: bytes) -> bytes:
        """Answer one ask; never raises."""
        try:
            id, ask = open_ask(data, self.order.keys[COORDINATOR], self.order.digest, self.me)
            if isinstance(ask, Ping):
                books = b"" if self.watch is None else self.watch.hear(ask.books)
                held = books if self.shown is None else self.shown.books
                return encode_answer(replace(self.here(full=ask.full), books=held))
            if isinstance(ask, EndStudy) and ask.cancelled:
                return encode_answer(self._cancel(id))
            if self.stage != "ready":
                return encode_answer(self.here())
            if isinstance(ask, SumRequest) and self._unheard(ask):
                return encode_answer(Busy())
            return encode_answer(self.run(id, lambda: self._answers.get(id) or self._guarded(id, ask)))
        except Exception as e:
            return encode_answer(self._refused(e))

    def _unheard(self, ask: SumRequest) -> bool:
        """Whether somebody of this sum has not told yet what is known of this site's book."""
        if self.watch is None or self._last is not None:  # the study has ended here: nothing leaves any more
            return False
        self.watch.hear(ask.books or b"{}")
        whom = self.order.sites if self.context.all_witnesses else [s for s in ask.sites if s in self.order.sites]
        missing = self.watch.lacking(whom)
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
        if isinstance(e, PolyclinicError) and self._context is not None:
            self.refuse(e)
            return self.here()
        self.log(event="failed", study=self.order.id, error=f"{type(e).__name__}: {e}")
        return Refused("malformed")  # an ask that no reader of ours foresaw; nothing of it was kept

    def _act(self, ask: Ask) -> Answer:
        match ask:
            case SumRequest():
                if self._last is not None:
                    return self._over(ask)
                return self._align(ask) if ask.number == ALIGN else self._take(ask)
            case Deliver():
                return self._mail(ask)
            case EndStudy():
                return self._close(ask)
            case Ping():
                return self.here(full=ask.full)
            case _:
                assert_never(ask)

    # ---- one sum

    def _take(self, ask: SumRequest) -> Answer:
        context, order, key = self.context, self.order, (ask.number, ask.attempt)
        sites = self._among(ask.sites, max(order.least, context.min_sites if order.secure else 0))
        if self.watch is not None:
            self.watch.check(sites)
        if (more := self._fold_on(ask)) is not None:
            return more
        fold = self.fold
        assert fold is not None
        if not self.record.file.exists():
            self._save()  # who began; and if the disk is full it is found before anything is released
        if ask.number != fold.number:
            return OutOfDate(fold.number)
        self._check_votes(fold, ask.votes)
        step = fold.step()
        if step is None:
            return Letters(vote=self._vote(fold), standing="ended")
        if step.size > context.max_numbers:
            raise PolicyRefusal(
                f"step {step.name!r} asks for {step.size:,} numbers; this site allows {context.max_numbers:,}"
            )
        exact = order.secure and not order.hides(step)
        if exact and set(sites) != set(self.mark.counted):
            raise MessageRefused(
                f"an exact secure sum over {len(sites)} sites, {len(self.mark.counted)} were in the one before: a site that is "
                "left out of one sum could be computed from it and the one before"
            )
        if exact:  # without a coordinator there is no later moment at which the list is fixed
            context.counts(sites, order.peers)
        roster = replace(order.roster(sites, ask.attempt, paid=order.hides(step)), chain=fold.chain)
        if isinstance(fold, CoordinatorState):
            fold.roster = roster
        if order.secure:
            self._enter(key, digest([list(sites), roster.threshold, sorted([list(e) for e in roster.edges])]).hex())
        contribution = self._contribution(step, fold.public, roster, ask.number)
        promises = self._promised(ask.number, exact) if order.secure else None
        side = context.adder.exchange(self.me, roster, step, contribution, promises=promises)
        self._prepare(key, step.round)
        out = self._opened(Open(key, frozenset({(step.round, step.name)}), side, step), self._vote(fold))
        return out if self.watch is None else replace(out, books=self.watch.hear())

    def _over(self, ask: SumRequest) -> Answer:
        """Nothing is released any more; among peers only the sites know that the sum asked for is none, and say it again."""
        assert self._last is not None
        done, here = self._last
        ended = self.order.peers and ask.number == here.number
        return Letters(vote=done.vote, standing="ended") if ended else Refused("closed")

    def _among(self, names: tuple[str, ...], least: int) -> tuple[str, ...]:
        """The sites of an attempt, which the order must know, and enough of them."""
        sites = tuple(sorted(set(names)))
        if self.me not in sites or not set(sites) <= set(self.order.sites) or len(sites) < least:
            raise MessageRefused(f"a roster of {len(sites)} sites, of which the order knows not all, or too few")
        return sites

    def _align(self, ask: SumRequest) -> Answer:
        """Before the first sum: agree with the other sites on codes."""
        if self.aligner is None or self._unaligned is None or self.record.file.exists():
            raise MessageRefused(f"site {self.me!r} has nothing to align in study {self.order.id!r}, or its codes stay")
        sites = self._among(ask.sites, max(2, self.order.quorum, self.context.min_sites))
        if self.watch is not None:
            self.watch.check(sites)
        keys = {n: bytes.fromhex(self.order.keys[n]) for n in (*sites, COORDINATOR)}
        side = self.aligner.side(self._unaligned, Roster(sites, threshold=len(sites), attempt=ask.attempt, keys=keys))
        self.log(event="aligning", study=self.order.id, how=self.order.alignment)
        return self._opened(Open((ALIGN, ask.attempt), frozenset((0, f"align {m}") for m in self.order.unlisted), side))

    # ---- the exchange that is open

    def _fold_on(self, ask: SumRequest | EndStudy) -> Answer | None:
        """Follow what was taken since; an exchange of a sum that was taken is over."""
        before = self.number
        try:
            return self._follow(ask)
        finally:
            if self.number != before:
                self.box.open = None

    def _opened(self, now: Open, vote: bytes = b"") -> Letters:
        self.box.start(now)
        return self._letters(vote)

    def _mail(self, ask: Deliver) -> Answer:
        if self.box.open is None or self.box.open.key != (ask.number, ask.attempt):
            return OutOfDate(self.number)  # restarted during the sum: its keys are gone
        self.box.mail(ask.letters, ask.late)
        return self._letters()

    def _letters(self, vote: bytes = b"") -> Letters:
        standing = self._standing()
        step = None if self.box.open is None else self.box.open.step
        return Letters(self.box.empty(), vote, standing, self._after, 0 if step is None else step.round)

    def _count(self, way: str, size: int) -> None:
        if isinstance(self.fold, CoordinatorState) and self.box.open is not None and self.box.open.step is not None:
            getattr(self.fold.traffic, way)(self.me, self.box.open.step.round, size)

    def _standing(self) -> Standing:
        """How the exchange stands, where this site learns its result itself; what it knows is on disk before it says so."""
        now = self.box.open
        if now is None or not (self.order.peers or now.step is None):
            return "open"
        result = now.side.result()
        if result == "aborted":
            return "aborted"
        if result == "pending":
            return "open"
        if now.step is None:
            assert self.aligner is not None
            assert self._unaligned is not None
            agreed = self.aligner.agreed(now.side, now.key[1])
            self._use(self.aligner.apply(agreed, self._unaligned))
            self.record.codes = agreed
            self.log(event="aligned", study=self.order.id)
            self.box.open = None
        elif self.mark.after is None:
            assert isinstance(result, Total)
            self._reach(now.key, now.step, result)
        return "known"

    # ---- the end

    def _cancel(self, id: str) -> Answer:
        """The coordinator cancelled the study: nothing more leaves from now on. The data go once nobody works on them."""
        if self._last is None:
            first = self.why != "closed"  # before the ledger says so: what is refused because of that line is no fault
            self.stage, self.reasons, self.why, self.shown = "refused", [], "closed", None
            if self.watch is not None:
                self.watch.ledger.close(self.order.digest, "cancelled")
            if first:
                self.log(event="cancelled", study=self.order.id)
                self.run(id, self._let_go)
        return Refused("closed")

    def _let_go(self) -> Answer:
        self.box.open = None
        self.ended()
        return Busy()

    def _close(self, ask: EndStudy) -> Answer:
        """Keep what stays here (memberships), hand over the model where this site has it, forget the rest."""
        if self._last is None:
            if (more := self._fold_on(ask)) is not None:
                return more
            fold = self.fold
            if fold is None or fold.step() is not None:
                raise MessageRefused(f"study {self.order.id!r} is not at its end")
            self._check_votes(fold, ask.votes)
            book = b""
            if self.watch is not None:
                stated = self._context.elsewhere if self._context is not None else None
                sign = self.identity.sign
                book = StudyExtract.of(self.watch.ledger, self.me, self.order.digest, sign, stated).pack()
            done = Done(self._vote(fold), fold.state() if self.order.peers else None, book)
            here = self.here(full=True)
            self.record.end(self.party.close(fold.public), done, here)
            self._last = (done, here)
            self.log(event="finished", study=self.order.id)
        if self._party is None:  # the study had ended before this process began
            self.ended()
            return self._last[0]
        self.party.door.close("finished")  # the line first, then the data
        self.ended()
        return replace(self._last[0], heads={self.me: asdict(self.party.door.ledger.head)})
