"""What a model is worth and what it leaks: reconstruction, prediction, cost, attacks, audits."""
