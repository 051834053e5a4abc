"""How values travel: bytes, limits, sealed and signed messages, the chain of sums, traffic."""
