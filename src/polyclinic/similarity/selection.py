"""UnPSLCV: choose how sparse, how uncorrelated and how far from the start, on held-out training patients only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.similarity.admm import Problem, State
from polyclinic.similarity.metric import Centre
from polyclinic.similarity.neighbours import knn_predict
from polyclinic.similarity.pairs import LabelPairs, ListedPairs, Pairs, Weighting
from polyclinic.similarity.unpsl import UnPSL
from polyclinic.tensors.blas import one_thread

__all__ = ["UnPSLCV"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def _mark(marks: list[float], score: Callable[[Array], float], variant: str, state: State) -> bool:
    """Score an iterate on the held-out patients; never stops the path."""
    marks.append(score(state.metric_root.T if variant == "paper" else state.metric_root))
    return False


class UnPSLCV(UnPSL):
    """UnPSL whose parameters are chosen by cross-validation over patients; used inside an outer split it is nested.

    Every combination of the lists below is fitted once per fold, and every iteration of its path is scored on the
    held-out patients, so that the best moment to stop is found at no extra cost.

    Parameters
    ----------
    l1s, l2s, start_scales, standardizes
        Values to try.
    iterations
        The longest path.
    cv, repeats
        Folds over patients, and how often they are drawn anew.
    scoring
        ``"knn"``: accuracy of k nearest neighbours; ``"pairs"``: share of held-out pairs called rightly (s >= b).
    k
        Neighbours.

    Attributes
    ----------
    best_params_, best_score_
        What was chosen, and its mean score on held-out patients.
    cv_results_
        One dict per combination: parameters, best iteration, score there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> m = UnPSLCV(l1s=(0.001,), l2s=(0.001,), start_scales=(1.0,), iterations=5, cv=3).fit(X, y)
    >>> sorted(m.best_params_)
    ['iterations', 'l1', 'l2', 'standardize', 'start_scale']
    """

    def __init__(
        self,
        l1s: Sequence[float] = (1e-4,),
        l2s: Sequence[float] = (1e-4,),
        bias: float = 1.0,
        *,
        start_scales: Sequence[float] = (2.0,),
        standardizes: Sequence[Centre] = ("zscore",),
        rank: int | None = None,
        iterations: int = 5,
        inner: int = 5,
        penalty: float = 1.0,
        weighting: Weighting = "mean",
        decorrelation: str = "trace",
        variant: str = "corrected",
        cv: int = 5,
        repeats: int = 2,
        scoring: Literal["knn", "pairs"] = "knn",
        k: int = 3,
        seed: int = 0,
    ) -> None:
        self.l1s = l1s
        self.l2s = l2s
        self.bias = bias
        self.start_scales = start_scales
        self.standardizes = standardizes
        self.rank = rank
        self.iterations = iterations
        self.inner = inner
        self.penalty = penalty
        self.weighting = weighting
        self.decorrelation = decorrelation
        self.variant = variant
        self.cv = cv
        self.repeats = repeats
        self.scoring = scoring
        self.k = k
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None) -> UnPSLCV:
        """Choose and fit; ``groups`` (a person's identifier) keeps all samples of a person in one fold."""
        patients, codes = self._training(X, y)
        who = np.arange(len(codes)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
        if self.scoring == "knn" and min(np.bincount(codes)) < 2:
            raise DataError("a class has one patient only: it cannot be held out")

        def part(rows: Index) -> Pairs:
            return LabelPairs.of(codes[rows], weighting=self.weighting)

        def score(model: UnPSL, W: Array, *, train: Index, test: Index) -> float:
            A, B = ((patients[r] - model.mean_) / model.scale_ @ W for r in (train, test))
            if self.scoring == "knn":
                return float(np.mean(knn_predict(A, codes[train], B, k=min(self.k, len(train))) == codes[test]))
            agree = codes[test][:, None] == codes[test][None, :]
            upper = np.triu_indices(len(test), 1)
            return float(np.mean(((self.bias <= B @ B.T) == agree)[upper]))

        return self._select(patients, part, score, self._folds(who, codes))

    def fit_pairs(self, X: ArrayLike, pairs: ArrayLike, y: ArrayLike) -> UnPSLCV:
        """Choose and fit on judged pairs; a fold holds out patients, and with them all their pairs."""
        from sklearn.utils.validation import validate_data

        patients = np.asarray(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        listed = ListedPairs.of(pairs, y, patients=len(patients))
        index = np.column_stack([listed.left, listed.right])

        def within(rows: Index) -> tuple[NDArray[np.int64], Array]:
            place = np.full(len(patients), -1)
            place[rows] = np.arange(len(rows))
            inside = (place[index] >= 0).all(1)
            return place[index[inside]], listed.sign[inside]

        def part(rows: Index) -> Pairs:
            return ListedPairs.of(*within(rows), patients=len(rows), weighting=self.weighting)

        def score(model: UnPSL, W: Array, *, train: Index, test: Index) -> float:
            B = (patients[test] - model.mean_) / model.scale_ @ W
            p, sign = within(test)
            s = np.einsum("pr,pr->p", B[p[:, 0]], B[p[:, 1]])
            return float(np.mean((s >= self.bias) == (sign > 0))) if len(sign) else 0.0

        return self._select(patients, part, score, self._folds(np.arange(len(patients)), None))

    def _folds(self, who: NDArray[Any], codes: Index | None) -> list[tuple[Index, Index]]:
        people = np.unique(who)
        if not 2 <= self.cv <= len(people):
            raise ConfigError(f"cv = {self.cv}: needs 2 to {len(people)} folds")
        found: list[tuple[Index, Index]] = []
        for r in range(self.repeats):
            rng = np.random.default_rng([self.seed, r])
            order = rng.permutation(people)
            if codes is not None:  # spread the classes evenly over the folds
                first = np.array([codes[np.flatnonzero(who == p)[0]] for p in order])
                order = order[np.argsort(first, kind="stable")]
            for f in range(self.cv):
                out = np.isin(who, order[f :: self.cv])
                found.append((np.flatnonzero(~out), np.flatnonzero(out)))
        return found

    def _candidates(self) -> Iterator[dict[str, Any]]:
        for l1, l2, scale, centre in product(self.l1s, self.l2s, self.start_scales, self.standardizes):
            yield {"l1": l1, "l2": l2, "start_scale": scale, "standardize": centre}

    def _model(self, **chosen: Any) -> UnPSL:
        keep = ("bias", "rank", "iterations", "inner", "penalty", "weighting", "decorrelation", "variant", "seed")
        return UnPSL(**{**{k: getattr(self, k) for k in keep}, "tol": 0.0, **chosen})

    def _select(
        self,
        X: Array,
        part: Callable[[Index], Pairs],
        score: Callable[..., float],
        folds: list[tuple[Index, Index]],
    ) -> UnPSLCV:
        self.cv_results_ = []
        with one_thread():
            candidates = list(self._candidates())
            tables = np.zeros((len(candidates), len(folds), self.iterations))
            for f, (train, test) in enumerate(folds):
                problems: dict[str, tuple[UnPSL, Problem]] = {}  # correlations are the same for all penalties
                for c, chosen in enumerate(candidates):
                    model = self._model(**chosen)
                    model._check()
                    if chosen["standardize"] not in problems:
                        problems[chosen["standardize"]] = model, model._problem(X[train], part(train))
                    fitted, problem = problems[chosen["standardize"]]
                    marks: list[float] = []
                    watch = partial(_mark, marks, partial(score, fitted, train=train, test=test), self.variant)
                    problem = replace(problem, l1=model.l1, l2=model.l2)
                    model._run(problem, model._starts(problem)[0], watch)
                    tables[c, f] = marks
            for chosen, table in zip(candidates, tables):
                # neighbouring iterations are nearly the same metric: their average is a steadier judge than one of them
                smooth = np.convolve(np.pad(table.mean(0), 1, mode="edge"), np.ones(3) / 3, mode="valid")
                best = int(np.argmax(smooth))
                self.cv_results_.append({**chosen, "iterations": best + 1, "score": float(smooth[best])})
            top = max(self.cv_results_, key=lambda r: r["score"])
            self.best_score_ = top["score"]
            self.best_params_ = {k: v for k, v in top.items() if k != "score"}
            final = self._model(**self.best_params_)
            final._learn(X, part(np.arange(len(X))))
        for key in ("mean_", "scale_", "components_", "bias_", "n_iter_", "objective_", "converged_", "history_"):
            setattr(self, key, getattr(final, key))
        return self
