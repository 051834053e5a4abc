"""Gaussian mixtures of patients over hospitals: the same fit as on pooled records, by sums only."""

from polyclinic.learned.mixture import Mixture
from polyclinic.mixtures.choice import Choice, choose_components
from polyclinic.mixtures.em import GaussianMixture
from polyclinic.mixtures.latentclass import LatentClass

__all__ = ["Choice", "GaussianMixture", "LatentClass", "Mixture", "choose_components"]
