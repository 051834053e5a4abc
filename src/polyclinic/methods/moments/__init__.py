"""Means, spreads and principal components of all patients together: Standardizer and FederatedPCA."""
