"""paid: findings with a formal guarantee. Three to five sums of rows of length at most 1, with noise to match.

``size`` (where nobody said how many patients there are), ``tables`` (carriers, Table 1, moments of the regression, times,
placements), two gradients of the regression at public points, ``scores`` (a histogram of risks; gains of hidden codes). Everything
else is computed from these (:mod:`polyclinic.analysis.private.surrogate`), and every interval contains the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import ndtri

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.completion import Completion, CompletionPublic
from polyclinic.analysis.private.forecast import BINS, GRADIENTS, PRODUCT, SIZE, TIMES, Asked, Spending, expected, spend
from polyclinic.analysis.private.rows import Records, rows_of
from polyclinic.analysis.private.surrogate import Observed, Surrogate, posterior, surrogate
from polyclinic.analysis.private.unit_rows import GRID, Part
from polyclinic.analysis.projection import Covariates, Variable
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.aggregators import facts_of
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total, seeds
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]
# limit: nats to which a patient's mean gain is cut, so that nobody moves the paid sum by more than 1
FARTHEST: Final = 3.0


class PrivateFindingsParams(AnalysisParams):
    """Parameters of paid."""

    what: tuple[str, ...] = Field((), description="carriers, people, outcome, survival, completion.")
    variables: tuple[Any, ...] = Field((), description="Public variables of Table 1.")
    covariates: Any = Field(None, description="What the regression is adjusted for; never the site.")
    max_carried: int = Field(8, ge=1, description="A patient counts for so many phenotypes, the strongest.")
    planning_size: int | None = Field(None, ge=1, description="Public guess of the number of patients; None: bought.")
    rate: float = Field(0.1, gt=0, lt=1, description="Public guess of the share with the outcome.")
    part: float = Field(1.0, gt=0, le=1, description="Of the study's mu^2 that pays for the findings.")
    width: float = Field(30.0, gt=0, description="Days of one step of the curves.")
    until: float = Field(730.0, gt=0, description="Days that are followed.")


@dataclass(frozen=True)
class PrivateFindingsPublic:
    """Released sums in units of patients, and what was computed from them."""

    stage: Literal["size", "tables", "gradient", "scores", "end"]
    round: int
    size: float  # said, or bought
    sites: int
    tables: tuple[Array, ...] = ()
    tables_sd: tuple[float, ...] = ()
    at: Array | None = None  # (1 + gradients taken, width) where gradients were or are to be taken
    gradients: Array | None = None  # (gradients taken, width)
    gradient_sd: float = 0.0
    covariance: Array | None = None
    cuts: Array | None = None  # (BINS - 1,) of the score
    scores: tuple[Array, ...] = ()
    scores_sd: tuple[float, ...] = ()
    unread: str = ""  # why the outcome was not bought once the number of events was known


@dataclass(frozen=True, eq=False)
class PaidMoments:
    """The paid moments of the regression, in patients."""

    known: float
    events: float
    xy: Array  # (1 + p,)
    sd: float
    surrogate: Surrogate


class PrivateFindings(Analysis):
    """Carriers, Table 1, odds ratios, AUC, curves and completion under one epsilon."""

    name = "paid"
    additive = True
    facts = MethodFacts(
        formal=True,
        attacks=(),
        assumptions=("the evaluated model is public, or was paid for itself",),
        steps={
            "size": StepMeaning("how many patients there are", "whether one patient is there"),
            "tables": StepMeaning(
                "patients by phenotype, level, outcome and time, and products of these columns, with noise",
                "whether a known patient is there, if it were exact",
            ),
            "gradient": StepMeaning(
                "slopes of a logistic regression at a public point, with noise", "little of one patient"
            ),
            "scores": StepMeaning("patients by outcome and predicted risk, with noise", "the risk of one patient"),
        },
    )
    Params = PrivateFindingsParams
    Public = PrivateFindingsPublic
    params: PrivateFindingsParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        p = self.params
        if not noisy(p.privacy) or p.privacy.level != "patient":
            problem = "no privacy" if not noisy(p.privacy) else f"level {p.privacy.level!r}"
            raise ConfigError(
                f"findings protect patients, and this asks for {problem}",
                hint='pc.Privacy(epsilon) with level="patient"',
            )
        self.covariates: Covariates = p.covariates if p.covariates is not None else Covariates(site=False)
        self.variables: tuple[Variable, ...] = p.variables
        steps = math.ceil(p.until / p.width)
        self.times = min(steps, TIMES)
        self.step_days = p.width * math.ceil(steps / self.times)
        self.times = math.ceil(p.until / self.step_days)
        self.hidden = Completion(model=self.placer, key=p.key, seed=p.seed)

    def asked(self, sites: int) -> Asked:
        """What is asked, in public numbers."""
        p, variables = self.params, self.covariates.variables
        assert noisy(p.privacy)
        seen_singly = facts_of(p.aggregation).reveals == "each"
        return Asked(
            p.privacy,
            p.what,
            self.placer.rank,
            p.max_carried,
            len(variables),
            sum(not v.levels for v in variables),
            len(self.covariates.names),
            tuple(len(v.words) for v in self.variables),
            self.times,
            None if p.planning_size is None else float(p.planning_size),
            p.rate,
            p.part,
            math.sqrt(sites) if seen_singly else 1.0,
        )

    def spending(self, public: PrivateFindingsPublic) -> Spending:
        """What is bought; a function of the size that was said or bought."""
        return spend(self.asked(public.sites), public.size)

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> PrivateFindingsPublic:
        """n is bought first where nobody said it; else the plan follows from n. Where nothing is asked nothing is bought."""
        planned = self.params.planning_size
        if not self.params.what:
            return PrivateFindingsPublic("end", 1, float(planned or 0), len(setting.sites))
        public = PrivateFindingsPublic(
            "size" if planned is None else "tables", 1, float(planned or 0), len(setting.sites)
        )
        return public if planned is None else self._sized(public, float(planned))

    def _sized(self, public: PrivateFindingsPublic, size: float) -> PrivateFindingsPublic:
        state = replace(public, size=max(float(round(size)), 1.0))
        return replace(state, stage="tables" if self.spending(state).what else "end")

    def next_step(self, public: PrivateFindingsPublic) -> Step | None:
        """One release a stage (size, tables, gradients, scores), its multiplier from the plan's share of epsilon."""
        if public.stage == "end":
            return None
        if public.stage == "size":
            p = self.params
            assert noisy(p.privacy)
            m = calibrate(p.privacy.epsilon, p.privacy.delta, shares=(p.part * SIZE,))[0]
            return self._step(public, "size", {"n": (1,)}, m)
        spending = self.spending(public)
        parts = self._parts(spending, public.stage)
        return self._step(public, public.stage, {x.name: x.shape for x in parts}, spending.multipliers[public.stage])

    def _step(
        self, public: PrivateFindingsPublic, name: str, shapes: dict[str, tuple[int, ...]], multiplier: float
    ) -> Step:
        return Step(
            public.round,
            name,
            shapes,
            bound=PATIENTS,
            sensitivity=1.0,
            multiplier=multiplier,
            grid=1.0 if name == "size" else GRID,
            counts=False,
        )

    @staticmethod
    def _parts(made: Spending, stage: str) -> tuple[Part, ...]:
        if stage == "gradient":
            assert made.gradient is not None
            return (made.gradient,)
        return made.tables if stage == "tables" else made.scores

    def update_public(self, step: Step, public: PrivateFindingsPublic, total: Total) -> PrivateFindingsPublic:
        """value = total / scale with sd = noise_sd / scale; beta' = E[beta | all noisy gradients g(beta_t) so far]."""
        state = replace(public, round=public.round + 1)
        if step.name == "size":
            return self._sized(state, float(total.arrays["n"][0]))
        spending = self.spending(public)
        parts = self._parts(spending, step.name)
        values = tuple(x.natural(total.arrays[x.name]) for x in parts)
        sds = tuple(total.noise_sd / x.scale for x in parts)
        if step.name == "tables":
            state = replace(state, tables=values, tables_sd=sds)
            return self._planned(state, spending)
        if step.name == "gradient":
            gradients = (
                values[0][None] if public.gradients is None else np.concatenate([public.gradients, values[0][None]])
            )
            return self._moved(replace(state, gradients=gradients, gradient_sd=sds[0]), spending)
        return replace(state, scores=values, scores_sd=sds, stage="end")

    def table(self, public: PrivateFindingsPublic, name: str) -> tuple[Array, float] | None:
        """One part of the first release, with its noise; None where it was not bought."""
        spending = self.spending(public)
        position = next((i for i, x in enumerate(spending.tables) if x.name == name), None)
        return None if position is None or not public.tables else (public.tables[position], public.tables_sd[position])

    def score(self, public: PrivateFindingsPublic, name: str) -> tuple[Array, float] | None:
        """One part of the last release, with its noise."""
        spending = self.spending(public)
        position = next((i for i, x in enumerate(spending.scores) if x.name == name), None)
        return None if position is None or not public.scores else (public.scores[position], public.scores_sd[position])

    def moments(self, public: PrivateFindingsPublic) -> PaidMoments | None:
        """The paid moments and their surrogate; the same at every party."""
        counts, release = self.table(public, "carriers"), self.table(public, "pairs")
        if counts is None or release is None:
            return None
        request = self.asked(public.sites)
        (first, sd1), (flat, sd2) = counts, release
        c, p, q = request.columns, request.width - 1, request.numbers
        cut = np.cumsum([1, c, 1 + p, p * (p - 1) // 2])
        totals, z, xy, pairs, squares = np.split(flat, cut)
        size = max((first[0] / sd1**2 + totals[0] / sd2**2) / (1 / sd1**2 + 1 / sd2**2), 1.0)
        patients = max(float(totals[0]), 1.0)
        means = np.concatenate([np.clip(first[2:] / size, 0.0, 1.0), np.clip(z / patients, -1.0, 1.0)])
        number = np.zeros(p, bool)
        rank = self.placer.rank
        for v in self.covariates.variables:
            number[rank] = not v.levels
            rank += v.width
        noise = np.concatenate([np.full(self.placer.rank, sd1 / size), np.full(c, sd2 / patients)])
        product = sd2 / (PRODUCT * patients)
        surrogate_rows = surrogate(
            means,
            number,
            squares[:q] / (PRODUCT * patients),
            pairs / (PRODUCT * patients),
            (noise, product),
            seeds(self.params.seed, "surrogate"),
        )
        return PaidMoments(patients, float(xy[0]), xy, sd2, surrogate_rows)

    def _planned(self, public: PrivateFindingsPublic, made: Spending) -> PrivateFindingsPublic:
        """After the tables: where the first gradient is taken, or why none is bought."""
        next_stage: Literal["scores", "end"] = "scores" if made.scores else "end"
        m = self.moments(public)
        if m is None:
            return replace(public, stage=next_stage)
        rate = min(max(m.events / m.known, 1e-6), 1 - 1e-6)
        forecasts = expected(self.asked(public.sites), made.what, m.known, min(rate, 1 - rate))
        reason = next((f.reason for f in forecasts if f.figure in ("outcome", "auc") and f.reason), "")
        if reason:
            completion = any(x.name == "completion" for x in made.scores)
            return replace(public, unread=reason, stage="scores" if completion else "end")
        b, c = posterior(m.surrogate, m.known, [Observed(None, m.xy, m.sd)], np.zeros(len(m.xy)))
        return replace(public, at=b[None], covariance=c, stage="gradient")

    def _moved(self, public: PrivateFindingsPublic, made: Spending) -> PrivateFindingsPublic:
        m = self.moments(public)
        assert m is not None and public.at is not None and public.gradients is not None
        observations = [Observed(a, g, public.gradient_sd) for a, g in zip(public.at, public.gradients)]
        observations.append(Observed(None, m.xy, m.sd))
        b, c = posterior(m.surrogate, m.known, observations, public.at[-1])
        state = replace(public, at=np.concatenate([public.at, b[None]]), covariance=c)
        if len(public.gradients) < GRADIENTS:
            return state
        mean, sd = m.surrogate.spread(b)
        cuts = mean + sd * ndtri(np.arange(1, BINS) / BINS)
        return replace(state, cuts=np.asarray(cuts, np.float64), stage="scores")

    # ---- hospital

    def gains(self, site: Site, public: PrivateFindingsPublic) -> tuple[Array, NDArray[np.bool_]]:
        """(patients,) mean nats gained over the average patient's placement, in [-1, 1] of ``FARTHEST``; who has hidden codes.

        The baseline is the model's own: sum_r pi_r f_r with pi the paid mean placement. What is gained is what the patient's
        own codes tell.
        """
        release = self.table(public, "placements")
        mean = np.full(self.placer.rank, 1.0) if release is None else np.maximum(release[0], 0.0)
        mean = mean / max(float(mean.sum()), 1e-12)
        flat = []
        for f in self.placer.factors:
            columns = np.abs(f) / np.maximum(np.abs(f).sum(0), 1e-300)
            m = columns @ mean + 1e-9
            flat.append(np.stack([m / m.sum()] * 2))
        state = CompletionPublic("gains", tuple(flat), np.zeros(3), np.zeros((2, 2)))
        t = site.counts()
        patient = np.repeat(t.rows, np.diff(t.indptr))
        gain, events = self.hidden._gains(site, state, patient, np.zeros(site.patients, np.int64))
        present = events > 0
        return gain[:, 0] / np.where(present, events, 1.0) / FARTHEST, present

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: PrivateFindingsPublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """sum_i of rows scaled so that one patient moves all of them by at most 1: |row_i| <= 1."""
        if step.name == "size":
            return private, Contribution({"n": np.array([float(site.patients)])})
        records = Records.of(self, site)
        parts = self._parts(self.spending(public), step.name)
        return private, Contribution({x.name: rows_of(x, records, self, public) for x in parts})
