"""Secure aggregation: masked sums with dropouts (after Bonawitz et al.), and a total that every site checks."""
