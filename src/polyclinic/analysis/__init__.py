"""What follows the fit: acts that take a fitted model as given and answer what a paper, a clinician and an owner ask."""
