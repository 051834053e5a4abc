"""A contribution as one long vector: weight times value of every array, then the weight itself."""

from __future__ import annotations

from math import isfinite, prod, sqrt

import numpy as np

from polyclinic.errors import ConfigError, ProtocolMismatch
from polyclinic.privacy.release import Array
from polyclinic.protocol.interfaces import Contribution, Step, Total
from polyclinic.tensors.simd.scan import largest


def only_added(step: Step, name: str) -> None:
    """Refuse a step that shows each site's part: this sum can only add."""
    if step.how != "sum":
        raise ConfigError(
            f"step {step.name!r} asks to be shown each site's part, and {name!r} only ever reveals the sum",
            hint="use aggregation='plain' or a robust rule for this method, or a method that only adds",
        )


def limits(step: Step) -> tuple[float, float]:
    """Largest absolute value of a coordinate (weight times value, noise included) and of the weight."""
    value = step.reach * step.weight_bound
    if not (isfinite(value) and value >= 0 and isfinite(step.weight_bound) and step.weight_bound >= 0):
        raise ConfigError(
            f"step {step.name!r}: a secure sum needs finite public bounds",
            faults=[f"bound {step.bound!r}", f"weight_bound {step.weight_bound!r}", f"noise {step.noise_sd!r}"],
        )
    return value or 1.0, step.weight_bound or 1.0


def flatten(step: Step, mine: Contribution, who: str) -> Array:
    """Vector of ``step.size + 1`` numbers, arrays in the order of their names; refuses what exceeds the public bounds.

    Examples
    --------
    >>> step = Step(1, "factors", {"B": (2,)}, bound=3.0, weight_bound=2.0)
    >>> flatten(step, Contribution({"B": np.array([1.0, -3.0])}, weight=2.0), "north")
    array([ 2., -6.,  2.])
    """
    value, weight = limits(step)
    shapes = {n: np.shape(a) for n, a in mine.arrays.items()}
    faults = [
        f"{n}: shape {shapes.get(n, 'none')}, announced {tuple(s)}"
        for n, s in step.shapes.items()
        if shapes.get(n) != tuple(s)
    ]
    faults += [f"{n}: not announced" for n in mine.arrays if n not in step.shapes]
    vector = np.empty(0)
    if not faults:
        parts = [np.asarray(mine.arrays[n], np.float64).ravel() for n in sorted(step.shapes)]
        vector = np.concatenate([*parts, np.ones(1)])
        vector *= mine.weight
        worst = largest(vector[:-1])
        if not isfinite(worst + mine.weight):
            faults.append("NaN or infinity")
        elif worst > value:
            if step.noise_sd == 0 and worst > value * (1 + 1e-12):
                faults.append(f"largest weighted entry {worst:.6g} exceeds the public bound {value:.6g}")
            # Noise beyond 20 standard deviations: a refusal would tell of the draw, and the clipped number is as private.
            most = value if step.grid is None else np.floor(value / step.grid) * step.grid
            np.clip(vector[:-1], -most, most, out=vector[:-1])
        if not 0 <= mine.weight <= weight:
            faults.append(f"weight {mine.weight!r} outside 0..{weight!r}")
    if faults:
        raise ProtocolMismatch(
            f"site {who!r}, round {step.round}, step {step.name!r}: contribution refused", faults=faults
        )
    return vector


def unflatten(step: Step, vector: Array, members: int, share: float) -> Total:
    """The total from the summed vector; ``noise_sd`` is what the members really added together."""
    arrays, position = {}, 0
    for name in sorted(step.shapes):
        shape = tuple(step.shapes[name])
        size = prod(shape)
        arrays[name] = vector[position : position + size].reshape(shape)
        position += size
    return Total(arrays, float(vector[position]), members, step.noise_sd * sqrt(share * members))
