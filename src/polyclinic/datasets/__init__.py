"""Synthetic networks with a known truth, and loaders of open data by path; open to plug-ins (``polyclinic.datasets``)."""

from typing import Any

from polyclinic.datasets.claims import load_diabetes130, load_mimic3_demo, load_synpuf
from polyclinic.datasets.courses import planted_courses
from polyclinic.datasets.icu import icu_network
from polyclinic.datasets.open_data import load_aminoacid, open_data
from polyclinic.datasets.planted import planted_counts, planted_four_mode
from polyclinic.datasets.repeated import repeated_records
from polyclinic.datasets.split import split
from polyclinic.datasets.truth import Truth, expected_auc

__all__ = [
    "Truth",
    "expected_auc",
    "icu_network",
    "load_aminoacid",
    "load_diabetes130",
    "load_mimic3_demo",
    "load_synpuf",
    "open_data",
    "planted_counts",
    "planted_courses",
    "planted_four_mode",
    "repeated_records",
    "split",
]


def __getattr__(name: str) -> Any:
    """A data set of another distribution: those of the papers come with polyclinic-papers."""
    from polyclinic.plugins import did_you_mean, next_door, plugged

    entry = plugged("polyclinic.datasets").get(name)
    if entry is not None:
        return entry.load()
    hint = next_door(name) or did_you_mean(name, __all__)
    raise AttributeError(f"module 'polyclinic.datasets' has no attribute {name!r}" + (f": {hint}" if hint else ""))
