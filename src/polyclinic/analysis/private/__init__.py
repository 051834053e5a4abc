"""Analyses with differential privacy: bounded rows, noisy sums, forecast of cost and error."""
