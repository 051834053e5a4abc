"""Patient similarity: UnPSL, central and between hospitals, search and explanations."""
