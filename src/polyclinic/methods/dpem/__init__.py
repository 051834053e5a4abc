"""DPEM: phenotypes with patient-level differential privacy, by EM on noisy sums."""
