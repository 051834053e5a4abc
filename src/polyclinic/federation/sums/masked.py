"""Masked sum: the coordinator learns the sum and nothing else, also when sites drop out (Bonawitz et al. 2017).

Every pair of sites agrees on a mask that one adds and the other subtracts; every site adds a mask of its own. In the sum
the pairwise masks cancel; the self-masks, and the pairwise masks of sites that were lost, are rebuilt from shares that
the sites keep for each other. All arithmetic is on whole numbers mod 2^64, so a masked vector is uniformly distributed.

    advertise   site -> coordinator   two fresh X25519 keys and a commitment to the self-mask seed, signed
    keys        coordinator -> site   everybody's, each with its owner's signature
    shares      site -> coordinator   Shamir shares of seed and of mask key, and 32 fresh bytes, sealed for each keeper
    inbox       coordinator -> site   the shares that others sealed for it
    masked      site -> coordinator   encode(w x, w), tag + self-mask +/- pairwise masks   (mod 2^64; the tag mod 2^61 - 1)
    survivors   coordinator -> site   whose vectors arrived in time
    signed      site -> coordinator   signature under that list; a site signs ONE list per number (``sums.promise``)
    signatures  coordinator -> site   at least ``threshold`` signatures under the same list
    unmask      site -> coordinator   seed shares of survivors, key shares of the lost; never both of one site

Security. Honest-but-curious sites and a coordinator that may lie about who was lost: two different lists would need
``2 (threshold - colluders)`` honest signatures out of ``sites - colluders``, hence ``2 threshold > sites + colluders`` is
required; and a sum over fewer than ``colluders + 2`` sites is never opened (``least_threshold``). Below the threshold the attempt is burnt: no share has left a site, the keys are forgotten, a new attempt draws
new ones. Keys and seeds live in memory of one attempt and cannot be pickled. A site that sends false shares can spoil the
sum (the commitments show it, and the attempt is burnt), but not open it.

The total. Whoever took part can check what it is shown afterwards: :meth:`MaskedSite.check` accepts the opened words only with
the tag that belongs to the sum of what the members sent (``sums.tag``).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from polyclinic.errors import ConfigError, MessageRefused
from polyclinic.federation.envelope import Channel, Envelope, Identity, Party, agree, introduce
from polyclinic.federation.protocol import (
    Contribution,
    Exchange,
    Message,
    Roster,
    Step,
    Sum,
    SumFacts,
    Total,
    least_threshold,
)
from polyclinic.federation.sums import shamir
from polyclinic.federation.sums.fixedpoint import FixedPoint, Words
from polyclinic.federation.sums.promise import Promises
from polyclinic.federation.sums.tag import Tag, add, mask
from polyclinic.federation.sums.vector import flatten, only_added, unflatten

__all__ = ["Masked", "MaskedCoordinator", "MaskedSite", "least_threshold", "read", "stream"]


def stream(key: bytes, size: int) -> Words:
    """``size`` uniformly distributed 64-bit words from a 32-byte key (ChaCha20)."""
    out = np.zeros(size, np.uint64)
    # One key makes one stream: keys are derived anew for every pair, round, step and attempt, so the nonce may be zero.
    Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update_into(bytes(8 * size), out.view(np.uint8))  # type: ignore[arg-type]
    return out


class Masked(Sum):
    """Secure aggregation through a coordinator that learns only the sum.

    Parameters
    ----------
    identities
        Signing keys of the parties that run HERE: between hospitals a party holds its own only; in one process
        :meth:`enrol` makes everybody's.
    least
        A site's own floor (policy ``min_sites``): it signs no list of survivors that is shorter, whatever the threshold.
    """

    facts: ClassVar[SumFacts] = SumFacts(
        "masked",
        "total",
        checked=True,
        saw={"the coordinator": "the sum over sites, {values}", "other sites": "the public model, masked messages"},
    )

    def __init__(self, identities: Mapping[str, Identity] | None = None, *, least: int = 1) -> None:
        self.identities, self.least = dict(identities or {}), least

    def enrol(self, roster: Roster) -> Roster:
        """For one process: make a key for everybody and pin them; raise a threshold that is not given to the least safe one."""
        parties = [*roster.sites, roster.coordinator or "coordinator"]
        if not set(parties) <= set(self.identities):
            self.identities, _ = introduce(parties)
        threshold = roster.threshold if roster.threshold > 1 else least_threshold(len(roster.sites), roster.colluders)
        keys = {p: self.identities[p].public for p in parties}
        return replace(roster, coordinator=parties[-1], threshold=threshold, keys=keys)

    def share(self, roster: Roster) -> float:
        """Each site adds ``1 / (threshold - colluders)`` of the noise variance, so that any allowed sum carries it all."""
        return 1.0 / (roster.threshold - roster.colluders)

    def side(
        self,
        me: str,
        roster: Roster,
        step: Step,
        mine: Contribution | None,
        *,
        promises: Promises | None = None,
    ) -> Exchange:
        """A site's side (with its contribution) or the coordinator's (with None)."""
        only_added(step, self.name)
        n, t, c = len(roster.sites), roster.threshold, roster.colluders
        faults = []
        if c < 1:
            faults.append(f"{c} colluders; at least 1: a curious site subtracts its own part and its own noise")
        if n < c + 2:
            faults.append(f"{n} sites; with fewer than {c + 2}, {c} pooling site(s) see the other's contribution")
        if n < self.least:
            faults.append(f"{n} sites; the owner of {me!r} asks for sums over at least {self.least}")
        if not least_threshold(n, c) <= t <= n:
            faults.append(f"threshold {t}; {n} sites with {c} colluders need {least_threshold(n, c)}..{n}")
        if roster.coordinator is None or roster.coordinator in roster.sites:
            faults.append(f"coordinator {roster.coordinator!r} must be a party apart from the sites")
        if len(set(roster.sites)) != n:
            faults.append("a site appears twice")
        if (mine is None) != (me == roster.coordinator):
            faults.append(f"{me!r}: a site brings a contribution, the coordinator none")
        if faults:
            raise ConfigError("a masked sum is not safe with this roster", faults=faults)
        envelope = Envelope(me, roster, step, self.identities.get(me))
        if mine is None:
            return MaskedCoordinator(envelope, self.share(roster))
        code = FixedPoint.of(step, n)
        return MaskedSite(envelope, code.encode(flatten(step, mine, me), me), self.least, promises)


def read(step: Step, roster: Roster, opened: Words, members: tuple[str, ...], tag: Tag) -> Total:
    """The total of opened words that pass the tag; a site that was restarted has the tag's key in its :class:`Promise`."""
    if opened.dtype != np.uint64 or opened.shape != (step.size + 2,):
        raise MessageRefused(f"a total of {opened.shape} numbers, {step.size + 2} are expected")
    values = FixedPoint.of(step, len(roster.sites)).decode(tag.check(opened, members))
    return unflatten(step, values, len(members), 1.0 / (roster.threshold - roster.colluders))


