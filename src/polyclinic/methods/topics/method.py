"""Topics: phenotypes from records, the modes side by side, by variational inference on sums; both halves.

Model: patient i has shares theta_i ~ Dirichlet(alpha). Every event draws a phenotype r from theta_i, then a code from the column
phi_r of the event's mode. This is latent Dirichlet allocation (Blei et al. 2003) with one distribution over codes per mode and
phenotype, as in MixEHR (Li et al. 2020). One round:

    hospital       gamma_i = alpha + sum_j x_ij q_ijr, q_ijr ~ exp E log theta_ir exp E log phi_jr     (gamma stays)
    sums           S_jr = sum_i x_ij q_ijr, sum_i E log theta_i, the bound
    coordinator    lambda = eta + S, columns = exp E log phi under Dirichlet(lambda), alpha by Minka's fixed point

The start and the rank come from one matrix of codes that occur together (:mod:`.starts.pairs`). Among several starts the one
that predicts held-out codes best is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.rounds.factorization import FederatedFactorization
from polyclinic.methods.rounds.phases import HEADROOM, Exact
from polyclinic.methods.starts.directions import columns_for, damped_rows
from polyclinic.methods.starts.pairs import (
    PATIENTS,
    Codes,
    CooccurringCodes,
    PairsPublic,
    over_all_codes,
    pairs_before,
    starts_of,
)
from polyclinic.methods.topics.bound import columns_bound, fixed_point, patients_bound
from polyclinic.methods.topics.facts import TOPICS
from polyclinic.methods.topics.guides import guided_codes
from polyclinic.methods.topics.state import TopicsParams, TopicsPrivate, TopicsPublic
from polyclinic.models.phenotypes.projection import SideBySide
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total, seeds
from polyclinic.protocol.phases import Phase, PhaseDispatch
from polyclinic.records.sites.site import Site
from polyclinic.tensors.kernels.topics import e_step
from polyclinic.tensors.side_by_side import CodeRows

__all__ = ["Topics", "TopicsParams", "TopicsPrivate", "TopicsPublic"]

Array = NDArray[np.float64]
# docs/explanation/records.md
ETA: Final = 0.05  # prior counts of a code in a column
# docs/benchmarks/constants.md
ALPHA: Final = 0.1  # prior counts of a phenotype in a patient, before they are learned
GUIDED: Final = 0.1  # prior counts of a guided column, as a share of an average column's events
# limit: iterations
FIRST_STEPS, STEPS, PLACING_STEPS = 10, 2, 50  # inner steps of a patient: in round 1, in a round, at the end
# docs/benchmarks/constants.md
LEARN_ALPHA: Final = 4  # round from which alpha is learned; from the first where a model is given to start from
TIE: Final = 1e-6  # limit: two starts that end at the same columns in another order differ by rounding only
HELD_OUT: Final = 5  # every fifth code of a patient is held out when starts are compared
LARGEST, GRID = 2.0**6 * PATIENTS, 2.0**-16  # limit: of a site's events, and their unit


class Topics(
    PhaseDispatch[TopicsPublic, TopicsPrivate], FederatedFactorization[TopicsParams, TopicsPublic, TopicsPrivate]
):
    """Phenotypes as mixtures of codes, by sums."""

    name = "topics"
    facts = TOPICS
    exact = 1e-4  # sums are rounded to 32 bits at every site
    Params = TopicsParams
    Public = TopicsPublic
    Private = TopicsPrivate
    params: TopicsParams

    @property
    def phases(self) -> Mapping[str, Phase[TopicsPublic, TopicsPrivate]]:
        return {
            "codes": Volumes(self),
            "pairs": CooccurringCodes(self),
            "choice": HeldOutCodes(self),
            "counts": Counting(self),
            "score": Energy(self),
        }

    def init_public(self, setting: Schema, rng: np.random.Generator) -> TopicsPublic:
        """Nothing is known but the codes; every column follows from sums."""
        if not setting.adds:
            raise ConfigError("Topics needs sums: under a robust rule a total is none", hint="aggregation='masked'")
        empty = np.zeros((sum(setting.shape), 1))
        blocks = tuple(len(codes) for a, n in zip(setting.axes, setting.shape) for _, codes in a.modes(n))
        return TopicsPublic(
            shape=setting.shape,
            pairs=PairsPublic(0) if self.params.start else pairs_before(setting, self.params.aggregation),
            given=self._given(setting),
            sites=len(setting.sites),
            guided=guided_codes(self.params.guides or {}, setting.axes),
            blocks=blocks,
            volumes=np.ones(len(blocks)),
            counts=empty,
            prior=empty + ETA,
            alpha=np.full(1, ALPHA),
        )

    def _given(self, setting: Schema) -> Array | None:
        """Columns (codes of all modes, R) of the model to start from."""
        p = self.params
        if p.start is None:
            return None
        columns: Array = np.concatenate(p.start.on(setting.axes, setting.shape, p.rank, True))
        return columns

    def paired(self, public: TopicsPublic) -> TopicsPublic:
        """The matrix is known: the number of columns, their prior, and the starts to compare."""
        pairs, asked = public.pairs, self.params.rank
        if asked == "auto" and pairs.confirmed < 1:
            raise DataError(
                "rank='auto': two halves of the patients confirm no direction in which codes occur together",
                hint="give a rank; replication then decides what is shown",
            )
        rank = max(columns_for(pairs.confirmed), len(public.guided)) if asked == "auto" else asked
        rng = seeds(self.params.seed, "topics")
        return self._started(public, starts_of(pairs, rank, rng, self.params.n_starts, lambda f: _seeded(f, public)))

    def unpaired(self, public: TopicsPublic) -> TopicsPublic:
        """Too few patients for a matrix: random columns around the marginals."""
        rank, patients = self.params.columns, public.pairs.patients
        assert patients is not None
        rng, size, margin = seeds(self.params.seed, "topics"), (len(patients), rank), patients[:, None] + 1e-3
        return self._unpaired(public, [rng.gamma(0.3, 1.0, size) * margin + 1e-12 for _ in range(self.params.n_starts)])

    def _unpaired(self, public: TopicsPublic, columns: Sequence[Array]) -> TopicsPublic:
        """From columns over all codes, equally frequent."""
        public = replace(public, pairs=replace(public.pairs, codes=np.arange(sum(public.shape))))
        draws = [_seeded(c, public) for c in columns]
        started = self._started(public, [(d / d.sum(0), np.full(d.shape[1], 1.0 / d.shape[1])) for d in draws])
        return self.onward(replace(started, stage="pairs", given=None))

    def _started(self, public: TopicsPublic, starts: list[tuple[Array, Array]]) -> TopicsPublic:
        """The state with the prior of every column and the starts to compare."""
        rank, events = len(starts[0][1]), public.balanced(self.params.balance)
        prior = np.full((sum(public.shape), rank), ETA)
        for r, codes in enumerate(public.guided):
            prior[codes, r] += GUIDED * events / rank / len(codes)
        candidates = tuple(self._spread(public, columns, shares, events) for columns, shares in starts)
        return replace(
            public,
            pairs=replace(public.pairs, matrix=None, patients=None),
            prior=prior,
            alpha=np.full(rank, ALPHA),
            counts=candidates[0],
            candidates=candidates,
        )

    def _spread(self, public: TopicsPublic, columns: Array, shares: Array, events: float) -> Array:
        """Expected counts (codes, R) of a start."""
        margin = public.pairs.margin[:, None]
        return over_all_codes(public.pairs, columns) * (events * shares) + 1e-3 * events * margin / len(shares)

    def rows(self, site: Site, public: TopicsPublic) -> CodeRows:
        """The site's patients, damped and balanced."""
        return damped_rows(site).weighted(public.weights(self.params.balance))

    def init_site(self, site: Site, public: TopicsPublic, rng: np.random.Generator) -> TopicsPrivate:
        if site.counts().nnz and float(site.counts().values.min()) < 0:
            raise DataError(f"site {site.name!r} has counts below 0", hint="Topics counts events")
        return TopicsPrivate(np.zeros((0, public.rank)))

    def round_metrics(self, public: TopicsPublic) -> Mapping[str, float | None]:
        return {"objective": public.objective}

    def placer(self, public: TopicsPublic, scale: Array, order: NDArray[np.int64]) -> SideBySide:
        """How patients are placed by the fitted model."""
        weights = public.weights(self.params.balance)
        return SideBySide(public.columns, public.alpha, scale, order, weights, PLACING_STEPS)

    def finalize_site(self, site: Site, private: TopicsPrivate, public: TopicsPublic) -> Arrays:
        placer = self.placer(public, np.ones(public.rank), np.arange(public.rank))
        return {"memberships": placer.place(site.counts(), public.factors)}


