"""Published attacks; each must succeed where a card says so, and fail where it promises privacy."""
