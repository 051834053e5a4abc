"""Gaussian mixtures of patients over hospitals: the same fit as on pooled records, by sums only."""
