"""The coordinator's side of a masked sum (``aggregation.secure.masked`` has the protocol)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from polyclinic.aggregation.fixed_point import FixedPoint, stream
from polyclinic.aggregation.secure.authenticated import AuthenticatedMessage
from polyclinic.aggregation.secure.key_agreement import BASE, COMMIT, Board, keyed, slots_of
from polyclinic.aggregation.secure.key_broadcast import introduction, to_bits
from polyclinic.aggregation.secure.mask_graph import circle
from polyclinic.aggregation.secure.prime_field import P, accumulate
from polyclinic.aggregation.secure.shamir import BYTES
from polyclinic.aggregation.secure.survivor_votes import VOTE
from polyclinic.aggregation.vector import unflatten
from polyclinic.errors import MessageRefused
from polyclinic.protocol.interfaces import Message
from polyclinic.protocol.wire.integer_width import narrow, widen, width
from polyclinic.protocol.wire.sealed import Party, agree, digest, octets, parties_digest

if TYPE_CHECKING:
    from polyclinic.aggregation.secure.masked import Masked

ORDER: Final = ("advertise", "shares", "masked", "signed", "unmask")


class MaskedCoordinator(Party):
    """Relays, adds masked vectors as they come, and can open only the sum."""

    envelope: AuthenticatedMessage

    def __init__(self, envelope: AuthenticatedMessage, adder: Masked, board: Board | None = None) -> None:
        super().__init__(envelope)
        self._adder, self._board = adder, board
        self._phase = 0 if board is None else 2 if board.left else 1
        self._opening = True  # until the first letters of all are there
        self._expected: list[str] = list(self.roster.sites)
        self._got: dict[str, Any] = {}  # site -> its message of this phase
        self._bound: list[str] = []  # a list of this sum that was signed in an attempt before
        self._alive: list[str] = []  # survivors: sites whose vectors are in the sum
        self._living: frozenset[str] = frozenset()  # the same as a set, and all whose secrets are shared
        self._had: frozenset[str] = frozenset()
        self._sum = np.zeros(self.step.size + 2, np.uint64)
        self.opened = np.zeros(0, np.uint64)  # words and tag of the sum, for the sites to check

    @property
    def members(self) -> tuple[str, ...]:
        """Sites whose vectors are in the sum."""
        return tuple(self._alive)

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, object]], list[Message]]]:
        return {kind: self._collect(kind) for kind in ORDER}

    def start(self) -> list[Message]:
        return []

    def take(self, message: Message) -> list[Message]:
        """A site that remembers keys which I do not, or has forgotten those that I remember, makes all agree anew."""
        kind, early = message.kind, message.kind in ORDER[:3]
        if self._opening and self._result == "pending" and early and kind != ORDER[self._phase]:
            if message.sender not in self._expected or message.sender in self._got:
                raise MessageRefused(f"{kind!r} from {message.sender!r} is late or out of turn")
            if kind != "advertise" and self._phase == 0:  # I have no line to check it by, and nothing of it is used
                return [self.envelope.seal(message.sender, "again", {})]
            self.envelope.open(message)
            out = self._again()
            request = self.envelope.seal(message.sender, "again", {})
            return [*out, *(self.take(message) if kind == "advertise" else [request])]
        return super().take(message)

    def _again(self) -> list[Message]:
        receivers, self._got = sorted(self._got), {}
        self._phase, self._board = 0, None
        self._adder.boards.pop(parties_digest(self.roster), None)
        self._sum = np.zeros(self.step.size + 2, np.uint64)
        self.envelope.lines.clear()
        self.envelope.forget("shares", "masked")
        return [self.envelope.seal(s, "again", {}) for s in receivers]

    def _collect(self, kind: str) -> Callable[[str, dict[str, object]], list[Message]]:
        def take(sender: str, body: dict[str, object]) -> list[Message]:
            if kind != ORDER[self._phase] or sender not in self._expected:
                raise MessageRefused(f"{kind!r} from {sender!r} is late or out of turn ({ORDER[self._phase]!r} now)")
            self._got[sender] = getattr(self, f"_read_{kind}")(sender, body)
            return self._advance() if len(self._got) == len(self._expected) else []

        return take

    # ---- reading: whole body checked before anything is kept

    def _read_advertise(self, sender: str, body: dict[str, Any]) -> dict[str, object]:
        entry = {"line": octets(body["line"]), "bound": [str(s) for s in body["bound"]]}
        if len(octets(body["line"])) != 32:
            raise ValueError("keys have 32 bytes")
        self.envelope.verify(sender, "keys", entry, body["own"])
        return {**entry, "own": octets(body["own"])}

    def _read_shares(self, sender: str, body: dict[str, Any]) -> dict[str, object]:
        board, table = self._board, body["table"]
        assert board is not None
        sealed = {str(k): octets(v) for k, v in body["sealed"].items()}
        neighbours, slots = board.circle.near(sender), slots_of(board.batch + 1, board.most)
        if not set(board.circle.told(sender)) <= set(sealed) <= set(board.circle.order) - {sender}:
            raise ValueError("shares for other keepers than announced")
        commits = octets(body["commits"])
        words = BASE * len(neighbours) * slots
        if not isinstance(table, np.ndarray) or table.dtype != np.uint64 or table.shape != (words,):
            raise ValueError(f"a table of {words} words is expected")
        if len(commits) != COMMIT * slots:
            raise ValueError("a commitment for each slot is expected")
        return {"sealed": sealed, "commits": commits, "table": table}

    def _read_masked(self, sender: str, body: dict[str, Any]) -> bool:
        board, vector = self._board, body["vector"]
        assert board is not None
        size, count = width(self.step, len(self.roster.sites)), self._sum.size
        kind, length = (np.uint64, count) if size == 8 else (np.uint8, size * (count - 2) + 16)
        if not isinstance(vector, np.ndarray) or vector.dtype != kind or vector.shape != (length,):
            raise ValueError(f"a vector of {count} words is expected, {size} bytes each but for the last two")
        if size != 8:
            vector = np.concatenate([widen(vector[:-16], size), widen(vector[-16:])])
        if octets(body["session"]) != board.id[:8] or list(body["slot"]) != [board.batch, board.slot]:
            raise ValueError("a vector under other keys")
        self._sum[:-1] += vector[:-1]  # added at once, never kept
        self._sum[-1] = (int(self._sum[-1]) + int(vector[-1])) % P
        return True

    def _read_signed(self, sender: str, body: dict[str, Any]) -> bytes:
        votes = octets(body["votes"])
        if len(votes) != VOTE * len(self._alive):
            raise ValueError("a vote for each survivor is expected")
        return votes

    def _read_unmask(self, sender: str, body: dict[str, Any]) -> dict[str, bytes]:
        board, seeds, masks = self._board, octets(body["seeds"]), octets(body["masks"])
        assert board is not None
        keepers = board.circle.keepers(sender)  # who is near me is whom I am near
        present = sorted(s for s in keepers if s in self._living)
        names = [*present, *sorted(s for s in keepers if s in self._had and s not in self._living)]
        if len(seeds) != BYTES * len(present) or len(seeds + masks) != BYTES * len(names):
            raise ValueError("shares of other sites than announced")
        return {s: (seeds + masks)[BYTES * i : BYTES * (i + 1)] for i, s in enumerate(names)}

    # ---- from phase to phase

    def deadline(self) -> list[Message]:
        """Go on with those who answered, or burn the attempt if they are too few."""
        if self._result != "pending":
            return []
        return self._advance() if len(self._got) >= self.roster.threshold else self._burn()

    def _burn(self) -> list[Message]:
        self._result, self._got, self._sum = "aborted", {}, np.zeros(0, np.uint64)
        self._board = None
        self._adder.boards.pop(parties_digest(self.roster), None)
        return [self.envelope.seal(s, "abort", {}) for s in self._expected]

    def _advance(self) -> list[Message]:
        here, got = sorted(self._got), self._got
        kind = ORDER[self._phase]
        if kind == "advertise":
            self._bound = next((e["bound"] for e in got.values() if e["bound"]), [])
            if self._bound:  # a list of this sum was signed in an attempt before: that one, or none
                if not set(self._bound) <= set(here):
                    return self._burn()
                here, got = self._bound, {s: got[s] for s in self._bound}
        if kind == "masked" and self._bound not in ([], here):
            return self._burn()
        self._opening, self._phase, self._expected, self._got = False, self._phase + 1, here, {}
        return getattr(self, f"_after_{kind}")(here, got)  # type: ignore[no-any-return]

    def _after_advertise(self, here: list[str], got: dict[str, Any]) -> list[Message]:
        key = X25519PrivateKey.generate()
        id = digest([self.envelope.context, {s: got[s]["line"] for s in here}])
        lines = {s: agree(key, got[s]["line"], id, "line", self.me, s) for s in here}
        around = circle(tuple(here), self.roster.threshold, self.roster.colluders, id)
        self._board = Board(around, id, lines, self._adder.slots)
        public = key.public_key().public_bytes_raw()
        letter = {**introduction(got, self.roster.sites), "line": public}
        out = self._tell("keys", lambda s: letter)
        self.envelope.lines = dict(lines)
        return out

    def _after_shares(self, here: list[str], got: dict[str, Any]) -> list[Message]:
        assert self._board is not None
        self._board.collect(got)
        sealed = {o: got[o]["sealed"] for o in here}
        return self._tell("inbox", lambda s: {"sites": here, "sealed": {o: x[s] for o, x in sealed.items() if s in x}})

    def _after_masked(self, here: list[str], got: dict[str, object]) -> list[Message]:
        assert self._board is not None
        self._board.slot += 1
        if not self._board.circle.safe(set(here), self.roster.colluders):
            return self._burn()
        self._alive, self._living, self._had = here, frozenset(here), frozenset(self._board.members)
        bits = to_bits(here, self._board.members)
        return self._tell("survivors", lambda s: {"sites": bits})

    def _after_signed(self, here: list[str], got: dict[str, Any]) -> list[Message]:
        votes = np.frombuffer(b"".join(got[s] for s in here), np.uint8).reshape(len(here), len(self._alive), VOTE)
        index = {s: i for i, s in enumerate(self._alive)}
        voters = to_bits(here, self._alive)
        return self._tell("signatures", lambda s: {"voters": voters, "votes": votes[:, index[s]].tobytes()})

    def _after_unmask(self, here: list[str], got: dict[str, Any]) -> list[Message]:
        """Take the masks off the SUM; no single vector exists any more."""
        board, context, total, alive = self._board, self.envelope.context, self._sum, set(self._alive)
        assert board is not None
        slot = board.slot - 1
        try:
            for site in self._alive:
                seed = keyed(board.seed(site, slot, got), b"self", context)
                accumulate(total, stream(seed, total.size + 1), -1)
            for lost in sorted(set(board.members) - alive):
                for site, base in board.bases(lost, slot, got).items():
                    if site in alive:
                        mask = stream(keyed(base, b"pair", context), total.size + 1)
                        accumulate(total, mask, -1 if site < lost else 1)
        except ValueError:
            return self._burn()  # a keeper sent false shares: the sum stays closed
        size = width(self.step, len(self.roster.sites))
        if size != 8:
            total[:-2] = widen(narrow(total[:-2], size), size)
        self.opened, self._sum = total, np.zeros(0, np.uint64)
        values = FixedPoint.of(self.step, len(self.roster.sites)).decode(total[:-1])
        self._result = unflatten(self.step, values, len(self._alive), self._adder.noise_share(self.roster))
        parties = parties_digest(self.roster)
        if tuple(self._alive) == board.members and self._adder.once:
            self._adder.boards[parties] = board
        else:
            self._adder.boards.pop(parties, None)
        return []

    def _tell(self, kind: str, body: Callable[[str], Mapping[str, object]]) -> list[Message]:
        return [self.envelope.seal(s, kind, body(s)) for s in self._expected]
