"""Means, standard deviations and principal components over all hospitals."""
