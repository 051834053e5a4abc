"""A fitted or saved model to start from. Its codes are found by their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, PlainSerializer

from polyclinic.errors import ConfigError
from polyclinic.tensors import cp
from polyclinic.tensors.axis import Axis

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class StartModel:
    """The factors that a fit starts from, and the model that they come from.

    Factors without a model have no axes: their codes are in the order of the study's.
    """

    factors: tuple[Array, ...]
    axes: tuple[Axis, ...] = ()
    model: object = None

    @classmethod
    def of(cls, value: Any) -> StartModel:
        """From a fitted model, from what ``pc.load`` gave, or from factors. Anything else is a ValueError."""
        try:
            fitted = value if isinstance(value, Sequence) else vars(value).get("result_", value)
            parts: dict[str, Any] = {"factors": fitted} if isinstance(fitted, Sequence) else vars(fitted)
            factors = tuple(np.array(f, np.float64) for f in parts["factors"])
        except (KeyError, TypeError, ValueError):
            factors = ()
        if not factors or any(f.ndim != 2 or not np.isfinite(f).all() for f in factors):
            raise ValueError("a fitted phenotype model, what pc.load gave, or a (codes, R) array per feature mode")
        return cls(factors, parts.get("axes", ()), fitted)

    def on(self, axes: Sequence[Axis], shape: Sequence[int], rank: int | str, nonnegative: bool) -> tuple[Array, ...]:
        """Return the factors on the codes of a study, columns of length 1. Codes that the model lacks begin near 0."""
        located = tuple(_placed(f, a, axis) for f, a, axis in zip(self.factors, self.axes or axes, axes, strict=False))
        study_shapes = [(n, self.factors[0].shape[1] if rank == "auto" else rank) for n in shape]
        if (shapes := [f.shape for f in located]) != study_shapes:
            raise ConfigError(
                f"the model to start from has factors of shapes {shapes}, this study needs {study_shapes}",
                hint="align the sites to the model's codes (pc.align), and give its rank",
            )
        if nonnegative and min(map(np.min, located)) < 0:
            raise ConfigError(
                "the model to start from has negative weights", hint="nonnegative=False, or another model"
            )
        return tuple(cp.normalise(located)[0])


def _placed(factor: Array, own: Axis, axis: Axis) -> Array:
    """Find the codes of a study in a model, by label."""
    if own is axis or own.labels is None or axis.labels is None:
        return factor
    place = {code: k for k, code in enumerate(own.labels)}
    rows = np.array([place.get(code, -1) for code in axis.labels])
    share = float(np.abs(factor[rows[rows >= 0]]).sum() / np.abs(factor).sum())
    if share < 0.5:  # a model of other codes says nothing here
        fault = f"{axis.name!r}: only {share:.0%} of the weight of the model to start from has a code of this study"
        raise ConfigError(fault, hint="start from a model of the same code system")
    # A code that the model lacks begins near 0, so that a method with products can raise it.
    return np.asarray(np.where(rows[:, None] >= 0, factor[rows], 0.02 * np.abs(factor).mean(0)))


def _checked(value: object) -> object:
    return value if value is None or isinstance(value, str | StartModel) else StartModel.of(value)


Saved = Annotated[StartModel, BeforeValidator(_checked), PlainSerializer(lambda _: "model")]
