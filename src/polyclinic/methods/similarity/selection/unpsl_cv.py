"""UnPSLCV: choose how sparse, how uncorrelated and how far from the start, on held-out training patients only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.admm import Problem, State
from polyclinic.methods.similarity.metric import canonical, spread
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, Pairs, near_pairs
from polyclinic.methods.similarity.params import Reach, UnPSLCVParams
from polyclinic.methods.similarity.selection.folds import folds, knn_predict, persons
from polyclinic.methods.similarity.unpsl import UnPSL
from polyclinic.protocol.params import checked
from polyclinic.util.threads import one_thread

Array = NDArray[np.float64]
Index = NDArray[np.int64]
# what None means: neighbours of labelled patients want a metric near the Euclidean one, judged pairs a good fit
LABELS: Final[dict[str, Any]] = {
    "l1s": (1e-3,), "l2s": (1e-3,), "start_scales": (1.0,), "standardizes": ("zscore",),
    "compares": ("distance",), "reaches": ("all", "near"), "decorrelation": "trace",
    "penalty": 3.0, "iterations": 8, "cv": 5, "repeats": 2,
}  # fmt: skip
WIDE: Final[dict[str, Any]] = {  # more features than patients
    **LABELS, "compares": ("product",), "reaches": ("all",), "iterations": 5, "repeats": 1,
}  # fmt: skip
JUDGED: Final[dict[str, Any]] = {
    "l1s": (1e-4,), "l2s": (3e-4,), "start_scales": (2.0, 3.0), "standardizes": ("scale",),
    "compares": ("product",), "reaches": ("all",), "decorrelation": "convex",
    "penalty": 0.2, "iterations": 60, "cv": 4, "repeats": 1,
}  # fmt: skip
# what changes when few features are asked for: stronger sparsity on a path long enough for rows to vanish
FEW: Final[dict[str, dict[str, Any]]] = {
    "labels": {"l1s": (1e-2, 3e-2, 6e-2, 1e-1), "l2s": (1e-2,), "reaches": ("near",), "decorrelation": "convex", "iterations": 30},
    "wide": {"l1s": (3e-2, 1e-1, 3e-1), "iterations": 30},
    "judged": {"l1s": (3e-4, 1e-3, 3e-3, 1e-2), "start_scales": (2.0,)},
}  # fmt: skip
TRIED: Final = {"labels": LABELS, "wide": WIDE, "judged": JUDGED}
CANDIDATE: Final = {  # a parameter of UnPSL, and the list of its values
    "l1": "l1s", "l2": "l2s", "start_scale": "start_scales", "standardize": "standardizes", "compare": "compares",
    "reach": "reaches",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Trial:
    """On whom settings are tried.

    Parameters
    ----------
    X
        (n, d) patients.
    part
        Pairs of some patients.
    score
        Marks of held-out patients (or one mark of a fold) from embedded training and held-out patients and their positions.
    splits
        Training and held-out positions of every fold.
    by_patient
        Whether every patient has a mark of its own.
    """

    X: Array
    part: Callable[[Index, Reach], Pairs]
    score: Callable[[Array, Array, Index, Index], Array]
    splits: list[tuple[Index, Index]]
    by_patient: bool


@dataclass(frozen=True, eq=False)
class Grid:
    """Settings and how they did: ``marks`` (candidate, iteration, patient or fold), ``features`` used on average."""

    settings: dict[str, Any]
    candidates: list[dict[str, Any]]
    marks: Array
    features: Array

    @property
    def best(self) -> tuple[int, int]:
        means = self.marks.mean(-1)
        c, t = np.unravel_index(means.argmax(), means.shape)
        return int(c), int(t)

    def as_good(self, errors: float) -> NDArray[np.bool_]:
        """Which settings are within so many standard errors of the best."""
        loss, doubt = paired(self.top - self.marks)
        return np.asarray(loss <= errors * doubt + 1e-12)

    @property
    def fewest(self) -> tuple[int, int]:
        """Of all within one standard error of the best the one with the fewest features."""
        loss, candidates = paired(self.top - self.marks)[0], self.as_good(1)
        c, t = np.argwhere(candidates)[np.lexsort((loss[candidates], self.features[candidates]))[0]]
        return int(c), int(t)

    @property
    def top(self) -> Array:
        """Marks of the best."""
        return np.asarray(self.marks[self.best])

    def setting(self, c: int, t: int) -> dict[str, Any]:
        return {**self.candidates[c], "iterations": t + 1}

    def results(self) -> list[dict[str, Any]]:
        """Every candidate at its best iteration."""
        means = self.marks.mean(-1)
        return [
            {**self.setting(c, t), "score": float(means[c, t]), "features": float(self.features[c, t])}
            for c, t in enumerate(int(row.argmax()) for row in means)
        ]


def paired(differences: Array) -> tuple[Array, Array]:
    """Mean over the last axis, and its standard error."""
    n = differences.shape[-1]
    error = differences.std(-1, ddof=1) / np.sqrt(n) if n > 1 else np.zeros(differences.shape[:-1])
    return differences.mean(-1), error


class UnPSLCV(UnPSL):
    """Fit UnPSL with parameters chosen by cross-validation over patients. Inside an outer split it is nested.

    Every combination of the lists below is fitted once per fold, and every iteration of its path is scored on the
    held-out patients, so that the best moment to stop is found at no extra cost. Few patients cannot tell neighbouring
    settings apart: the metrics of all within two standard errors of the best (paired, over patients) are averaged.

    Parameters
    ----------
    l1s, l2s, start_scales, standardizes, compares, reaches
        Values to try. None: a few that suit labels (``fit``) or judged pairs (``fit_pairs``); ``tried_`` lists them.
    iterations
        The longest path.
    decorrelation, penalty
        As in :class:`UnPSL`. None: the printed trace for labels; the convex form (E3.4), on whose longer path redundant
        features fade, for judged pairs.
    cv, repeats
        Folds over patients, and how often they are drawn again.
    scoring
        ``"knn"``: accuracy of k nearest neighbours; ``"pairs"``: share of held-out pairs called rightly (s >= b).
    k
        Neighbours.
    bias, rank, inner, weighting, seed
        As in :class:`UnPSL`.
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

    Params = UnPSLCVParams

    @property
    def _choice(self) -> UnPSLCVParams:
        """The parameters, checked: one error names every wrong one."""
        return checked(UnPSLCVParams, self.get_params(), type(self).__name__)  # type: ignore[type-var]

    def fit(self, X: ArrayLike, y: ArrayLike, *, groups: ArrayLike | None = None) -> UnPSLCV:
        """Choose and fit; ``groups`` (a person's identifier) keeps all samples of a person in one fold."""
        p = self._choice
        patients, codes = self._training(X, y)
        person = persons(groups, len(codes))
        fewest = int(np.bincount(codes).min())
        if p.scoring == "knn" and fewest < 2:
            raise DataError("a class has one patient only: it cannot be held out")
        kind = "wide" if patients.shape[1] >= len(patients) else "labels"
        settings = self._settings(kind, max(2, min(fewest, len(np.unique(person)))))

        def part(rows: Index, reach: Reach) -> Pairs:
            if reach == "all":
                return LabelPairs.of(codes[rows], weighting=p.weighting)
            mean, sd = spread(patients[rows], "zscore")
            return near_pairs((patients[rows] - mean) / sd, codes[rows], weighting=p.weighting)

        def score(A: Array, B: Array, train: Index, test: Index) -> Array:
            if p.scoring == "knn":
                called = knn_predict(A, codes[train], B, k=min(p.k, len(train)))
                return np.asarray(called == codes[test], np.float64)
            agree = codes[test][:, None] == codes[test][None, :]
            upper = np.triu_indices(len(test), 1)
            return np.asarray(((p.bias <= B @ B.T) == agree)[upper].mean(keepdims=True))

        splits = folds(person, codes, cv=settings["cv"], repeats=settings["repeats"], seed=p.seed)
        splits = [(train, test) for train, test in splits if len(np.unique(codes[train])) > 1]
        return self._select(settings, Trial(patients, part, score, splits, p.scoring == "knn"))

    def fit_pairs(self, X: ArrayLike, pairs: ArrayLike, y: ArrayLike) -> UnPSLCV:
        """Choose and fit on judged pairs; a fold holds out patients, and with them all their pairs."""
        from sklearn.utils.validation import validate_data

        p = self._choice
        patients = np.asarray(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        judged_pairs = ListedPairs.of(pairs, y, patients=len(patients))
        if min(judged_pairs.counts()) == 0:
            raise DataError("all pairs are judged alike: a similarity needs similar and dissimilar pairs")
        index = np.column_stack([judged_pairs.left, judged_pairs.right])
        settings = self._settings("judged", len(patients))

        def within(rows: Index) -> tuple[NDArray[np.int64], Array]:
            place = np.full(len(patients), -1)
            place[rows] = np.arange(len(rows))
            both_in = (place[index] >= 0).all(1)
            return place[index[both_in]], judged_pairs.sign[both_in]

        def part(rows: Index, reach: Reach) -> Pairs:
            if reach != "all":
                raise ConfigError("reach 'near' is for labelled patients; judged pairs are what they are")
            return ListedPairs.of(*within(rows), patients=len(rows), weighting=p.weighting)

        def score(A: Array, B: Array, train: Index, test: Index) -> Array:
            pair, sign = within(test)
            s = np.einsum("pr,pr->p", B[pair[:, 0]], B[pair[:, 1]])
            return np.asarray([np.mean((s >= p.bias) == (sign > 0))])

        splits = folds(np.arange(len(patients)), None, cv=settings["cv"], repeats=settings["repeats"], seed=p.seed)
        splits = [(a, b) for a, b in splits if len(np.unique(within(a)[1])) > 1 and len(within(b)[1])]
        return self._select(settings, Trial(patients, part, score, splits, by_patient=False))

    def fit_sites(self, sites: object, **options: object) -> UnPSL:
        """Not offered: folds would have to be drawn across hospitals."""
        raise ConfigError(
            "UnPSLCV chooses on patients it can see, not between hospitals",
            hint="choose at one hospital with UnPSLCV().fit(X, y), then UnPSL(l1=..., l2=...).fit_sites(sites)",
        )

    def _settings(self, kind: str, most_folds: int) -> dict[str, Any]:
        """What is tried; also the folds, of which there cannot be more than patients of a class."""
        p = self._choice
        default = TRIED[kind] | (FEW[kind] if p.prefer == "few" else {})
        settings = {k: v if getattr(p, k) is None else getattr(p, k) for k, v in default.items()}
        # what a person names is tried, and nothing else
        by_person = any(getattr(p, k) is not None for k in FEW["labels"])
        settings["sparse"] = None if by_person or kind != "labels" else FEW[kind]
        if p.cv is None:
            settings["cv"] = min(settings["cv"], most_folds)
        self.tried_ = settings
        return settings

    def _candidates(self, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """Every combination of the values to try."""
        values = product(*(settings[name] for name in CANDIDATE.values()))
        return [dict(zip(CANDIDATE, combination)) for combination in values]

    def _model(self, settings: dict[str, Any], **candidate: Any) -> UnPSL:
        common = {k: getattr(self._choice, k) for k in ("bias", "rank", "inner", "weighting", "seed")}
        path = {k: settings[k] for k in ("decorrelation", "penalty", "iterations")}
        return UnPSL(**{**common, **path, "tol": 0.0, **candidate})

    def _select(self, settings: dict[str, Any], trial: Trial) -> UnPSLCV:
        if not trial.splits:
            raise DataError("no fold leaves both similar and dissimilar pairs to learn from", hint="more patients")
        p = self._choice
        with one_thread():
            grid = self._scored(settings, trial)
            results = grid.results()
            if trial.by_patient and p.prefer == "accuracy" and settings["sparse"] is not None:
                # A metric of few features is another world; it is entered only where it is better beyond doubt.
                sparse = self._scored({**settings, **settings["sparse"]}, trial)
                gain, doubt = paired(sparse.top - grid.top)
                results += sparse.results()
                grid = sparse if gain > 2 * doubt + 1e-12 else grid
            best = grid.fewest if p.prefer == "few" else grid.best
            members = np.zeros(grid.marks.shape[:2], bool)
            members[best] = True
            if p.blend and trial.by_patient and p.prefer == "accuracy":
                members |= grid.as_good(2)
            self.cv_results_ = results
            self.members_ = [grid.setting(int(a), int(b)) for a, b in np.argwhere(members)]
            self.best_score_, self.best_params_ = float(grid.marks[best].mean()), grid.setting(*best)
            self._settle(grid, members, best, trial)
        return self

    def _scored(self, settings: dict[str, Any], trial: Trial) -> Grid:
        """Every candidate at every iteration, scored on held-out patients (or, of pairs, fold by fold)."""
        candidates = self._candidates(settings)
        for candidate in candidates:
            _ = self._model(settings, **candidate)._params  # all of them are checked before any is fitted
        units = len(trial.X) if trial.by_patient else len(trial.splits)
        hits, times = np.zeros((len(candidates), settings["iterations"], units)), np.zeros(units)
        features = np.zeros(hits.shape[:2])
        for f, (train, test) in enumerate(trial.splits):
            place = test if trial.by_patient else np.array([f])
            times[place] += 1
            for c, (model, problem, roots) in enumerate(self._paths(settings, candidates, trial, train)):
                del problem
                B = (trial.X[test] - model.mean_) / model.scale_
                A = (trial.X[train] - model.mean_) / model.scale_ if trial.by_patient else B
                for t, W in enumerate(roots):
                    hits[c, t, place] += trial.score(A @ W, B @ W, train, test)
                    features[c, t] += np.count_nonzero(W.any(1)) / len(trial.splits)
        marks = hits[:, :, times > 0] / times[times > 0]
        # neighbouring iterations are nearly the same metric: their average is a steadier judge than one of them
        padded = np.pad(marks, ((0, 0), (1, 1), (0, 0)), mode="edge")
        return Grid(settings, candidates, (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3, features)

    def _paths(
        self,
        settings: dict[str, Any],
        candidates: list[dict[str, Any]],
        trial: Trial,
        rows: Index,
    ) -> Iterator[tuple[UnPSL, Problem, list[Array]]]:
        """For every candidate its model, its problem and the W of every iteration."""
        problems: dict[str, tuple[UnPSL, Problem]] = {}  # correlations are the same for all penalties
        pairs = {reach: trial.part(rows, reach) for reach in {c["reach"]: None for c in candidates}}
        for candidate in candidates:
            model = self._model(settings, **candidate)
            if candidate["standardize"] not in problems:
                problems[candidate["standardize"]] = model, model._problem(trial.X[rows], pairs[candidate["reach"]])
            first, problem = problems[candidate["standardize"]]
            model.mean_, model.scale_ = first.mean_, first.scale_
            problem = replace(
                problem,
                pairs=pairs[candidate["reach"]],
                l1=candidate["l1"],
                l2=candidate["l2"],
                distance=candidate["compare"] == "distance",
            )
            states: list[State] = []

            def keep(state: State, states: list[State] = states) -> bool:
                states.append(state)
                return False

            _, model.history_ = model._run(problem, model._starts(problem)[0], keep)
            yield model, problem, [s.metric_root for s in states]

    def _settle(self, grid: Grid, members: NDArray[np.bool_], best: tuple[int, int], trial: Trial) -> None:
        """Fit the members on all patients and average their metrics, each of trace 1; one member stays as it is."""
        use = np.flatnonzero(members.any(1))
        longest = {**grid.settings, "iterations": int(np.flatnonzero(members.any(0))[-1]) + 1}
        roots, single, rows = [], int(members.sum()) == 1, np.arange(len(trial.X))
        paths = self._paths(longest, [grid.candidates[c] for c in use], trial, rows)
        for c, (model, problem, path) in zip(use, paths):
            roots += [path[t] for t in np.flatnonzero(members[c])]
            if c == best[0]:
                final, shape = model, problem
                self.history_ = model.history_[: best[1] + 1]
        W = roots[0] if single else _blended(roots)
        self.mean_, self.scale_ = final.mean_, final.scale_
        p = final._params
        if not (single and p.compare == "product" and p.reach == "all"):
            W = final._calibrated(replace(shape, pairs=trial.part(rows, "all")), W)
        W = final._spoken(shape, W)
        self.components_, self.bias_, self.converged_ = self._told(canonical(W).T), p.bias, False
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
