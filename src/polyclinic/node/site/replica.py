"""A site's own fold: step, number, public state and chain, derived from the order and the totals that are relayed.

The coordinator is believed in nothing: a total is checked against the step that was derived here, and a masked one by its tag;
that all sites are told the same is seen from their votes. What a site enters or signs is on disk before it leaves.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from polyclinic import __version__
from polyclinic.aggregation.promise import Promise, Promises
from polyclinic.aggregation.secure.masked import Masked, read
from polyclinic.errors import DataError, MessageRefused, PolicyRefusal, PolyclinicError, ProtocolMismatch
from polyclinic.node.messages import Answer, Done, EndStudy, Key, OutOfDate, Stage, StateMismatch, Status, SumRequest
from polyclinic.node.refusals import Why, why_of
from polyclinic.node.signed_study import StudyOrder
from polyclinic.node.site.context import SiteContext
from polyclinic.node.site.formal_party import FormalParty
from polyclinic.node.site.record import Mark, Record
from polyclinic.privacy.ledger.rollback_check import RollbackCheck
from polyclinic.protocol.interfaces import Contribution, Roster, Schema, Step, Total
from polyclinic.protocol.public_state import CoordinatorState, PublicState
from polyclinic.protocol.site_party import SiteParty
from polyclinic.protocol.wire import chain as certificate
from polyclinic.protocol.wire.chain import Opened
from polyclinic.protocol.wire.sealed import Identity


class SiteReplica:
    """The fold of one study at one site.

    Parameters
    ----------
    order
        The signed study, already checked against the pinned coordinator.
    identity
        The site's signing key.
    record
        Its files of this study.
    """

    def __init__(self, order: StudyOrder, identity: Identity, record: Record) -> None:
        self.order, self.identity, self.record, self.me = order, identity, record, identity.name
        self.mark = Mark()
        self.fold: PublicState | None = None  # this site's own; a Conductor where there is no coordinator's
        self._context: SiteContext | None = None
        self._party: SiteParty | None = None
        self._prepared: object = None  # private state if the prepared sum enters

    @property
    def context(self) -> SiteContext:
        """What the site brings to the study."""
        assert self._context is not None
        return self._context

    @property
    def party(self) -> SiteParty:
        """The site's data behind its release gate."""
        assert self._party is not None
        return self._party

    @property
    def number(self) -> int:
        """Sums folded here."""
        return 0 if self.fold is None else self.fold.number

    def _use(self, context: SiteContext) -> None:
        self._context = context
        brought = (context.method, context.site, context.adder, context.gate)
        self._party = SiteParty(*brought) if context.report is None else FormalParty(*brought, context.report)

    def _restore(self) -> bool:
        """Go on where a process before this one was; False if there was none."""
        mark = self.record.read()
        if mark is None:
            return False
        self.mark = mark
        kind = self.context.method.Private
        self.party.private = self.record.get(mark.committed, kind)
        if mark.prepared is not None:
            self._prepared = self.record.get(mark.prepared, kind)
        if mark.fold is not None:
            self._begin(mark.begun).restore(mark.fold)
        return True

    def _save(self) -> None:
        self.mark.fold = None if self.fold is None else self.fold.state()
        self.record.write(self.mark)

    # ---- what was taken since

    def _begin(self, sites: tuple[str, ...]) -> PublicState:
        """The fold from its start; who begins is said once, and is the same ever after."""
        if self.fold is not None:
            if sites != self.mark.begun:
                raise ProtocolMismatch(f"study {self.order.id!r} began with other sites")
            return self.fold
        order, context, mine = self.order, self.context, self.context.setting
        if sites != tuple(sorted(set(sites) & set(order.sites))) or len(sites) < order.least:
            raise MessageRefused(
                f"a study that begins with {len(sites)} sites, of which the order knows not all, or too few"
            )
        axes = () if context.method.needs == "features" else context.site.counts().axes[1:]
        setting = Schema(tuple(mine["shape"]), tuple(axes), sites, None if axes else order.columns)
        numbers = context.method.params.columns * sum(setting.shape)
        if numbers > context.max_numbers:  # asked before a model of that size is made here
            raise PolicyRefusal(
                f"study {order.id!r} asks for a model of {numbers:,} numbers; this site allows {context.max_numbers:,}"
            )
        chain = certificate.root(order.digest, mine["shape"], mine["digests"], mine.get("alignment"), sites)
        roster = order.roster(sites, 0)
        self.fold = (
            CoordinatorState(context.method, setting, context.adder, roster, chain=chain)
            if order.peers
            else PublicState(context.method, setting, context.adder.noise_share(roster), chain)
        )
        self.fold.begin()
        self.mark.begun, self.mark.counted = sites, self.mark.counted or sites
        return self.fold

    def _follow(self, ask: SumRequest | EndStudy) -> Answer | None:
        """Fold the totals that were taken since; an answer where this site needs more for it, None when it is there."""
        fold = self._begin(ask.begin)
        number = fold.number
        try:
            for opened in ask.opened:
                if opened.number < fold.number:
                    continue
                step = fold.step()
                if opened.number > fold.number or step is None:
                    return OutOfDate(fold.number)
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
                        return StateMismatch(fold.number)
                if self.order.secure and not self.order.hides(step):
                    self.mark.counted = tuple(sorted(opened.entered))
                if mine is not None:
                    self.mark.committed, self.mark.prepared = mine, None
                    self.party.private = self._prepared
                self.mark.after = None
        finally:
            # A plain sum that goes on to its contribution is written with it: whoever is killed before folds the same total again,
            # which the coordinator keeps until the next contribution has come.
            plain = not (self.order.secure or self.order.peers)
            if fold.number != number and not (plain and isinstance(ask, SumRequest)):
                self._save()
        return None

    def _checked(self, opened: Opened, step: Step) -> Opened:
        """A total that the step can have; of a masked sum, from its words, which must carry the tag of the list signed here.

        A site that did not sign that list (it was away) cannot check the tag; it goes on only with the votes of those who could.
        """
        if (opened.words is not None) != isinstance(self.context.adder, Masked):
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
            made = signed[0] if signed else Promise(opened.attempt, members, sites=len(sites))
            if made.sites != len(sites):  # the unit of the words, which the tag does not cover
                raise ProtocolMismatch(f"sum {opened.number}: another roster than that of the attempt signed here")
            share = self.context.adder.noise_share(
                self.order.roster(sites, opened.attempt, paid=self.order.hides(step))
            )
            opened = replace(opened, total=read(step, share, opened.words, made, checked=bool(signed)))
        order, adds = self.order, self.context.adder.adds
        opened.check(step, order.sites, order.least, adds=adds)
        return opened

    def _check_votes(self, fold: PublicState, votes: Mapping[str, bytes]) -> None:
        """Enough sites were, one sum ago, where this site was: the coordinator tells everybody the same story."""
        if not fold.number:
            return
        keys = {s: bytes.fromhex(self.order.keys[s]) for s in self.order.sites}
        found = certificate.count_votes(votes, keys, self.order.digest, fold.number - 1, fold.before)
        if found < self.order.least:
            raise ProtocolMismatch(
                f"sum {fold.number}: {found} sites voted for the sums before it, {self.order.least} are needed"
            )

    def _vote(self, fold: PublicState) -> bytes:
        return certificate.ballot(self.identity, self.order.digest, fold.number, fold.chain)

    def _reach(self, key: Key, step: Step, total: Total) -> None:
        """Peers: this site knows a total; the state after it is on disk, and counts once all sites have it."""
        fold = self.fold
        assert isinstance(fold, CoordinatorState)
        before = fold.state()
        if step.counts:
            fold.traffic.payload(self.me, CoordinatorState.payload(step))
        fold.commit(step, total, entered=dict.fromkeys(self.mark.begun, key))
        self.mark.after = fold.state()
        fold.restore(before)
        self._save()

    # ---- what leaves next

    def _contribution(self, step: Step, public: object, roster: Roster, number: int) -> Contribution:
        """Return what this site releases. Whatever goes wrong in here may depend on data: the owner reads it, others hear a word."""
        try:
            return self.party.contribute(step, public, roster, number)
        except (MessageRefused, ProtocolMismatch) as e:
            raise DataError(e.what, faults=e.faults, hint=e.hint) from None
        except (PolyclinicError, OSError):
            raise
        except Exception as e:
            raise DataError(f"sum {number}, step {step.name!r}: {type(e).__name__}: {e}") from e

    def _enter(self, key: Key, members: str) -> None:
        """A secure sum is entered once per attempt, and the record of it is on disk before anything leaves.

        Otherwise a coordinator could have the same contribution summed with two sets of sites, and subtract.
        """
        if key in self.mark.entered:
            raise MessageRefused(
                f"site {self.me!r} has entered sum {key[0]}, attempt {key[1]} before; ask a new attempt"
            )
        self.mark.entered = {k: v for k, v in self.mark.entered.items() if k[0] >= key[0] - 1} | {key: members}
        self._save()

    def _promised(self, number: int, exact: bool = False) -> Promises:
        """Lists of survivors that this site signed for a sum; a new one is on disk before its signature leaves."""

        def keep(made: tuple[Promise, ...]) -> None:
            if exact:
                self.context.counts(made[-1].members, True)
            self.mark.signed = {k: v for k, v in self.mark.signed.items() if k >= number - 1} | {number: made}
            self._save()

        return Promises(self.mark.signed.get(number, ()), keep)

    def _prepare(self, key: Key, round_: int) -> None:
        """The private state if this sum enters is on disk, and those that no sum can go back to are gone."""
        if self.mark.committed is None:
            self.record.put(None, self.party.private)
        self._prepared = self.party._next
        self.record.put(key, self._prepared)
        self.mark.prepared, self.mark.after = key, None
        self._save()
        self.record.prune((self.mark.committed, key), round_)


