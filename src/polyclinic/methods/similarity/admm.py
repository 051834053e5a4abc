"""Algorithm 1: learn W by alternating directions, with the row of W as the feature (ERRATA E3.1-E3.5).

The loss is not convex in W (E3.1), so nothing here promises the global optimum: the W-step searches along lines, several
starts are compared by their objective, and every iteration leaves its residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from polyclinic.methods.similarity.pairs import Array, Pairs, pair_loss
from polyclinic.methods.similarity.redundancy import Redundancy, row_norms, row_shrink, shrink_norms

SCALES = 2.0 ** np.arange(-8, 4.5, 0.5)


@dataclass(frozen=True, eq=False)
class Problem:
    """What is minimised: loss of the pairs + l1 sum of row lengths + l2 redundancy.

    Parameters
    ----------
    X
        (n, d) standardised patients.
    pairs, bias
        The judged pairs and the threshold b.
    redundancy, l1, l2
        The penalties' matrix and weights (lambda_1, lambda_2).
    convex
        Penalise sum_kl r_kl^2 |w_k| |w_l| instead of the trace of (3.7).
    literal
        As printed: s = x'W'Wz, rows of W are outputs, not features (E3.2).
    distance
        Judge pairs by distance: see :func:`~polyclinic.methods.similarity.pairs.pair_loss`.
    span
        (d, n) orthonormal Q with X = X Q Q', where features outnumber patients: the loss sees Q'W only, so that the W-step
        works with n instead of d rows (3,571 genes of 38 patients: 38).
    """

    X: Array
    pairs: Pairs
    bias: float
    redundancy: Redundancy
    l1: float
    l2: float
    convex: bool = False
    literal: bool = False
    distance: bool = False
    span: Array | None = None

    def loss(self, W: Array) -> tuple[float, Array]:
        """Loss of the pairs and its gradient for W, eq. (3.16)."""
        if self.literal:
            value, G = pair_loss(self.X @ W.T, self.pairs, self.bias, distance=self.distance)
            return value, np.asarray(G.T @ self.X)
        value, G = pair_loss(self.X @ W, self.pairs, self.bias, distance=self.distance)
        return value, np.asarray(self.X.T @ G)

    @cached_property
    def inside(self) -> Problem:
        """The same loss in the coordinates of ``span``, without penalties; itself where there is no span."""
        if self.span is None:
            return self
        return replace(self, X=self.X @ self.span, l1=0.0, l2=0.0, span=None)

    def penalties(self, W: Array) -> float:
        """The two penalties of (3.8)."""
        second = self.redundancy.exclusive(W) if self.convex else self.redundancy.trace(W)
        return self.l1 * float(row_norms(W).sum()) + (self.l2 * second if self.l2 else 0.0)

    def objective(self, W: Array) -> float:
        """L_1 of (3.8)."""
        return self.loss(W)[0] + self.penalties(W)


@dataclass(frozen=True, eq=False)
class State:
    """One iterate: W fits the pairs, V is sparse, Z uncorrelated; U are the scaled multipliers."""

    W: Array
    V: Array
    Z: Array
    UW: Array
    UV: Array
    iteration: int = 0
    objective: float = np.inf
    primal: float = np.inf
    dual: float = np.inf

    @property
    def metric_root(self) -> Array:
        """The answer: Z, with exactly those rows zero that V has set to zero. As printed it is W."""
        return self.Z * (row_norms(self.V) > 0)[:, None]

    def settled(self, tol: float) -> bool:
        """Both residuals are small against the iterates."""
        size = max(float(np.linalg.norm(self.Z)), 1e-12)
        return self.primal <= tol * size and self.dual <= tol * size


def directions(d: int, rank: int, R: Array | None, rng: np.random.Generator, start: int) -> Array:
    """Where to begin, up to scale: the identity if W is square, leading directions of R (or random ones) if it is thin.

    W = 0 is a stationary point (E3.1). Further starts are random perturbations.
    """
    if start == 0 and rank == d:
        return np.eye(d)
    if start == 0 and R is not None:
        values, vectors = np.linalg.eigh(R)
        top = np.argsort(values)[::-1][:rank]
        Q = vectors[:, top]
        return np.asarray(Q * np.sign(Q[np.abs(Q).argmax(0), np.arange(rank)]))
    G = rng.standard_normal((d, rank)) / np.sqrt(d)
    return np.asarray(np.eye(d) + 0.5 * G) if rank == d else np.linalg.qr(G)[0]


def best_scale(losses: Sequence[float] | Array) -> float:
    """The scale c that explains the pairs best, from the losses at c in :data:`SCALES`, by a parabola around the least.

    >>> best_scale((np.log2(SCALES) - 1.25) ** 2)
    2.378414230005442
    """
    f = np.asarray(losses, float)
    k = int(np.argmin(f))
    if 0 < k < len(f) - 1:
        a, b, c = f[k - 1 : k + 2]
        bend = a - 2 * b + c
        k += float(np.clip(0.5 * (a - c) / bend, -0.5, 0.5)) if bend > 0 else 0.0  # type: ignore[assignment]
    return float(2.0 ** (np.log2(SCALES[0]) + 0.5 * k))


def penalty_of(gradient_norm: float, W: Array, penalty: float) -> float:
    """rho, so that the first W-step moves W by about 1/``penalty`` of its length, whatever the units of the loss."""
    return float(max(penalty * gradient_norm / max(float(np.linalg.norm(W)), 1e-300), 1e-12))


def descend(
    value_and_gradient: Callable[[Array], tuple[float, Array]], start: Array, steps: int, exact: bool = False
) -> tuple[float, Array]:
    """Up to ``steps`` line-searched quasi-Newton steps (L-BFGS); never ends above where it began.

    ``exact``: the minimum to rounding, as the printed argmin of (3.11) and (4.21) asks. Values of a sum cannot rank points
    that are nearer than 1e-8, so that the last steps look for the zero of the gradient
    (lengths of Barzilai and Borwein, the smallest gradient is kept).

    >>> descend(lambda w: (float(((w - 1) ** 2).sum()), 2 * (w - 1)), np.zeros((2, 1)), 10)[1].ravel().round(6)
    array([1., 1.])
    """
    from scipy.optimize import minimize

    def flat(w: Array) -> tuple[float, Array]:
        value, gradient = value_and_gradient(w.reshape(start.shape))
        return value, gradient.ravel()

    steps = 1000 if exact else steps
    options = {"maxiter": steps, "maxfun": 3 * steps + 5, "ftol": 0.0, "gtol": 0.0, "maxcor": 8}
    minimum = minimize(flat, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    if not exact:
        return float(minimum.fun), np.asarray(minimum.x).reshape(start.shape)
    x = best = minimum.x
    slope = least = flat(x)[1]
    move = -1e-6 * slope
    for _ in range(200):
        x, old = x + move, slope
        slope = flat(x)[1]
        if slope @ slope < least @ least:
            best, least = x, slope
        bend = move @ (slope - old)
        if bend <= 0:
            break
        move = -slope * (move @ move) / bend
    return flat(best)[0], np.asarray(best).reshape(start.shape)


def iterate(problem: Problem, s: State, rho: float, inner: int, solver: Callable[[Array], Array]) -> State:
    """One pass of Algorithm 1: (3.11) by line search, (3.12) in closed form, (3.13) by a factorised solve."""
    target, Q = s.Z - s.UW, problem.span
    goal, begin = (target, s.W) if Q is None else (Q.T @ target, Q.T @ s.W)

    def augmented(Y: Array) -> tuple[float, Array]:
        value, G = problem.inside.loss(Y)
        D = Y - goal
        return value + 0.5 * rho * float(np.vdot(D, D)), G + rho * D

    value, Y = descend(augmented, begin, inner, exact=problem.literal)
    loss = value - 0.5 * rho * float(np.linalg.norm(Y - goal) ** 2)
    W = Y if Q is None else target + Q @ (Y - goal)  # across the span nothing pulls W off its target
    T = s.Z - s.UV
    V = (
        shrink_norms(T, problem.redundancy, problem.l1, problem.l2, rho)
        if problem.convex
        else row_shrink(T, problem.l1 / rho)
    )
    Z = solver(W + V + s.UW + s.UV)
    return State(
        W,
        V,
        Z,
        s.UW + W - Z,
        s.UV + V - Z,
        s.iteration + 1,
        loss + problem.penalties(W),
        float(np.hypot(np.linalg.norm(W - Z), np.linalg.norm(V - Z))),
        float(np.sqrt(2.0) * np.linalg.norm(Z - s.Z)),
    )


def solve(
    problem: Problem,
    state: State,
    *,
    rho: float,
    iterations: int,
    inner: int,
    tol: float,
    watch: Callable[[State], bool] | None = None,
) -> tuple[State, list[State]]:
    """Run Algorithm 1 from ``state``; stops when settled, or when ``watch`` returns True. Also returns the path.

    The path keeps figures only, not matrices (those of past iterates are dropped).
    """
    solver = problem.redundancy.solver(0.0 if problem.convex else problem.l2, rho)
    path = []
    empty = np.empty((0, 0))
    for _ in range(iterations):
        state = iterate(problem, state, rho, inner, solver)
        path.append(replace(state, W=empty, V=empty, Z=empty, UW=empty, UV=empty))
        if (watch is not None and watch(state)) or (tol and state.settled(tol)):
            break
    return state, path
