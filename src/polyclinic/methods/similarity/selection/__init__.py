"""Choose UnPSL's settings by cross-validation."""
