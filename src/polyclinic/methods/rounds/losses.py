"""Losses for counts and for yes/no: EM whose statistics are sums over patients of (codes, R) numbers.

``poisson`` and ``bernoulli`` as :mod:`polyclinic.tensors.kernels.counts` writes them. The expected events of all modes are
taken at once (given the events of a phenotype its modes are independent, so one sum updates them all and the likelihood
never falls). EM alone is slow; the coordinator steps on in the direction of the last update and, when the likelihood says
that this was too far, goes back to the last good factors. It learns that with the next sum, at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.tensors.kernels.counts import EPS, Likelihood, expected_events
from polyclinic.tensors.likelihood import same_scale
from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]
Loss: TypeAlias = Literal["squares", "poisson", "bernoulli"]

STEPS, FIRST_STEPS = 3, 20  # EM steps of a patient within a round, and before the first
GROW, LARGEST, SHRINK = 1.1, 0.99, 0.5  # how the length of a step further grows, its limit, and what a fall costs
SPREAD: Final = 0.1  # of every starting column is spread over all codes: EM never leaves an exact zero
TOL: Final = 2e-5  # share of the explained log-likelihood that a round gains at the end of a fit


@dataclass(frozen=True)
class Climb:
    """Where the ascent stands: ``factors`` of the public state are tried next; these are the best known."""

    good: tuple[Array, ...]  # columns summing to 1
    value: float  # log-likelihood of `tried`, as last known (-inf: not yet)
    momentum: float = 0.5
    still: int = 0


def begun(factors: Sequence[Array]) -> tuple[Array, ...]:
    """A start whose columns sum to 1 and are nowhere zero: a tenth is spread, half over all phenotypes, half over all codes."""
    flat, _ = same_scale(factors)
    return tuple((1 - SPREAD) * f + SPREAD / 2 * (f.mean(1, keepdims=True) + 1.0 / len(f)) for f in flat)


def likelihood_step(
    tensor: SparseTensor, factors: Sequence[Array], loss: Likelihood, patients: Array | None
) -> tuple[Array, Array, float]:
    """A site's E-step: memberships, expected events (codes of all modes, R), log-likelihood."""
    steps = FIRST_STEPS if patients is None else STEPS
    return expected_events(tensor, np.concatenate(factors), loss, patients, steps=steps)


def climbed(
    climb: Climb, tried: tuple[Array, ...], events: Array, value: float, gain: float
) -> tuple[Climb, tuple[Array, ...]]:
    """The next factors to try, from the expected events at ``tried`` and their log-likelihood.

    ``gain``: a smaller rise of the likelihood counts as standing still.
    """
    if value < climb.value - abs(gain):  # too far: back to the last good factors, whose own step follows
        back = replace(climb, value=-np.inf, momentum=climb.momentum * SHRINK, still=0)
        return back, climb.good
    still = climb.still + 1 if value - climb.value <= gain else 0
    ends = np.cumsum([len(f) for f in tried])[:-1]
    new, _ = same_scale(np.split(events, ends))
    if not np.isfinite(climb.value):  # nothing behind to step on from
        return replace(climb, good=new, value=value, still=still), new
    ahead = []
    for f, old in zip(new, climb.good):
        further = f * np.power(np.maximum(f, EPS) / np.maximum(old, EPS), climb.momentum)
        ahead.append(further / further.sum(0))
    momentum = min(climb.momentum * GROW, LARGEST)
    return Climb(new, value, momentum, still), tuple(ahead)


def only_counts(tensors: Sequence[SparseTensor], loss: Likelihood) -> None:
    """Refuse cells that the loss cannot mean."""
    faults = []
    for t in tensors:
        bad = (
            t.values[(t.values < 0) | (t.values != np.rint(t.values))] if loss == "poisson" else t.values[t.values != 1]
        )
        if len(bad):
            what = "counts of 0, 1, 2, ..." if loss == "poisson" else "1 where something is present"
            faults.append(f"{len(bad)} of {t.nnz} cells are not {what}, e.g. {bad[0]:g}")
    if faults:
        raise ConfigError(
            f"loss='{loss}' does not fit these cells",
            faults=faults,
            hint="loss='poisson' for counts, 'bernoulli' for presence (count='present'), 'squares' for anything",
        )
