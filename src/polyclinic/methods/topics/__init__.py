"""Topics: phenotypes as mixtures of codes, modes side by side."""
