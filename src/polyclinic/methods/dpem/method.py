"""DPEM: phenotypes under patient-level differential privacy, by EM on noisy sums; both halves.

Model: the events of patient i are draws from a_i0 * background + sum_r a_ir b_r (x) c_r (x) ..., columns on the simplex.
A hospital places each of its patients, takes the expected counts per code and phenotype, divides that vector by its
length (PRIVACY 3.2) and sends the sum over patients. One patient more or less moves the sum by at most 1, whatever
the patient's record: no convexity, clipping threshold or convergence is assumed. The coordinator learns from the
noisy sums by empirical Bayes (PRIVACY 5). Any number of feature modes; all modes share one release a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods import facts as known
from polyclinic.methods.dpem.budget_plan import ReleasePlan, plan_for
from polyclinic.methods.dpem.m_step import finished, learned, regrouped
from polyclinic.methods.dpem.params import DPEMParams
from polyclinic.methods.dpem.prior_check import as_told, untold
from polyclinic.methods.dpem.prior_vote import VERDICT_GRID, gains, votes
from polyclinic.methods.dpem.running_mean import remembered
from polyclinic.methods.dpem.start import leaning, together, with_marginals
from polyclinic.methods.dpem.state import Array, DPEMPrivate, DPEMPublic, patient_prior, stacked
from polyclinic.methods.factorization import FederatedFactorization
from polyclinic.models.phenotypes.projection import Events
from polyclinic.protocol.aggregators import facts_of
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.parameter_types import DPEMTyped
from polyclinic.records.sites.from_data import warn_of_odd_counts
from polyclinic.records.sites.site import Site
from polyclinic.tensors import device
from polyclinic.tensors.kernels import em as em_kernels
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["DPEM"]

BOUND: Final = 2.0**31  # patients at one site, at most; public
VOTE_STEPS, FREE_STEPS, LAST_STEPS = 32, 16, 50  # EM steps that place a patient: for a vote, without noise, at the end
REGROUP: Final = (4, 6, 8)  # after these rounds, if asked, pieces are joined and heavy phenotypes split
ANNEALED, COLD = 20, 0.2  # rounds from which a fit without noise is annealed, and the power it begins with


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

    @property
    def unsettled(self) -> str:
        """A bought count, and a prior's vote, decide what is paid for next."""
        p = self.params
        if p.privacy is None:
            return ""
        if p.planning_size is None:
            return "it buys the number of patients first and plans by it: give planning_size, a public guess of that number"
        return "" if p.prior is None else "a release decides whether its prior is taken: fit on halves without prior"

    def _look_at_counts(self, tensors: Sequence[SparseTensor]) -> None:
        for t in tensors:
            em_kernels.stacked_rows(t)  # what is below zero is refused, so that it needs no warning
        warn_of_odd_counts(tensors, way_out="counts of events are whole")

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> DPEMPublic:
        """Factors drawn from Gamma, mixture flat; the plan of the releases follows from epsilon and the planning size."""
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
        return together(leaning(replace(public, size=p.planning_size), p.prior.on(setting.axes, setting.shape)))

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
        sized = replace(now, told=told, shares=shares / shares.sum(), size=max(round(count), 1))
        return together(replace(sized, spoken=min(public.spoken, plan.rank)))

    def _voted(self, public: DPEMPublic, more: float) -> DPEMPublic:
        """The prior stays where more patients speak for it than against it; else the fit goes on as without one.

        Then the random start is taken, the marginals are learnt anew without the prior, and the gate is asked: where it
        closes, what is left of the budget buys the marginals once more.
        """
        if more > 0:
            return replace(public, stage="statistics", round=1, released=None, noise=None, precision=None, taken=True)
        assert public.released is not None
        plan = self._plan([len(m) for m in public.marginals], public.sites, public.size, refused=True)
        factors = tuple(f[:, : plan.rank] for f in public.random)
        alone = replace(
            public,
            plan=plan,
            factors=factors,
            told=(),
            expected=(),
            rival=(),
            shares=None,
            random=(),
            spoken=0,
            pieces=None,
        )
        alone = replace(alone, marginals=tuple(np.full(len(m), 1.0 / len(m)) for m in public.marginals))
        if plan.rank:
            columns = plan.rank + self.params.background
            alone = replace(alone, mixture=np.full(columns, 1.0 / columns))
            begun = with_marginals(alone, public.released[:, 0], public.noise_sd)
            return replace(begun, released=None, noise=None, precision=None)
        return replace(alone, stage="marginals", round=1)

    def next_step(self, public: DPEMPublic) -> Step | None:
        """Size (bought), marginals, a vote on the prior, then rounds of unit vectors; each multiplier from the plan."""
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
        if public.stage == "verdict":
            return Step(
                public.round,
                "verdict",
                {"n": (1,)},
                bound=BOUND,
                sensitivity=1.0,
                multiplier=paid[-1],
                grid=VERDICT_GRID,
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

    def update_public(self, step: Step, public: DPEMPublic, total: Total) -> DPEMPublic:
        """f_cr = E[share of code c | T] per mode, T = sum_k sum_p u_p + noise and what was bought before (empirical Bayes)."""
        if step.name == "size":
            # One standard deviation below what was bought: a count that is mostly noise opens no gate.
            return self._sized(public, float(total.arrays["n"][0]) - total.noise_sd)
        if step.name == "marginals":
            bought = remembered(public, total.arrays["sums"], total.noise_sd, memory=1.0)
            assert bought.released is not None
            now = with_marginals(bought, bought.released[:, 0], bought.noise_sd)
            now = now if now.stage == "vote" else replace(now, released=None, noise=None, precision=None)
            return replace(now, stage="verdict") if now.stage == "end" and now.alone else now
        if step.name == "vote":
            # Patients of another law, or the noise, may say yes by chance: two standard deviations of both are no yes.
            chance = 2.0 * np.hypot(np.sqrt(public.size or 0.0), total.noise_sd)
            return self._voted(public, float(total.arrays["n"][0]) - chance)
        if step.name == "verdict":
            # Voices are cut at one, so the root of their number is about two of their standard deviations.
            chance = np.hypot(np.sqrt(public.size or 0.0), 2.0 * total.noise_sd)
            if float(total.arrays["n"][0]) <= (chance if public.taken else -chance):
                return as_told(self.params, public)
            return finished(self.params, public) if public.plan.rank else replace(public, stage="end")
        if step.round == REGROUP[0] and public.plan.multipliers and public.plan.rounds - step.round >= 2:
            public = untold(public)
        now = remembered(public, total.arrays["sums"], total.noise_sd)
        assert now.released is not None
        assert now.noise is not None
        factors, mixture, _ = learned(self.params, public, now.released, now.noise)
        objective = None if public.plan.multipliers or self._heat(public) < 1 else -float(total.arrays["objective"][0])
        now = replace(now, factors=factors, mixture=mixture, objective=objective)
        if step.round >= public.plan.rounds or self._settled(public, now):
            verdict = bool(public.plan.multipliers) and bool(public.alone)
            return replace(now, stage="verdict") if verdict else finished(self.params, now)
        asked = self.params.regroup
        if asked is None:  # without noise annealing does more
            asked = bool(public.plan.multipliers) and not public.told
        if asked and step.round in REGROUP and public.plan.rounds - step.round >= 2:
            now = regrouped(self.params, now, renew=step.round == REGROUP[0])
        return replace(now, round=step.round + 1)

    def _heat(self, public: DPEMPublic) -> float:
        """The power of the phenotypes' probabilities in this round's E-step, 0.2 rising to 1; 1 with privacy.

        Without noise EM is caught by the first division it finds: one column for two phenotypes, two for one. Blurred
        phenotypes move freely and settle as they sharpen (Ueda and Nakano 1998). Under privacy the noise does that, and
        rounds are dear.
        """
        p = self.params
        annealed = p.prune if p.anneal is None else p.anneal
        if public.plan.multipliers or not annealed or public.plan.rounds < ANNEALED or p.prior is not None:
            return 1.0
        return min(1.0, COLD + (1.0 - COLD) * (public.round - 1) / (2 * public.plan.rounds // 3 - 1))

    def _settled(self, before: DPEMPublic, now: DPEMPublic) -> bool:
        """Without privacy: the objective no longer moves. With privacy the number of rounds is fixed: it is the price."""
        tol = self.params.tol
        if not tol or now.objective is None or before.objective is None:
            return False
        return abs(before.objective - now.objective) <= tol * abs(before.objective)

    def round_metrics(self, public: DPEMPublic) -> Mapping[str, float | None]:
        # In a formal run nothing is known that was not paid for (PRIVACY 3.1).
        return {"objective": public.objective, "rmse_observed": None, "rmse_full": None, "noise_sd": public.noise_sd}

    # ---- hospital k

    def init_site(self, site: Site, public: DPEMPublic, rng: np.random.Generator) -> DPEMPrivate:
        em_kernels.stacked_rows(site.counts())  # refuse what cannot be counted before anything is sent
        return DPEMPrivate()

    def contribute(
        self, step: Step, site: Site, private: DPEMPrivate, public: DPEMPublic, rng: np.random.Generator
    ) -> tuple[DPEMPrivate, Contribution]:
        """sum_p u_p, u_p = s_p / |s_p| on a grid, s_p[c, r] = sum over p's events e of code c of n_e P(r | e)."""
        if step.name == "size":  # who has no event says nothing, here as everywhere
            return private, Contribution({"n": np.array([float(len(site.counts().rows))])})
        if step.name == "vote":
            prior = patient_prior(public.mixture, self.params.smoothing)
            w = stacked(public.factors, public.marginals, len(public.mixture))
            plain = [np.where(e > 0, e, 1e-3 / len(e)) for e in public.expected]
            rivals = [public.rival, [e / e.sum() for e in plain]]
            torn = [np.roll(f[:, : public.spoken], n, axis=1) for n, f in enumerate(public.factors)]
            torn = [np.column_stack([t, f[:, public.spoken :]]) for t, f in zip(torn, public.factors)]
            apart = stacked(tuple(torn), public.marginals, len(public.mixture)) if len(torn) > 1 else None
            said = votes(site.counts(), w, rivals, prior, steps=VOTE_STEPS, torn=apart)
            return private, Contribution({"n": np.array([said.sum()])})
        if step.name == "verdict":
            assert public.alone_shares is not None
            mine = stacked(public.factors, public.marginals, len(public.mixture))
            priors = [patient_prior(m, self.params.smoothing) for m in (public.mixture, public.alone_shares)]
            told = np.concatenate(public.alone)
            said = gains(site.counts(), (mine, priors[0]), (told, priors[1]), steps=VOTE_STEPS)
            return private, Contribution({"n": np.array([said.sum()])})
        if step.name == "marginals":
            w, prior = np.ones((sum(len(m) for m in public.marginals), 1)), np.ones(1)
        else:
            w = stacked(public.factors, public.marginals, len(public.mixture)) ** self._heat(public)
            prior = patient_prior(public.mixture, self.params.smoothing)
        steps = public.plan.steps if public.plan.multipliers else FREE_STEPS
        whole, likelihood = device.unit_statistics(site.counts(), w, prior, steps=steps)
        # Whole numbers below 2^53 times a power of two: exact in float64.
        arrays: dict[str, Array] = {"sums": np.multiply(whole, em_kernels.GRID, dtype=np.float64)}
        if "objective" in step.shapes:
            arrays["objective"] = np.array([np.rint(likelihood / em_kernels.GRID) * em_kernels.GRID])
        return private, Contribution(arrays)

    def finalize_site(self, site: Site, private: DPEMPrivate, public: DPEMPublic) -> Arrays:
        if public.stage != "end":
            return {"memberships": np.zeros((site.patients, public.factors[0].shape[1]))}
        placed = self._events(public, np.ones(public.factors[0].shape[1]))
        return {"memberships": placed.joined(placed.expected(site.counts()))}

    # ---- results

    def _events(self, public: DPEMPublic, scale: Array, order: NDArray[np.int64] | None = None) -> Events:
        """How patients are placed: by the fine columns, whose pieces of a phenotype are then added up."""
        fine, mixture = public.fine or public.factors, public.mixture
        if public.fine_mixture is not None:
            mixture = public.fine_mixture
        w, prior = stacked(fine, public.marginals, len(mixture)), patient_prior(mixture, self.params.smoothing)
        return Events(w, prior, scale, np.arange(len(scale)) if order is None else order, LAST_STEPS, public.parts)

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

    def chosen_from(self, others: Sequence[Estimator]) -> None:
        super().chosen_from(others)
        self._tell_the_prior()

    def _shown(self) -> tuple[NDArray[np.bool_], ...]:
        return tuple(self.shown_)

    def _placing(self) -> Events:
        return self._events(self.public_, self._scale, self.order_)
