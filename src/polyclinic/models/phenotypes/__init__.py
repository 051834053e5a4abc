"""Fitted phenotypes: factors, phenotype scores of patients, comparison with another hospital."""
