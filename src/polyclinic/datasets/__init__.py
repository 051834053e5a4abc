"""Synthetic networks with a known truth, and loaders of open data by path."""

from polyclinic.datasets.icu import icu_network
from polyclinic.datasets.planted import planted_counts, planted_four_mode
from polyclinic.datasets.truth import Truth, expected_auc

__all__ = ["Truth", "expected_auc", "icu_network", "planted_counts", "planted_four_mode"]
