"""Figures that need all sites in one process: association, held-out fit, presence, summary."""
