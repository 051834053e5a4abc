"""Attackers come back: the same records are read once for all studies of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.ingested import reading_once


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The same records are read once for all studies of them."""
    with reading_once():
        yield
