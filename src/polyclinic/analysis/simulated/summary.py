"""What a simulation knows beside the released figures: how well the model describes all patients, and the planted truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.records.sites.site import Site, truth_of
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.matching import recovery


def simulated_figures(model: object, sites: Sequence[Site]) -> dict[str, object]:
    """Return how well a model describes all patients and, for generated ones, how near it is to the planted phenotypes."""
    value = vars(model).get("result_")
    if not isinstance(value, Phenotypes):
        return {}
    figures: dict[str, object] = dict(value.quality(sites))
    return figures | to_truth(value, truth_of(sites))


@runtime_checkable
class Planted(Protocol):
    """The phenotypes that a generator planted."""

    @property
    def axes(self) -> Sequence[Axis]: ...

    @property
    def factors(self) -> Sequence[NDArray[np.float64]]: ...


def to_truth(model: Phenotypes, truth: object) -> dict[str, float]:
    """Match score (recall) and precision to the planted phenotypes of a generated network, by the codes' labels.

    Empty where nothing was planted, or where the codes differ.
    """
    if not isinstance(truth, Planted):
        return {}
    planted = []
    for axis, own, factor in zip(truth.axes, model.axes, truth.factors):
        if axis.labels is None or own.labels is None:
            planted.append(factor)
            continue
        positions = {label: i for i, label in enumerate(axis.labels)}
        planted.append(
            np.array([factor[positions[x]] if x in positions else np.zeros(factor.shape[1]) for x in own.labels])
        )
    if [len(f) for f in planted] != [len(f) for f in model.factors]:
        return {}
    score = recovery(planted, model.factors)
    return {"fms_to_truth": score.recall, "precision_to_truth": score.precision}