def _seeded(first: Array, public: TopicsPublic) -> Array:
    """Columns to begin with: the one that has most of a guide's codes takes the guide's place, and gets more of them."""
    out: Array = first / first.sum(0)
    for r, guide in enumerate(public.guided):
        guided = np.isin(public.pairs.codes, guide)
        best = r + int(np.argmax(out[guided, r:].sum(0)))
        out[:, [r, best]] = out[:, [best, r]]
        out[guided, r] += 0.5 / max(int(guided.sum()), 1)
    return out


def flat_gamma(rows: CodeRows, alpha: Array) -> Array:
    """gamma to begin with: every patient's events shared out equally."""
    return alpha + rows.totals[:, None] / len(alpha)


class Volumes(Codes[TopicsPublic, TopicsPrivate]):
    """Patients of every code, and events of every mode."""

    fit: Topics

    def due(self, public: TopicsPublic) -> bool:
        return True

    def step(self, public: TopicsPublic) -> Step:
        step = super().step(public)
        return replace(
            step, shapes={**step.shapes, "volumes": (len(public.blocks),), "people": (1,)}, bound=LARGEST, grid=GRID
        )

    def contribute(self, step: Step, site: Site, private: TopicsPrivate, public: TopicsPublic) -> Answer[TopicsPrivate]:
        """x_k = patients of every code, damped events of every mode, patients."""
        _, part = super().contribute(step, site, private, public)
        rows = damped_rows(site)
        mode = np.repeat(np.arange(len(public.blocks)), public.blocks)[rows.codes]
        volumes = np.rint(np.bincount(mode, rows.values, len(public.blocks)) / GRID) * GRID
        return private, Contribution({**part.arrays, "volumes": volumes, "people": np.array([float(rows.patients)])})

    def combine(self, step: Step, public: TopicsPublic, total: Total) -> TopicsPublic:
        """The codes of the matrix, and the weights of the modes."""
        people = float(total.arrays["people"][0])
        state = replace(public, volumes=total.arrays["volumes"], people=people)
        if state.given is None:
            return super().combine(step, state, total)
        patients = np.rint(total.arrays["patients"])
        return self.fit._unpaired(replace(state, pairs=replace(state.pairs, patients=patients)), [state.given])


