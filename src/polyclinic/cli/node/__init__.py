"""Commands for hospitals and the coordinator."""
