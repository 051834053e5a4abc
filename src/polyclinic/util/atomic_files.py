"""Write files whole or not at all, and hold lock files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it, whole and on disk, when the block succeeds. Only its owner can read it."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        _to_disk(name)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _to_disk(path.parent)


def write_whole(path: Path, data: str | bytes) -> Path:
    """Write a file, whole and on disk or not at all; only its owner can read it."""
    with atomic(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def _to_disk(path: Path | str) -> None:
    """Wait until a file's bytes, or a folder's names, are on disk."""
    if os.name == "nt" and Path(path).is_dir():
        return  # Windows opens no folder
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # and flushes only what it may write
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file: one holder at a time, in all processes.

    Parameters
    ----------
    wait
        Whether to wait for another holder; else :class:`BlockingIOError` is raised.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _windows_lock(path, wait) if fcntl is None else _posix_lock(path, wait):
        yield


@contextmanager
def _posix_lock(path: Path, wait: bool) -> Iterator[None]:
    """Lock the file that is there: one that was removed while this process waited keeps nobody out."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
                yield
                return
        finally:
            os.close(handle)


@contextmanager
def _windows_lock(path: Path, wait: bool) -> Iterator[None]:
    import filelock

    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(blocking=wait)
    except filelock.Timeout:
        raise BlockingIOError(f"{path} is held") from None
    try:
        yield
    finally:
        lock.release()
