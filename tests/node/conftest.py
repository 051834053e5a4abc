"""Between the halves the wire is a function call, and the same records are read once."""

from tests.ingested import fast_pulse, read_once

__all__ = ["fast_pulse", "read_once"]