class HeldOutCodes(Phase[TopicsPublic, TopicsPrivate]):
    """One number a start: how well it predicts codes that it did not see."""

    fit: Topics

    def due(self, public: TopicsPublic) -> bool:
        return len(public.candidates) > 1

    def step(self, public: TopicsPublic) -> Step:
        return Step(0, "choice", {"likelihood": (len(public.candidates),)}, bound=HEADROOM, counts=False)

    def contribute(self, step: Step, site: Site, private: TopicsPrivate, public: TopicsPublic) -> Answer[TopicsPrivate]:
        """x_ks = sum over held-out codes of log sum_r theta_ir phi_jr, for every start s."""
        rows = self.fit.rows(site, public)
        place = np.arange(len(rows.codes)) - rows.indptr[rows.owner]
        number = np.diff(rows.indptr)[rows.owner]
        hide = ((place + number) % HELD_OUT == 0) & (number >= HELD_OUT)
        visible_rows, hidden_rows = rows.where(~hide), rows.where(hide)
        scores = []
        for counts in public.candidates:
            state = replace(public, counts=counts)
            gamma = flat_gamma(visible_rows, state.alpha)
            sums = np.zeros_like(counts)
            e_step(
                visible_rows.indptr,
                visible_rows.codes,
                visible_rows.values,
                state.columns,
                state.alpha,
                gamma,
                FIRST_STEPS,
                sums,
            )
            theta = gamma / gamma.sum(1, keepdims=True)
            share = (theta[hidden_rows.owner] * np.concatenate(state.factors)[hidden_rows.codes]).sum(1)
            scores.append(float(hidden_rows.values @ np.log(np.maximum(share, 1e-12))))
        return private, Contribution({"likelihood": np.array(scores) / public.events})

    def combine(self, step: Step, public: TopicsPublic, total: Total) -> TopicsPublic:
        """The first start whose likelihood of held-out codes is the largest, up to the rounding of sums."""
        likelihood = total.arrays["likelihood"]
        winner = int(np.argmax(likelihood >= likelihood.max() - TIE))
        return self.fit.onward(replace(public, counts=public.candidates[winner]))


