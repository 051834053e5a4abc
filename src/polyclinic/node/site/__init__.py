"""A hospital's half of a study: answers the coordinator, follows the chain, keeps its own record."""
