"""Logistic regression of an outcome on memberships, as in the papers. Studies use :mod:`polyclinic.analysis.outcome`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.interfaces import ordered, seeds
from polyclinic.records.sites.site import Site, Sites, truth_of

__all__ = ["Effect", "Prediction", "area", "logistic", "outcome_auc", "predict", "random_factors_auc", "split"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """Outcome of held-out patients: true labels, predicted risks, and the area under the ROC curve."""

    auc: float
    labels: NDArray[np.generic]
    risks: NDArray[np.float64]
    coefficients: NDArray[np.float64]


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
    return Prediction(area(t, risks), t, risks, weights[1:])


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


def area(labels: NDArray[np.generic], risks: Array) -> float:
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


@dataclass(frozen=True)
class Effect:
    """One phenotype in the regression: log odds per standard deviation of its membership, the others held fixed."""

    phenotype: int
    coefficient: float
    p_value: float


def logistic(memberships: Array, outcome: NDArray[np.generic]) -> tuple[Effect, ...]:
    """Joint logistic regression per standard deviation of the membership, as in DPFact's tables, with Wald tests.

    A ridge of one thousandth of an observation per standard deviation keeps separated data finite; columns nobody
    carries have no effect and are left out.
    """
    from scipy.special import expit, ndtr

    x, y = np.asarray(memberships, np.float64), np.asarray(outcome, np.float64)
    sd = x.std(0)
    usable = np.flatnonzero(sd > 1e-12)
    design = np.column_stack([np.ones(len(x)), (x[:, usable] - x[:, usable].mean(0)) / sd[usable]])
    ridge = np.full(design.shape[1], 1e-3)
    ridge[0] = 0.0
    beta = np.zeros(design.shape[1])
    beta[0] = math.log((y.mean() + 1e-12) / (1 - y.mean() + 1e-12))

    def objective(b: Array) -> float:
        eta = design @ b
        return float(np.logaddexp(0.0, eta).sum() - y @ eta + 0.5 * ridge @ b**2)

    information = np.eye(len(beta))
    for _ in range(60):
        p = expit(design @ beta)
        information = (design * (p * (1 - p))[:, None]).T @ design + np.diag(ridge + 1e-12)
        step = np.linalg.lstsq(information, design.T @ (y - p) - ridge * beta, rcond=None)[0]
        scale, value = 1.0, objective(beta)
        while objective(beta + scale * step) > value and scale > 1e-6:  # Newton may overshoot on separated data
            scale /= 2
        beta = beta + scale * step
        if np.abs(scale * step).max() < 1e-9:
            break
    se = np.sqrt(np.maximum(np.diag(np.linalg.pinv(information)), 0.0))
    ratio = np.abs(beta) / np.maximum(se, 1e-300)
    p_values = 2 * ndtr(-ratio[1:])
    return tuple(Effect(int(r), float(b), float(p)) for r, b, p in zip(usable, beta[1:], p_values))
