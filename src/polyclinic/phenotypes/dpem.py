"""DPEM: phenotypes under patient-level differential privacy, by EM on noisy sums; both halves.

Model: the events of patient i are draws from a_i0 * background + sum_r a_ir b_r (x) c_r (x) ..., columns on the simplex.
A hospital places each of its patients, takes the expected counts per code and phenotype, divides that vector by its
length (PRIVACY 3.2) and sends the sum over patients. One patient more or less moves the sum by at most 1, whatever
the patient's record: no convexity, clipping threshold or convergence is assumed. The coordinator learns from the
noisy sums by empirical Bayes (PRIVACY 5). Any number of feature modes; all modes share one release a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_serializer, field_validator, model_validator

from polyclinic.federation.fold import Outcome
from polyclinic.federation.keywords import DPEMTyped
from polyclinic.federation.protocol import Arrays, Contribution, Setting, Step, Total, seeds
from polyclinic.federation.sums import facts_of
from polyclinic.learned.placing import Events
from polyclinic.phenotypes import facts as known
from polyclinic.phenotypes.evidence import stands_out
from polyclinic.phenotypes.factorization import FactorParams, FederatedFactorization
from polyclinic.phenotypes.plan import ReleasePlan, plan_for
from polyclinic.phenotypes.prior import Prior
from polyclinic.phenotypes.regroup import alike, groups, split
from polyclinic.phenotypes.shrinkage import between, posterior_mean
from polyclinic.phenotypes.vote import votes
from polyclinic.tensors import device, em_kernels
from polyclinic.tensors.doors import warn_of_odd_counts
from polyclinic.tensors.site import Site
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["DPEM"]

Array = NDArray[np.float64]
Factors = tuple[Array, ...]

BOUND: Final = 2.0**31  # patients at one site, at most; public
FLOOR: Final = 0.02  # share of the marginals in every column: no code is ever impossible
FREE_FLOOR: Final = 1e-3  # the same without noise
MEMORY: Final = 0.7  # a release counts for so much less with every later one, beside its precision (docs: privacy.md)
STEPS, LAST_STEPS = 16, 50  # EM steps that place a patient: within a round, at the end
PIECES: Final = 0.25  # phenotypes more alike than this are pieces of one (planted: pieces 0.3 to 0.7, others below 0.1)
REGROUP: Final = (2, 4)  # after these rounds, if asked, pieces are joined and heavy phenotypes split
RENEWED: Final = 4  # at least a quarter of the columns is given to halves of heavy ones


class DPEMParams(FactorParams):
    """Parameters of DPEM."""

    rank: int | None = Field(  # type: ignore[assignment]
        None, ge=1, le=10_000, description="Phenotypes looked for (R); more than there are, the rest is pruned."
    )
    rounds: int | None = Field(None, ge=1, le=1000, description="Rounds; None: by the public rule.")  # type: ignore[assignment]
    planning_size: int | None = Field(
        None,
        ge=1,
        description="Public guess of the number of patients, for the rule; None: 0.5 % of the budget counts.",
    )
    background: bool = Field(True, description="A component for what everybody has, fixed to the marginals.")
    smoothing: float = Field(
        0.05, gt=0, le=100, description="Prior counts per phenotype of a patient; 1 where patients have few events."
    )
    regroup: bool = Field(False, description="After rounds 2 and 4 join pieces and split heavy phenotypes (no cost).")
    prune: bool = Field(True, description="Drop phenotypes that the noise explains, join those found in pieces.")
    fdr: float = Field(0.01, gt=0, lt=1, description="False-discovery rate of the codes that are shown.")
    prior: Prior | None = Field(
        None, description="A fitted model to lean on as far as the data agree: public, or paid for by itself."
    )
    prior_is_public: bool = Field(
        False, description="The prior's patients need no protection: it was learned from public data."
    )

    @field_validator("prior", mode="before")
    @classmethod
    def _prior(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, Prior) else Prior.of(value)

    @field_serializer("prior")
    def _told(self, value: Prior | None) -> str | None:
        return None if value is None else repr(value)

    @model_validator(mode="after")
    def _payable(self) -> Self:
        if self.privacy is not None and self.n_starts > 1:
            raise ValueError(
                f"n_starts = {self.n_starts} with privacy: every start and their comparison would have to be paid for; "
                "use n_starts = 1 and a rank above what you expect"
            )
        if self.privacy is not None and self.privacy.level != "patient":
            raise ValueError(f"DPEM protects patients; level {self.privacy.level!r} belongs to DPFact and LocalTF")
        if self.prior is not None and self.regroup:
            raise ValueError("regroup = True with a prior: columns that are joined and split are no longer the prior's")
        if self.prior is None and self.prior_is_public:
            raise ValueError("prior_is_public = True without a prior")
        hindered = "" if self.prior is None or self.privacy is None else self.prior.hindrance(self.prior_is_public)
        if hindered:
            raise ValueError(hindered)
        return self


@dataclass(frozen=True)
class DPEMPublic:
    """What everybody sees: functions of released sums and of public values."""

    stage: Literal["size", "marginals", "vote", "statistics", "end"]
    round: int
    plan: ReleasePlan
    factors: Factors  # (I_n, R) per mode; before the marginals are known: the random start, relative to them
    marginals: Factors  # (I_n,) per mode: the background
    mixture: Array  # (R,) or (R + 1,): how much of all events each phenotype explains, background last
    released: Array | None = None  # (codes, R or R + 1) running mean of the noisy sums
    noise_sd: float = 0.0  # of `released`
    precision: float = 0.0  # discounted sum of 1 / variance of the releases in that mean; 0 = it begins anew
    shown: tuple[NDArray[np.bool_], ...] = ()
    energy: Array | None = None
    objective: float | None = None
    sites: int = 1  # that begin
    bought: bool = False  # the number of patients was the first release
    told: Factors = ()  # (I_n, R) per mode: what the prior says of every column; the marginals where it says nothing
    expected: Factors = ()  # (I_n,) per mode: the prior's marginals
    random: Factors = ()  # (I_n, R) per mode: the random start, should the prior be refused
    shares: Array | None = None  # (R,) or (R + 1,): the prior's mixture
    spoken: int = 0  # columns that the prior speaks of: the first ones
    size: int | None = None  # patients, as planned with or as bought


@dataclass(frozen=True)
class DPEMPrivate:
    """Nothing is carried over: a patient is placed anew in every round."""


class DPEM(DPEMTyped, FederatedFactorization[DPEMParams, DPEMPublic, DPEMPrivate]):
    """Phenotypes that say nothing about any one patient: differential privacy for whole patients, by EM on noisy sums.

    With ``privacy=pc.Privacy(epsilon, delta)`` everything that leaves a hospital is paid for; without it this is plain
    EM. Under ``aggregation="masked"`` the noise is added once, under ``"plain"`` by every site (more noise by the root
    of the number of sites). Memberships are expected numbers of events and stay at the hospital.

    Attributes
    ----------
    shown_
        Per mode (I_n, R), True for the codes that the known noise does not explain; ``phenotypes_`` lists only these.
    background_
        Per mode (I_n,), what everybody has.
    privacy_
        The card; with a ``prior`` its own epsilon is in it (a patient of both studies has the sum of both).
    too_little_data_
        The public rule spent the whole budget on the marginals; the one "phenotype" is the background.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(600, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    >>> m = pc.DPEM(rank=4, rounds=4, privacy=pc.Privacy(epsilon=8, delta=1e-5), aggregation="masked").fit(sites)
    >>> m.privacy_.guarantee, m.privacy_.adjacency, m.traffic_.rounds
    ('formal', 'patient', 4)
    """

    name = "dpem"
    facts = known.DPEM
    exact = 1e-6  # the model is bit-equal; the objective is rounded to the grid at every site
    Params = DPEMParams
    Public = DPEMPublic
    Private = DPEMPrivate
    params: DPEMParams

    def _look_at_counts(self, tensors: Sequence[SparseTensor]) -> None:
        for t in tensors:
            em_kernels.stacked_rows(t)  # what is below zero is refused, so that it needs no warning
        warn_of_odd_counts(tensors, way_out="counts of events are whole")

    # ---- coordinator

    def begin(self, setting: Setting, rng: np.random.Generator) -> DPEMPublic:
        p = self.params
        bought = p.privacy is not None and p.planning_size is None
        plan = self._plan(setting.shape, len(setting.sites), p.planning_size)
        columns = plan.rank + p.background
        factors = tuple(rng.gamma(rng.uniform(0.5, 3.0, plan.rank), size=(size, plan.rank)) for size in setting.shape)
        flat = tuple(np.full(size, 1.0 / size) for size in setting.shape)
        mixture = np.full(columns, 1.0 / max(columns, 1))
        public = DPEMPublic(
            "size" if bought else "marginals", 0, plan, factors, flat, mixture, sites=len(setting.sites), bought=bought
        )
        if p.prior is None:
            return public
        return _leaning(replace(public, size=p.planning_size), p.prior.on(setting.axes, setting.shape))

    def _plan(self, shape: Sequence[int], sites: int, size: int | None, *, refused: bool = False) -> ReleasePlan:
        p = self.params
        return plan_for(
            p.privacy,
            shape,
            rank=p.rank,
            rounds=p.rounds,
            planning_size=size,
            noisy_sites=1 if facts_of(p.aggregation).reveals == "total" else sites,
            bought=p.privacy is not None and p.planning_size is None,
            prior="none" if p.prior is None else "refused" if refused else "asked",
        )

    def _sized(self, public: DPEMPublic, count: float) -> DPEMPublic:
        """The plan once the number of patients was bought: whether phenotypes can be read at all, and how many."""
        plan = self._plan([len(m) for m in public.marginals], public.sites, max(round(count), 1))
        columns = plan.rank + self.params.background
        factors = tuple(f[:, : plan.rank] for f in public.factors)
        now = replace(
            public, stage="marginals", plan=plan, factors=factors, mixture=np.full(columns, 1.0 / max(columns, 1))
        )
        if public.shares is None:
            return now
        shares = np.append(public.shares[: plan.rank], public.shares[len(public.shares) - self.params.background :])
        told = tuple(t[:, : plan.rank] for t in public.told)
        return replace(
            now,
            told=told,
            shares=shares / shares.sum(),
            size=max(round(count), 1),
            spoken=min(public.spoken, plan.rank),
        )

    def _voted(self, public: DPEMPublic, more: float) -> DPEMPublic:
        """The prior stays where more patients speak for it than against it; else the fit goes on as without one.

        Then the random start is taken, the marginals are learnt anew without the prior, and the gate is asked: where it
        closes, what is left of the budget buys the marginals once more.
        """
        if more > 0:
            return replace(public, stage="statistics", round=1, released=None, noise_sd=0.0, precision=0.0)
        assert public.released is not None
        plan = self._plan([len(m) for m in public.marginals], public.sites, public.size, refused=True)
        factors = tuple(f[:, : plan.rank] for f in public.random)
        alone = replace(public, plan=plan, factors=factors, told=(), expected=(), shares=None, random=(), spoken=0)
        alone = replace(alone, marginals=tuple(np.full(len(m), 1.0 / len(m)) for m in public.marginals))
        if plan.rank:
            columns = plan.rank + self.params.background
            alone = replace(alone, mixture=np.full(columns, 1.0 / columns))
            begun = _with_marginals(alone, public.released[:, 0], public.noise_sd)
            return replace(begun, released=None, noise_sd=0.0, precision=0.0)
        return replace(alone, stage="marginals", round=1)

    def next(self, public: DPEMPublic) -> Step | None:
        if public.stage == "end":
            return None
        codes = sum(len(m) for m in public.marginals)
        paid = public.plan.multipliers[public.bought :]
        if public.stage == "size":
            how_many = public.plan.multipliers[0]
            return Step(
                0, "size", {"n": (1,)}, bound=BOUND, sensitivity=1.0, multiplier=how_many, grid=1.0, counts=False
            )
        if public.stage == "vote":
            return Step(
                0,
                "vote",
                {"n": (1,)},
                bound=BOUND,
                sensitivity=1.0 if paid else None,
                multiplier=paid[1] if paid else None,
                grid=1.0,
                counts=False,
            )
        first = public.stage == "marginals"
        voted = self.params.prior is not None and public.round > 0  # it was one release more
        shapes: dict[str, tuple[int, ...]] = {"sums": (codes, 1 if first else len(public.mixture))}
        if not paid:
            shapes["objective"] = (1,)
        return Step(
            public.round,
            public.stage,
            shapes,
            bound=BOUND,
            sensitivity=1.0 if paid else None,
            multiplier=paid[public.round + voted] if paid else None,
            grid=em_kernels.GRID,
            counts=not first,
            asides=() if paid else ("objective",),
        )

    def combine(self, step: Step, public: DPEMPublic, total: Total) -> DPEMPublic:
        if step.name == "size":
            return self._sized(public, float(total.arrays["n"][0]))
        if step.name == "marginals":
            sums, sd, _ = _remembered(public, total.arrays["sums"], total.noise_sd, memory=1.0)
            now = _with_marginals(public, sums[:, 0], sd)
            precision = 1.0 / sd**2 if sd > 0 else 0.0
            return now if now.stage != "vote" else replace(now, released=sums, noise_sd=sd, precision=precision)
        if step.name == "vote":
            return self._voted(public, float(total.arrays["n"][0]))
        sums, sd, precision = _remembered(public, total.arrays["sums"], total.noise_sd)
        factors, mixture, _ = self._learn(public, sums, sd)
        objective = None if public.plan.multipliers else -float(total.arrays["objective"][0])
        now = replace(public, factors=factors, mixture=mixture, released=sums, noise_sd=sd, objective=objective)
        now = replace(now, precision=precision)
        if step.round >= public.plan.rounds or self._settled(public, now):
            return self._finish(now)
        if self.params.regroup and step.round in REGROUP and public.plan.rounds - step.round >= 2:
            now = self._regrouped(now)
        return replace(now, round=step.round + 1)

    def _settled(self, before: DPEMPublic, now: DPEMPublic) -> bool:
        """Without privacy: the objective no longer moves. With privacy the number of rounds is fixed: it is the price."""
        tol = self.params.tol
        if not tol or now.objective is None or before.objective is None:
            return False
        return abs(before.objective - now.objective) <= tol * abs(before.objective)

    def _learn(self, public: DPEMPublic, sums: Array, sd: float) -> tuple[Factors, Array, Array]:
        """The M-step: factors and mixture by empirical Bayes; also every column's noisy mass, as released."""
        parts = _by_mode(sums, public.marginals)
        rank = sums.shape[1] - self.params.background
        inverse = np.array([1.0 / len(m) for m in public.marginals])  # noise variance of a column's sum ~ its length
        raw = sum(w * s.sum(0) for w, s in zip(inverse, parts)) / inverse.sum()
        mass = np.maximum(raw, max(0.1 * float(raw.mean()), 1e-9))
        if public.shares is not None and sd:  # toward the prior's shares, as far as the noise explains the difference
            target = max(float(raw.sum()), 1.0) * public.shares
            off = raw - target
            noise = (len(raw) + 2.0 * np.sqrt(2.0 * len(raw))) * sd**2 / inverse.sum()  # two sd above its mean
            mass = target + max(0.0, 1.0 - noise / max(float(off @ off), 1e-300)) * off
            mass = np.maximum(mass, 0.1 * float(mass.mean()))
        floor = FLOOR if sd else FREE_FLOOR
        factors = []
        for n, (s, m) in enumerate(zip(parts, public.marginals)):
            base = m[:, None] * mass[:rank]
            if public.told:
                x, least = between(s[:, :rank], base, public.told[n] * mass[:rank], sd), public.told[n]
            else:
                x, least = posterior_mean(s[:, :rank], base, sd), m[:, None]
            x = x + 1e-12 * m[:, None]
            factors.append((1 - floor) * x / x.sum(0) + floor * least)
        return tuple(factors), mass / mass.sum(), raw

    def _regrouped(self, public: DPEMPublic) -> DPEMPublic:
        """Join pieces, drop the lightest phenotypes, and split the heaviest in their place (post-processing)."""
        rank = public.factors[0].shape[1]
        mass = public.mixture[:rank]
        found = groups(alike(public.factors, public.marginals), mass, PIECES)
        joint = np.array([mass[g].sum() for g in found])
        kept = np.argsort(-joint, kind="stable")[: max(rank - max(rank // RENEWED, 1), 1)]
        factors = [
            np.stack([f[:, found[k]] @ (mass[found[k]] / joint[k]) for k in kept], axis=1) for f in public.factors
        ]
        new, left = split(factors, joint[kept], rank, seeds(self.params.seed, "regroup", public.round))
        mixture = np.concatenate([left, public.mixture[rank:]])
        return replace(public, factors=new, mixture=mixture / mixture.sum(), precision=0.0)

    def _finish(self, public: DPEMPublic) -> DPEMPublic:
        """Prune by released values, and mark the codes that may be shown."""
        assert public.released is not None
        sums, sd = public.released, public.noise_sd
        rank = public.factors[0].shape[1]
        if self.params.prune and not public.spoken:  # columns of a prior are no pieces, and no ghosts of the noise
            found = groups(alike(public.factors, public.marginals), public.mixture[:rank], PIECES)
            found += [[rank]] if self.params.background else []
        else:
            found = [[r] for r in range(sums.shape[1])]
        times = np.sqrt([len(g) for g in found])
        sums = np.stack([sums[:, g].sum(1) for g in found], axis=1) / times  # so that all columns keep the same noise
        factors, mixture, raw = self._learn(public, sums, sd)
        mixture = mixture * times
        rank = factors[0].shape[1]
        shown = [
            stands_out(s[:, :rank], m[:, None] * np.maximum(raw[:rank], 0.0), sd, fdr=self.params.fdr)
            for s, m in zip(_by_mode(sums, public.marginals), public.marginals)
        ]
        if self.params.prune:
            # A column's mass has noise of sd / sqrt(sum 1/I_n); below that the noise explains all of it.
            sure = sd / np.sqrt(sum(1.0 / len(m) for m in public.marginals))
            keep = np.flatnonzero((raw[:rank] > sure) | (np.arange(rank) < public.spoken))
            keep = keep if len(keep) else np.array([int(np.argmax(raw[:rank]))])
            columns = np.append(keep, rank) if self.params.background else keep
            sums, mixture, raw = sums[:, columns], mixture[columns], raw[columns]
            factors, shown = tuple(f[:, keep] for f in factors), [s[:, keep] for s in shown]
        return replace(
            public,
            stage="end",
            factors=factors,
            mixture=mixture / mixture.sum(),
            released=sums,
            shown=tuple(shown),
            energy=np.square(mixture[: factors[0].shape[1]]),
        )

    def figures(self, public: DPEMPublic) -> Mapping[str, float | None]:
        # In a formal run nothing is known that was not paid for (PRIVACY 3.1).
        return {"objective": public.objective, "rmse_observed": None, "rmse_full": None, "noise_sd": public.noise_sd}

    # ---- hospital k

    def open(self, site: Site, public: DPEMPublic, rng: np.random.Generator) -> DPEMPrivate:
        em_kernels.stacked_rows(site.counts())  # refuse what cannot be counted before anything is sent
        return DPEMPrivate()

    def contribute(
        self, step: Step, site: Site, private: DPEMPrivate, public: DPEMPublic, rng: np.random.Generator
    ) -> tuple[DPEMPrivate, Contribution]:
        if step.name == "size":  # who has no event says nothing, here as everywhere
            return private, Contribution({"n": np.array([float(len(site.counts().rows))])})
        if step.name == "vote":
            prior = _prior(public.mixture, self.params.smoothing)
            said = votes(site.counts(), self._stacked(public), public.marginals, prior, steps=STEPS)
            return private, Contribution({"n": np.array([said.sum()])})
        if step.name == "marginals":
            w, prior = np.ones((sum(len(m) for m in public.marginals), 1)), np.ones(1)
        else:
            w, prior = self._stacked(public), _prior(public.mixture, self.params.smoothing)
        whole, likelihood = device.unit_statistics(site.counts(), w, prior, steps=STEPS)
        # Whole numbers below 2^53 times a power of two: exact in float64.
        arrays: dict[str, Array] = {"sums": np.multiply(whole, em_kernels.GRID, dtype=np.float64)}
        if "objective" in step.shapes:
            arrays["objective"] = np.array([np.rint(likelihood / em_kernels.GRID) * em_kernels.GRID])
        return private, Contribution(arrays)

    def close(self, site: Site, private: DPEMPrivate, public: DPEMPublic) -> Arrays:
        if public.stage != "end":
            return {"memberships": np.zeros((site.patients, public.factors[0].shape[1]))}
        return {"memberships": self._place(site.counts(), public)[:, : public.factors[0].shape[1]]}

    # ---- results

    def _stacked(self, public: DPEMPublic) -> Array:
        """(codes of all modes, R or R + 1) factors under one another, background last."""
        if not self.params.background or public.factors[0].shape[1] == len(public.mixture):
            return np.concatenate(public.factors)
        return np.concatenate([np.column_stack([f, m]) for f, m in zip(public.factors, public.marginals)])

    def _place(self, tensor: SparseTensor, public: DPEMPublic) -> Array:
        """(patients, R or R + 1) expected number of events of every phenotype."""
        prior, none = _prior(public.mixture, self.params.smoothing), np.zeros(0)
        return Events(self._stacked(public), prior, none, none.astype(np.int64), LAST_STEPS).expected(tensor)

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        self._tell_the_prior()
        self.public_: DPEMPublic = outcome.public
        self.shown_ = [s[:, self.order_] for s in self.public_.shown]
        self.background_ = list(self.public_.marginals)
        self.too_little_data_ = self.public_.plan.rank == 0
        self._scale = np.prod([np.linalg.norm(f, axis=0) for f in self.public_.factors], axis=0)

    def _tell_the_prior(self) -> None:
        """The prior's privacy is part of the card."""
        p = self.params
        if p.prior is not None:
            self.privacy_ = p.prior.joined(self.privacy_, public=p.prior_is_public)

    def chosen_from(self, others: Sequence[Any]) -> None:
        super().chosen_from(others)
        self._tell_the_prior()

    def _shown(self) -> tuple[NDArray[np.bool_], ...]:
        return tuple(self.shown_)

    def _placing(self) -> Events:
        public = self.public_
        prior = _prior(public.mixture, self.params.smoothing)
        return Events(self._stacked(public), prior, self._scale, self.order_, LAST_STEPS)


def _with_marginals(public: DPEMPublic, sums: Array, sd: float) -> DPEMPublic:
    """The background from the first release, and the start of every phenotype around it."""
    marginals, factors, told = [], [], []
    for n, (s, m, g) in enumerate(zip(_by_mode(sums, public.marginals), public.marginals, public.factors)):
        whole = np.maximum(s.sum(), 1.0)
        if public.told:
            guess = np.where(public.expected[n] > 0, public.expected[n], 1e-3 * m)
            x = between(s[:, None], (whole * m)[:, None], (whole * guess)[:, None], sd)[:, 0] + 1e-12 * m
        else:
            x = posterior_mean(s, whole * m, sd) + 1e-12 * m
        x = (1 - FLOOR) * x / x.sum() + FLOOR * m
        around = g * x[:, None]
        around = around / around.sum(0)
        if public.told:  # a code that the prior never saw is as frequent as it is here; so is a column without a prior
            known, t = public.expected[n] > 0, public.told[n]
            spoken = t.sum(0) > 0
            q = np.where(known[:, None] & spoken, t * x[known].sum(), x[:, None])
            q = (1 - FREE_FLOOR) * q / q.sum(0) + FREE_FLOOR * x[:, None]
            around = np.where(spoken, q, around)
            told.append(q)
        marginals.append(x)
        factors.append(0.9 * around + 0.1 * x[:, None])
    now = replace(public, stage="statistics", round=1, marginals=tuple(marginals), factors=tuple(factors))
    if now.shares is not None:
        return replace(now, stage="vote", round=0, told=tuple(told), mixture=now.shares)
    if public.plan.rank:
        return now
    # Too little data for any phenotype: the whole budget went here (PRIVACY 5).
    only = tuple(m[:, None] for m in marginals)
    return replace(
        now,
        stage="end",
        factors=only,
        mixture=np.ones(1),
        shown=tuple(stands_out(s[:, None], 0 * f, sd) for s, f in zip(_by_mode(sums, public.marginals), only)),
        energy=np.ones(1),
    )


def _leaning(public: DPEMPublic, prior: Prior) -> DPEMPublic:
    """The start with a prior: its heaviest phenotypes are the first columns, what is left of the rank begins at random.

    Before the marginals are known, a column of ``told`` without a prior is 0.
    """
    rank, columns = public.plan.rank, len(public.mixture)
    order = np.argsort(-prior.mixture, kind="stable")[:rank]
    told = tuple(np.pad(f[:, order], ((0, 0), (0, rank - len(order)))) for f in prior.factors)
    shares = np.full(columns, 1.0 / columns)
    led = prior.mixture[order]
    if prior.background is not None and columns > rank:
        shares *= (1.0 - prior.background) / shares[:rank].sum()
        shares[rank] = prior.background
    shares[: len(order)] *= led / led.mean()
    return replace(public, told=told, expected=prior.marginals, shares=shares, random=public.factors, spoken=len(order))


def _by_mode(sums: Array, like: Sequence[Array]) -> list[Array]:
    return np.split(sums, np.cumsum([len(m) for m in like])[:-1])


def _remembered(public: DPEMPublic, sums: Array, sd: float, *, memory: float = MEMORY) -> tuple[Array, float, float]:
    """Mean of the releases so far, its noise, its precision: weights MEMORY^age / variance.

    An M-step moves the phenotypes little once they are found, so earlier releases speak of nearly the same sums: they are
    paid for and lower the noise. Without noise the last sums are all there is to know.
    """
    if sd <= 0:
        return sums, sd, 0.0
    new, old = 1.0 / sd**2, memory * public.precision
    if public.released is None or old == 0.0:
        return sums, sd, new
    precision = old + new
    mean = (old * public.released + new * sums) / precision
    return mean, float(np.hypot(old * public.noise_sd, new * sd) / precision), precision


def _prior(mixture: Array, smoothing: float) -> Array:
    """Prior counts of a patient's memberships: ``smoothing`` per phenotype, shared out by how common each is."""
    out: Array = np.maximum(smoothing * len(mixture) * mixture, 1e-9)
    return out
