"""Latent class analysis with categories, counts and measurements, some of them missing."""
