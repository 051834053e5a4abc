"""Statistics by sums: regressions, ROC, survival curves, false-discovery rates."""
