"""DPEM: phenotypes under patient-level differential privacy, by EM on noisy sums."""
