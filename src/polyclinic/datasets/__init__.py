"""Generate networks of hospitals with a known truth. Open data come with polyclinic-papers, plug-ins add others.

>>> import polyclinic as pc
>>> [s.patients for s in pc.datasets.icu_network(patients=300, seed=0)][:2]
[33, 45]
"""

from typing import Any

from polyclinic.datasets.courses import planted_courses
from polyclinic.datasets.icu import icu_network
from polyclinic.datasets.planted import planted_counts
from polyclinic.datasets.repeated import repeated_records
from polyclinic.datasets.truth import Truth, expected_auc

__all__ = [
    "Truth",
    "expected_auc",
    "icu_network",
    "planted_counts",
    "planted_courses",
    "repeated_records",
]


def __getattr__(name: str) -> Any:
    """A data set of another distribution: those of the papers come with polyclinic-papers."""
    from polyclinic.plugins import did_you_mean, next_door, plugged

    entry = plugged("polyclinic.datasets").get(name)
    if entry is not None:
        return entry.load()
    hint = next_door(name) or did_you_mean(name, __all__)
    raise AttributeError(f"module 'polyclinic.datasets' has no attribute {name!r}" + (f": {hint}" if hint else ""))
