"""Quantised sums: a transport with a few bits per number."""
