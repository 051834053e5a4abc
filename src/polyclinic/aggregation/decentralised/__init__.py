"""Sums among neighbours without a coordinator: PDMM consensus and subspace perturbation."""
