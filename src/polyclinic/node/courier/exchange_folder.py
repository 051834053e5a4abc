"""A folder that somebody else writes into as well: plain files only, of a known size, and nothing is written through a link.

The carrier may put anything there: a name that leads elsewhere, a pipe that never ends, a device, a file that grows while it is
read, a million names. A file is therefore opened once, without following a link and without waiting, looked at through its
handle, and read to a limit; what is laid out is written through the handle of a new file, never by a name.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final

from polyclinic.errors import MessageRefused

HEAD: Final = 44  # bytes that tell how long a file means to be


class HalfFile(Exception):
    """The file is shorter than it says: half-written, or cut."""


@dataclass(frozen=True)
class ExchangeFolder:
    """One folder of the exchange.

    Parameters
    ----------
    path
        Where it lies.
    """

    path: Path

    def names(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Names that fit a pattern, in no order; OSError where the folder cannot be read."""
        with os.scandir(self.path) as found:
            for entry in found:
                if (fits := pattern.fullmatch(entry.name)) is not None:
                    yield fits

    def read(self, name: str, limit: int, half: Callable[[bytes, int], bool] = lambda head, size: False) -> bytes:
        """A plain file of at most ``limit`` bytes.

        Parameters
        ----------
        name
            In this folder; it was looked at before.
        limit
            Bytes; a file that is longer, or grows beyond while it is read, is refused.
        half
            Whether a file that begins so and has this size is not whole yet; it is then not read.

        Raises
        ------
        HalfFile
            It may become whole.
        MessageRefused
            It is no plain file, or too long.
        FileNotFoundError
            It is gone.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        try:
            if not stat.S_ISREG(os.lstat(self.path / name).st_mode):  # a device is not even opened
                raise MessageRefused("not a plain file, but a link, a folder, a pipe or a device")
            handle = os.open(self.path / name, flags)
        except FileNotFoundError:
            raise
        except OSError as e:
            raise MessageRefused(f"it cannot be read ({e.strerror})") from None
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise MessageRefused("not a plain file, but a link, a folder, a pipe or a device")
            if found.st_size > limit:
                raise MessageRefused(f"{found.st_size:,} bytes; at most {limit:,} are read")
            return self._content(handle, limit, half, found.st_size)
        except OSError as e:
            raise MessageRefused(f"it cannot be read ({e.strerror})") from None
        finally:
            os.close(handle)

    @staticmethod
    def _content(handle: int, limit: int, half: Callable[[bytes, int], bool], size: int) -> bytes:
        head = os.read(handle, HEAD)
        if half(head, size):
            raise HalfFile
        parts, length = [head], len(head)
        while length <= limit and (part := os.read(handle, min(2**20, limit + 1 - length))):
            parts.append(part)
            length += len(part)
        if length > limit:
            raise MessageRefused(f"more than {limit:,} bytes, and it grows")
        return b"".join(parts)

    def lay(self, name: str, data: bytes) -> Path:
        """Write a file, whole or not at all, in place of whatever has its name; OSError if that cannot be."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        part = f".{token_hex(12)}.part"
        try:
            handle = os.open(
                part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            try:
                with os.fdopen(handle, "wb") as f:  # by its handle: its name may lead elsewhere by now
                    f.write(data)
                    f.flush()
                    os.fsync(f.fileno())
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise
            os.fsync(folder)
        finally:
            os.close(folder)
        return self.path / name

    def holds(self, name: str, data: bytes) -> bool:
        """Whether there is a plain file with exactly this content."""
        try:
            return self.read(name, len(data)) == data
        except (MessageRefused, FileNotFoundError):
            return False

    def remove(self, name: str) -> None:
        """Remove a name, if that can be; never what it leads to."""
        with contextlib.suppress(OSError):
            os.unlink(self.path / name)

    def age(self, name: str, now: float) -> float:
        """Seconds since it was written; 0 if it is gone."""
        with contextlib.suppress(OSError):
            return now - os.lstat(self.path / name).st_mtime
        return 0.0
