"""Audit privacy empirically: canary patients through the real method."""
