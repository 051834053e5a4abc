"""The chain of sums: what a party must have seen, step by step, to be where it is; and the votes that certify it.

Every party that folds (each site; the coordinator where it sees totals) grows a chain of digests::

    chain_0     = H("polyclinic/chain/2", order, setting, sites that begin)
    chain_{k+1} = H(chain_k, link_k),   link_k = (number, attempt, members, total, step, state)

where ``step`` is the step that THIS party derived and ``state`` the public state after it. The chain is part of the context of
every letter, so two parties that differ in anything public cannot read each other's first letter; and it is what a site
signs with its contribution (its *vote*). A site goes on only if enough sites voted for the chain that it has itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from polyclinic.errors import MessageRefused
from polyclinic.privacy.release import Step, Total
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.sealed import Identity, digest
from polyclinic.tensors.simd.scan import largest

LIMIT: Final = 2**40  # a state that is hashed is not a message


@dataclass(frozen=True)
class ChainLink:
    """One sum that was taken; about 200 bytes."""

    number: int
    attempt: int
    members: tuple[str, ...]
    total: bytes
    step: bytes
    state: bytes


def root(order: str, shape: Sequence[int], axes: Sequence[str], names: str | None, sites: Sequence[str]) -> bytes:
    """The chain before the first sum: the order's digest and everything public that the sites brought with them."""
    return digest(["polyclinic/chain/2", order, list(shape), list(axes), names, list(sites)])


def grow(chain: bytes, link: ChainLink) -> bytes:
    """The chain after one more sum."""
    body = [link.number, link.attempt, list(link.members), link.total, link.step, link.state]
    return digest(["polyclinic/link/2", chain, body])


def state_digest(state: object) -> bytes:
    """SHA-256 of a public state, bit for bit."""
    return wire.fingerprint(wire.pack(state), limit=LIMIT)


def step_digest(step: Step) -> bytes:
    """SHA-256 of a step."""
    return wire.fingerprint(wire.pack(step))


# ---- votes


def _vote(order: str, number: int, chain: bytes) -> bytes:
    return digest(["polyclinic/vote/2", order, number, chain])


def ballot(identity: Identity, order: str, number: int, chain: bytes) -> bytes:
    """A site's signature under its chain before sum ``number``."""
    return identity.sign(_vote(order, number, chain))


def count_votes(votes: Mapping[str, bytes], keys: Mapping[str, bytes], order: str, number: int, chain: bytes) -> int:
    """How many of the pinned sites signed exactly this chain; a wrong, doubled or strange vote counts for nothing."""
    text, voters = _vote(order, number, chain), set()
    for site, signature in votes.items():
        try:
            Ed25519PublicKey.from_public_bytes(keys[site]).verify(bytes(signature), text)
            voters.add(keys[site])
        except (InvalidSignature, KeyError, ValueError, TypeError):
            continue
    return len(voters)


# ---- a total as it travels


