"""UnPSL: a similarity that few and uncorrelated features decide, central (`fit`) and between hospitals (`fit_sites`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel
from sklearn.utils.validation import validate_data

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.admm import SCALES, Problem, State, best_scale, directions, penalty_of, solve
from polyclinic.methods.similarity.labels import classes_of_all
from polyclinic.methods.similarity.metric import DeclaredMetric, canonical, spread
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, Pairs, near_pairs
from polyclinic.methods.similarity.params import SharedParams, UnPSLCentralParams
from polyclinic.methods.similarity.redundancy import Redundancy, speak_once
from polyclinic.plugins import did_you_mean
from polyclinic.protocol.loop import RunOptions
from polyclinic.protocol.params import checked
from polyclinic.records.sites.site import Site
from polyclinic.util.threads import one_thread

Array = NDArray[np.float64]
SQUARE_FEATURES = 500  # limit: of memory: wider data get a thin W unless a rank is asked for
THIN_COLUMNS = 100  # limit: of memory, for such data
SCALE_PATIENTS = 2000  # limit: of time: patients from which the scale of the start is taken
SHARED = (*SharedParams.model_fields, "rank", "variant", "seed")
FITTED = ("mean_", "scale_", "components_", "n_features_in_", "bias_", "objective_", "n_iter_", "embedding_",
          "history_", "traffic_", "privacy_")  # fmt: skip


class UnPSL(DeclaredMetric):
    """Learn a patient similarity from labelled patients, with few features that do not repeat each other.

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
        ``"corrected"``, or ``"paper"``: Algorithm 1 as printed. s = x'W'Wz, so that rows are not features (E3.2). Losses
        are summed (E3.3), rho is ``penalty`` itself, every W-step goes to its minimum, V, Z and U start at random, and the
        answer is W.
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
        Iterations, last objective, whether the residuals are below ``tol``, and the labels.

    See Also
    --------
    UnPSLCV : the same with parameters chosen by cross-validation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 4))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> u = UnPSL(l1=0.02, l2=0.01).fit(X, y)
    >>> int(u.feature_weights_.argmax()), u.similarity(X[:2]).shape
    (0, (2, 2))
    """

    Params: ClassVar[type[BaseModel]] = UnPSLCentralParams

    @property
    def _params(self) -> UnPSLCentralParams:
        """The parameters, checked: one error names every wrong one."""
        p = checked(UnPSLCentralParams, self.get_params(), type(self).__name__)  # type: ignore[type-var]
        return p.model_copy(update={"weighting": "sum"}) if p.variant == "paper" else p

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None) -> UnPSL:
        """Learn from labelled patients: all pairs i < j, similar if their labels agree.

        Parameters
        ----------
        X, y
            (n, d) patients and (n,) classes.
        groups
            (n,) hospital of every patient; then only pairs within a hospital count, which is what `fit_sites` can see.
        """
        p = self._params
        patients, codes = self._training(X, y)
        if groups is not None and np.shape(groups) != (len(codes),):
            raise DataError(f"groups have shape {np.shape(groups)}, expected ({len(codes)},)")
        pairs = LabelPairs.of(codes, groups=groups, weighting=p.weighting)
        if min(pairs.counts()) == 0:
            raise DataError(
                "no pair of patients of one hospital is similar, or none is dissimilar",
                faults=["similar: {}, dissimilar: {}".format(*pairs.counts())],
                hint="hospitals with patients of one class only cannot teach what differs; pool or regroup them",
            )
        if p.reach == "all":
            return self._learn(patients, pairs)
        if groups is not None:
            raise ConfigError("reach 'near' looks for neighbours among all patients, not within hospitals")
        mean, sd = spread(patients, "zscore")
        return self._learn(patients, near_pairs((patients - mean) / sd, codes, weighting=p.weighting), pairs)

    def fit_pairs(self, X: ArrayLike, pairs: ArrayLike, y: ArrayLike) -> UnPSL:
        """Learn from judged pairs: ``pairs`` (m, 2) positions of rows of X, ``y`` (m,) +1 similar or -1 not."""
        p = self._params
        if p.reach != "all":
            raise ConfigError("reach 'near' is for labelled patients; judged pairs are what they are")
        patients = np.asarray(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        judged_pairs = ListedPairs.of(pairs, y, patients=len(patients), weighting=p.weighting)
        if min(judged_pairs.counts()) == 0:
            raise DataError("all pairs are judged alike: a similarity needs similar and dissimilar pairs")
        return self._learn(patients, judged_pairs)

    def fit_sites(self, sites: Sequence[Site], **options: Any) -> UnPSL:
        """Learn between hospitals by consensus: only sums of W_p + U_p leave them (E3.7-E3.10).

        ``options``: ``rounds``, ``aggregation`` ("plain", "masked", "subspace"), ``privacy``, ``progress``, and what
        :class:`~polyclinic.methods.similarity.federated.ConsensusUnPSL` takes. Sets also ``history_``, ``traffic_``, ``privacy_``.
        ``rounds`` takes the place of ``iterations``; ``inner``, ``penalty``, ``tol`` and ``n_starts`` are those of the
        federated method.
        """
        for old in ("feature_names_in_", "converged_", "objective_", "classes_"):  # of an earlier fit on other patients
            if hasattr(self, old):
                delattr(self, old)
        return learn_between(self, sites, **options)

    # ---- the steps of a fit, which cross-validation and the distributed comparator share

    def _rank(self, n: int, d: int) -> int:
        p = self._params
        if p.variant == "paper":
            if p.rank not in (None, d):
                raise ConfigError(f"variant 'paper' has a square W: rank {p.rank} is not the {d} features")
            return d
        if p.rank is not None:
            return min(p.rank, d)
        return d if d <= SQUARE_FEATURES else max(1, min(THIN_COLUMNS, d, n - 1))

    def _problem(self, X: Array, pairs: Pairs) -> Problem:
        """Standardise with what these patients show, and set the problem up."""
        p = self._params
        self.mean_, self.scale_ = spread(X, p.standardize)
        if np.isinf(self.scale_).all():
            raise DataError(
                f"every one of the {X.shape[1]} feature(s) is the same in all {len(X)} patients: nothing distinguishes them",
                hint="give features that vary; values above 1e150 overflow and count as constant",
            )
        Z = (X - self.mean_) / self.scale_
        mean, sd = (np.zeros(X.shape[1]), np.ones(X.shape[1])) if p.standardize == "zscore" else spread(X, "zscore")
        redundancy = Redundancy.of_patients(Z if p.standardize == "zscore" else (X - mean) / sd)
        literal = p.variant == "paper"
        span = np.linalg.svd(Z, full_matrices=False)[2].T if len(Z) < Z.shape[1] and not literal else None
        return Problem(
            Z,
            pairs,
            p.bias,
            redundancy,
            p.l1,
            p.l2,
            convex=p.decorrelation == "convex",
            literal=literal,
            distance=p.compare == "distance",
            span=span,
        )

    def _scale(self, problem: Problem, W: Array) -> float:
        """The multiple of W that explains the pairs best."""
        p = self._params
        n = len(problem.X)
        if n > SCALE_PATIENTS and isinstance(problem.pairs, LabelPairs):  # 2e8 pairs are not needed to find a scale
            probe = np.linspace(0, n - 1, SCALE_PATIENTS).astype(np.int64)
            pairs = LabelPairs.of(problem.pairs.codes[probe], weighting=p.weighting)
            problem = replace(problem, X=problem.X[probe], pairs=pairs)
        coordinates = W if problem.span is None else problem.span.T @ W
        return best_scale([problem.inside.loss(c * coordinates)[0] for c in SCALES])

    def _starts(self, problem: Problem) -> list[Array]:
        p = self._params
        n, d = problem.X.shape
        rank = self._rank(n, d)
        rng = np.random.default_rng(p.seed)
        if problem.literal:
            return [p.start_scale * rng.standard_normal((d, d)) / np.sqrt(d) for _ in range(p.n_starts)]
        starts = []
        for k in range(p.n_starts):
            if k == 0 and rank < d:  # leading directions, never a d x d matrix
                Q = (np.linalg.svd(problem.X, full_matrices=False)[2].T if problem.span is None else problem.span)[
                    :, :rank
                ]
                if Q.shape[1] < rank:  # more columns than the patients span
                    Q = np.linalg.qr(np.hstack([Q, rng.standard_normal((d, rank - Q.shape[1]))]))[0]
            else:
                Q = directions(d, rank, None, rng, k)
            starts.append(p.start_scale * self._scale(problem, Q) * Q)
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
            root = best.W if problem.literal else best.metric_root
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
        p = self._params
        n, d = problem.X.shape
        if d > SQUARE_FEATURES or problem.literal or p.standardize != "zscore":
            return W
        return speak_once(W, problem.X.T @ problem.X / n, n)

    def _calibrated(self, problem: Problem, W: Array) -> Array:
        """W times the number that makes s >= b right for as many pairs as a multiple can; neighbours stay neighbours."""
        return W * self._scale(replace(problem, distance=False), W) if W.any() else W

    def _run(
        self, problem: Problem, start: Array, watch: Callable[[State], bool] | None = None
    ) -> tuple[State, list[dict[str, Any]]]:
        p = self._params
        initial = State(start, start, start, 0 * start, 0 * start)
        if problem.literal:  # line 1: everything at random
            rho = p.penalty
            rng = np.random.default_rng([p.seed, 1])
            UW, UV = (rng.standard_normal(start.shape) / np.sqrt(len(start)) for _ in range(2))
            initial = State(start - UW, start, start, UW, UV)
        else:
            rho = penalty_of(float(np.linalg.norm(problem.loss(start)[1])), start, p.penalty)
        state, path = solve(problem, initial, rho=rho, iterations=p.iterations, inner=p.inner, tol=p.tol, watch=watch)
        return state, [
            {"iteration": s.iteration, "objective": s.objective, "primal_residual": s.primal, "dual_residual": s.dual}
            for s in path
        ]

    def _publish(self, W: Array, state: State) -> None:
        p = self._params
        self.components_ = self._told(canonical(W.T if p.variant == "paper" else W).T)  # M = W'W as printed
        self.bias_ = p.bias
        self.n_iter_ = state.iteration
        self.objective_ = state.objective
        self.converged_ = bool(p.tol and state.settled(p.tol))


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
    p = model._params
    if p.reach != "all" or p.compare != "product":
        raise ConfigError(
            "between hospitals every pair of a hospital counts, by its product (eq. 4.21)",
            faults=[f"reach = {p.reach!r}, compare = {p.compare!r}"],
            hint="UnPSL(reach='all', compare='product').fit_sites(sites)",
        )
    classes = classes_of_all(sites)  # also refuses what are no classes, before anything is computed
    from polyclinic.methods.similarity.federated import ConsensusUnPSL

    method: Any
    if options.get("privacy") is not None:
        if pairs:
            raise ConfigError("judged pairs have no bound per patient: with privacy, pairs come from labels")
        from polyclinic.methods.similarity.private import PrivateUnPSL

        method = _method_of(PrivateUnPSL, model, ("bias", "seed"), options)
        classes = np.asarray(options["classes"])  # the public list: which of them occur was not paid for
    else:
        method = _method_of(ConsensusUnPSL, model, SHARED, options)
        method.judged = dict(pairs or {})
    method.fit(sites, **{k: v for k, v in options.items() if k in RunOptions.__annotations__})
    for key in FITTED:
        setattr(model, key, getattr(method, key))
    if (names := vars(method).get("feature_names_in_")) is not None:
        model.feature_names_in_ = names
    model.classes_ = classes
    return model


def _method_of(kind: Any, model: UnPSL, shared: Sequence[str], options: Mapping[str, Any]) -> Any:
    """Make the federated method: a central estimator's parameters, where the options do not name others."""
    fields = kind.Params.model_fields
    method = kind(**{k: getattr(model, k) for k in shared} | {k: v for k, v in options.items() if k in fields})
    names = sorted([*fields, "pairs", *RunOptions.__annotations__])
    strangers = sorted(set(options) - set(names))
    if strangers:
        raise ConfigError(
            f"fit_sites does not know {', '.join(map(repr, strangers))}",
            faults=[f"{k!r}: {did_you_mean(k, names) or 'unknown'}" for k in strangers],
            hint=f"known: {', '.join(names)}",
        )
    return method
