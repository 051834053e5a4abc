"""Sums between neighbours without a coordinator: PDMM consensus and subspace perturbation."""
