"""Secure aggregation with dropouts (after Bonawitz et al. 2017), and a total that every site checks."""
