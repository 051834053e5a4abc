"""Statistics from sums: regression, ROC, survival curves, intervals, false discovery rate."""
