"""Baselines that see all patients: CP-ALS and CP-SGD on pooled data."""
