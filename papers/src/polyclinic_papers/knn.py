"""k-nearest-neighbour evaluation of a similarity: accuracy, recall, F1 and F2, split by sample or by person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.methods.similarity.selection.folds import folds, knn_predict, persons

__all__ = ["best_of", "halves", "scores", "standard_error"]

Array = NDArray[np.float64]


def scores(truth: ArrayLike, called: ArrayLike, *, positive: object = 1) -> dict[str, float]:
    """Accuracy, and recall, F1 and F2 of the class ``positive`` (F2 weighs recall twice as much as precision).

    >>> {k: round(v, 3) for k, v in scores([1, 1, 0, 0], [1, 0, 0, 0]).items()}
    {'accuracy': 0.75, 'recall': 0.5, 'f1': 0.667, 'f2': 0.556}
    """
    t, c = np.asarray(truth), np.asarray(called)
    hit = float(np.sum((t == positive) & (c == positive)))
    wanted, named = float(np.sum(t == positive)), float(np.sum(c == positive))
    f1, f2 = ((1 + b * b) * hit / (b * b * wanted + named) if wanted + named else 0.0 for b in (1, 2))
    return {"accuracy": float(np.mean(t == c)), "recall": hit / wanted if wanted else 0.0, "f1": f1, "f2": f2}


def halves(
    subjects: Sequence[Any] | NDArray[np.generic],
    *,
    by: Literal["sample", "subject"],
    train: int,
    repeats: int,
    seed: int,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Random splits: ``train`` samples against the rest, or whole persons until ``train`` samples are reached.

    Recordings of one person are near duplicates; split by sample they sit on both sides and flatter every method.

    >>> a, b = next(halves(["p", "p", "q", "q"], by="subject", train=2, repeats=1, seed=0))
    >>> sorted(len(x) for x in (a, b))
    [2, 2]
    """
    who = np.asarray(subjects)
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        if by == "sample":
            order = rng.permutation(len(who))
            yield np.sort(order[:train]), np.sort(order[train:])
            continue
        chosen = np.zeros(len(who), bool)
        for person in rng.permutation(np.unique(who)):
            if chosen.sum() >= train:
                break
            chosen |= who == person
        yield np.flatnonzero(chosen), np.flatnonzero(~chosen)


def standard_error(values: Sequence[float] | Mapping[Any, float]) -> float:
    """Standard deviation of the mean.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    v = np.asarray(list(values.values()) if isinstance(values, Mapping) else values, float)
    return float(v.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else 0.0


def best_of(
    models: Sequence[Any],
    X: Array,
    y: NDArray[np.generic],
    *,
    k: int,
    groups: ArrayLike | None = None,
    cv: int = 5,
    seed: int = 0,
) -> Any:
    """Fit the one of ``models`` whose k nearest neighbours are right most often on held-out training patients.

    Ties: the first. It is fitted on all of ``X``; ``chosen_`` tells its position.
    """
    codes = np.unique(y, return_inverse=True)[1].astype(np.int64)
    right = np.zeros(len(models))
    for train, test in folds(persons(groups, len(codes)), codes, cv=cv, repeats=1, seed=seed):
        for c, model in enumerate(models):
            model.fit(X[train], codes[train])
            called = knn_predict(model.transform(X[train]), codes[train], model.transform(X[test]), k=k)
            right[c] += float(np.sum(called == codes[test]))
    best = models[int(np.argmax(right))]
    best.fit(X, y)
    best.chosen_ = int(np.argmax(right))
    return best
