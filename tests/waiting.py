"""Wait for an event in a test. A limit is so generous that only a fault reaches it, on a busy machine too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 300.0  # seconds


def wait_until(event: Callable[[], T], seconds: float = LIMIT, *, every: float = 0.05) -> T:
    """Return what ``event`` gives as soon as it is true, else the last false value after ``seconds``."""
    end = time.monotonic() + seconds
    while not (value := event()) and time.monotonic() < end:
        time.sleep(every)
    return value
