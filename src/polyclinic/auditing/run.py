"""Audit runs: made-up patients go through the real method, the real door and the real sum; can they be seen?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.auditing.statistics import Audit, judge
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import gaussian_mu
from polyclinic.privacy.accounting.charge import events_for
from polyclinic.privacy.accounting.mechanisms import Noise
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.interfaces import Contribution, Method, Step, Total, seeds
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site, pooled
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

SITE = "audited"
INSIDER = "insider"


@dataclass(frozen=True)
class Insider:
    """A hospital of the federation that looks: it sees every opened total and takes its own part off.

    Parameters
    ----------
    sites
        Hospitals, the audited one and the insider among them.
    lost
        How many of the others are not counted in any sum; the threshold is all but these.
    """

    sites: int = 4
    lost: int = 0

    def __post_init__(self) -> None:
        if self.sites - self.lost < 3 or self.lost < 0:
            raise ConfigError(
                f"{self.sites} sites of which {self.lost} are lost: a secure sum wants three that are there",
                hint="more sites, or fewer lost",
            )

    def silent(self, step: Step, site: str) -> bool:
        """Whether a site does not answer."""
        return site.startswith("other") and int(site.removeprefix("other")) < self.lost


@dataclass(frozen=True)
class _Seen:
    step: Step
    public: Any
    total: Total


class _Listener:
    """A method that works as the given one, and remembers what was released."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.seen: list[_Seen] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def update_public(self, step: Step, public: Any, total: Total) -> Any:
        self.seen.append(_Seen(step, public, total))
        return self._method.update_public(step, public, total)


def audit(
    method: Method,
    sites: Sequence[Site] | None = None,
    *,
    canaries: int = 500,
    count: float = 100.0,
    patients: int = 1000,
    seed: int = 0,
    noise: Noise | None = None,
    confidence: float = 0.95,
    insider: Insider | None = None,
) -> Audit:
    """Attack a private method with synthetic patients (canaries), and compare the result with its ledger.

    Each canary has one tuple of codes that no other patient has, so that it moves the releases as far as a patient
    can. It takes part with probability 1/2. All canaries are at one site whose releases are read, which is the least
    protected place. Works for methods whose steps are sums over patients with a patient-level sensitivity.

    Parameters
    ----------
    method
        An unfitted federated method with ``privacy`` set, e.g. ``pc.DPEM(privacy=pc.Privacy(1.0))``.
    sites
        Real patients among whom the canaries hide. Default: ``patients`` synthetic ones.
    canaries
        Number of canaries; the standard error of mu is about 2 / sqrt(canaries).
    count
        The count in a canary's cell.
    patients
        Number of synthetic other patients, if no sites are given.
    seed
        Of who takes part and of the synthetic patients (not of the noise).
    noise
        Source of noise to audit; default: that of the release check.
    confidence
        Of the one-run lower bound.
    insider
        None: the attacker sees what leaves the audited site, under ``plain``. Else a hospital that takes part in masked sums, sees
        every total and takes its own contribution, with its own noise, off.

    Returns
    -------
    Audit
        ``.passed``, ``.verdict``, the lower bound next to the ledger's epsilon, and mu next to the ledger's.

    References
    ----------
    Steinke, Nasr, Jagielski. Privacy Auditing with One (1) Training Run. NeurIPS 2023.

    Examples
    --------
    >>> import polyclinic as pc
    >>> method = pc.DPEM(rank=10, rounds=2, privacy=pc.Privacy(epsilon=2.0, delta=1e-6))
    >>> result = pc.audit(method, canaries=100, patients=200, seed=0)
    >>> round(result.epsilon, 6), result.delta, result.canaries  # what the ledger charged. The answer is ``result.verdict``
    (2.0, 1e-06, 100)
    """
    privacy = method.params.privacy
    if not noisy(privacy) or privacy.level != "patient" or method.needs != "tensor":
        raise ConfigError(
            f"{type(method).__name__} promises no patient-level privacy of tensors, so there is nothing to audit",
            hint="audit a method with privacy=pc.Privacy(epsilon), such as pc.DPEM",
        )
    rng = seeds(seed, "audit")
    base = _background(rng, patients) if sites is None else pooled(sites).counts()
    marks = _canaries(base, canaries, count)
    included = rng.random(canaries) < 0.5
    crowd = SparseTensor.stack([_widened(base, canaries), _chosen(marks, included)])
    listener = _Listener(method)
    door = ReleaseGate(SITE, noise=noise)
    door.admit("audit", method.name, privacy, 1, crowd.patients)
    if insider is None:
        Simulation(listener, [Site(SITE, tensor=crowd)], adder=by_name("plain"), doors={SITE: door}).run()  # type: ignore[arg-type]
    else:
        _inside(listener, Site(SITE, tensor=crowd), door, insider)

    events = events_for(door.ledger.charges(), "patient")
    epsilon, mu = door.ledger.epsilon(privacy.delta), gaussian_mu(events)
    if mu is None or not math.isfinite(epsilon):
        raise ConfigError(
            f"{method.name}: the ledger has no patient-level bound to audit",
            faults=sorted({f"step {s.step.name!r} has no noise" for s in listener.seen if not s.step.noise_sd}),
        )
    scores, norm = _scores(method, listener.seen, marks)
    return judge(
        method.name,
        scores,
        included,
        epsilon=epsilon,
        delta=privacy.delta,
        mu=mu,
        confidence=confidence,
        largest_norm=norm,
    )


