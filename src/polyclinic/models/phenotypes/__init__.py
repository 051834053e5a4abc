"""Phenotypes: factors, how patients are placed on them, and how they fit another hospital."""
