"""Coordinates in which all directions of W are about equally steep, so that hospitals agree in few rounds.

Correlated features make the loss a thousand times steeper in some directions of W than in others. The correlations of all
patients are public here, so everybody can work with A = H^1/2 W, H = (R + eps I) / (1 + eps), instead of W.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Preconditioner"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """H^1/2, H^-1/2 and the largest eigenvalue of H; all None for the identity."""

    root: Array | None = None
    inverse: Array | None = None
    top: float = 1.0

    @classmethod
    def of(cls, R: Array, eps: float = 0.05) -> Preconditioner:
        """From correlations (d, d)."""
        values, Q = np.linalg.eigh((R + eps * np.eye(len(R))) / (1 + eps))
        values = np.maximum(values, eps / (1 + eps))  # R is positive semidefinite up to rounding
        return cls((Q * np.sqrt(values)) @ Q.T, (Q / np.sqrt(values)) @ Q.T, float(values[-1]))

    def go(self, W: Array) -> Array:
        """W -> A = H^1/2 W."""
        return W if self.root is None else np.asarray(self.root @ W)

    def back(self, A: Array) -> Array:
        """A -> W = H^-1/2 A."""
        return A if self.inverse is None else np.asarray(self.inverse @ A)

    def patients(self, X: Array) -> Array:
        """X -> X H^-1/2, so that X W = (X H^-1/2) A."""
        return X if self.inverse is None else np.asarray(X @ self.inverse)

    def matrix(self, S: Array) -> Array:
        """S -> H^-1/2 S H^-1/2, so that Trace(W'SW) stays the same."""
        return S if self.inverse is None else np.asarray(self.inverse @ S @ self.inverse)

    def shrink(self, T: Array, start: Array, shrinker: Callable[[Array, float], Array], rho: float) -> Array:
        """argmin over W of penalty(W) + rho/2 |H^1/2 W - T|^2, by accelerated proximal gradients with restarts.

        ``shrinker(T, rho)`` is the proximal step for H = I; with H = I it is the answer.
        """
        if self.root is None:
            return shrinker(T, rho)
        H, B = self.root @ self.root, self.root @ T
        W = old = start
        speed = 1.0
        for _ in range(1000):
            faster = 0.5 * (1 + np.sqrt(1 + 4 * speed * speed))
            Y = W + (speed - 1) / faster * (W - old)
            new = shrinker(Y - (H @ Y - B) / self.top, rho * self.top)
            if float(np.vdot(Y - new, new - W)) > 0:  # momentum points uphill
                faster = 1.0
            old, W, speed = W, new, faster
            if np.abs(W - old).max() <= 1e-10 * max(1.0, float(np.abs(W).max())):
                break
        return W
