"""Patient similarity: UnPSL, central and between hospitals, its baselines, search and explanations."""
