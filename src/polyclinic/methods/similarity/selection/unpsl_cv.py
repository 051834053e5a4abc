"""UnPSLCV: choose how sparse, how uncorrelated and how far from the start, on held-out training patients only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.admm import Problem, State
from polyclinic.methods.similarity.metric import Centre, canonical, spread
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, Pairs, Weighting, near_pairs
from polyclinic.methods.similarity.selection.folds import folds, persons
from polyclinic.methods.similarity.selection.grid import FEW, TRIED, Grid, Trial, paired
from polyclinic.methods.similarity.selection.knn import knn_predict
from polyclinic.methods.similarity.unpsl import Compare, Reach, UnPSL
from polyclinic.util.threads import one_thread

__all__ = ["UnPSLCV"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class UnPSLCV(UnPSL):
    """UnPSL whose parameters are chosen by cross-validation over patients; used inside an outer split it is nested.

    Every combination of the lists below is fitted once per fold, and every iteration of its path is scored on the
    held-out patients, so that the best moment to stop is found at no extra cost. Few patients cannot tell neighbouring
    settings apart: the metrics of all within two standard errors of the best (paired, over patients) are averaged.

    Parameters
    ----------
    l1s, l2s, start_scales, standardizes, compares, reaches
        Values to try. None: a few that suit labels (``fit``) or judged pairs (``fit_pairs``); ``tried_`` tells which.
    iterations
        The longest path.
    decorrelation, penalty
        As in :class:`UnPSL`. None: the printed trace for labels; the convex form (E3.4), on whose longer path redundant
        features fade, for judged pairs.
    cv, repeats
        Folds over patients, and how often they are drawn anew.
    scoring
        ``"knn"``: accuracy of k nearest neighbours; ``"pairs"``: share of held-out pairs called rightly (s >= b).
    k
        Neighbours.
    prefer
        ``"accuracy"`` (metrics near the Euclidean one, or sparse ones where those are better by more than two standard
        errors), or ``"few"``: of all settings within one standard error of the best the one with the fewest features,
        which a clinician can read.
    blend
        Average the metrics that cannot be told apart (labels and ``"knn"`` only); False keeps the best one.

    Attributes
    ----------
    best_params_, best_score_
        What was best, and its mean score on held-out patients.
    members_
        The settings that were averaged, the best among them.
    cv_results_
        One dict per combination: parameters, best iteration, score and mean number of features there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> m = UnPSLCV(l1s=(0.001,), l2s=(0.001,), iterations=5, cv=3).fit(X, y)
    >>> sorted(m.best_params_)
    ['compare', 'iterations', 'l1', 'l2', 'reach', 'standardize', 'start_scale']
    """

    def __init__(
        self,
        l1s: Sequence[float] | None = None,
        l2s: Sequence[float] | None = None,
        bias: float = 1.0,
        *,
        start_scales: Sequence[float] | None = None,
        standardizes: Sequence[Centre] | None = None,
        compares: Sequence[Compare] | None = None,
        reaches: Sequence[Reach] | None = None,
        rank: int | None = None,
        iterations: int | None = None,
        inner: int = 5,
        penalty: float | None = None,
        weighting: Weighting = "mean",
        decorrelation: str | None = None,
        variant: str = "corrected",
        cv: int | None = None,
        repeats: int | None = None,
        scoring: Literal["knn", "pairs"] = "knn",
        k: int = 3,
        prefer: Literal["accuracy", "few"] = "accuracy",
        blend: bool = True,
        seed: int = 0,
    ) -> None:
        self.l1s = l1s
        self.l2s = l2s
        self.bias = bias
        self.start_scales = start_scales
        self.standardizes = standardizes
        self.compares = compares
        self.reaches = reaches
        self.rank = rank
        self.iterations = iterations  # type: ignore[assignment]
        self.inner = inner
        self.penalty = penalty  # type: ignore[assignment]
        self.weighting = weighting
        self.decorrelation = decorrelation  # type: ignore[assignment]
        self.variant = variant
        self.cv = cv
        self.repeats = repeats
        self.scoring = scoring
        self.k = k
        self.prefer = prefer
        self.blend = blend
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None) -> UnPSLCV:
        """Choose and fit; ``groups`` (a person's identifier) keeps all samples of a person in one fold."""
        patients, codes = self._training(X, y)
        who = persons(groups, len(codes))
        fewest = int(np.bincount(codes).min())
        if self.scoring == "knn" and fewest < 2:
            raise DataError("a class has one patient only: it cannot be held out")
        kind = "wide" if patients.shape[1] >= len(patients) else "labels"
        tried = self._tried(kind, max(2, min(fewest, len(np.unique(who)))))

        def part(rows: Index, reach: Reach) -> Pairs:
            if reach == "all":
                return LabelPairs.of(codes[rows], weighting=self.weighting)
            mean, sd = spread(patients[rows], "zscore")
            return near_pairs((patients[rows] - mean) / sd, codes[rows], weighting=self.weighting)

        def score(A: Array, B: Array, train: Index, test: Index) -> Array:
            if self.scoring == "knn":
                called = knn_predict(A, codes[train], B, k=min(self.k, len(train)))
                return np.asarray(called == codes[test], np.float64)
            agree = codes[test][:, None] == codes[test][None, :]
            upper = np.triu_indices(len(test), 1)
            return np.asarray(((self.bias <= B @ B.T) == agree)[upper].mean(keepdims=True))

        held = folds(who, codes, cv=tried["cv"], repeats=tried["repeats"], seed=self.seed)
        held = [(train, test) for train, test in held if len(np.unique(codes[train])) > 1]
        return self._select(tried, Trial(patients, part, score, held, self.scoring == "knn"))

    def fit_pairs(self, X: ArrayLike, pairs: ArrayLike, y: ArrayLike) -> UnPSLCV:
        """Choose and fit on judged pairs; a fold holds out patients, and with them all their pairs."""
        from sklearn.utils.validation import validate_data

        patients = np.asarray(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        listed = ListedPairs.of(pairs, y, patients=len(patients))
        if min(listed.counts()) == 0:
            raise DataError("all pairs are judged alike: a similarity needs similar and dissimilar pairs")
        index = np.column_stack([listed.left, listed.right])
        tried = self._tried("judged", len(patients))

        def within(rows: Index) -> tuple[NDArray[np.int64], Array]:
            place = np.full(len(patients), -1)
            place[rows] = np.arange(len(rows))
            inside = (place[index] >= 0).all(1)
            return place[index[inside]], listed.sign[inside]

        def part(rows: Index, reach: Reach) -> Pairs:
            if reach != "all":
                raise ConfigError("reach 'near' is for labelled patients; judged pairs are what they are")
            return ListedPairs.of(*within(rows), patients=len(rows), weighting=self.weighting)

        def score(A: Array, B: Array, train: Index, test: Index) -> Array:
            p, sign = within(test)
            s = np.einsum("pr,pr->p", B[p[:, 0]], B[p[:, 1]])
            return np.asarray([np.mean((s >= self.bias) == (sign > 0))])

        held = folds(np.arange(len(patients)), None, cv=tried["cv"], repeats=tried["repeats"], seed=self.seed)
        held = [(a, b) for a, b in held if len(np.unique(within(a)[1])) > 1 and len(within(b)[1])]
        return self._select(tried, Trial(patients, part, score, held, by_patient=False))

    def fit_sites(self, sites: object, **options: object) -> UnPSL:
        """Not offered: folds would have to be drawn across hospitals."""
        raise ConfigError(
            "UnPSLCV chooses on patients it can see, not between hospitals",
            hint="choose at one hospital with UnPSLCV().fit(X, y), then UnPSL(l1=..., l2=...).fit_sites(sites)",
        )

    def _tried(self, kind: str, most_folds: int) -> dict[str, Any]:
        """What is tried; also the folds, of which there cannot be more than patients of a class."""
        default = TRIED[kind] | (FEW[kind] if self.prefer == "few" else {})
        loose = {k: v for k, v in default.items() if isinstance(v, tuple) and np.ndim(getattr(self, k)) == 0}
        faults = [
            f"{k} = {getattr(self, k)!r}, must be a list of values" for k in loose if getattr(self, k) is not None
        ]
        if faults:
            raise ConfigError("UnPSLCV: wrong parameters", faults=faults)
        tried = {k: v if getattr(self, k) is None else getattr(self, k) for k, v in default.items()}
        # what a person names is tried, and nothing else
        own = any(getattr(self, k) is not None for k in FEW["labels"])
        tried["sparse"] = None if own or kind != "labels" else FEW[kind]
        if self.cv is None:
            tried["cv"] = min(tried["cv"], most_folds)
        faults = [f"{k}: nothing to try" for k, v in tried.items() if isinstance(v, Sequence) and not len(v)]
        faults += [f"{k} = {tried[k]!r}, must be at least 1" for k in ("iterations", "repeats") if tried[k] < 1]
        whole = isinstance(self.k, int | np.integer) and self.k >= 1
        faults += [] if whole else [f"k = {self.k!r}, must be a whole number of at least 1"]
        faults += [] if self.scoring in ("knn", "pairs") else [f"scoring = {self.scoring!r}, must be knn or pairs"]
        faults += [] if self.prefer in ("accuracy", "few") else [f"prefer = {self.prefer!r}, must be accuracy or few"]
        if faults:
            raise ConfigError("UnPSLCV: wrong parameters", faults=faults)
        self.tried_ = tried
        return tried

    def _candidates(self, tried: dict[str, Any]) -> Iterator[dict[str, Any]]:
        names = ("l1", "l2", "start_scale", "standardize", "compare", "reach")
        for values in product(*(tried[f"{n}es" if n == "reach" else f"{n}s"] for n in names)):
            yield dict(zip(names, values))

    def _model(self, tried: dict[str, Any], **chosen: Any) -> UnPSL:
        own = {k: getattr(self, k) for k in ("bias", "rank", "inner", "weighting", "variant", "seed")}
        told = {k: tried[k] for k in ("decorrelation", "penalty", "iterations")}
        return UnPSL(**{**own, **told, "tol": 0.0, **chosen})

    def _select(self, tried: dict[str, Any], trial: Trial) -> UnPSLCV:
        if not trial.held:
            raise DataError("no fold leaves both similar and dissimilar pairs to learn from", hint="more patients")
        with one_thread():
            grid = self._judged(tried, trial)
            results = grid.results()
            if trial.by_patient and self.prefer == "accuracy" and tried["sparse"] is not None:
                # A metric of few features is another world; it is entered only where it is better beyond doubt.
                few = self._judged({**tried, **tried["sparse"]}, trial)
                gain, doubt = paired(few.top - grid.top)
                results += few.results()
                grid = few if gain > 2 * doubt + 1e-12 else grid
            c, t = grid.best
            loss, doubt = paired(grid.top - grid.marks)
            if self.prefer == "few":
                as_good = loss <= doubt + 1e-12
                c, t = (int(v) for v in np.argwhere(as_good)[np.lexsort((loss[as_good], grid.features[as_good]))[0]])
            near = np.zeros(loss.shape, bool)
            near[c, t] = True
            if self.blend and trial.by_patient and self.prefer == "accuracy":
                near |= loss <= 2 * doubt + 1e-12
            self.cv_results_ = results
            self.members_ = [grid.setting(int(a), int(b)) for a, b in np.argwhere(near)]
            self.best_score_, self.best_params_ = float(grid.marks[c, t].mean()), grid.setting(c, t)
            self._settle(grid.tried, grid.candidates, near, (c, t), trial)
        return self

    def _judged(self, tried: dict[str, Any], trial: Trial) -> Grid:
        """Every candidate at every iteration, scored on held-out patients (or, of pairs, fold by fold)."""
        candidates = list(self._candidates(tried))
        for chosen in candidates:
            self._model(tried, **chosen)._check()
        units = len(trial.X) if trial.by_patient else len(trial.held)
        hits, times = np.zeros((len(candidates), tried["iterations"], units)), np.zeros(units)
        features = np.zeros(hits.shape[:2])
        for f, (train, test) in enumerate(trial.held):
            place = test if trial.by_patient else np.array([f])
            times[place] += 1
            for c, (model, problem, roots) in enumerate(self._paths(tried, candidates, trial, train)):
                del problem
                B = (trial.X[test] - model.mean_) / model.scale_
                A = (trial.X[train] - model.mean_) / model.scale_ if trial.by_patient else B
                for t, W in enumerate(roots):
                    hits[c, t, place] += trial.score(A @ W, B @ W, train, test)
                    features[c, t] += np.count_nonzero(W.any(1)) / len(trial.held)
        marks = hits[:, :, times > 0] / times[times > 0]
        # neighbouring iterations are nearly the same metric: their average is a steadier judge than one of them
        padded = np.pad(marks, ((0, 0), (1, 1), (0, 0)), mode="edge")
        return Grid(tried, candidates, (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3, features)

    def _paths(
        self,
        tried: dict[str, Any],
        candidates: list[dict[str, Any]],
        trial: Trial,
        rows: Index,
    ) -> Iterator[tuple[UnPSL, Problem, list[Array]]]:
        """For every candidate its model, its problem and the W of every iteration."""
        known: dict[str, tuple[UnPSL, Problem]] = {}  # correlations are the same for all penalties
        pairs = {reach: trial.part(rows, reach) for reach in {c["reach"]: None for c in candidates}}
        for chosen in candidates:
            model = self._model(tried, **chosen)
            if chosen["standardize"] not in known:
                known[chosen["standardize"]] = model, model._problem(trial.X[rows], pairs[chosen["reach"]])
            first, problem = known[chosen["standardize"]]
            model.mean_, model.scale_ = first.mean_, first.scale_
            problem = replace(
                problem,
                pairs=pairs[chosen["reach"]],
                l1=model.l1,
                l2=model.l2,
                distance=model.compare == "distance",
            )
            states: list[State] = []

            def keep(state: State, states: list[State] = states) -> bool:
                states.append(state)
                return False

            _, model.history_ = model._run(problem, model._starts(problem)[0], keep)
            yield model, problem, [s.metric_root.T if self.variant == "paper" else s.metric_root for s in states]

    def _settle(
        self,
        tried: dict[str, Any],
        candidates: list[dict[str, Any]],
        near: NDArray[np.bool_],
        best: tuple[int, int],
        trial: Trial,
    ) -> None:
        """Fit the members on all patients and average their metrics, each of trace 1; one member stays as it is."""
        use = [c for c in range(len(candidates)) if near[c].any()]
        longest = {**tried, "iterations": int(np.flatnonzero(near.any(0))[-1]) + 1}
        roots, single, rows = [], int(near.sum()) == 1, np.arange(len(trial.X))
        for c, (model, problem, path) in zip(use, self._paths(longest, [candidates[c] for c in use], trial, rows)):
            roots += [path[t] for t in np.flatnonzero(near[c])]
            if c == best[0]:
                final, shape = model, problem
                self.history_ = model.history_[: best[1] + 1]
        W = roots[0] if single else _blended(roots)
        self.mean_, self.scale_ = final.mean_, final.scale_
        if not (single and final.compare == "product" and final.reach == "all"):
            W = final._calibrated(replace(shape, literal=False, pairs=trial.part(rows, "all")), W)
        W = W if self.variant == "paper" else final._spoken(shape, W)
        self.components_, self.bias_, self.converged_ = self._told(canonical(W).T), self.bias, False
        self.n_iter_, self.objective_ = best[1] + 1, self.history_[-1]["objective"]


def _blended(roots: Sequence[Array]) -> Array:
    """A root of the mean of W W' / |W|^2: as wide as W, or the leading directions if W is thin."""
    sizes = [max(float(np.linalg.norm(W)), 1e-300) for W in roots]
    B = np.hstack([W / s for W, s in zip(roots, sizes)]) / np.sqrt(len(roots))
    d, r = roots[0].shape
    if d <= B.shape[1]:
        values, V = np.linalg.eigh(B @ B.T)
        W = V[:, ::-1][:, :r] * np.sqrt(np.maximum(values[::-1][:r], 0.0))
    else:
        values, V = np.linalg.eigh(B.T @ B)
        W = B @ V[:, ::-1][:, :r]
    W[~B.any(1)] = 0.0
    return np.asarray(W)
