"""Models of run folders that were written before there was a model file: ``outcome.npz`` and ``outcome.json`` as a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.models.file import Learned
from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.moments import Moments
from polyclinic.models.origin import Origin
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.models.phenotypes.projection import LeastSquares
from polyclinic.models.similarity import Similarity
from polyclinic.privacy.card.card import Card
from polyclinic.tensors.axis import Axis

__all__ = ["from_outcome"]

BY_EVENTS: Final = ("dpem",)  # their way to place patients was not in the folder


def from_outcome(
    described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, to_show: bool = False
) -> Learned | None:
    """The model of an old run folder; None where it learned nothing that is a value.

    Parameters
    ----------
    described
        ``outcome.json``.
    arrays
        ``outcome.npz``.
    to_show
        For a report, which places nobody: also where the folder does not say how patients are placed.
    """
    parameters = dict(described["parameters"])
    origin = Origin(
        str(described["method"]),
        int(described.get("version", 1)),
        parameters,
        Card.from_dict(described["privacy"]),
        tuple(dict(h) for h in described.get("history") or ()),
    )
    names = described.get("columns")
    columns = None if names is None else tuple(str(c) for c in names)
    match arrays:
        case {"factor1": _, "weights": weights}:
            if origin.method in BY_EVENTS and not to_show:
                raise DataError(
                    f"this run of {origin.method!r} was written before models were files: how patients are placed is not in it",
                    hint="run the study again; its report can still be read",
                )
            axes = tuple(Axis.from_json(a) for a in described["axes"])
            modes = range(1, len(axes) + 1)
            factors = tuple(arrays[f"factor{n}"] for n in modes)
            sign = bool(parameters.get("nonnegative", all((f >= 0).all() for f in factors)))
            placing = LeastSquares(sign, parameters.get("zeros", "observed"), described.get("saturation"))
            shown = tuple(arrays[f"shown{n}"] for n in modes if f"shown{n}" in arrays)
            return Phenotypes(origin, factors, weights, axes, placing, shown, described.get("stability"))
        case {"weights_": weights, "means_": means, "covariances_": covariances}:
            kind = parameters.get("covariance_type", "full")
            return Groups(origin, weights, means, covariances, kind, columns)
        case {"mean_": mean, "scale_": scale, "components_": components, "explained_variance_": variance}:
            return Moments(origin, mean, scale, 0.0, components, variance, columns)
        case {"components_": components, "scale_": scale}:
            mean = np.asarray(arrays.get("mean_", np.zeros(len(scale))))
            return Similarity(origin, components, mean, scale, float(parameters.get("bias", 1.0)), columns)
        case {"mean_": mean, "scale_": scale}:
            return Moments(origin, mean, scale, 0.0, columns=columns)
    return None
