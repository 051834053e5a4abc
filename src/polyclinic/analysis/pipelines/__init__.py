"""Run the analyses: after a fit, of a stored model, over several ranks."""
