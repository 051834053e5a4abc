"""Gaussian mixtures of patients over hospitals: the same fit as on pooled records, by sums only."""

from polyclinic.learned.mixture import Mixture
from polyclinic.mixtures.choice import Choice, choose_components
from polyclinic.mixtures.em import GaussianMixture

__all__ = ["Choice", "GaussianMixture", "Mixture", "choose_components"]