@dataclass(frozen=True)
class Opened:
    """The total of one sum, as the coordinator relays it to the sites, who fold it themselves.

    Parameters
    ----------
    number, attempt
        Which sum.
    entered
        Site -> number and attempt of its contribution; older than ``number`` only in an asynchronous study.
    total
        The total itself; of a step that gathers, without the parts. Where there are ``words`` the arrays are empty.
    state
        Digest of the sender's public state after it.
    public
        That state itself, where a site cannot compute it: after a step that gathers. None otherwise.
    words
        Of a masked sum: the opened whole numbers and their tag, which those who signed the list check. None otherwise.
    sites
        Of a masked sum: the roster of the attempt, whose number sets the unit of the words.
    """

    number: int
    attempt: int
    entered: Mapping[str, tuple[int, int]]
    total: Total
    state: bytes
    public: object = None
    words: NDArray[np.uint64] | None = None
    sites: tuple[str, ...] = ()

    def pack(self) -> dict[str, object]:
        """As it travels, and as it is kept."""
        return {
            "number": self.number,
            "attempt": self.attempt,
            "entered": {s: list(k) for s, k in self.entered.items()},
            "arrays": {} if self.words is not None else dict(self.total.arrays),
            "weight": float(self.total.weight),
            "members": int(self.total.members),
            "noise_sd": float(self.total.noise_sd),
            "state": self.state,
            "public": self.public,
            "words": self.words,
            "sites": list(self.sites),
        }

    @classmethod
    def read(cls, tree: Any) -> Opened:
        """Inverse of :meth:`pack`; refuses everything else. Whether it fits the step is :meth:`check`'s to say."""
        try:
            if set(tree) != set(_FIELDS) or any(not isinstance(tree[k], t) for k, t in _FIELDS.items()):
                raise MessageRefused("an opened sum has the wrong fields")
            contributions = {str(s): (int(n), int(a)) for s, (n, a) in tree["entered"].items()}
            arrays = dict(tree["arrays"])
            if not all(isinstance(a, np.ndarray) and a.dtype == np.float64 for a in arrays.values()):
                raise MessageRefused("an opened sum holds something else than numbers")
            words, sites = tree["words"], tuple(tree["sites"])
            if words is not None and (words.dtype != np.uint64 or words.ndim != 1):
                raise MessageRefused("the words of an opened sum are not whole numbers")
            if not all(isinstance(s, str) for s in sites):
                raise MessageRefused("the sites of an opened sum are not names")
            total = Total(arrays, float(tree["weight"]), tree["members"], float(tree["noise_sd"]))
        except (TypeError, ValueError, AttributeError) as e:
            raise MessageRefused(f"not an opened sum ({type(e).__name__})") from None
        return cls(tree["number"], tree["attempt"], contributions, total, tree["state"], tree["public"], words, sites)

    def check(self, step: Step, sites: Sequence[str], least: int, *, adds: bool = True) -> None:
        """Refuse a total that the step cannot have: shapes, bounds, noise, and who is in it.

        ``adds``: the total is a sum; then its noise follows from the step, and so does its weight where each one's is 1.
        """
        faults = []
        n, members = len(self.entered), self.total.members
        if self.attempt != max((a for _, a in self.entered.values()), default=-1):
            faults.append("its attempt is not that of the contributions in it")
        if not set(self.entered) <= set(sites) or not least <= n <= len(sites) or members != n:
            faults.append(f"{n} sites entered, {members} are counted, at least {least} are needed")
        faults += [fault for fault, holds in self._facts(step, adds and self.words is None) if not holds]
        if faults:
            raise MessageRefused(f"the opened sum {self.number} is not one of step {step.name!r}", faults=faults)

    def _facts(self, step: Step, exact: bool) -> Iterator[tuple[str, bool]]:
        """What must hold of a total of this step, as the fault where it does not; ``exact``: noise and weight follow from it."""
        t = self.total
        shapes = {k: tuple(s) for k, s in step.shapes.items()}
        yield (
            "its arrays have other names or shapes than those of the step",
            {k: a.shape for k, a in t.arrays.items()} == shapes,
        )
        most = 1.01 * t.members * max(1.0, step.weight_bound) * step.reach
        small = all(math.isfinite(x := largest(a)) and x <= most for a in t.arrays.values())
        yield "it holds numbers that the sites together cannot have sent", small
        noise = step.noise_sd * np.sqrt(max(t.members, 0))  # a count below zero is a fault above
        possible = 0 <= t.weight <= 1.01 * t.members * step.weight_bound and 0 <= t.noise_sd <= noise * (1 + 1e-9)
        if exact:
            counted = step.sensitivity is None or t.weight == t.members
            possible = possible and t.noise_sd >= noise * (1 - 1e-9) and counted
        yield "its weight or its noise is not possible", bool(possible)
        gathers = (self.public is not None) == (step.how == "gather")
        yield "a public state comes with a step that gathers, and only then", gathers

    def link(self, step: Step, state: bytes) -> ChainLink:
        """What this sum adds to the chain of a party that derived ``step`` and has ``state`` after it."""
        value: list[object] = [self.total.weight, self.total.members, self.total.noise_sd]
        value.append(dict(self.total.arrays) if self.words is None else [list(self.sites), self.words])
        ages = [[s, *k] for s, k in sorted(self.entered.items())]
        return ChainLink(
            self.number,
            self.attempt,
            tuple(sorted(self.entered)),
            digest(["polyclinic/total/2", ages, value]),
            step_digest(step),
            state,
        )


