"""Do phenotypes predict the outcome? Logistic regression on memberships, as in the papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.interfaces import ordered, seeds
from polyclinic.records.sites.site import Site, Sites, truth_of

__all__ = ["Labelled", "Prediction", "labelled", "outcome_auc", "predict", "random_factors_auc", "split"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Outcome of held-out patients: true labels, predicted risks, and the area under the ROC curve."""

    auc: float
    labels: NDArray[np.generic]
    risks: NDArray[np.float64]
    coefficients: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Labelled:
    """The patients whose outcome is known; the others are left out of outcome models and of nothing else.

    Attributes
    ----------
    sites
        Every site that has at least one of them, with these patients only.
    unknown
        How many patients have no known outcome.
    without
        Sites where nobody has one.
    """

    sites: Sites
    unknown: int
    without: tuple[str, ...]


def labelled(sites: Sequence[Site]) -> Labelled:
    """Leave out the patients whose label is unknown (NaN, or -1 among whole numbers), before anything is split.

    >>> a, b = Site("a", features=[[0.0], [1.0]], labels=[0, 1]), Site("b", features=[[2.0]])
    >>> found = labelled([a, b])
    >>> [s.patients for s in found.sites], found.unknown, found.without
    ([2], 1, ('b',))
    """
    labelled_sites, unknown, unlabelled = [], 0, []
    for s in sites:
        is_labelled = np.zeros(s.patients, bool)
        if s.labels is not None:
            y = np.asarray(s.labels)
            is_labelled = (
                np.isfinite(y) if y.dtype.kind == "f" else y != -1 if y.dtype.kind == "i" else np.ones(len(y), bool)
            )
        unknown += int((~is_labelled).sum())
        if is_labelled.all() and s.patients:
            labelled_sites.append(s)
        elif is_labelled.any():
            labelled_sites.append(s.take(is_labelled))
        else:
            unlabelled.append(s.name)
    return Labelled(Sites(labelled_sites, truth_of(sites)), unknown, tuple(unlabelled))


def split(sites: Sequence[Site], share: float = 0.6, seed: int = 0) -> tuple[Sites, Sites]:
    """Training and test patients of every site; ``share`` of each site's patients train (DPFact 60/40, LocalTF 80/20)."""
    train, test = [], []
    for s in ordered(sites):
        order = seeds(seed, "split", s.name).permutation(s.patients)
        cut = round(share * s.patients)
        train.append(s.take(np.sort(order[:cut])))
        test.append(s.take(np.sort(order[cut:])))
    truth = truth_of(sites)
    return Sites(train, truth), Sites(test, truth)


def predict(train: ArrayLike, train_labels: ArrayLike, test: ArrayLike, test_labels: ArrayLike) -> Prediction:
    """Logistic regression from memberships (standardised on the training patients) to a 0/1 outcome."""
    x, z = np.asarray(train, np.float64), np.asarray(test, np.float64)
    y, t = np.asarray(train_labels).astype(int), np.asarray(test_labels).astype(int)
    if len(set(y.tolist())) < 2 or len(set(t.tolist())) < 2:
        raise DataError(
            "the outcome has one value only, in training or test patients", hint="use more patients, or another split"
        )
    mean, sd = x.mean(0), x.std(0)
    sd[sd == 0] = 1.0
    weights = ridge_logistic((x - mean) / sd, y)
    risks = _sigmoid((z - mean) / sd @ weights[1:] + weights[0])
    return Prediction(_auc(t, risks), t, risks, weights[1:])


def ridge_logistic(x: Array, y: NDArray[np.generic]) -> Array:
    """Intercept and weights that minimise ``sum_i log(1 + exp(-s_i (b + x_i w))) + |w|^2 / 2``, ``s_i = 2 y_i - 1``.

    Newton's method with step halving; the penalty makes the optimum unique. (The same model as scikit-learn's default, whose
    import alone takes seconds.)
    """
    design = np.column_stack([np.ones(len(x)), x])
    penalty = np.r_[0.0, np.ones(x.shape[1])]
    target = (y == y.max()).astype(np.float64)

    def loss(w: Array) -> float:
        return float(np.logaddexp(0.0, design @ w).sum() - target @ (design @ w) + 0.5 * penalty @ w**2)

    w = np.zeros(design.shape[1])
    value = loss(w)
    for _ in range(100):
        p = _sigmoid(design @ w)
        gradient = design.T @ (p - target) + penalty * w
        step = np.linalg.solve((design * (p * (1 - p))[:, None]).T @ design + np.diag(penalty + 1e-12), gradient)
        size = 1.0
        while (next_value := loss(w - size * step)) > value and size > 1e-6:
            size /= 2
        if not next_value < value:
            break
        w, value = w - size * step, next_value
        if float(np.abs(gradient).max()) < 1e-9 * len(x):
            break
    return w


def _sigmoid(t: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -t)))


def _auc(labels: NDArray[np.generic], risks: Array) -> float:
    """Share of pairs (ill, well) in which the ill one has the larger risk; ties count half."""
    _, position, counts = np.unique(risks, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ill = labels == labels.max()
    n = int(ill.sum())
    return float((middle[position[ill]].sum() - n * (n + 1) / 2) / (n * (len(labels) - n)))


def outcome_auc(
    model: Any, sites: Sequence[Site], share: float = 0.6, seed: int = 0, *, fit: bool = True
) -> Prediction:
    """Learn phenotypes on training patients only, place test patients by ``transform``, predict their outcome.

    With ``fit=False`` the fitted ``model`` is used as it is (its factors never saw a label either way).
    """
    train, test = split(sites, share, seed)
    fitted = model
    if fit:  # how sums are taken changes no model, but for the noise that sites must add
        cheap = {} if noisy(model.params.privacy) else {"aggregation": "plain"}
        fitted = model.with_params(**cheap).fit(train)
    a = np.concatenate([fitted.transform(s) for s in train])
    b = np.concatenate([fitted.transform(s) for s in test])
    labels = [np.concatenate([np.asarray(s.labels) for s in part]) for part in (train, test)]
    return predict(a, labels[0], b, labels[1])


def random_factors_auc(sites: Sequence[Site], rank: int, share: float = 0.6, seed: int = 0) -> float:
    """AUC of frozen random factors: what a model that learned nothing reaches. AUC alone proves little."""
    from polyclinic.methods.starts.random import start
    from polyclinic.tensors.cp import solve_memberships

    train, test = split(sites, share, seed)
    factors = start(train[0].counts().shape[1:], rank, seed)
    a, b = (np.concatenate([solve_memberships(s.counts(), factors) for s in part]) for part in (train, test))
    labels = [np.concatenate([np.asarray(s.labels) for s in part]) for part in (train, test)]
    return predict(a, labels[0], b, labels[1]).auc
