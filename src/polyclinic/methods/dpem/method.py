"""DPEM: phenotypes under patient-level differential privacy, by EM on noisy sums; both halves.

Model: the events of patient i are draws from a_i0 * background + sum_r a_ir b_r (x) c_r (x) ..., columns on the simplex.
A hospital places each of its patients, takes the expected counts per code and phenotype, divides that vector by its
length and sends the sum over patients. One patient more or less moves the sum by at most 1, whatever
the patient's record: no convexity, clipping threshold or convergence is assumed. The coordinator learns from the
noisy sums by empirical Bayes (docs/benchmarks/private-em.md). Any number of feature modes; all modes share one release a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.dpem.budget_plan import ReleasePlan, plan_for
from polyclinic.methods.dpem.m_step import finished, learned, regrouped
from polyclinic.methods.dpem.params import DPEMParams
from polyclinic.methods.dpem.prior_check import as_told, untold
from polyclinic.methods.dpem.prior_vote import VERDICT_GRID, gains, votes
from polyclinic.methods.dpem.running_mean import remembered
from polyclinic.methods.dpem.start import leaning, together, with_marginals
from polyclinic.methods.dpem.state import Array, DPEMPrivate, DPEMPublic, patient_prior, stacked
from polyclinic.methods.rounds.factorization import FederatedFactorization
from polyclinic.methods.rounds.facts import RARE
from polyclinic.models.phenotypes.projection import Events
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.aggregators import facts_of
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import expectation
from polyclinic.tensors.kernels import em as em_kernels

# limit: of the encoding of a sum
BOUND: Final = 2.0**31  # patients at one site, at most; public
VOTE_STEPS, FREE_STEPS, LAST_STEPS = 32, 16, 50  # EM steps that place a patient: for a vote, without noise, at the end
# docs/dev/decisions/0013-dpem-budget-plan.md
REGROUP: Final = (4, 6, 8)  # after these rounds, if asked, pieces are joined and heavy phenotypes split
ANNEALED, COLD = 20, 0.2  # rounds from which a fit without noise is annealed, and the power it begins with


def _one_number(round_number: int, name: str, multiplier: float | None, grid: float = 1.0) -> Step:
    """A sum of one number a patient, each between -1 and 1; without a multiplier nothing is paid for."""
    return Step(
        round_number,
        name,
        {"n": (1,)},
        bound=BOUND,
        sensitivity=None if multiplier is None else 1.0,
        multiplier=multiplier,
        grid=grid,
        counts=False,
    )


FACTS = MethodFacts(
    paper="this program, after Foulds et al. 2017 (private EM)",
    formal=True,
    attacks=(KnownAttack("sum", "without noise, exact sums show a code that few patients have, and who alone has it"),),
    steps={
        "size": StepMeaning("how many patients have any event"),
        "vote": StepMeaning("how many more of your patients a given model explains better than worse"),
        "verdict": StepMeaning(
            "how much better this fit explains your patients than a given model, each counting at most 1"
        ),
        "marginals": StepMeaning("how many of your patients have each code, each patient counting 1 in all", RARE),
        "statistics": StepMeaning("for each code and phenotype, how many of your patients' codes belong to it", RARE),
    },
)


class DPEM(FederatedFactorization[DPEMParams, DPEMPublic, DPEMPrivate]):
    """EM on noisy sums, with differential privacy for whole patients."""

    name = "dpem"
    facts = FACTS
    additive = True
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

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> DPEMPublic:
        """Factors drawn from Gamma, mixture flat; the plan of the releases follows from epsilon and the planning size."""
        p = self.params
        size_bought = p.privacy is not None and p.planning_size is None
        plan = self._plan(setting.shape, len(setting.sites), p.planning_size)
        columns = plan.rank + p.background
        factors = tuple(rng.gamma(rng.uniform(0.5, 3.0, plan.rank), size=(size, plan.rank)) for size in setting.shape)
        flat = tuple(np.full(size, 1.0 / size) for size in setting.shape)
        mixture = np.full(columns, 1.0 / max(columns, 1))
        public = DPEMPublic(
            "size" if size_bought else "marginals",
            0,
            plan,
            factors,
            flat,
            mixture,
            sites=len(setting.sites),
            bought=size_bought,
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
        state = replace(
            public, stage="marginals", plan=plan, factors=factors, mixture=np.full(columns, 1.0 / max(columns, 1))
        )
        if public.shares is None:
            return state
        shares = np.append(public.shares[: plan.rank], public.shares[len(public.shares) - self.params.background :])
        prior_columns = tuple(t[:, : plan.rank] for t in public.told)
        sized = replace(state, told=prior_columns, shares=shares / shares.sum(), size=max(round(count), 1))
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
        without_prior = replace(
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
        without_prior = replace(without_prior, marginals=tuple(np.full(len(m), 1.0 / len(m)) for m in public.marginals))
        if plan.rank:
            columns = plan.rank + self.params.background
            without_prior = replace(without_prior, mixture=np.full(columns, 1.0 / columns))
            state = with_marginals(without_prior, public.released[:, 0], public.noise_sd)
            return replace(state, released=None, noise=None, precision=None)
        return replace(without_prior, stage="marginals", round=1)

    def next_step(self, public: DPEMPublic) -> Step | None:
        """Size (bought), marginals, a vote on the prior, then rounds of unit vectors; each multiplier from the plan."""
        if public.stage == "end":
            return None
        multipliers = public.plan.multipliers[public.bought :]
        if public.stage == "size":
            return _one_number(0, "size", public.plan.multipliers[0])
        if public.stage == "vote":
            return _one_number(0, "vote", multipliers[1] if multipliers else None)
        if public.stage == "verdict":
            return _one_number(public.round, "verdict", multipliers[-1], VERDICT_GRID)
        codes, first = sum(len(m) for m in public.marginals), public.stage == "marginals"
        voted = self.params.prior is not None and public.round > 0  # it was one release more
        shapes: dict[str, tuple[int, ...]] = {"sums": (codes, 1 if first else len(public.mixture))}
        if not multipliers:
            shapes["objective"] = (1,)
        return Step(
            public.round,
            public.stage,
            shapes,
            bound=BOUND,
            sensitivity=1.0 if multipliers else None,
            multiplier=multipliers[public.round + voted] if multipliers else None,
            grid=em_kernels.GRID,
            counts=not first,
            asides=() if multipliers else ("objective",),
        )

    def update_public(self, step: Step, public: DPEMPublic, total: Total) -> DPEMPublic:
        """f_cr = E[share of code c | T] per mode, T = sum_k sum_p u_p + noise and what was bought before (empirical Bayes)."""
        if step.name == "marginals":
            return self._after_marginals(public, total)
        if step.name == "statistics":
            return self._after_round(step, public, total)
        number = float(total.arrays["n"][0])
        if step.name == "size":
            # One standard deviation below what was bought: a count that is mostly noise opens no gate.
            return self._sized(public, number - total.noise_sd)
        patients_sd = np.sqrt(public.size or 0.0)
        if step.name == "vote":
            # Patients of another law, or the noise, may say yes by chance: two standard deviations of both are no yes.
            return self._voted(public, number - 2.0 * np.hypot(patients_sd, total.noise_sd))
        # Voices are cut at one, so the root of their number is about two of their standard deviations.
        return self._after_verdict(public, number, np.hypot(patients_sd, 2.0 * total.noise_sd))

    def _after_marginals(self, public: DPEMPublic, total: Total) -> DPEMPublic:
        """The start of every phenotype around the released marginals; where they are all there is, the fit ends."""
        state = remembered(public, total.arrays["sums"], total.noise_sd, memory=1.0)
        assert state.released is not None
        started = with_marginals(state, state.released[:, 0], state.noise_sd)
        if started.stage != "vote":
            started = replace(started, released=None, noise=None, precision=None)
        return replace(started, stage="verdict") if started.stage == "end" and started.alone else started

    def _after_verdict(self, public: DPEMPublic, gain: float, chance: float) -> DPEMPublic:
        """The fit where it gains more over its prior than chance does, else the prior; a refused prior must gain as much."""
        if gain <= (chance if public.taken else -chance):
            return as_told(self.params, public)
        return finished(self.params, public) if public.plan.rank else replace(public, stage="end")

    def _after_round(self, step: Step, public: DPEMPublic, total: Total) -> DPEMPublic:
        """The M-step from all releases so far; then another round, the verdict on a prior, or the end."""
        private, rounds_left = bool(public.plan.multipliers), public.plan.rounds - step.round
        if step.round == REGROUP[0] and private and rounds_left >= 2:
            public = untold(public)
        state = remembered(public, total.arrays["sums"], total.noise_sd)
        assert state.released is not None
        assert state.noise is not None
        factors, mixture, _ = learned(self.params, public, state.released, state.noise)
        objective = None if private or self._heat(public) < 1 else -float(total.arrays["objective"][0])
        state = replace(state, factors=factors, mixture=mixture, objective=objective)
        if rounds_left <= 0 or self._settled(public, state):
            return replace(state, stage="verdict") if private and public.alone else finished(self.params, state)
        if step.round in REGROUP and rounds_left >= 2 and self._regroups(public):
            state = regrouped(self.params, state, renew=step.round == REGROUP[0])
        return replace(state, round=step.round + 1)

    def _regroups(self, public: DPEMPublic) -> bool:
        """Whether pieces are joined between rounds; not said: under noise, since without it annealing does more."""
        regroup = self.params.regroup
        return bool(public.plan.multipliers) and not public.told if regroup is None else regroup

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
        # In a formal run nothing is known that was not paid for: the guarantee covers releases alone.
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
            return private, Contribution({"n": np.array([self._votes(site, public).sum()])})
        if step.name == "verdict":
            return private, Contribution({"n": np.array([self._gains(site, public).sum()])})
        if step.name == "marginals":
            w, prior = np.ones((sum(len(m) for m in public.marginals), 1)), np.ones(1)
        else:
            w = stacked(public.factors, public.marginals, len(public.mixture)) ** self._heat(public)
            prior = patient_prior(public.mixture, self.params.smoothing)
        steps = public.plan.steps if public.plan.multipliers else FREE_STEPS
        statistics, likelihood = expectation.unit_statistics(site.counts(), w, prior, steps=steps)
        # Whole numbers below 2^53 times a power of two: exact in float64.
        arrays: dict[str, Array] = {"sums": np.multiply(statistics, em_kernels.GRID, dtype=np.float64)}
        if "objective" in step.shapes:
            arrays["objective"] = np.array([np.rint(likelihood / em_kernels.GRID) * em_kernels.GRID])
        return private, Contribution(arrays)

    def _votes(self, site: Site, public: DPEMPublic) -> Array:
        """Every patient's vote on the prior: against both marginals and the prior with its modes exchanged."""
        prior = patient_prior(public.mixture, self.params.smoothing)
        w = stacked(public.factors, public.marginals, len(public.mixture))
        plain = [np.where(e > 0, e, 1e-3 / len(e)) for e in public.expected]
        rivals = [public.rival, [e / e.sum() for e in plain]]
        exchanged_rows = None
        if len(public.factors) > 1:
            rolled = [np.roll(f[:, : public.spoken], n, axis=1) for n, f in enumerate(public.factors)]
            exchanged = tuple(np.column_stack([r, f[:, public.spoken :]]) for r, f in zip(rolled, public.factors))
            exchanged_rows = stacked(exchanged, public.marginals, len(public.mixture))
        return votes(site.counts(), w, rivals, prior, steps=VOTE_STEPS, torn=exchanged_rows)

    def _gains(self, site: Site, public: DPEMPublic) -> Array:
        """How much better the fit explains every patient than the prior by itself."""
        assert public.alone_shares is not None
        model_rows = stacked(public.factors, public.marginals, len(public.mixture))
        priors = [patient_prior(m, self.params.smoothing) for m in (public.mixture, public.alone_shares)]
        prior_rows = np.concatenate(public.alone)
        return gains(site.counts(), (model_rows, priors[0]), (prior_rows, priors[1]), steps=VOTE_STEPS)

    def finalize_site(self, site: Site, private: DPEMPrivate, public: DPEMPublic) -> Arrays:
        if public.stage != "end":
            return {"memberships": np.zeros((site.patients, public.factors[0].shape[1]))}
        projector = self._events(public, np.ones(public.factors[0].shape[1]))
        return {"memberships": projector.joined(projector.expected(site.counts()))}

    # ---- results

    def _events(self, public: DPEMPublic, scale: Array, order: NDArray[np.int64] | None = None) -> Events:
        """How patients are placed: by the fine columns, whose pieces of a phenotype are then added up."""
        fine, mixture = public.fine or public.factors, public.mixture
        if public.fine_mixture is not None:
            mixture = public.fine_mixture
        w, prior = stacked(fine, public.marginals, len(mixture)), patient_prior(mixture, self.params.smoothing)
        return Events(w, prior, scale, np.arange(len(scale)) if order is None else order, LAST_STEPS, public.parts)
