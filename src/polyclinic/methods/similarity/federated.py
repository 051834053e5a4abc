"""UnPSL between hospitals: consensus by alternating directions (Huai et al. 2018, section 4; docs/papers/unpsl.md).

Minimises sum_p f_p(W) + l1 |W|_2,1 + l2 Trace(W W' (R o R)), f_p being the loss of the pairs within hospital p. Set-up sums
give one standardising, one correlation matrix R and one weight of a pair for everybody, so that the hospitals minimise what a
centre would minimise over the same pairs (ERRATA E3.8). Then, each round,

    at a site     U_p <- U_p + W_p - W                                                                             (4.23)
                  W_p <- argmin f_p(W_p) + l2/P Trace(W_p W_p' RoR) + rho/2 |W_p - W + U_p|^2               (4.19-4.21)
    in the sum    W_p + U_p, and nothing else of size (half of the paper's uplink, E3.10)
    by everybody  W <- argmin l1 |W|_2,1 + rho P/2 |W - mean(W_p + U_p)|^2                                   (4.22, E3.7)

all in the coordinates of :class:`Preconditioner`. rho falls while hospitals agree faster than W moves
and rises when they do not; where it had to rise it never falls again, because below some rho the non-convex W-steps
(E3.1) jump between sites' own solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError
from polyclinic.methods.moments.moments import SummedMoments, complete
from polyclinic.methods.similarity import facts as known
from polyclinic.methods.similarity.admm import Problem, descend, directions
from polyclinic.methods.similarity.federated_setup import (
    MomentSums,
    PairCounts,
    StartScale,
    StartSlope,
    UnPSLPrivate,
    UnPSLPublic,
)
from polyclinic.methods.similarity.labels import classes_at
from polyclinic.methods.similarity.metric import canonical, similarity_of, spread
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, Pairs, weights_for
from polyclinic.methods.similarity.params import UnPSLParams
from polyclinic.methods.similarity.redundancy import Redundancy, row_norms, row_shrink, shrink_norms, speak_once
from polyclinic.models.origin import Origin
from polyclinic.models.similarity import Similarity
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.phases import Phase, PhaseDispatch
from polyclinic.protocol.wire import encoding as wire
from polyclinic.records.sites.site import Site

__all__ = ["ConsensusUnPSL", "UnPSLPrivate", "UnPSLPublic"]

Array = NDArray[np.float64]
ROUNDING = 1 + 1e-9  # limit: of float64 sums, granted above a mathematical bound
WIDE_FEATURES, THIN_COLUMNS = 500, 50  # limit: above so many features W must be thin (the message is d x rank)
RHO_FACTOR, RHO_BAND = 1.5, 3.0  # rho changes by this factor when one residual exceeds the other by that


class ConsensusUnPSL(PhaseDispatch[UnPSLPublic, UnPSLPrivate], Estimator[UnPSLParams, UnPSLPublic, UnPSLPrivate]):
    """Learn one similarity from several hospitals' labelled patients; only sums leave them.

    A hospital with fewer than two patients has no pair: it takes part in the means and adds nothing to the loss.
    """

    name = "unpsl"
    version = 2
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

    @property
    def phases(self) -> Mapping[str, Phase[UnPSLPublic, UnPSLPrivate]]:
        """Moments, pairs, losses at SCALES, the slope, then rounds of W_k + U_k."""
        return {
            "moments": MomentSums(self),
            "pairs": PairCounts(self),
            "scale": StartScale(self),
            "slope": StartSlope(self),
            "rounds": MetricConsensus(self),
        }

    def init_public(self, setting: Schema, rng: np.random.Generator) -> UnPSLPublic:
        """W orthonormal directions; moments first."""
        p, d = self.params, setting.shape[0]
        if p.privacy is not None:
            raise ConfigError(
                "consensus sends whole matrices W_p + U_p, for which no bound per patient exists",
                hint="UnPSL(...).fit_sites(sites, privacy=...) uses disjoint pairs and clipped gradients instead",
            )
        rank = self._rank(d)
        crossed = p.l2 > 0 or d <= WIDE_FEATURES
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
        if d > WIDE_FEATURES and (p.variant == "paper" or (p.rank or 1) > THIN_COLUMNS):
            raise ConfigError(
                f"{d} features: between hospitals W has at most {THIN_COLUMNS} columns", hint=f"rank <= {THIN_COLUMNS}"
            )
        return int(min(p.rank or (d if d <= WIDE_FEATURES else THIN_COLUMNS), d))

    def _frame(self, public: UnPSLPublic) -> Preconditioner:
        R = self._correlation(public) if len(public.W) <= WIDE_FEATURES and self.params.variant != "paper" else None
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
        p = self.params
        return weights_for(public.similar, public.different, "sum" if p.variant == "paper" else p.weighting)

    def _spread(self, public: UnPSLPublic) -> tuple[Array, Array]:
        """Mean and deviation, as in :func:`polyclinic.methods.similarity.metric.spread`, from sums."""
        m = public.moments
        var = np.maximum(np.diag(m.covariance()), 0.0)
        flat = var <= (1e-9 * np.abs(m.mean)) ** 2 + 1e-300
        sd = np.where(flat, np.inf, np.sqrt(var))
        if self.params.standardize == "none":
            return np.zeros_like(sd), np.where(flat, np.inf, 1.0)
        return (m.mean if self.params.standardize == "zscore" else np.zeros_like(sd)), sd

    def _largest_weight(self, public: UnPSLPublic) -> float:
        """Of a pair."""
        return max(self._weights(public))

    def _reach(self, public: UnPSLPublic) -> float:
        """Bound the sum of weight |x_i| |x_j| over all pairs by the energy of the standardised features."""
        mean, sd = self._spread(public)
        m = public.moments
        energy = m.n * (np.maximum(np.diag(m.covariance()), 0.0) + (m.mean - mean) ** 2) / sd**2
        return 0.5 * max(m.n, 1.0) * float(energy.sum()) * self._largest_weight(public) * ROUNDING

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
        R = self._correlation(public) if len(public.W) <= WIDE_FEATURES and p.standardize == "zscore" else None
        return public.W if R is None else speak_once(public.W, R, public.moments.n)

    # ---- a site

    def init_site(self, site: Site, public: UnPSLPublic, rng: np.random.Generator) -> UnPSLPrivate:
        complete(site, self.params.radius)
        if site.name in self.judged:
            ListedPairs.of(*self.judged[site.name], patients=site.patients)
        else:
            classes_at(site)
        zeros = np.zeros_like(public.W)
        return UnPSLPrivate(zeros, zeros, 0.0)

    def _pairs(self, site: Site, same: float = 1.0, other: float = 1.0) -> Pairs:
        if site.name in self.judged:
            pairs = ListedPairs.of(*self.judged[site.name], patients=site.patients)
            return replace(pairs, weight=np.where(pairs.sign > 0, same, other))
        return replace(LabelPairs.of(classes_at(site)), same=same, other=other)

    def _problem(self, site: Site, public: UnPSLPublic) -> Problem:
        p, frame = self.params, self._frame(public)
        mean, sd = self._spread(public)
        X = (site.matrix() - mean) / sd
        literal = p.variant == "paper"
        # E3.8: one correlation matrix for all and a P-th of the penalty each; as printed, everybody's own, in full
        redundancy = self._redundancy(public)
        if literal and len(X):
            own_mean, own_sd = spread(X, "zscore")
            redundancy = Redundancy.of_patients((X - own_mean) / own_sd)
        if redundancy.matrix is not None and p.l2:
            redundancy = Redundancy(frame.matrix(redundancy.matrix), None)
        l2 = 0.0 if p.decorrelation == "convex" else p.l2 if literal else p.l2 / public.sites
        pairs = self._pairs(site, *self._weights(public))
        return Problem(frame.patients(X), pairs, p.bias, redundancy, 0.0, l2, literal=literal)

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


class MetricConsensus(Phase[UnPSLPublic, UnPSLPrivate]):
    """The rounds of the paper."""

    fit: ConsensusUnPSL

    def step(self, public: UnPSLPublic) -> Step:
        shapes = {"W": public.W.shape, "loss": (1,), "size": (1,)}
        bound = 1e6 * max(float(np.abs(public.W).max()), 1.0) ** 2
        return Step(public.round + 1, "consensus", shapes, bound=bound, asides=("loss", "size"))

    def contribute(self, step: Step, site: Site, private: UnPSLPrivate, public: UnPSLPublic) -> Answer[UnPSLPrivate]:
        """W_k = argmin loss_k(W) + l2 redundancy(W) + rho / 2 ||W - A + U_k||^2 (4.19-4.21), U_k' = U_k + W_k - A (4.23)."""
        problem, A = self.fit._problem(site, public), self.fit._frame(public).go(public.W)
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

        value, W = descend(augmented, A, self.fit.params.inner, exact=problem.literal)
        loss = value - 0.5 * rho * float(np.linalg.norm(W - target) ** 2)
        asides = {"loss": np.array([loss]), "size": np.array([float(np.vdot(W, W))])}
        return UnPSLPrivate(W, U, rho), Contribution({"W": W + U, **asides})

    def combine(self, step: Step, public: UnPSLPublic, total: Total) -> UnPSLPublic:
        """W' = argmin_W l1 sum_f |w_f| + K rho / 2 ||W - T||^2, T = sum_k (W_k + U_k) / K (4.22, E3.7): rows shrunk."""
        p, frame, sites = self.fit.params, self.fit._frame(public), max(total.members, 1)
        T = total.arrays["W"] / sites
        W = frame.shrink(T, public.W, lambda V, r: self.shrunk(public, V, r), public.rho * sites)
        A = frame.go(W)
        size = max(float(np.linalg.norm(A)), 1e-12)
        # mean |W_p - A|^2 from the mean of W_p, which is T less the known mean of U_p, and the sum of |W_p|^2
        gap = float(total.arrays["size"][0]) / sites - 2 * float(np.vdot(T - public.drift, A)) + size**2
        primal, dual = float(np.sqrt(max(gap, 0.0))) / size, float(np.linalg.norm(A - frame.go(public.W))) / size
        factor, floor = (1.0, public.floor) if p.variant == "paper" else _paced(public, primal, dual)
        objective = float(total.arrays["loss"][0]) + p.l1 * float(row_norms(W).sum())
        if self.convex:
            objective += p.l2 * self.fit._redundancy(public).exclusive(W)
        stepped = replace(
            public,
            round=step.round,
            W=W,
            drift=(T - A) / factor,
            rho=public.rho * factor,
            floor=floor,
            objective=objective,
            primal=primal,
            dual=dual,
        )
        at_rest = step.round >= p.rounds or (p.tol and max(primal, dual) <= p.tol)
        return self.fit.onward(stepped) if at_rest else stepped

    @property
    def convex(self) -> bool:
        """Whether redundancy is penalised with the row lengths, by everybody, and not in a site's own step."""
        p = self.fit.params
        return p.decorrelation == "convex" and p.l2 > 0

    def shrunk(self, public: UnPSLPublic, T: Array, rho: float) -> Array:
        """argmin over W of the row penalties + rho / 2 ||W - T||^2."""
        p = self.fit.params
        if self.convex:
            return shrink_norms(T, self.fit._redundancy(public), p.l1, p.l2, rho, 50)
        return row_shrink(T, p.l1 / rho)  # E3.7


