"""UnPSL: a similarity that few and uncorrelated features decide, central (`fit`) and between hospitals (`fit_sites`)."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.admm import SCALES, Problem, State, best_scale, directions, penalty_of, solve
from polyclinic.methods.similarity.metric import Centre, SimilarityMetric, canonical, spread
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, Pairs, Weighting, near_pairs
from polyclinic.methods.similarity.redundancy import Redundancy, speak_once
from polyclinic.records.sites.site import Site
from polyclinic.util.threads import one_thread

__all__ = ["Compare", "Reach", "UnPSL"]

Array = NDArray[np.float64]
Compare = Literal["product", "distance"]
Reach = Literal["all", "near"]
SQUARE = 500  # wider data get a thin W unless a rank is asked for
THIN = 100
PROBE = 2000  # patients from which the scale of the start is taken


class UnPSL(SimilarityMetric):
    """Learn from labelled patients who resembles whom, with few features that do not repeat each other.

    Minimises the mean logistic loss of all pairs i < j under s(x, z) = x'WW'z - b, plus ``l1`` times the lengths of W's
    rows (a feature without a row does not count) plus ``l2`` times the redundancy of the features used (eq. 3.8, with
    the row of W as the feature: ERRATA E3.2).

    Parameters
    ----------
    l1, l2
        lambda_1 (sparsity) and lambda_2 (redundancy), relative to the MEAN loss (E3.3).
    bias
        The threshold b of (3.2).
    rank
        Columns of W. None: square up to 500 features, else at most 100 (and fewer than patients).
    iterations
        Of Algorithm 1, at most. Three stay near the Euclidean start, which is what nearest neighbours want when there are
        few patients (run to the end, 98 Parkinsons recordings are overfitted: docs/papers/unpsl.md); for a settled and
        sparse W ask for some hundreds.
    inner
        Line-searched quasi-Newton steps in each W-update (3.11).
    tol
        Stop when primal and dual residual are below ``tol`` times the size of W; 0 runs all iterations.
    penalty
        rho, relative to the slope at the start: 3 means that the first W-step moves W by a third of its length. Too small
        a rho makes the non-convex W-step jump (``converged_`` stays False, residuals do not fall): raise it.
    start_scale
        Length of the start, relative to the multiple of the identity that explains the pairs best.
    n_starts
        Starts compared by their objective; the loss is not convex in W (E3.1).
    standardize
        ``"zscore"`` (the paper's), ``"scale"`` (no centring) or ``"none"``; from training patients only (E3.6).
    weighting
        ``"mean"``, ``"balanced"`` (similar and dissimilar pairs weigh the same) or ``"sum"`` (the paper's).
    decorrelation
        ``"trace"`` (3.7), which rewards opposed rows, or ``"convex"``: sum r_kl^2 |w_k| |w_l| (E3.4).
    compare
        ``"product"``: pairs are similar when s >= b (3.2). ``"distance"``: when |W'x - W'z|^2 / 2 <= b, that is, s is
        judged against how similar the two are to themselves; afterwards W is scaled so that s >= b calls the pairs best.
    reach
        ``"all"`` pairs i < j, or ``"near"``: of labelled patients only those of neighbours, see
        :func:`~polyclinic.methods.similarity.pairs.near_pairs`.
    variant
        ``"corrected"``, or ``"paper"``: s = x'W'Wz as printed, so that rows are not features (E3.2).
    seed
        Of further starts.

    Attributes
    ----------
    metric_, components_, selected_features_, feature_weights_
        See :class:`~polyclinic.methods.similarity.metric.SimilarityMetric`. Of features that repeat each other exactly the first
        carries the weight of all.
    history_
        One dict per iteration: objective, primal_residual, dual_residual.
    n_iter_, objective_, converged_, classes_

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 4))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> u = UnPSL(l1=0.02, l2=0.01).fit(X, y)
    >>> int(u.feature_weights_.argmax()), u.similarity(X[:2]).shape
    (0, (2, 2))
    """

    def __init__(
        self,
        l1: float = 1e-2,
        l2: float = 1e-2,
        bias: float = 1.0,
        *,
        rank: int | None = None,
        iterations: int = 3,
        inner: int = 5,
        tol: float = 1e-4,
        penalty: float = 3.0,
        start_scale: float = 1.0,
        n_starts: int = 1,
        standardize: Centre = "zscore",
        weighting: Weighting = "mean",
        decorrelation: str = "trace",
        compare: Compare = "product",
        reach: Reach = "all",
        variant: str = "corrected",
        seed: int = 0,
    ) -> None:
        self.l1 = l1
        self.l2 = l2
        self.bias = bias
        self.rank = rank
        self.iterations = iterations
        self.inner = inner
        self.tol = tol
        self.penalty = penalty
        self.start_scale = start_scale
        self.n_starts = n_starts
        self.standardize = standardize
        self.weighting = weighting
        self.decorrelation = decorrelation
        self.compare = compare
        self.reach = reach
        self.variant = variant
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None) -> UnPSL:
        """Learn from labelled patients: all pairs i < j, similar if their labels agree.

        Parameters
        ----------
        X, y
            (n, d) patients and (n,) classes.
        groups
            (n,) hospital of every patient; then only pairs within a hospital count, which is what `fit_sites` can see.
        """
        self._check()
        patients, codes = self._training(X, y)
        if groups is not None and np.shape(groups) != (len(codes),):
            raise DataError(f"groups have shape {np.shape(groups)}, expected ({len(codes)},)")
        pairs = LabelPairs.of(codes, groups=groups, weighting=self.weighting)
        if min(pairs.counts()) == 0:
            raise DataError(
                "no pair of patients of one hospital is similar, or none is dissimilar",
                faults=["similar: {}, dissimilar: {}".format(*pairs.counts())],
                hint="hospitals with patients of one class only cannot teach what differs; pool or regroup them",
            )
        if self.reach == "all":
            return self._learn(patients, pairs)
        if groups is not None:
            raise ConfigError("reach 'near' looks for neighbours among all patients, not within hospitals")
        mean, sd = spread(patients, "zscore")
        return self._learn(patients, near_pairs((patients - mean) / sd, codes, weighting=self.weighting), pairs)

    def fit_pairs(self, X: ArrayLike, pairs: ArrayLike, y: ArrayLike) -> UnPSL:
        """Learn from judged pairs: ``pairs`` (m, 2) positions of rows of X, ``y`` (m,) +1 similar or -1 not."""
        self._check()
        if self.reach != "all":
            raise ConfigError("reach 'near' is for labelled patients; judged pairs are what they are")
        patients = np.asarray(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        listed = ListedPairs.of(pairs, y, patients=len(patients), weighting=self.weighting)
        if min(listed.counts()) == 0:
            raise DataError("all pairs are judged alike: a similarity needs similar and dissimilar pairs")
        return self._learn(patients, listed)

    def fit_sites(self, sites: Sequence[Site], **options: Any) -> UnPSL:
        """Learn between hospitals by consensus: only sums of W_p + U_p leave them (E3.7-E3.10).

        ``options``: ``rounds``, ``aggregation`` ("plain", "masked", "subspace"), ``privacy``, ``progress``, and what
        :class:`~polyclinic.methods.similarity.federated.ConsensusUnPSL` takes. Sets also ``history_``, ``traffic_``, ``privacy_``.
        ``rounds`` takes the place of ``iterations``; ``inner``, ``penalty``, ``tol`` and ``n_starts`` are those of the
        federated method.
        """
        from polyclinic.methods.similarity.federated import learn_between

        self._check()
        for old in ("feature_names_in_", "converged_", "objective_", "classes_"):  # of an earlier fit on other patients
            if hasattr(self, old):
                delattr(self, old)
        return learn_between(self, sites, **options)

    # ---- the steps of a fit, which cross-validation and the distributed comparator share

    def _check(self) -> None:
        rules: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
            ("l1", lambda v: v >= 0, "at least 0"),
            ("l2", lambda v: v >= 0, "at least 0"),
            ("bias", np.isfinite, "a number"),
            ("rank", lambda v: v is None or operator.index(v) >= 1, "None or a whole number of at least 1"),
            ("iterations", lambda v: operator.index(v) >= 1, "a whole number of at least 1"),
            ("inner", lambda v: operator.index(v) >= 1, "a whole number of at least 1"),
            ("tol", lambda v: v >= 0, "at least 0"),
            ("penalty", lambda v: v > 0, "above 0"),
            ("start_scale", lambda v: v > 0, "above 0"),
            ("n_starts", lambda v: operator.index(v) >= 1, "a whole number of at least 1"),
            ("standardize", ("zscore", "scale", "none").__contains__, "zscore, scale or none"),
            ("weighting", ("mean", "balanced", "sum").__contains__, "mean, balanced or sum"),
            ("decorrelation", ("trace", "convex").__contains__, "trace or convex"),
            ("compare", ("product", "distance").__contains__, "product or distance"),
            ("reach", ("all", "near").__contains__, "all or near"),
            ("variant", ("corrected", "paper").__contains__, "corrected or paper"),
        )
        faults = []
        for name, good, rule in rules:
            value = getattr(self, name)
            try:
                fine = bool(good(value))
            except (TypeError, ValueError):  # not even a number
                fine = False
            if not fine:
                faults.append(f"{name} = {value!r}, must be {rule}")
        if faults:
            raise ConfigError("UnPSL: wrong parameters", faults=faults)

    def _rank(self, n: int, d: int) -> int:
        if self.variant == "paper":
            if self.rank not in (None, d):
                raise ConfigError(f"variant 'paper' has a square W: rank {self.rank} is not the {d} features")
            return d
        if self.rank is not None:
            return min(self.rank, d)
        return d if d <= SQUARE else max(1, min(THIN, d, n - 1))

    def _problem(self, X: Array, pairs: Pairs) -> Problem:
        """Standardise with what these patients show, and set the problem up."""
        self.mean_, self.scale_ = spread(X, self.standardize)
        if np.isinf(self.scale_).all():
            raise DataError(
                f"every one of the {X.shape[1]} feature(s) is the same in all {len(X)} patients: nothing tells them apart",
                hint="give features that vary; values above 1e150 overflow and count as constant",
            )
        Z = (X - self.mean_) / self.scale_
        mean, sd = (np.zeros(X.shape[1]), np.ones(X.shape[1])) if self.standardize == "zscore" else spread(X, "zscore")
        redundancy = Redundancy.of_patients(Z if self.standardize == "zscore" else (X - mean) / sd)
        literal = self.variant == "paper"
        span = np.linalg.svd(Z, full_matrices=False)[2].T if len(Z) < Z.shape[1] and not literal else None
        return Problem(
            Z,
            pairs,
            self.bias,
            redundancy,
            self.l1,
            self.l2,
            convex=self.decorrelation == "convex",
            literal=literal,
            distance=self.compare == "distance",
            span=span,
        )

    def _scale(self, problem: Problem, W: Array) -> float:
        """The multiple of W that explains the pairs best."""
        n = len(problem.X)
        if n > PROBE and isinstance(problem.pairs, LabelPairs):  # 2e8 pairs are not needed to find a scale
            some = np.linspace(0, n - 1, PROBE).astype(np.int64)
            pairs = LabelPairs.of(problem.pairs.codes[some], weighting=self.weighting)
            problem = replace(problem, X=problem.X[some], pairs=pairs)
        seen = W if problem.span is None else problem.span.T @ W
        return best_scale([problem.inside.loss(c * seen)[0] for c in SCALES])

    def _starts(self, problem: Problem) -> list[Array]:
        n, d = problem.X.shape
        rank = self._rank(n, d)
        rng = np.random.default_rng(self.seed)
        starts = []
        for k in range(self.n_starts):
            if k == 0 and rank < d:  # leading directions, never a d x d matrix
                Q = (np.linalg.svd(problem.X, full_matrices=False)[2].T if problem.span is None else problem.span)[
                    :, :rank
                ]
                if Q.shape[1] < rank:  # more columns than the patients span
                    Q = np.linalg.qr(np.hstack([Q, rng.standard_normal((d, rank - Q.shape[1]))]))[0]
            else:
                Q = directions(d, rank, None, rng, k)
            starts.append(self.start_scale * self._scale(problem, Q) * Q)
        return starts

    def _learn(self, X: Array, pairs: Pairs, every: Pairs | None = None) -> UnPSL:
        with one_thread():
            problem = self._problem(X, pairs)
            best: State | None = None
            for start in self._starts(problem):
                state, path = self._run(problem, start)
                if best is None or state.objective < best.objective:
                    best, self.history_ = state, path
            assert best is not None
            root = best.metric_root
            if problem.distance or every is not None:
                root = self._calibrated(replace(problem, pairs=every or pairs), root)
            self._publish(self._spoken(problem, root), best)
        return self

    def _told(self, components: Array) -> Array:
        """The map itself, with a warning where nothing is left of it."""
        if not components.any():
            warnings.warn(
                "no feature is left, so that every patient is at the same place: the penalties outweigh what these pairs "
                "teach. Lower l1, or let pc.UnPSLCV choose",
                UserWarning,
                stacklevel=2,
            )
        return components

    def _spoken(self, problem: Problem, W: Array) -> Array:
        """One W where features repeat each other, see :func:`~polyclinic.methods.similarity.redundancy.speak_once`."""
        n, d = problem.X.shape
        if d > SQUARE or problem.literal or self.standardize != "zscore":
            return W
        return speak_once(W, problem.X.T @ problem.X / n, n)

    def _calibrated(self, problem: Problem, W: Array) -> Array:
        """W times the number that makes s >= b right for as many pairs as a multiple can; neighbours stay neighbours."""
        return W * self._scale(replace(problem, distance=False), W) if W.any() else W

    def _run(
        self, problem: Problem, start: Array, watch: Callable[[State], bool] | None = None
    ) -> tuple[State, list[dict[str, Any]]]:
        rho = penalty_of(float(np.linalg.norm(problem.loss(start)[1])), start, self.penalty)
        state, path = solve(
            problem, start, rho=rho, iterations=self.iterations, inner=self.inner, tol=self.tol, watch=watch
        )
        return state, [
            {"iteration": s.iteration, "objective": s.objective, "primal_residual": s.primal, "dual_residual": s.dual}
            for s in path
        ]

    def _publish(self, W: Array, state: State) -> None:
        self.components_ = self._told(canonical(W.T if self.variant == "paper" else W).T)  # M = W'W as printed
        self.bias_ = self.bias
        self.n_iter_ = state.iteration
        self.objective_ = state.objective
        self.converged_ = bool(self.tol and state.settled(self.tol))
