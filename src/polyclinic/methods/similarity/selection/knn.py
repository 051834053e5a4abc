"""k-nearest-neighbour evaluation of a similarity: accuracy, recall, F1 and F2, split by sample or by person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import ConfigError

__all__ = ["halves", "knn_predict", "scores", "standard_error"]

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


def knn_predict(train: Array, labels: ArrayLike, test: Array, *, k: int) -> NDArray[np.generic]:
    """Class of the majority of the k nearest training patients, by distance in the learned space; ties: the nearer wins.

    >>> knn_predict(np.array([[0.0], [1.0], [5.0]]), [0, 0, 1], np.array([[4.0]]), k=1)
    array([1])
    """
    y = np.asarray(labels)
    if not 1 <= k <= len(y):
        raise ConfigError(f"k = {k}, there are {len(y)} training patients")
    distance = np.sum(test**2, 1)[:, None] - 2 * test @ train.T + np.sum(train**2, 1)[None, :]
    near = np.argsort(distance, axis=1, kind="stable")[:, :k]
    classes, codes = np.unique(y, return_inverse=True)
    votes = np.zeros((len(test), len(classes)))
    # a vote a little below 1, falling with the rank, decides ties without overruling a majority
    for rank in range(k):
        np.add.at(votes, (np.arange(len(test)), codes[near[:, rank]]), 1.0 - rank / (k * (k + 1.0)))
    return np.asarray(classes[votes.argmax(1)])


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
