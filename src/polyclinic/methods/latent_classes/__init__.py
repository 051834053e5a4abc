"""Latent class analysis over hospitals: categories, counts and measurements side by side, values missing."""