class Counting(Phase[TopicsPublic, TopicsPrivate]):
    """The rounds: expected counts of every code and phenotype."""

    fit: Topics

    def enter(self, public: TopicsPublic) -> TopicsPublic:
        return replace(public, round=1, candidates=())

    def transport(self, public: TopicsPublic) -> Exact:
        """32 bits a number: no count exceeds the patients of its code times a damped count."""
        shapes = {"counts": public.counts.shape, "logs": (public.rank,), "bound": (1,)}
        return Exact(shapes, max(public.people, 1.0), ("bound",), short=True, sites=public.sites)

    def step(self, public: TopicsPublic) -> Step:
        return self.transport(public).step(public.round, "counts")

    def contribute(self, step: Step, site: Site, private: TopicsPrivate, public: TopicsPublic) -> Answer[TopicsPrivate]:
        """x_k = (sum_i x_ij q_ijr, sum_i E log theta_i, the site's part of the bound)."""
        rows, alpha = self.fit.rows(site, public), public.alpha
        restart = private.gamma.shape != (rows.patients, public.rank)
        gamma = flat_gamma(rows, alpha) if restart else private.gamma.copy()
        sums = np.zeros_like(public.counts)
        steps = FIRST_STEPS if restart else STEPS
        events, logs = e_step(rows.indptr, rows.codes, rows.values, public.columns, alpha, gamma, steps, sums)
        bound = np.array([(events + patients_bound(gamma, alpha)) / public.events])
        arrays = {"counts": sums, "logs": logs, "bound": bound}
        return TopicsPrivate(gamma), self.transport(public).contribution(arrays)

    def combine(self, step: Step, public: TopicsPublic, total: Total) -> TopicsPublic:
        """counts' = sum_k counts_k; alpha by Minka's fixed point; the end when the bound rests."""
        p, last_objective = self.fit.params, public.objective
        objective = (
            columns_bound(public.by_mode(public.prior + public.counts), public.by_mode(public.prior))
            - float(total.arrays["bound"][0]) * public.events
        )
        alpha = public.alpha
        learn_alpha = 1 if p.start else LEARN_ALPHA
        if public.round >= learn_alpha:
            alpha = fixed_point(alpha, total.arrays["logs"] / max(public.people, 1.0))
        rests = (
            last_objective is not None
            and public.round > learn_alpha
            and abs(last_objective - objective) <= p.tol * abs(last_objective)
        )
        last_round = public.round >= p.rounds or (p.tol > 0 and rests)
        state = replace(
            public,
            round=public.round + (not last_round),
            counts=np.maximum(total.arrays["counts"], 0.0),
            alpha=alpha,
            objective=objective,
        )
        return self.fit.onward(state) if last_round else state


class Energy(Phase[TopicsPublic, TopicsPrivate]):
    """The last sum: how much there is of every phenotype."""

    fit: Topics

    def step(self, public: TopicsPublic) -> Step:
        return Step(public.round, "score", {"energy": (public.rank,)}, bound=HEADROOM, counts=False)

    def contribute(self, step: Step, site: Site, private: TopicsPrivate, public: TopicsPublic) -> Answer[TopicsPrivate]:
        """x_k = sum over patients of squared memberships."""
        memberships = self.fit.finalize_site(site, private, public)["memberships"]
        return private, Contribution({"energy": np.square(memberships).sum(0) / public.events})

    def combine(self, step: Step, public: TopicsPublic, total: Total) -> TopicsPublic:
        """energy = sum_k x_k."""
        return self.fit.onward(replace(public, energy=total.arrays["energy"] * public.events))