def _paced(public: UnPSLPublic, primal: float, dual: float) -> tuple[float, float]:
    """By what rho changes, and below what it never falls again."""
    if public.round > 0 and (primal > RHO_BAND * dual or primal > 2 * public.primal):
        return RHO_FACTOR, public.rho * RHO_FACTOR if primal > public.primal else public.floor
    if dual > RHO_BAND * primal and public.rho / RHO_FACTOR >= public.floor:
        return 1 / RHO_FACTOR, public.floor
    return 1.0, public.floor


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Coordinates in which all directions of W are about equally steep, so that hospitals agree in few rounds.

    Correlated features make the loss a thousand times steeper in some directions of W than in others. The correlations of
    all patients are public here, so everybody can work with A = H^1/2 W, H = (R + eps I) / (1 + eps), instead of W. Holds
    H^1/2, H^-1/2 and the largest eigenvalue of H; the first two are None for the identity.
    """

    root: Array | None = None
    inverse: Array | None = None
    top: float = 1.0

    @classmethod
    def of(cls, R: Array, eps: float = 0.05) -> Preconditioner:
        """From correlations (d, d)."""
        values, Q = np.linalg.eigh((R + eps * np.eye(len(R))) / (1 + eps))
        values = np.maximum(values, eps / (1 + eps))  # R is positive semidefinite up to rounding
        return cls((Q * np.sqrt(values)) @ Q.T, (Q / np.sqrt(values)) @ Q.T, float(values[-1]))

    def go(self, W: Array) -> Array:
        """W -> A = H^1/2 W."""
        return W if self.root is None else np.asarray(self.root @ W)

    def patients(self, X: Array) -> Array:
        """X -> X H^-1/2, so that X W = (X H^-1/2) A."""
        return X if self.inverse is None else np.asarray(X @ self.inverse)

    def matrix(self, S: Array) -> Array:
        """S -> H^-1/2 S H^-1/2, so that Trace(W'SW) stays the same."""
        return S if self.inverse is None else np.asarray(self.inverse @ S @ self.inverse)

    def shrink(self, T: Array, start: Array, shrinker: Callable[[Array, float], Array], rho: float) -> Array:
        """argmin over W of penalty(W) + rho/2 |H^1/2 W - T|^2, by accelerated proximal gradients with restarts.

        ``shrinker(T, rho)`` is the proximal step for H = I; with H = I it is the answer.
        """
        if self.root is None:
            return shrinker(T, rho)
        H, B = self.root @ self.root, self.root @ T
        W = old = start
        speed = 1.0
        for _ in range(1000):
            faster = 0.5 * (1 + np.sqrt(1 + 4 * speed * speed))
            Y = W + (speed - 1) / faster * (W - old)
            new = shrinker(Y - (H @ Y - B) / self.top, rho * self.top)
            if float(np.vdot(Y - new, new - W)) > 0:  # momentum points uphill
                faster = 1.0
            old, W, speed = W, new, faster
            if np.abs(W - old).max() <= 1e-10 * max(1.0, float(np.abs(W).max())):
                break
        return W