class _Remembers(ReleaseGate):
    """The insider's own door: it knows what it sent."""

    def __init__(self, site: str, **more: Any) -> None:
        super().__init__(site, **more)
        self.sent: list[Contribution] = []

    def release(self, step: Step, mine: Contribution, **more: Any) -> Contribution:
        out = super().release(step, mine, **more)
        self.sent.append(out)
        return out


def _inside(listener: _Listener, site: Site, door: ReleaseGate, insider: Insider) -> None:
    """Run among several hospitals; what the insider sent is taken off every total that it saw."""
    single = site.counts().take(np.arange(1))  # the others' patients do not matter: they have no canary's code
    names = [INSIDER, *(f"other{k}" for k in range(insider.sites - 2))]
    own_door = _Remembers(INSIDER, noise=door.noise)
    doors = {SITE: door, INSIDER: own_door, **{n: ReleaseGate(n, noise=door.noise) for n in names[1:]}}
    Simulation(
        listener,  # type: ignore[arg-type]
        [site, *(Site(n, tensor=single) for n in names)],
        adder=by_name("masked"),
        doors=doors,
        quorum=insider.sites - insider.lost,
        silent=insider.silent if insider.lost else None,
    ).run()
    listener.seen = [
        replace(s, total=replace(s.total, arrays={k: a - sent.arrays[k] for k, a in s.total.arrays.items()}))
        for s, sent in zip(listener.seen, own_door.sent, strict=True)
    ]


def _scores(method: Method, seen: Sequence[_Seen], marks: SparseTensor) -> tuple[NDArray[np.float64], float]:
    """Each canary's likelihood ratio for Gaussian noise, scaled to spread 1 by the ledger's noise: sum <S, u> / sd^2."""
    m = marks.patients
    match, power, norm = np.zeros(m), np.zeros(m), 0.0
    for s in seen:
        if sum(math.prod(shape) for shape in s.step.shapes.values()) == 1:
            continue  # one number that every canary moves alike (a count): it tells no canary from another
        owner, direction = _directions(method, s, marks)
        released = np.concatenate([s.total.arrays[k].ravel() for k in sorted(s.step.shapes)])
        owned = owner >= 0
        canary, u = owner[owned], direction[owned]
        variance = s.step.noise_sd**2
        match += np.bincount(canary, u * released[owned], m) / variance
        squares = np.bincount(canary, u * u, m)
        power += squares / variance
        assert s.step.sensitivity is not None
        norm = max(norm, math.sqrt(float(squares.max())) / s.step.sensitivity)
    if not (power > 0).all():
        raise ConfigError(f"{method.name}: {int((power == 0).sum())} canaries left no trace in any release")
    return match / np.sqrt(power), norm


def _directions(method: Method, seen: _Seen, marks: SparseTensor) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which canary moves which coordinate of a release, and by how much.

    Canaries share no code, so they move different coordinates: about log2(canaries) calls of ``contribute``, each
    with those canaries whose number has one bit set, name the owner of every coordinate.
    """
    m = marks.patients
    all_moves = _flat(method, seen, marks)
    owner = np.where(all_moves != 0, 0, -1).astype(np.int64)
    for bit in range((m - 1).bit_length()):
        moves = _flat(method, seen, _chosen(marks, (np.arange(m) >> bit & 1).astype(bool)))
        if not np.isin(moves[moves != 0] - all_moves[moves != 0], 0).all():
            raise ConfigError(
                f"{method.name}, step {seen.step.name!r}: a patient's contribution depends on the other patients",
                hint="this audit reads sums over patients only",
            )
        owner[moves != 0] |= 1 << bit
    return owner, all_moves


def _flat(method: Method, seen: _Seen, tensor: SparseTensor) -> NDArray[np.float64]:
    site = Site(SITE, tensor=tensor)
    private = method.init_site(site, seen.public, seeds(0, "audit"))
    contribution: Contribution = method.contribute(seen.step, site, private, seen.public, seeds(0, "audit"))[1]
    return np.concatenate([np.asarray(contribution.arrays[k], np.float64).ravel() for k in sorted(seen.step.shapes)])


def _background(rng: np.random.Generator, patients: int, codes: Mapping[int, int] | None = None) -> SparseTensor:
    """Made-up patients: a dozen events each over codes of falling frequency."""
    shape = (patients, *(codes or {1: 30, 2: 40}).values())
    patient = np.repeat(np.arange(patients), rng.poisson(12, patients) + 1)
    columns = [patient]
    for size in shape[1:]:
        weight = 1 / np.arange(1, size + 1)
        columns.append(rng.choice(size, len(patient), p=weight / weight.sum()))
    axes = [Axis("patient"), *(Axis(f"mode {n}", vocabulary="public") for n in range(1, len(shape)))]
    return SparseTensor(np.column_stack(columns), np.ones(len(patient)), shape, axes)


def _widened(tensor: SparseTensor, more: int) -> SparseTensor:
    shape = (tensor.patients, *(d + more for d in tensor.shape[1:]))
    axes = [tensor.axes[0], *(_anonymous(a) for a in tensor.axes[1:])]
    return SparseTensor(tensor.coords, tensor.values, shape, axes)


def _canaries(base: SparseTensor, m: int, count: float) -> SparseTensor:
    index = np.arange(m)
    coords = np.column_stack([index, *(index + d for d in base.shape[1:])])
    shape = (m, *(d + m for d in base.shape[1:]))
    return SparseTensor(coords, np.full(m, count), shape, [base.axes[0], *(_anonymous(a) for a in base.axes[1:])])


def _anonymous(axis: Axis) -> Axis:
    return replace(axis, labels=None, names=None)


def _chosen(marks: SparseTensor, which: NDArray[np.bool_]) -> SparseTensor:
    return marks.take(np.flatnonzero(which))
