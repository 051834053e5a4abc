"""Baselines on pooled data: CP-ALS and CP-SGD."""
