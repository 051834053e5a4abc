"""The fold: one protocol for every method, interchangeable sums under it."""
