"""The gradient's span: who is in a hospital, read from one message of UnPSL (ERRATA E3.11).

A site minimises f_p(W_p) + rho/2 |W_p - W + U_p|^2, so where it stops, the slope of f_p is -rho (W_p + U_p - W): W_p + U_p is
all a coordinator needs. Without redundancy penalty the slope is X'(C + C')X W_p, whose columns lie in the span of the site's
patients: with fewer patients than features, a person who is in that span was there. With the penalty, the slope of the penalty
is known in round 1, where U_p = 0 and the message is W_p itself, and can be taken off. A sum over hospitals that together have
more patients than features spans everything, and tells nothing this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.methods.similarity.federated import ConsensusUnPSL
from polyclinic.methods.similarity.federated_setup import UnPSLPublic
from polyclinic.methods.similarity.redundancy import Redundancy
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Membership:
    """Distance of every candidate from the span of the message, 0 to 1, and how well it tells members apart.

    ``auc`` is the probability that a member lies nearer to the span than a stranger.
    """

    members: Array
    strangers: Array
    auc: float
    rank: int


def slope(message: ArrayLike, before: ArrayLike, rho: float) -> Array:
    """The slope of the site's own loss where it stopped: -rho (W_p + U_p - W), in the protocol's coordinates.

    >>> slope([[1.5]], [[1.0]], 2.0)
    array([[-1.]])
    """
    return np.asarray(-rho * (np.asarray(message, float) - np.asarray(before, float)))


def span_residuals(gradient: Array, candidates: Array, *, tol: float = 1e-4) -> tuple[Array, int]:
    """How far each candidate (n, d) lies from the span of the gradient's columns, relative to its length; and the rank.

    >>> span_residuals(np.array([[1.0], [0.0]]), np.array([[2.0, 0.0], [0.0, 3.0]]))[0]
    array([0., 1.])
    """
    U, s, _ = np.linalg.svd(gradient, full_matrices=False)
    Q = U[:, s > tol * max(float(s[0]), 1e-300)]
    lengths = np.maximum(np.linalg.norm(candidates, axis=1), 1e-300)
    rest = candidates - (candidates @ Q) @ Q.T
    return np.linalg.norm(rest, axis=1) / lengths, Q.shape[1]


def attack(
    sites: Sequence[Site], strangers: ArrayLike, *, victim: str | None, rounds: int = 1, **params: Any
) -> Membership:
    """Run UnPSL and judge membership from what a coordinator sees in the last of ``rounds`` rounds.

    Parameters
    ----------
    sites
        The hospitals.
    strangers
        (m, d) people who are in none of them.
    victim
        The hospital whose own message is seen (``plain``); None: only the sum over hospitals is (``masked``).
    params
        Of :class:`~polyclinic.methods.similarity.federated.ConsensusUnPSL`.
    """
    method = ConsensusUnPSL(rounds=rounds, **params)
    fold = Simulation(method, sites)
    while True:
        if fold.public is not None:
            step = method.next_step(fold.public)
            if step is not None and step.counts and step.round == rounds:
                break
        if not fold.advance():
            raise AssertionError("the run ended before the attack")
    public: UnPSLPublic = fold.public
    frame = method._frame(public)
    before = frame.go(public.W)
    seen = [p for p in fold.parties.values() if victim is None or p.site.name == victim]
    messages = [p.contribute(step, public, fold.roster).arrays["W"] for p in seen]
    gradient = sum((slope(m, before, public.rho) for m in messages), np.zeros_like(before))
    if rounds == 1 and method.params.l2 and method.params.decorrelation == "trace":
        # U_p is still 0, so the message is W_p itself and the penalty's slope is known: the penalty hides nothing
        penalty = Redundancy(frame.matrix(method._redundancy(public).times(np.eye(len(before)))), None)
        gradient = gradient - 2 * method.params.l2 / public.sites * penalty.times(sum(messages, np.zeros_like(before)))
    mean, sd = method._spread(public)
    inside = np.concatenate([p.site.matrix() for p in seen])
    near, rank = span_residuals(gradient, frame.patients((inside - mean) / sd))
    far, _ = span_residuals(gradient, frame.patients((np.asarray(strangers, float) - mean) / sd))
    order = near[:, None] - far[None, :]
    auc = float(np.mean((order < -1e-9) + 0.5 * (np.abs(order) <= 1e-9)))
    return Membership(near, far, auc, rank)