def _point(roster: Roster, site: str) -> int:
    return roster.sites.index(site) + 1


def _commit(context: bytes, site: str, seed: bytes) -> bytes:
    return hashlib.sha256(b"self-mask seed" + context + site.encode() + seed).digest()


class MaskedSite(Party):
    """A hospital's side: hands out shares, sends one masked vector, helps to unmask one signed list of survivors."""

    def __init__(self, envelope: Envelope, words: Words, least: int = 1, promises: Promises | None = None) -> None:
        super().__init__(envelope)
        self._words = words
        self._least = max(least, self.roster.threshold)
        self._promises = Promises() if promises is None else promises
        self._line_key, self._mask_key = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed, self._part = secrets.token_bytes(32), secrets.token_bytes(32)
        self._tag: Tag | None = None  # with which I check the total
        self._keys: dict[str, tuple[bytes, bytes]] = {}  # site -> (line key, mask key), public
        self._lines: dict[str, Channel] = {}
        self._kept: dict[str, tuple[bytes, bytes]] = {}  # site -> its shares that I keep (seed, mask key)
        self._list: list[str] = []  # the one list of survivors that I signed
        self._quiet = 0

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, Any]], list[Message]]]:
        return {
            "keys": self._on_keys,
            "inbox": self._on_inbox,
            "survivors": self._on_survivors,
            "signatures": self._on_signatures,
            "abort": self._on_abort,
        }

    def take(self, message: Message) -> list[Message]:
        """Only the coordinator writes to a site; sites' words inside carry their own signatures."""
        if message.sender != self.roster.coordinator:
            raise MessageRefused(
                f"message {message.kind!r} from {message.sender!r}: only the coordinator writes to a site"
            )
        body = self.envelope.open(message)
        if message.kind == "abort" and self._result == "done":
            return []  # my part was over; the coordinator could not open the sum
        answer = self.handle(message, body)
        self._quiet = 0
        return answer

    def _send(self, kind: str, body: Mapping[str, Any]) -> list[Message]:
        return [self.envelope.seal(self.roster.coordinator or "", kind, body)]

    def start(self) -> list[Message]:
        body = {
            "line": self._line_key.public_key().public_bytes_raw(),
            "mask": self._mask_key.public_key().public_bytes_raw(),
            "seed": _commit(self.envelope.context, self.me, self._seed),
            "bound": list(self._promises.bound),  # the one list of this sum that I may still sign, if I signed one
        }
        return self._send("advertise", {**body, "own": self.envelope.sign("keys", body)})

    def _members(self, names: Iterable[str], within: Iterable[str]) -> list[str]:
        """A list of sites from the coordinator: sorted, distinct, on the roster, enough, and with me in it."""
        listed, allowed = list(names), set(within)
        if listed != sorted(set(listed)) or not set(listed) <= allowed:
            raise MessageRefused(f"{self.me!r} was sent a list with strangers or doubles")
        if len(listed) < self._least or self.me not in listed:
            raise MessageRefused(
                f"{self.me!r} was sent a list of {len(listed)} sites (itself included: {self.me in listed}); "
                f"the threshold is {self._least}"
            )
        return listed

    def _on_keys(self, sender: str, body: dict[str, Any]) -> list[Message]:
        members = self._members(sorted(body["sites"]), self.roster.sites)
        keys, lines = {}, {}
        for site in members:
            entry = dict(body["sites"][site])
            own = entry.pop("own")
            self.envelope.verify(site, "keys", entry, own)
            keys[site] = (bytes(entry["line"]), bytes(entry["mask"]))
            if site != self.me:
                key = agree(self._line_key, keys[site][0], self.envelope.context, "line", self.me, site)
                lines[site] = Channel(key, self.me, site)
        if keys[self.me][1] != self._mask_key.public_key().public_bytes_raw():
            raise MessageRefused(f"{self.me!r} was sent another key as its own")
        points = [_point(self.roster, s) for s in members]
        seeds = shamir.split(self._seed, points, self.roster.threshold)
        masks = shamir.split(self._mask_key.private_bytes_raw(), points, self.roster.threshold)
        part = self._part
        sealed = {s: lines[s].seal(a + b + part, "shares") for s, a, b in zip(members, seeds, masks) if s != self.me}
        at = members.index(self.me)
        self._keys, self._lines, self._kept = keys, lines, {self.me: (seeds[at], masks[at])}
        return self._send("shares", {"sealed": sealed})

    def _on_inbox(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if not self._keys or len(self._kept) > 1:
            raise MessageRefused(f"{self.me!r} expects no shares now")
        members = self._members(sorted([*body["sealed"], self.me]), self._keys)
        kept, parts = dict(self._kept), {self.me: self._part}
        for site in members:
            if site != self.me:
                both = self._lines[site].open(bytes(body["sealed"][site]), "shares")
                if len(both) != 2 * shamir.SHARE_BYTES + 32:
                    raise MessageRefused(f"shares from {site!r} have the wrong length")
                kept[site] = (both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES : -32])
                parts[site] = both[-32:]
        tag = Tag.of(parts, self.envelope.context)
        masked = np.append(self._words, np.uint64(tag.word(self._words, self.me)))
        masked = add(masked, mask(stream(self._seed, masked.size + 1)))
        for site in members:
            if site != self.me:
                masked = add(masked, mask(stream(self._pair(site), masked.size + 1)), 1 if self.me < site else -1)
        self._kept, self._tag = kept, tag
        return self._send("masked", {"vector": masked})

    def _pair(self, site: str) -> bytes:
        return agree(self._mask_key, self._keys[site][1], self.envelope.context, "mask", self.me, site)

    def _on_survivors(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if len(self._kept) < 2 or self._list:
            raise MessageRefused(f"{self.me!r} signs one list of survivors, after its vector was sent")
        listed = self._members([str(s) for s in body["sites"]], self._kept)
        assert self._tag is not None
        self._promises.sign(self.roster.attempt, tuple(listed), self._tag.key)  # on disk before the signature leaves
        self._list = listed
        return self._send("signed", {"own": self.envelope.sign("survivors", self._list)})

    def _on_signatures(self, sender: str, body: dict[str, Any]) -> list[Message]:
        if not self._list:
            raise MessageRefused(f"{self.me!r} has signed no list of survivors yet")
        signers = dict(body["signatures"])
        if not set(signers) <= set(self._list) or len(signers) < self.roster.threshold:
            raise MessageRefused(
                f"{len(signers)} signatures under the list of survivors; the threshold is {self.roster.threshold}"
            )
        for site, signature in signers.items():
            self.envelope.verify(site, "survivors", self._list, signature)
        kept, self._kept = self._kept, {}
        alive = set(self._list)
        self._forget("done")
        return self._send(
            "unmask",
            {
                "seeds": {s: a for s, (a, _) in kept.items() if s in alive},
                "masks": {s: b for s, (_, b) in kept.items() if s not in alive},
            },
        )

    def check(self, opened: Words, members: tuple[str, ...]) -> Total:
        """The total from the words that were opened, if they are the sum over the list that I signed; refused otherwise."""
        if self._tag is None or tuple(members) != tuple(self._list):
            raise MessageRefused(f"{self.me!r} has not signed the list of {len(members)} sites of this total")
        return read(self.step, self.roster, opened, members, self._tag)

    def _on_abort(self, sender: str, body: dict[str, Any]) -> list[Message]:
        self._forget("burnt")
        return []

    def _forget(self, outcome: Literal["done", "burnt"]) -> None:
        """The attempt is over: keys, seeds and shares go, whatever happened."""
        self._result, self._kept, self._lines, self._seed = outcome, {}, {}, b""
        self._words = np.zeros(0, np.uint64)
        del self._line_key, self._mask_key

    def deadline(self) -> list[Message]:
        """The coordinator decides about late sites; a site gives up after two deadlines without a word from it."""
        self._quiet += 1
        if self._result == "pending" and self._quiet >= 2:
            self._forget("burnt")
        return []


class MaskedCoordinator(Party):
    """The coordinator's side: relays, adds masked vectors as they come, and can open only the sum."""

    _ORDER = ("advertise", "shares", "masked", "signed", "unmask")

    def __init__(self, envelope: Envelope, share: float) -> None:
        super().__init__(envelope)
        self._share = share
        self._phase = 0
        self._expected: list[str] = list(self.roster.sites)
        self._got: dict[str, Any] = {}  # site -> its message of this phase
        self._keys: dict[str, dict[str, Any]] = {}
        self._senders: list[str] = []  # sites whose masks are in each other's vectors
        self._alive: list[str] = []  # survivors: sites whose vectors are in the sum
        self._sum = np.zeros(self.step.size + 2, np.uint64)
        self.opened = np.zeros(0, np.uint64)  # words and tag of the sum, for the sites to check

    @property
    def members(self) -> tuple[str, ...]:
        """Sites whose vectors are in the sum."""
        return tuple(self._alive)

    def handlers(self) -> Mapping[str, Callable[[str, dict[str, Any]], list[Message]]]:
        return {kind: self._collect(kind) for kind in self._ORDER}

    def start(self) -> list[Message]:
        return []

    def _collect(self, kind: str) -> Callable[[str, dict[str, Any]], list[Message]]:
        def take(sender: str, body: dict[str, Any]) -> list[Message]:
            if kind != self._ORDER[self._phase] or sender not in self._expected:
                raise MessageRefused(
                    f"{kind!r} from {sender!r} is late or out of turn ({self._ORDER[self._phase]!r} now)"
                )
            self._got[sender] = getattr(self, f"_read_{kind}")(sender, body)
            return self._advance() if len(self._got) == len(self._expected) else []

        return take

    # ---- reading: whole body checked before anything is kept

    def _read_advertise(self, sender: str, body: dict[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = {k: bytes(body[k]) for k in ("line", "mask", "seed")}
        if any(len(v) != 32 for v in entry.values()):
            raise ValueError("keys have 32 bytes")
        entry["bound"] = [str(s) for s in body["bound"]]
        self.envelope.verify(sender, "keys", entry, body["own"])
        return {**entry, "own": bytes(body["own"])}

    def _read_shares(self, sender: str, body: dict[str, Any]) -> dict[str, bytes]:
        sealed = {str(k): bytes(v) for k, v in body["sealed"].items()}
        if set(sealed) != set(self._keys) - {sender}:
            raise ValueError("shares for other keepers than announced")
        return sealed

    def _read_masked(self, sender: str, body: dict[str, Any]) -> bool:
        vector = body["vector"]
        if not isinstance(vector, np.ndarray) or vector.dtype != np.uint64 or vector.shape != self._sum.shape:
            raise ValueError(f"a vector of {self._sum.size} words of 64 bits is expected")
        self._sum = add(self._sum, vector)  # added at once, never kept
        return True

    def _read_signed(self, sender: str, body: dict[str, Any]) -> bytes:
        self.envelope.verify(sender, "survivors", self._alive, body["own"])
        return bytes(body["own"])

    def _read_unmask(self, sender: str, body: dict[str, Any]) -> dict[str, bytes]:
        seeds, masks = body["seeds"], body["masks"]
        if set(seeds) != set(self._alive) or set(masks) != set(self._senders) - set(self._alive):
            raise ValueError("shares of other sites than announced")
        shares = {str(k): bytes(v) for k, v in (*seeds.items(), *masks.items())}
        if any(len(v) != shamir.SHARE_BYTES for v in shares.values()):
            raise ValueError("a share has the wrong length")
        return shares

    # ---- from phase to phase

    def deadline(self) -> list[Message]:
        """Go on with those who answered, or burn the attempt if they are too few."""
        if self._result != "pending":
            return []
        return self._advance() if len(self._got) >= self.roster.threshold else self._burn()

    def _burn(self) -> list[Message]:
        self._result, self._got, self._sum = "burnt", {}, np.zeros(0, np.uint64)
        return [self.envelope.seal(s, "abort", {}) for s in self._expected]

    def _advance(self) -> list[Message]:
        here, got = sorted(self._got), self._got
        kind = self._ORDER[self._phase]
        if kind == "advertise" and (bound := next((e["bound"] for e in got.values() if e["bound"]), None)):
            if not set(bound) <= set(here):  # a list of this sum was signed in an attempt before: that one, or none
                return self._burn()
            here, got = bound, {s: got[s] for s in bound}
        if kind == "masked" and (bound := next((e["bound"] for e in self._keys.values() if e["bound"]), here)) != here:
            return self._burn()
        self._phase, self._expected, self._got = self._phase + 1, here, {}
        if kind == "advertise":
            self._keys = got
            return self._tell("keys", lambda s: {"sites": got})
        if kind == "shares":
            self._senders = here
            return self._tell("inbox", lambda s: {"sealed": {o: got[o][s] for o in here if o != s}})
        if kind == "masked":
            self._alive = here
            return self._tell("survivors", lambda s: {"sites": here})
        if kind == "signed":
            return self._tell("signatures", lambda s: {"signatures": got})
        return self._open(got)

    def _tell(self, kind: str, body: Callable[[str], Mapping[str, Any]]) -> list[Message]:
        return [self.envelope.seal(s, kind, body(s)) for s in self._expected]

    def _open(self, got: Mapping[str, Mapping[str, bytes]]) -> list[Message]:
        """Take the masks off the SUM; no single vector exists any more."""
        helpers = sorted(got)[: self.roster.threshold]
        lagrange = shamir.weights([_point(self.roster, h) for h in helpers])
        size, context, total = self._sum.size, self.envelope.context, self._sum
        try:
            for site in self._alive:
                seed = shamir.rebuild([got[h][site] for h in helpers], lagrange)
                if _commit(context, site, seed) != self._keys[site]["seed"]:
                    raise ValueError(f"the seed of {site!r} is not what it committed to")
                total = add(total, mask(stream(seed, size + 1)), -1)
            for lost in sorted(set(self._senders) - set(self._alive)):
                raw = shamir.rebuild([got[h][lost] for h in helpers], lagrange)
                key = X25519PrivateKey.from_private_bytes(raw)
                if key.public_key().public_bytes_raw() != self._keys[lost]["mask"]:
                    raise ValueError(f"the mask key of {lost!r} is not the one it advertised")
                for site in self._alive:
                    seed = agree(key, self._keys[site]["mask"], context, "mask", lost, site)
                    total = add(total, mask(stream(seed, size + 1)), -1 if site < lost else 1)
        except ValueError:
            return self._burn()  # a keeper sent false shares: the sum stays closed
        self.opened = total
        values = FixedPoint.of(self.step, len(self.roster.sites)).decode(total[:-1])
        self._result = unflatten(self.step, values, len(self._alive), self._share)
        self._sum = np.zeros(0, np.uint64)
        return []
