"""Encode, limit, seal and sign messages, and count their bytes."""
