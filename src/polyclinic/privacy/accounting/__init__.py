"""Differential privacy: events, accountants, budgets, mechanisms and their noise."""
