"""LocalTF: federated phenotyping by local SGD, both halves; and distributed SGD, its special case.

Every hospital makes ``local_passes`` passes over its own patients from the shared feature factors, then the factors
are averaged and every hospital adopts the average (ERRATA E1.2: without the adoption, communication has no effect).
No elastic penalty, so nothing but the factors travels: (J + K) R numbers up and down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyclinic.errors import ConfigError
from polyclinic.methods.rounds.factorization import WeightedParams
from polyclinic.methods.rounds.facts import FACTORS, PAIRS, RARE, RARE_PAIRS, SCORE, SETUP
from polyclinic.methods.rounds.local_pass import close_patients, local_pass, open_factors, open_patients
from polyclinic.methods.rounds.observed_pass import Elastic, Passed
from polyclinic.methods.rounds.phases import HEADROOM, FitPublic, Phase, Phased, Setup, modes
from polyclinic.methods.rounds.step_size import Rate, rate_at, stable_rate
from polyclinic.methods.starts.pairs import (
    Codes,
    CooccurringCodes,
    PairsPublic,
    over_all_codes,
    pairs_before,
    starts_of,
)
from polyclinic.methods.starts.random import start
from polyclinic.methods.starts.saved import Saved
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.aggregators import kind_of
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total, seeds
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]
Factors = tuple[Array, ...]
FACTS = MethodFacts(
    paper="Ma et al. 2021 (LocalTF)",
    attacks=(
        KnownAttack(
            "noise", "one entry decides whether a site leaves a saddle point; the claim then fails in every run"
        ),
        KnownAttack(
            "sum",
            "exact totals show whether the only patient with a code took part: right in 16 of 16 held-out runs after 8 shadow "
            "runs (3 sites of 150 patients)",
        ),
        RARE_PAIRS,
    ),
    steps={"setup": SETUP, **PAIRS, "factors": StepMeaning(FACTORS, RARE), "score": SCORE},
)


class LocalParams(WeightedParams):
    """Parameters of the methods by local passes."""

    rounds: int = Field(60, ge=1, le=100_000, description="Communications at most.")
    local_passes: int = Field(
        1, ge=1, le=1000, description="Passes between communications (b of LocalTF, tau of DPFact)."
    )
    learning_rate: Rate = Field(
        None, description="eta: a number, or a schedule {start, decay, power}; None: by `zeros`."
    )
    sparsity: float | dict[str, float] = Field(0.0, description="l2,1 on patients (mu): a number, or one per site.")
    start: Saved | None = Field(
        None, description="A fitted or saved model to start from; None: the matrix of codes that occur together."
    )
    weights: Literal["energy", "uniform", "nonzeros"] | None = Field(
        None,
        description="How sites count in the average; None: by phenotype energy where zeros are observed, else uniform.",
    )
    elastic: float = Field(
        1.0, ge=0, description="gamma of eq. 3.12, variant='paper' alone: B^ + eta gamma sum (B_t - B^)."
    )

    @model_validator(mode="after")
    def _as_in_the_algorithm(self) -> Self:
        if self.variant == "paper":  # stochastic gradients over the nonzeros, of any sign (E0.17)
            object.__setattr__(self, "zeros", "missing")
            object.__setattr__(self, "nonnegative", False)
        return self


@dataclass(frozen=True, kw_only=True)
class LocalPublic(FitPublic):
    """What everybody sees."""

    sites: int
    pairs: PairsPublic = field(default_factory=lambda: PairsPublic(0))  # 0: the start is random


@dataclass(frozen=True)
class LocalPrivate:
    """What stays at the hospital: its patients, and for DPFact its own factors B_t."""

    patients: Array
    factors: Factors
    passes: int = 0


class Passes(Phase[LocalPublic, LocalPrivate]):
    """The rounds: passes of SGD over a hospital's own patients, then the average."""

    fit: LocalTF

    def step(self, public: LocalPublic) -> Step:
        shapes, size = modes(public.factors), max(1.0, *(float(np.abs(f).max(initial=0.0)) for f in public.factors))
        if self.fit.open_scores:
            with_error = {**shapes, "aside": (1,)}
            return Step(public.round, "factors", with_error, bound=HEADROOM * size, asides=("aside",))
        return self.fit._private_step(Step(public.round, "factors", shapes, bound=HEADROOM * size))

    def contribute(self, step: Step, site: Site, private: LocalPrivate, public: LocalPublic) -> Answer[LocalPrivate]:
        """w_k A_kn, A_kn = A_n after the site's passes of SGD (DPFact eq. 13, 17); its squared error as an aside."""
        result = self.fit._passes(site, private, public)
        arrays, weight = self.fit._weighted(result, site, public)
        if self.fit.open_scores:
            arrays["aside"] = np.array([result.squared_error / public.norm])
        passes = private.passes + self.fit.params.local_passes
        return LocalPrivate(result.patients, tuple(result.factors), passes), Contribution(arrays, weight)

    def combine(self, step: Step, public: LocalPublic, total: Total) -> LocalPublic:
        """A_n' = sum_k w_k A_kn / sum_k w_k; columns of length 1 where all cells count (E1.2)."""
        p, last_objective, objective = self.fit.params, public.objective, None
        factors = tuple(self.fit._server(n, public, total) for n in range(1, len(public.factors) + 1))
        if self.fit.open_scores:
            objective = max(float(total.arrays["aside"][0]), 0.0) * public.norm / 2
        arrived = False
        if objective is not None and last_objective is not None and p.tol > 0:
            arrived = abs(last_objective - objective) <= p.tol * last_objective
        last_round = arrived or public.round >= p.rounds
        state = replace(public, round=public.round + (not last_round), factors=factors, objective=objective)
        return self.fit.onward(state) if last_round else state


