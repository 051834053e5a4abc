"""A live page of runs: rounds, sites, budgets, and releases that wait for their owner."""
