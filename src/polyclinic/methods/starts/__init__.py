"""Starting points of a factorization: random, Gram matrix of hashed codes, over-complete, given."""
