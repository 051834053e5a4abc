"""UnPSL between hospitals: consensus by alternating directions (4.21-4.23, corrected by ERRATA E3.7-E3.10).

Set-up sums give one standardising, one correlation matrix and one weight of a pair for everybody, so that the hospitals
minimise what a centre would minimise over the same within-hospital pairs. Then, each round,

    at a site     U_p <- U_p + W_p - W,  W_p <- argmin f_p(W_p) + l2/P Trace(W_p W_p' RoR) + rho/2 |W_p - W + U_p|^2
    in the sum    W_p + U_p, and nothing else of size (half of the paper's uplink, E3.10)
    by everybody  W <- argmin l1 |W|_2,1 + rho P/2 |W - mean(W_p + U_p)|^2

all in the coordinates of :mod:`polyclinic.methods.similarity.preconditioner`. rho falls while hospitals agree faster than W moves
and rises when they do not; where it had to rise it never falls again, because below some rho the non-convex W-steps
(E3.1) jump between sites' own solutions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.moments.moments import SummedMoments, complete
from polyclinic.methods.similarity import facts as known
from polyclinic.methods.similarity.admm import SCALES, Problem, best_scale, descend, directions, penalty_of
from polyclinic.methods.similarity.federated_state import UnPSLParams, UnPSLPrivate, UnPSLPublic
from polyclinic.methods.similarity.labels import classes_at, classes_of_all
from polyclinic.methods.similarity.metric import canonical, similarity_of
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, Pairs, weights_for
from polyclinic.methods.similarity.preconditioner import Preconditioner
from polyclinic.methods.similarity.redundancy import Redundancy, row_norms, row_shrink, shrink_norms, speak_once
from polyclinic.models.origin import Origin
from polyclinic.models.similarity import Similarity
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.methods.similarity.unpsl import UnPSL

__all__ = ["ConsensusUnPSL", "learn_between"]

Array = NDArray[np.float64]
ROOM = 1 + 1e-9  # rounding of float64 sums, granted above a mathematical bound
WIDE, THIN = 500, 50  # above so many features W must be thin (the message is d x rank)
SHARED = ("l1", "l2", "bias", "rank", "start_scale", "standardize", "weighting", "decorrelation", "variant", "seed")
RUN_OPTIONS = tuple(
    k for k, v in signature(Simulation).parameters.items() if v.kind is v.KEYWORD_ONLY and k != "progress"
)
PACE, BAND = 1.5, 3.0  # rho changes by this factor when one residual exceeds the other by that


class ConsensusUnPSL(Estimator[UnPSLParams, UnPSLPublic, UnPSLPrivate]):
    """Learn one similarity from several hospitals' labelled patients; only sums leave them.

    A hospital with fewer than two patients has no pair: it takes part in the means and adds nothing to the loss.
    """

    name = "unpsl"
    facts = known.UNPSL
    needs = "features"
    exact = None  # pairs across hospitals do not exist here (E3.8); the comparator is UnPSL.fit(..., groups=hospital)
    Params = UnPSLParams
    Public = UnPSLPublic
    Private = UnPSLPrivate
    params: UnPSLParams
    components_: Array
    judged: Mapping[str, tuple[ArrayLike, ArrayLike]] = {}  # site -> (pairs, +1 or -1), in place of its labels

    # ---- everybody

    def init_public(self, setting: Schema, rng: np.random.Generator) -> UnPSLPublic:
        """W orthonormal directions; moments first."""
        p, d = self.params, setting.shape[0]
        if p.privacy is not None:
            raise ConfigError(
                "consensus sends whole matrices W_p + U_p, for which no bound per patient exists",
                hint="UnPSL(...).fit_sites(sites, privacy=...) uses disjoint pairs and clipped gradients instead",
            )
        rank = self._rank(d)
        crossed = p.l2 > 0 or d <= WIDE
        sizes = {"W_p + U_p": 8 * d * rank, "correlations": 4 * d * (d + 1) if crossed else 0}
        over = [f"{k}: {v:,} bytes, the limit is {wire.LIMIT:,}" for k, v in sizes.items() if v > wire.LIMIT]
        if over:
            raise ConfigError(
                f"{d} features make messages that are too large", faults=over, hint="fewer features, a lower rank, l2=0"
            )
        moments = SummedMoments.begin(d, p.radius, crossed=crossed)
        W = directions(d, rank, None, rng, 0) if rank == d else np.zeros((d, rank))
        return UnPSLPublic(
            len(setting.sites), moments, "moments", 0, 0.0, 0.0, W, 0.0 * W, 1.0, 0.0, np.inf, np.inf, np.inf
        )

    def _rank(self, d: int) -> int:
        p = self.params
        if p.variant == "paper" and p.rank not in (None, d):
            raise ConfigError(f"variant 'paper' has a square W: rank {p.rank} is not the {d} features")
        if d > WIDE and (p.variant == "paper" or (p.rank or 1) > THIN):
            raise ConfigError(f"{d} features: between hospitals W has at most {THIN} columns", hint=f"rank <= {THIN}")
        return int(min(p.rank or (d if d <= WIDE else THIN), d))

    def next_step(self, public: UnPSLPublic) -> Step | None:
        """Moments, pairs, losses at SCALES, the slope, then rounds of W_k + U_k."""
        p = self.params
        d, rank = public.W.shape
        if public.stage == "moments":
            return public.moments.step(p.max_patients)
        n = max(public.moments.n, 1.0)
        if public.stage == "pairs":
            return Step(0, "pairs", {"similar": (1,), "different": (1,)}, bound=n * n, counts=False)
        largest = max(self._weights(public))
        reach = 0.5 * n * float(self._energy(public).sum()) * largest * ROOM  # sum of w |x_i||x_j| over pairs
        if public.stage == "scale":
            top = float(SCALES[-1]) ** 2 * reach + (1 + abs(p.bias)) * n * n * largest
            return Step(0, "scale", {"losses": SCALES.shape}, bound=top, counts=False)
        size = float(np.abs(public.W).max())
        if public.stage == "slope":
            top = 2 * reach * float(np.linalg.norm(public.W, 2))
            return Step(0, "slope", {"slope": (1,)}, bound=top + 1e-300, counts=False)
        if public.round >= p.rounds or (p.tol and max(public.primal, public.dual) <= p.tol):
            return None
        bound = 1e6 * max(size, 1.0) ** 2
        shapes = {"W": (d, rank), "loss": (1,), "size": (1,)}
        return Step(public.round + 1, "consensus", shapes, bound=bound, asides=("loss", "size"))

    def update_public(self, step: Step, public: UnPSLPublic, total: Total) -> UnPSLPublic:
        """W' = argmin_W l1 sum_f |w_f| + K rho / 2 ||W - T||^2, T = sum_k (W_k + U_k) / K (4.22, E3.7): rows shrunk."""
        p = self.params
        if public.stage == "moments":
            moments = public.moments.combine(total)
            if moments.done and np.isinf(self._spread(replace(public, moments=moments))[1]).all():
                raise DataError(
                    f"every one of the {len(public.W)} feature(s) is the same in all patients: nothing tells them apart",
                    hint=f"give features that vary, by more than about 1e-24 of the public radius ({p.radius:g})",
                )
            return replace(public, moments=moments, stage="pairs" if moments.done else "moments")
        if public.stage == "pairs":
            similar, different = (float(np.rint(total.arrays[k][0])) for k in ("similar", "different"))
            if min(similar, different) < 1:
                raise DataError(
                    "no hospital has both a similar and a dissimilar pair to learn from",
                    faults=[f"similar pairs within hospitals: {similar:.0f}", f"dissimilar: {different:.0f}"],
                    hint="hospitals with patients of one class only cannot teach what differs; pool or regroup them",
                )
            W = public.W
            if W.shape[0] > W.shape[1]:
                d, rank = W.shape
                W = directions(d, rank, self._correlation(public), np.random.default_rng(p.seed), 0)
            return replace(public, stage="scale", similar=similar, different=different, W=W)
        if public.stage == "scale":
            scale = p.start_scale * best_scale(total.arrays["losses"])
            return replace(public, stage="slope", W=scale * public.W)
        if public.stage == "slope":
            mean = float(total.arrays["slope"][0]) / max(total.members, 1)
            return replace(public, stage="rounds", rho=penalty_of(mean, self._frame(public).go(public.W), p.penalty))
        sites, rho, frame = max(total.members, 1), public.rho, self._frame(public)
        T, before = total.arrays["W"] / sites, frame.go(public.W)
        W = frame.shrink(T, public.W, lambda V, r: self._shrunk(public, V, r), rho * sites)
        A = frame.go(W)
        size = max(float(np.linalg.norm(A)), 1e-12)
        # mean |W_p - A|^2 from the mean of W_p, which is T less the known mean of U_p, and the sum of |W_p|^2
        gap = float(total.arrays["size"][0]) / sites - 2 * float(np.vdot(T - public.drift, A)) + size**2
        primal, dual = float(np.sqrt(max(gap, 0.0))) / size, float(np.linalg.norm(A - before)) / size
        factor, floor = 1.0, public.floor
        if step.round > 1 and (primal > BAND * dual or primal > 2 * public.primal):
            factor = PACE
            floor = rho * PACE if primal > public.primal else floor
        elif dual > BAND * primal and rho / PACE >= floor:
            factor = 1 / PACE
        objective = float(total.arrays["loss"][0]) + p.l1 * float(row_norms(W).sum())
        if p.decorrelation == "convex" and p.l2:
            objective += p.l2 * self._redundancy(public).exclusive(W)
        return replace(
            public,
            round=step.round,
            W=W,
            drift=(T - A) / factor,
            rho=rho * factor,
            floor=floor,
            objective=objective,
            primal=primal,
            dual=dual,
        )

    def _shrunk(self, public: UnPSLPublic, T: Array, rho: float) -> Array:
        p = self.params
        if p.decorrelation == "convex" and p.l2:
            return shrink_norms(T, self._redundancy(public), p.l1, p.l2, rho, 50)
        return row_shrink(T, p.l1 / rho)  # E3.7

    def _frame(self, public: UnPSLPublic) -> Preconditioner:
        R = self._correlation(public) if len(public.W) <= WIDE and self.params.variant != "paper" else None
        return Preconditioner() if R is None else Preconditioner.of(R)

    def round_metrics(self, public: UnPSLPublic) -> Mapping[str, float | None]:
        return {
            "objective": public.objective,
            "primal_residual": public.primal,
            "dual_residual": public.dual,
            "selected_features": float(np.count_nonzero(row_norms(public.W))),
        }

    # ---- what follows from the sums

    def _weights(self, public: UnPSLPublic) -> tuple[float, float]:
        return weights_for(public.similar, public.different, self.params.weighting)

    def _spread(self, public: UnPSLPublic) -> tuple[Array, Array]:
        """Mean and deviation, as in :func:`polyclinic.methods.similarity.metric.spread`, from sums."""
        m = public.moments
        var = np.maximum(np.diag(m.covariance()), 0.0)
        flat = var <= (1e-9 * np.abs(m.mean)) ** 2 + 1e-300
        sd = np.where(flat, np.inf, np.sqrt(var))
        if self.params.standardize == "none":
            return np.zeros_like(sd), np.where(flat, np.inf, 1.0)
        return (m.mean if self.params.standardize == "zscore" else np.zeros_like(sd)), sd

    def _energy(self, public: UnPSLPublic) -> Array:
        """(d,) sum of squares of every standardised feature over all patients."""
        mean, sd = self._spread(public)
        m = public.moments
        return np.asarray(m.n * (np.maximum(np.diag(m.covariance()), 0.0) + (m.mean - mean) ** 2) / sd**2)

    def _correlation(self, public: UnPSLPublic) -> Array | None:
        C = public.moments.covariance()
        if len(public.moments.second) == len(C) and len(C) > 1:
            return None  # only variances were summed
        sd = np.sqrt(np.maximum(np.diag(C), 0.0))
        sd = np.where(np.isinf(self._spread(public)[1]), np.inf, sd)
        R = C / np.outer(sd, sd)
        np.fill_diagonal(R, np.where(np.isinf(sd), 0.0, 1.0))
        return np.asarray(R)

    def _redundancy(self, public: UnPSLPublic) -> Redundancy:
        R = self._correlation(public)
        return Redundancy.of_correlation(np.zeros((1, 1)) if R is None else R)

    def root(self, public: UnPSLPublic) -> Array:
        """(d, rank) W of the metric W W': rows are features, and of features that repeat each other the first speaks."""
        p = self.params
        if p.variant == "paper":
            return np.asarray(public.W.T)
        R = self._correlation(public) if len(public.W) <= WIDE and p.standardize == "zscore" else None
        return public.W if R is None else speak_once(public.W, R, public.moments.n)

    # ---- a site

    def init_site(self, site: Site, public: UnPSLPublic, rng: np.random.Generator) -> UnPSLPrivate:
        complete(site, self.params.radius)
        if site.name in self.judged:
            ListedPairs.of(*self.judged[site.name], patients=site.patients)
        else:
            classes_at(site)
        nothing = np.zeros_like(public.W)
        return UnPSLPrivate(nothing, nothing, 0.0)

    def _pairs(self, site: Site, same: float = 1.0, other: float = 1.0) -> Pairs:
        if site.name in self.judged:
            listed = ListedPairs.of(*self.judged[site.name], patients=site.patients)
            return replace(listed, weight=np.where(listed.sign > 0, same, other))
        return replace(LabelPairs.of(classes_at(site)), same=same, other=other)

    def _problem(self, site: Site, public: UnPSLPublic) -> Problem:
        p, frame = self.params, self._frame(public)
        mean, sd = self._spread(public)
        X = (site.matrix() - mean) / sd
        literal = p.variant == "paper"
        # E3.8: one correlation matrix for all and a P-th of the penalty each; as printed, everybody's own, in full
        redundancy = Redundancy.of_patients(X) if literal and p.l2 and len(X) else self._redundancy(public)
        if redundancy.matrix is not None and p.l2:
            redundancy = Redundancy(frame.matrix(redundancy.matrix), None)
        l2 = 0.0 if p.decorrelation == "convex" else p.l2 if literal else p.l2 / public.sites
        pairs = self._pairs(site, *self._weights(public))
        return Problem(frame.patients(X), pairs, p.bias, redundancy, 0.0, l2, literal=literal)

    def contribute(
        self, step: Step, site: Site, private: UnPSLPrivate, public: UnPSLPublic, rng: np.random.Generator
    ) -> tuple[UnPSLPrivate, Contribution]:
        """W_k = argmin loss_k(W) + l2 redundancy(W) + rho / 2 ||W - A + U_k||^2 (4.19-4.21), U_k' = U_k + W_k - A (4.23)."""
        if public.stage == "moments":
            return private, public.moments.contribute(site.matrix())
        if public.stage == "pairs":
            similar, different = self._pairs(site).counts()
            counts = {"similar": np.array([float(similar)]), "different": np.array([float(different)])}
            return private, Contribution(counts)
        problem, A = self._problem(site, public), self._frame(public).go(public.W)
        if public.stage == "scale":
            return private, Contribution({"losses": np.array([problem.loss(c * A)[0] for c in SCALES])})
        if public.stage == "slope":
            return private, Contribution({"slope": np.array([np.linalg.norm(problem.loss(A)[1])])})
        rho = public.rho
        # (4.23), now that the new W is known; multipliers are scaled by the rho they belong to
        U = private.U if private.rho == 0.0 else (private.U + private.W - A) * (private.rho / rho)
        target = A - U

        def augmented(W: Array) -> tuple[float, Array]:
            value, G = problem.loss(W)
            D = W - target
            if problem.l2:
                RW = problem.redundancy.times(W)
                value, G = value + problem.l2 * float(np.vdot(W, RW)), G + 2 * problem.l2 * RW
            return value + 0.5 * rho * float(np.vdot(D, D)), G + rho * D

        value, W = descend(augmented, A, self.params.inner)
        loss = value - 0.5 * rho * float(np.linalg.norm(W - target) ** 2)
        asides = {"loss": np.array([loss]), "size": np.array([float(np.vdot(W, W))])}
        return UnPSLPrivate(W, U, rho), Contribution({"W": W + U, **asides})

    def finalize_site(self, site: Site, private: UnPSLPrivate, public: UnPSLPublic) -> Arrays:
        """The site's patients in the learned space; they stay there."""
        mean, sd = self._spread(public)
        return {"embedding": np.asarray(((site.matrix() - mean) / sd) @ canonical(self.root(public)))}

    def _publish(self, outcome: Outcome) -> None:
        public = outcome.public
        self.mean_, self.scale_ = self._spread(public)
        self.components_ = canonical(self.root(public)).T
        self.n_features_in_ = self.components_.shape[1]
        self.bias_ = self.params.bias
        self.objective_, self.n_iter_ = public.objective, public.round
        self.embedding_ = {name: arrays["embedding"] for name, arrays in outcome.closed.items()}

    def learned(self, origin: Origin) -> Similarity:
        return similarity_of(self, origin)


