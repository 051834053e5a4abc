"""Fitted Gaussian mixtures and latent classes."""
