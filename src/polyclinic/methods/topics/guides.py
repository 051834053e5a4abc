"""Guided columns: codes that a column should have, named by the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from polyclinic.errors import ConfigError
from polyclinic.tensors.axis import Axis


def _checked(value: Any) -> Any:
    if value is None:
        return None
    fits = isinstance(value, Mapping) and all(
        isinstance(c, Sequence) and not isinstance(c, str) and c for c in value.values()
    )
    if not fits:
        raise ValueError('guides are {name: [code, ...]}, at least one code each, e.g. {"sepsis": ["995.91"]}')
    return {str(name): tuple(str(c) for c in codes) for name, codes in value.items()}


Guides = Annotated[dict[str, tuple[str, ...]], BeforeValidator(_checked)]


def guided_codes(guides: Mapping[str, Sequence[str]], axes: Sequence[Axis]) -> tuple[NDArray[np.int64], ...]:
    """Return per guide the places of its codes among the codes of all modes. Codes that no mode has are refused by name.

    >>> guided_codes({"heart": ["I50"]}, [Axis("drug", ("A",)), Axis("diagnosis", ("I10", "I50"))])[0].tolist()
    [2]
    """
    if guides and any(axis.labels is None for axis in axes):
        raise ConfigError("guides name codes, and the codes of this study have no names", hint="guides=None")
    places = _places(axes)
    faults = [f"{name}: no mode has {c!r}" for name, codes in guides.items() for c in codes if c not in places]
    if faults:
        raise ConfigError("guides name codes that are not in this study", faults=faults)
    return tuple(np.array(sorted({p for c in codes for p in places[c]}), np.int64) for codes in guides.values())


def _places(axes: Sequence[Axis]) -> dict[str, list[int]]:
    """Return code -> its places among the codes of all modes."""
    places: dict[str, list[int]] = {}
    for place, label in enumerate(axis.code(i) for axis in axes for i in range(len(axis.labels or ()))):
        places.setdefault(label, []).append(place)
    return places
