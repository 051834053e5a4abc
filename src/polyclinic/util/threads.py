"""One BLAS thread inside our own loops: sites and chunks are the units of parallel work, and bits stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread within the block; matrices here are small, and threads would only wait for each other."""
    with _controller().limit(limits=1, user_api="blas"):
        yield