class Energies(Phase[LocalPublic, LocalPrivate]):
    """The last sum, where scores may leave: how much there is of every phenotype."""

    def due(self, public: LocalPublic) -> bool:
        return bool(self.fit.open_scores)

    def step(self, public: LocalPublic) -> Step:
        return Step(public.round, "score", {"energy": (public.rank,)}, bound=HEADROOM, counts=False)

    def contribute(self, step: Step, site: Site, private: LocalPrivate, public: LocalPublic) -> Answer[LocalPrivate]:
        """x_k = sum over patients of P_k^2 / norm."""
        closed = self.fit.finalize_site(site, private, public)["memberships"]
        return private, Contribution({"energy": np.square(closed).sum(0) / public.norm})

    def combine(self, step: Step, public: LocalPublic, total: Total) -> LocalPublic:
        """energy = norm sum_k x_k."""
        return self.fit.onward(replace(public, energy=total.arrays["energy"] * public.norm))  # type: ignore[no-any-return]


class LocalTF(Phased[LocalParams, LocalPublic, LocalPrivate]):
    """Passes at every hospital, averaged after each round."""

    name = "localtf"
    version = 2
    facts = FACTS
    Params = LocalParams
    Public = LocalPublic
    Private = LocalPrivate
    params: LocalParams

    @property
    def phases(self) -> Mapping[str, Phase[LocalPublic, LocalPrivate]]:
        return {
            "setup": Setup(self),
            "codes": Codes(self),
            "pairs": CooccurringCodes(self),
            "factors": Passes(self),
            "score": Energies(self),
        }

    def init_public(self, setting: Schema, rng: np.random.Generator) -> LocalPublic:
        """A_n^0: public random factors, the same at all sites; from pairs of codes as soon as these are summed."""
        self._check(len(setting.sites))
        unknown = (
            sorted(set(self.params.sparsity) - set(setting.sites)) if isinstance(self.params.sparsity, dict) else []
        )
        if unknown:
            raise ConfigError(
                f"sparsity names sites that do not take part: {', '.join(map(repr, unknown))}",
                faults=[f"sites: {', '.join(setting.sites)}"],
            )
        p = self.params
        factors = open_factors(start(setting.shape, p.rank, p.seed), zeros=p.zeros)
        if p.start:
            factors = list(p.start.on(setting.axes, setting.shape, p.rank, p.nonnegative))
        public = LocalPublic(factors=tuple(factors), sites=len(setting.sites), saturation=self.params.public_saturation)
        if not self.open_scores:
            return replace(public, stage="factors", round=1)
        return (
            replace(public, pairs=pairs_before(setting, self.params.aggregation)) if self._matches(setting) else public
        )

    def _matches(self, setting: Schema) -> bool:
        """Whether several sites may start from the matrix of pairs of codes. One alone starts as pc.CPSGD does."""
        p = self.params
        adds = setting.adds and kind_of(p.aggregation).adds
        return adds and not p.start and len(setting.sites) > 1 and p.zeros == "observed" and p.nonnegative

    def paired(self, public: LocalPublic) -> LocalPublic:
        """The columns that explain best which codes occur together."""
        pairs, rng = public.pairs, seeds(self.params.seed, "pairs")
        columns, _ = starts_of(pairs, public.rank, rng, 1, lambda first: first)[0]
        split = np.split(over_all_codes(pairs, columns), np.cumsum(public.shape)[:-1])
        factors = tuple(f / np.linalg.norm(f, axis=0) for f in split)
        return replace(public, factors=factors, pairs=replace(pairs, matrix=None, patients=None))

    def unpaired(self, public: LocalPublic) -> LocalPublic:
        """Too few patients for a matrix: from the random columns."""
        return self.onward(replace(public, stage="pairs"))

    def _server(self, mode: int, public: LocalPublic, total: Total) -> Array:
        """The average of one mode's factors, which the sites adopt (E1.2); paper variant: eq. 3.12 as printed."""
        summed, old = total.arrays[f"mode{mode}"], public.factors[mode - 1]
        if self.params.variant == "paper":
            return old + self._alpha(total.members) * (summed / total.members - old)
        return self._average(summed, total, old)

    def _alpha(self, sites: int) -> float:
        """eta gamma T of the printed server step."""
        return rate_at(self.params.learning_rate, 1, self.params.zeros) * self.params.elastic * sites

    def _average(self, summed: Array, total: Total, old: Array) -> Array:
        if total.members == 1 and total.weight == 1.0:
            return summed  # one site: its factors as they are; (w b)/w is not b in floats
        if self.params.zeros == "missing":
            return summed / total.weight if total.weight else old
        return cp.unit_columns(summed, old)

    def round_metrics(self, public: LocalPublic) -> Mapping[str, float | None]:
        if public.objective is None:
            return {"objective": None}
        name, count = (
            ("rmse_full", public.cells) if self.params.zeros == "observed" else ("rmse_observed", public.nonzeros)
        )
        return {"objective": public.objective, name: float(np.sqrt(2 * public.objective / max(count, 1.0)))}

    # ---- hospital t

    def init_site(self, site: Site, public: LocalPublic, rng: np.random.Generator) -> LocalPrivate:
        tensor, p = site.counts(), self.params
        patients = open_patients(tensor.patients, p.rank, zeros=p.zeros, modes=tensor.ndim, seed=p.seed)
        if p.variant == "corrected":
            return LocalPrivate(patients, public.factors)
        factors = [seeds(p.seed, "own", site.name, n).random(f.shape) for n, f in enumerate(public.factors)]
        unit = [f / np.linalg.norm(f, axis=0) for f in factors]
        return LocalPrivate(patients, tuple(open_factors(unit, zeros=p.zeros)))  # line 1 (E0.18)

    def _passes(self, site: Site, private: LocalPrivate, public: LocalPublic) -> Passed:
        """``local_passes`` passes from the shared factors; paper variant: the first from the site's own random ones."""
        factors = private.factors if self.params.variant == "paper" and not private.passes else public.factors
        return self._run(self.records(site, public), site.name, private, factors, None)

    def _run(
        self, tensor: SparseTensor, site: str, private: LocalPrivate, factors: Factors, elastic: Elastic | None
    ) -> Passed:
        p = self.params
        state = Passed(private.patients, list(factors), 0.0)
        for k in range(p.local_passes):
            number = private.passes + k + 1
            state = local_pass(
                tensor,
                state.patients,
                state.factors,
                number=number,
                seed=p.seed,
                zeros=p.zeros,
                nonnegative=p.nonnegative,
                learning_rate=rate_at(p.learning_rate, number, p.zeros),
                sparsity=self._mu(site),
                elastic=elastic,
                clip=p.privacy.clip if p.privacy is not None else None,
                variant=p.variant,
            )
        return state

    def _weighted(self, passed: Passed, site: Site, public: LocalPublic) -> tuple[dict[str, Array], float]:
        """A site's factors and weight; by energy, a phenotype counts as much as the site has of it (RECIPES)."""
        arrays = {f"mode{n}": f for n, f in enumerate(passed.factors, start=1)}
        kind = self.params.weights or ("energy" if self.params.zeros == "observed" and self.open_scores else "uniform")
        if public.sites == 1 or kind == "uniform":
            return arrays, 1.0
        if kind == "nonzeros":
            return arrays, site.counts().nnz / max(public.nonzeros, 1.0)
        energy = np.square(passed.patients).sum(0) / public.norm
        return {k: f * energy for k, f in arrays.items()}, 1.0

    def finalize_site(self, site: Site, private: LocalPrivate, public: LocalPublic) -> Arrays:
        p = self.params
        return {
            "memberships": close_patients(
                self.records(site, public),
                private.patients,
                public.factors,
                zeros=p.zeros,
                nonnegative=p.nonnegative,
                sparsity=self._mu(site.name),
            )
        }

    def _pull(self) -> float:
        """gamma of an elastic penalty, where the method has one."""
        return 0.0

    def divergence_hint(self, site: Site, public: LocalPublic) -> str:
        p = self.params
        rate = rate_at(p.learning_rate, 1, p.zeros)
        if p.zeros == "observed":
            return f"learning_rate is {rate:g} (in units of 1/||Gram||); try 1"
        tensor = self.records(site, public)
        first = open_patients(tensor.patients, p.rank, zeros=p.zeros, modes=tensor.ndim, seed=p.seed)
        factors = open_factors(start(tensor.shape[1:], p.rank, p.seed), zeros=p.zeros)
        stable = stable_rate(tensor, [first, *factors], self._pull())
        # memberships grow to the size of the counts, and the curvature with their square
        stable /= max(1.0, float(np.abs(tensor.values).max(initial=1.0)))
        return f"learning_rate is {rate:g}; try {min(stable, rate / 10):.2g}"

    # ---- what is allowed

    @property
    def open_scores(self) -> bool:
        """Scores and energies may leave: no privacy is asked for."""
        return self.params.privacy is None

    def _mu(self, site: str) -> float:
        mu = self.params.sparsity
        return mu.get(site, 0.0) if isinstance(mu, dict) else mu

    def _check(self, sites: int) -> None:
        p = self.params
        if p.privacy is None:
            return
        faults = []
        if p.privacy.level == "patient":
            faults.append("privacy.level 'patient': no patient-level bound holds for this mechanism (ERRATA E0.8)")
        if p.zeros != "missing":
            faults.append("zeros 'observed': the papers' mechanism visits nonzeros only")
        if p.estimates:  # the sizes of the records would be two more sums that nobody paid for
            faults.append("saturation is not given: with privacy n0 must be a public number, e.g. saturation=13")
        if faults:
            raise ConfigError(
                f"{type(self).__name__} cannot give this privacy",
                faults=faults,
                hint="use pc.DPEM for patient-level privacy, or zeros='missing' with level='entry' (heuristic)",
            )

    def _private_step(self, step: Step) -> Step:
        """The papers' entry-level noise: Delta = 2 b tau L eta, sigma^2 = Delta^2 / (2 rho) (E0.1, E1.3); heuristic (E0.8)."""
        from polyclinic.privacy.accounting.entry_level import entry_step

        p = self.params
        assert p.privacy is not None
        return entry_step(
            step,
            privacy=p.privacy,
            passes=p.local_passes,
            learning_rate=rate_at(p.learning_rate, 1, p.zeros),
            rounds=p.rounds,
        )


class DistributedSGD(LocalTF):
    """LocalTF with communication after every pass."""

    name = "distributedsgd"

    def _check(self, sites: int) -> None:
        super()._check(sites)
        if self.params.local_passes != 1:
            raise ConfigError(
                f"DistributedSGD communicates after every pass; local_passes is {self.params.local_passes}",
                hint="use pc.LocalTF for several passes between communications",
            )
