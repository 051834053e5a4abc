"""Attackers come back: the same records are read once for all studies of them."""

from tests.ingested import read_once

__all__ = ["read_once"]
