"""Where a factorization starts: random, from the Gram of hashed cells, wide, or given."""
