"""One BLAS thread inside our own loops: sites and chunks are the units of parallel work, and bits stay the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

A = TypeVar("A")
B = TypeVar("B")


@cache
def _controller() -> ThreadpoolController:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread within the block; matrices here are small, and threads would only wait for each other."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


def on_threads(work: Callable[[A], B], parts: Sequence[A], threads: int | None = None) -> list[B]:
    """The work on every part, on so many threads at most; None: as many as there are cores."""
    count = min(threads or os.cpu_count() or 1, len(parts))
    if count <= 1:
        return [work(p) for p in parts]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, parts))


def in_pieces(work: Callable[[int, int], object], total: int, size: int) -> None:
    """Run ``work(first, last + 1)`` on pieces of a fixed size, so that any number of threads gives the same bits."""
    on_threads(lambda lo: work(lo, min(lo + size, total)), range(0, total, size))
