"""Gaussian mixtures of patients over hospitals: the same fit as on pooled records, by sums only."""

from polyclinic.methods.mixtures.gaussian_mixture import GaussianMixture
from polyclinic.methods.mixtures.n_components import Choice, choose_components
from polyclinic.models.mixtures.gaussian import Mixture

__all__ = ["Choice", "GaussianMixture", "Mixture", "choose_components"]
