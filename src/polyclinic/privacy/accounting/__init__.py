"""Differential privacy: mechanisms, noise, accountants, budgets."""
