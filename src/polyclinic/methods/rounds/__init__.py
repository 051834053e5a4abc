"""Parts of a round that several factorizations share: setup, local pass, step sizes, losses, distinctness."""
