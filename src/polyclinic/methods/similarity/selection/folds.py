"""Folds over persons, and the choice among a method's settings on them: the same for UnPSL and for every baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.selection.knn import knn_predict

__all__ = ["best_of", "folds", "persons"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def persons(groups: ArrayLike | None, samples: int) -> Index:
    """(n,) number of the person behind every sample: ``groups``, or everybody for himself.

    >>> persons(["p", "q", "p"], 3).tolist(), persons(None, 2).tolist()
    ([0, 1, 0], [0, 1])
    """
    if groups is None:
        return np.arange(samples)
    if np.shape(groups) != (samples,):
        raise DataError(f"groups have shape {np.shape(groups)}, expected ({samples},)")
    return np.unique(np.asarray(groups), return_inverse=True)[1].astype(np.int64)


def folds(who: Index, codes: Index | None, *, cv: int, repeats: int, seed: int) -> list[tuple[Index, Index]]:
    """Training and held-out rows; a person's samples stay together, classes are spread evenly over the folds."""
    people = np.unique(who)
    if not 2 <= cv <= len(people):
        raise ConfigError(f"cv = {cv}: needs 2 to {len(people)} folds")
    found: list[tuple[Index, Index]] = []
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        order = rng.permutation(people)
        if codes is not None:
            first = np.array([codes[np.flatnonzero(who == p)[0]] for p in order])
            order = order[np.argsort(first, kind="stable")]
        for f in range(cv):
            out = np.isin(who, order[f::cv])
            found.append((np.flatnonzero(~out), np.flatnonzero(out)))
    return found


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
