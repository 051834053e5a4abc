"""Logistic regressions by sums: Newton steps at the coordinator, hospital intercepts that never leave the hospital."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.statistics.intervals import logf
from polyclinic.tensors import deterministic as ordered

Array = NDArray[np.float64]
# limit: of the encoding
BOUND: Final = 2.0**12  # of every sum, divided by the number of patients; columns are cut to 10 units
# limit: of a step far from the optimum
LONGEST: Final = 5.0  # of a Newton step, in units
# limit: precision of the coefficients
TOLERANCE: Final = 1e-7
# limit: Newton steps
MOST: Final = 30


@dataclass(frozen=True)
class Cut:
    """One site's (or the total) value, score and information of one regression, at one point."""

    height: float
    score: Array
    information: Array

    def arrays(self, name: str) -> dict[str, Array]:
        """What is sent: the upper triangle only."""
        upper = self.information[np.triu_indices(len(self.score))]
        return {f"{name}.g": self.score, f"{name}.i": upper, f"{name}.l": np.array([self.height])}


def shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of :meth:`Part.arrays`."""
    return {f"{name}.g": (width,), f"{name}.i": (width * (width + 1) // 2,), f"{name}.l": (1,)}


def unpacked(arrays: Mapping[str, Array], name: str, scale: float = 1.0) -> Cut:
    """A part from what was sent."""
    g = np.asarray(arrays[f"{name}.g"]) * scale
    full = np.zeros((len(g), len(g)))
    upper = np.triu_indices(len(g))
    full[upper] = np.asarray(arrays[f"{name}.i"]) * scale
    full = full + np.triu(full, 1).T
    return Cut(float(arrays[f"{name}.l"][0]) * scale, g, full)


def _expit(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(x / 2.0))


def intercept(eta: Array, y: Array, prior: float = 0.0) -> float:
    """argmax_a of the log-likelihood of eta + a, one-dimensional Newton with bisection; ``prior`` half-events on each side."""
    low, high, a = -40.0, 40.0, 0.0
    middle = float(eta.mean()) if len(eta) else 0.0
    for _ in range(80):
        mu = _expit(eta + a)
        probability = float(_expit(np.array([middle + a]))[0])
        slope = float((y - mu).sum()) + prior * (0.5 - probability) * 2
        low, high = (a, high) if slope > 0 else (low, a)
        curve = float((mu * (1 - mu)).sum()) + prior * probability * (1 - probability) * 2
        next_intercept = a + slope / max(curve, 1e-12)
        next_intercept = next_intercept if low < next_intercept < high else (low + high) / 2
        if abs(next_intercept - a) < 1e-13 * max(1.0, abs(a)):
            break
        a = next_intercept
    return a


def profile(x: Array, y: Array, beta: Array, *, own: bool) -> Cut:
    """One site's part of a regression.

    With ``own`` the site's intercept is profiled out: a = argmax l(x beta + a), g = X'(y - mu),
    I = X'VX - (X'v)(X'v)' / sum v. A site with one outcome only says nothing about slopes and sends zeros.
    """
    p = len(beta)
    if not len(y) or (own and (y.min() == y.max())):
        return Cut(0.0, np.zeros(p), np.zeros((p, p)))
    eta = x @ beta
    eta = np.clip(eta + (intercept(eta, y) if own else 0.0), -60.0, 60.0)
    mu = _expit(eta)
    v = mu * (1 - mu)
    information = (x * v[:, None]).T @ x
    if own:
        pull = x.T @ v
        information = information - np.outer(pull, pull) / max(float(v.sum()), 1e-300)
    return Cut(float((y * eta - np.logaddexp(0.0, eta)).sum()), x.T @ (y - mu), information)


@dataclass(frozen=True)
class Climbs:
    """Several maximisations, each one Newton step a round; a step that goes down is halved."""

    base: tuple[Array, ...]
    move: tuple[Array, ...]
    information: tuple[Array, ...]
    height: Array  # (J,) penalised, at the base
    first: Array  # (J,) the same at the start
    done: NDArray[np.bool_]
    steps: NDArray[np.int64]

    @classmethod
    def at(cls, starts: Sequence[Array]) -> Climbs:
        """All at their starts; regressions without a column are finished when they were seen once."""
        j = len(starts)
        return cls(
            tuple(np.array(s, np.float64) for s in starts),
            tuple(np.zeros(len(s)) for s in starts),
            tuple(np.zeros((len(s), len(s))) for s in starts),
            np.full(j, -1e300),
            np.zeros(j),
            np.zeros(j, bool),
            np.zeros(j, np.int64),
        )

    def trial(self, j: int) -> Array:
        """Where regression j is looked at next."""
        return self.base[j] + self.move[j]

    @property
    def active(self) -> list[int]:
        """Those that go on."""
        return [j for j in range(len(self.base)) if not self.done[j]]

    def seen(self, parts: Mapping[int, Cut], penalised: Mapping[int, NDArray[np.bool_]]) -> Climbs:
        """One round: accept or halve every active step; ``penalised`` says which coefficients have the log-F prior."""
        base, move, information = list(self.base), list(self.move), list(self.information)
        height, first = self.height.copy(), self.first.copy()
        converged, steps = self.done.copy(), self.steps.copy()
        for j, part in parts.items():
            trial, prior = self.trial(j), np.flatnonzero(penalised[j])
            density, score, curvature = logf(trial[prior])
            value = part.height + density
            g, i = part.score.copy(), part.information.copy()
            g[prior] += score
            i[prior, prior] += curvature
            first[j] = value if steps[j] == 0 else first[j]
            steps[j] += 1
            if value < height[j] - 1e-9 * max(1.0, abs(height[j])) and steps[j] < MOST:
                move[j] = move[j] / 2
                continue
            base[j], height[j], information[j] = trial, value, i
            # a coefficient about which nothing is known stays where it is
            step: Array = ordered.product(inverse(i), g[:, None])[:, 0] if len(g) else g
            longest = float(np.abs(step).max(initial=0.0))
            if longest < TOLERANCE or steps[j] >= MOST:
                base[j], move[j], converged[j] = (
                    trial + (step if longest < TOLERANCE else 0.0),
                    np.zeros(len(trial)),
                    True,
                )
                continue
            move[j] = step * min(1.0, LONGEST / longest)
        return replace(
            self,
            base=tuple(base),
            move=tuple(move),
            information=tuple(information),
            height=height,
            first=first,
            done=converged,
            steps=steps,
        )

    def covariance(self, j: int) -> Array:
        """Inverse information at the maximum."""
        if not len(self.base[j]):
            return self.information[j]
        return inverse(self.information[j])


def inverse(symmetric: Array) -> Array:
    """Moore and Penrose's inverse of a symmetric matrix, in one written order; eigenvalues below 1e-12 of the largest are 0.

    Scaled by the roots of its diagonal first: Jacobi's rotations are then accurate for coefficients of very different information.

    >>> inverse(np.array([[2.0, 0.0], [0.0, 0.0]])).round(12).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    size = np.sqrt(np.maximum(np.diagonal(symmetric), 0.0))
    scale = np.where(size > 1e-12 * size.max(initial=0.0), 1.0 / np.where(size > 0, size, 1.0), 0.0)
    values, vectors = ordered.eigen(symmetric * scale[:, None] * scale[None, :])
    nonzero = np.abs(values) > 1e-12 * np.abs(values).max(initial=0.0)
    weights = np.where(nonzero, 1.0 / np.where(nonzero, values, 1.0), 0.0)
    out: Array = ordered.product(vectors * weights, np.ascontiguousarray(vectors.T))
    return out * scale[:, None] * scale[None, :]
