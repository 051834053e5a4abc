"""Split patients into folds by person, and call held-out ones by their nearest neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError, DataError

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
    splits: list[tuple[Index, Index]] = []
    for r in range(repeats):
        rng = np.random.default_rng([seed, r])
        order = rng.permutation(people)
        if codes is not None:
            first = np.array([codes[np.flatnonzero(who == p)[0]] for p in order])
            order = order[np.argsort(first, kind="stable")]
        for f in range(cv):
            out = np.isin(who, order[f::cv])
            splits.append((np.flatnonzero(~out), np.flatnonzero(out)))
    return splits


def knn_predict(train: Array, labels: ArrayLike, test: Array, *, k: int) -> NDArray[np.generic]:
    """Class of the majority of the k nearest training patients, by distance in the learned space; ties: the nearer wins.

    >>> knn_predict(np.array([[0.0], [1.0], [5.0]]), [0, 0, 1], np.array([[4.0]]), k=1)
    array([1])
    """
    y = np.asarray(labels)
    if not 1 <= k <= len(y):
        raise ConfigError(f"k = {k}, there are {len(y)} training patients")
    distance = np.sum(test**2, 1)[:, None] - 2 * test @ train.T + np.sum(train**2, 1)[None, :]
    neighbours = np.argsort(distance, axis=1, kind="stable")[:, :k]
    classes, codes = np.unique(y, return_inverse=True)
    votes = np.zeros((len(test), len(classes)))
    # a vote a little below 1, falling with the rank, decides ties without overruling a majority
    for rank in range(k):
        np.add.at(votes, (np.arange(len(test)), codes[neighbours[:, rank]]), 1.0 - rank / (k * (k + 1.0)))
    return np.asarray(classes[votes.argmax(1)])
