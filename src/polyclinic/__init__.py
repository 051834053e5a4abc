"""Polyclinic: many clinics, one model, no shared patients.

Hospitals learn together what no one of them can see alone, and only sums cross the wire.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "SparseTensor": "polyclinic.tensors.sparse",
    "Axis": "polyclinic.tensors.axis",
    "Site": "polyclinic.tensors.site",
    "Study": "polyclinic.study",
    "Node": "polyclinic.study",
}

_ROOMS = {"datasets": "polyclinic.datasets"}

__all__ = ["__version__", *sorted(_WHERE), *sorted(_ROOMS)]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import polyclinic`` stays fast."""
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(_ROOMS[name])
    raise AttributeError(f"module 'polyclinic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
