"""The step ``setup`` of the least-squares methods: what all of them must know of the data's size before they begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.methods.rounds.factorization import WeightedParams, power_of_two
from polyclinic.protocol.interfaces import Contribution, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors.weighting import log_sizes, saturation_of


@dataclass(frozen=True)
class Sizes:
    """Of all sites together: patients, nonzeros, the unit of scores on the wire, and n0 (None: patients weigh as counted)."""

    patients: float
    nonzeros: float
    norm: float
    saturation: float | None


def setup(params: WeightedParams) -> Step:
    """The step: patients, nonzeros, squared norm; with saturating weights the two sums of n0 in place of the norm."""
    logs = {"logs": (2,)} if params.estimates else {}
    return Step(0, "setup", {"size": (3,), **logs}, bound=1e15, counts=False)


def own_sizes(params: WeightedParams, site: Site) -> Contribution:
    """One site's part of it."""
    tensor = site.counts()
    norm = tensor.norm_squared() if params.weighting == "none" else 0.0
    arrays = {"size": np.array([norm, float(tensor.patients), float(tensor.nnz)])}
    return Contribution(arrays | {"logs": log_sizes(tensor)} if params.estimates else arrays)


def sizes_of(params: WeightedParams, total: Total) -> Sizes:
    """What follows from the total. The unit ||O||^2 is rounded to a power of two.

    With saturating weights a typical patient has the squared length (1 + n0) / 2, so that is the unit times patients.
    """
    norm, patients, nonzeros = (float(x) for x in total.arrays["size"])
    if params.weighting == "none":
        return Sizes(patients, nonzeros, power_of_two(norm), None)
    n0 = saturation_of(total.arrays["logs"]) if params.saturation is None else params.saturation
    return Sizes(patients, nonzeros, power_of_two(patients * (1 + n0) / 2), n0)
