"""Cross-validated choice of UnPSL's settings."""