def learn_between(
    model: UnPSL,
    sites: Sequence[Site],
    *,
    pairs: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    **options: Any,
) -> UnPSL:
    """Run the consensus with a central estimator's parameters, and put what it learned into that estimator.

    With ``privacy`` it runs :class:`~polyclinic.methods.similarity.private.PrivateUnPSL` instead, which leaves the redundancy
    penalty out (correlations would have to be paid for) and needs ``patients``, ``radius`` and ``classes``, all public.
    """
    method: Any
    if model.reach != "all" or model.compare != "product":
        raise ConfigError(
            "between hospitals every pair of a hospital counts, by its product (eq. 4.21)",
            faults=[f"reach = {model.reach!r}, compare = {model.compare!r}"],
            hint="UnPSL(reach='all', compare='product').fit_sites(sites)",
        )
    classes = classes_of_all(sites)  # also refuses what are no classes, before anything is computed
    if options.get("privacy") is not None:
        from polyclinic.methods.similarity.private import PrivateUnPSL

        if pairs:
            raise ConfigError("judged pairs have no bound per patient: with privacy, pairs come from labels")
        known, shared = PrivateUnPSL.Params.model_fields, ("bias", "seed")
        chosen = {k: v for k, v in options.items() if k in known}
        method = PrivateUnPSL(**{**{k: getattr(model, k) for k in shared}, **chosen})
        classes = np.asarray(options["classes"])  # the public list: which of them occur was not paid for
    else:
        known = ConsensusUnPSL.Params.model_fields
        chosen = {k: v for k, v in options.items() if k in known}
        method = ConsensusUnPSL(**{**{k: getattr(model, k) for k in SHARED}, **chosen})
        method.judged = dict(pairs or {})
    rest = {k: v for k, v in options.items() if k not in known}
    running = ("progress", *RUN_OPTIONS)
    strangers = sorted(set(rest) - set(running))
    if strangers:
        raise ConfigError(
            f"fit_sites does not know {', '.join(map(repr, strangers))}",
            faults=[
                f"{k!r}: perhaps {close[0]!r}" for k in strangers if (close := get_close_matches(k, [*known, *running]))
            ],
            hint=f"known: {', '.join(sorted([*known, 'pairs', *running]))}",
        )
    method.fit(sites, **rest)
    for key in ("mean_", "scale_", "components_", "n_features_in_", "bias_", "objective_", "n_iter_", "embedding_"):
        setattr(model, key, getattr(method, key))
    for key in ("history_", "traffic_", "privacy_"):
        setattr(model, key, getattr(method, key))
    if (names := vars(method).get("feature_names_in_")) is not None:
        model.feature_names_in_ = names
    model.classes_ = classes
    return model