class StandingReplica(SiteReplica):
    """A site's own state of a study, with the word for it.

    Parameters
    ----------
    log, watch, ended
        As of :class:`~polyclinic.node.site.worker.SiteStudy`.
    """

    def __init__(
        self,
        order: StudyOrder,
        identity: Identity,
        record: Record,
        *,
        log: Callable[..., None],
        watch: RollbackCheck | None,
        ended: Callable[[], object],
    ) -> None:
        super().__init__(order, identity, record)
        self.log, self.watch, self.ended = log, watch, ended
        self.stage: Stage = "loading"
        self.reasons: list[str] = []  # the owner's to read
        self.why: Why | None = None  # all that the coordinator hears of them
        self.shown: Status | None = None  # at a public pace: how the site stood before the answer that is computed now
        self._last: tuple[Done, Status] | None = None  # the study has ended here
        self._life = secrets.token_hex(8)

    def over(self) -> bool:
        """Whether the study had ended here before this process began: then its data go, and its last answer is all there is."""
        closed = self.record.closed
        if closed is not None:
            self.stage, self._last = "ready", closed
            if self.watch is not None:
                self.watch.ledger.close(self.order.digest, "finished")  # the line first, then the data
        elif self.watch is not None and self.order.digest in self.watch.ledger.tally.closed:
            self.stage, self.why = "refused", "closed"  # cancelled, or erased by the owner
        else:
            return False
        self.ended()
        return True

    @property
    def ended_here(self) -> bool:
        """Whether nothing more leaves in this study."""
        return self._last is not None or self.stage == "refused"

    def wait(self, reasons: list[str]) -> None:
        """The owner has been asked."""
        self.stage, self.reasons = "waiting", reasons

    def refuse(self, error: BaseException) -> None:
        """The site takes no part, or no longer: in our log in full; the coordinator hears a word."""
        if self.why == "closed":  # cancelled: what it was doing then may end in any way
            return
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

    def here(self, *, full: bool = False) -> Status:
        """How the site stands; may be read at any time, also while it works."""
        if self._last is not None:
            return replace(self._last[1], life=self._life)
        out = self.shown or Status(self.stage, self._life, self.number, self.mark.prepared, self._after, self.why)
        if self.order.peers and self._after and self.fold is not None:
            out = replace(out, vote=self._vote(self.fold))  # said before, and again: a killed coordinator has lost it
        if full and self.stage == "ready":
            out = replace(out, setting=self.context.setting, noise=self.context.gate.noise.label)
        return out

    def hold(self) -> None:
        """Show how the site stands now, until the answer that is computed next has left."""
        self.shown = replace(self.here(), books=b"" if self.watch is None else self.watch.hear())

    @property
    def _after(self) -> bytes:
        """Peers: the chain after the prepared sum, once it is known here."""
        return b"" if self.mark.after is None else bytes(self.mark.after["chain"])
