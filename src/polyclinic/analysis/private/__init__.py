"""Findings under differential privacy: bounded rows, noisy sums, surrogates, forecast of cost and error."""