_FIELDS: Final[dict[str, type | tuple[type, ...]]] = {
    "number": int,
    "attempt": int,
    "entered": dict,
    "arrays": dict,
    "weight": float,
    "members": int,
    "noise_sd": float,
    "state": bytes,
    "public": (dict, type(None)),
    "words": (np.ndarray, type(None)),
    "sites": list,
}


# ---- agreed bits between unlike processors


def within(mine: object, theirs: object, slack: float) -> bool:
    """Whether two packed states are the same but for the last bits of their float arrays and numbers.

    Recomputing is not bit-equal between processors. A party takes over another's bits only where the trees, types, shapes and
    all whole numbers, texts and truth values are equal, and floats differ by at most ``slack`` of the array's largest entry.

    >>> a = {"f": np.array([1.0, 2.0]), "n": 3}
    >>> within(a, {"f": np.array([1.0, 2.0 + 1e-12]), "n": 3}, 2.0**-30), within(a, {**a, "n": 4}, 2.0**-30)
    (True, False)
    """
    return _same(mine, theirs, lambda a, b: _near(a, b, slack))


def alike(mine: object, theirs: object) -> bool:
    """Whether a packed state has the tree, the types and the shapes of another, and no NaN where there was none."""

    def kind(a: object, b: object) -> bool:
        if not isinstance(a, np.ndarray):
            return type(a) is type(b)
        if not isinstance(b, np.ndarray) or b.dtype != a.dtype or b.shape != a.shape:
            return False
        return a.dtype.kind != "f" or bool(np.isfinite(b).all()) or not np.isfinite(a).all()

    return _same(mine, theirs, kind)


def _same(mine: object, theirs: object, leaf: Callable[[object, object], bool]) -> bool:
    """Whether two trees have the same branches, and leaves of which that holds."""
    if isinstance(mine, Mapping):
        return (
            isinstance(theirs, Mapping)
            and set(mine) == set(theirs)
            and all(_same(v, theirs[k], leaf) for k, v in mine.items())
        )
    if isinstance(mine, list | tuple):
        if not isinstance(theirs, list | tuple) or len(mine) != len(theirs):
            return False
        return all(_same(a, b, leaf) for a, b in zip(mine, theirs))
    return leaf(mine, theirs)


def _near(mine: object, theirs: object, slack: float) -> bool:
    if isinstance(mine, np.ndarray):
        if not isinstance(theirs, np.ndarray) or theirs.dtype != mine.dtype or theirs.shape != mine.shape:
            return False
        if mine.dtype.kind != "f":
            return bool(np.array_equal(mine, theirs))
        good = np.isfinite(mine)
        if not (good == np.isfinite(theirs)).all():
            return False
        gap = np.abs(mine[good] - theirs[good]).max(initial=0.0)
        equal = np.array_equal(mine[~good], theirs[~good], equal_nan=True)
        return bool(equal and gap <= slack * np.abs(mine[good]).max(initial=0.0))
    if isinstance(mine, float | np.floating) and isinstance(theirs, float | np.floating):
        a, b = float(mine), float(theirs)
        return a == b or (a != a and b != b) or abs(a - b) <= slack * abs(a)
    return type(mine) is type(theirs) and bool(mine == theirs)
