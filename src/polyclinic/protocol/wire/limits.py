"""What a msgpack text will weigh in memory, before any of its values is made.

Eight megabytes of empty maps become more than a gigabyte of Python objects. A decoder that counts afterwards has lost; so
the text is skipped over first, value by value, and given up as soon as the values would weigh too much.
"""

from __future__ import annotations

import struct
from typing import Final

from polyclinic.errors import MessageRefused

NUMBER: Final = 32
TEXT: Final = 64  # and four bytes a byte at most: one wide letter widens all others
LIST: Final = 64  # and 8 an entry
MAP: Final = 232  # with up to five entries; more: 104 each, keys and values not counted
# values of one message: two lists of 100,000 codes with their names; skipping over them takes time, too
NODES: Final = 400_000
DEPTH: Final = 64  # of nested values; the tree itself is refused far above, but the unpacker must not run out of stack

# First byte -> bytes that follow and are skipped (numbers, nil, booleans).
_FIXED: Final = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_FIXED.update({0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8})
_LENGTH: Final = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}  # bytes, then text
_COUNT: Final = {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}  # lists, then maps


def weigh(text: memoryview, most: int) -> int:
    """Bytes of memory that the values of ``text`` take at most; refused as soon as they exceed ``most``.

    Parameters
    ----------
    text
        One msgpack value.
    most
        Bytes of memory allowed.

    Examples
    --------
    >>> import msgpack
    >>> weigh(memoryview(msgpack.packb({"a": [1, 2.5, "x"]})), 10_000)
    520
    >>> weigh(memoryview(msgpack.packb([{}] * 1000)), 10_000)
    Traceback (most recent call last):
    polyclinic.errors.MessageRefused: [PC610] message header would take more than 10,000 bytes of memory
    """
    position, weight, end, nodes = 0, 0, len(text), 0
    open_ = [1]  # values still to come, of every list or map that is open
    while open_:
        if not open_[-1]:
            open_.pop()
            continue
        open_[-1] -= 1
        nodes += 1
        if position >= end:
            raise MessageRefused("message truncated inside its header")
        position, added, children = _value(text, position)
        weight += added
        if nodes > NODES:
            raise MessageRefused(f"message header holds more than {NODES:,} values")
        if weight > most:
            raise MessageRefused(f"message header would take more than {most:,} bytes of memory")
        if children >= 0:
            open_.append(children)
            if len(open_) > DEPTH:
                raise MessageRefused(f"message header nests deeper than {DEPTH}")
    if position > end:
        raise MessageRefused("message truncated inside its header")
    return weight


def _value(text: memoryview, at: int) -> tuple[int, int, int]:
    """The value at a place: where the next begins, what it weighs, and how many values are inside it (-1: none)."""
    first, at = text[at], at + 1
    if first < 0x80 or first >= 0xE0:
        return at, NUMBER, -1
    if first < 0x90:
        return at, MAP + 104 * max(0, (first & 15) - 5), 2 * (first & 15)
    if first < 0xA0:
        return at, LIST + 8 * (first & 15), first & 15
    if first < 0xC0:
        return at + (first & 31), TEXT + 4 * (first & 31), -1
    if first in _FIXED:
        return at + _FIXED[first], NUMBER, -1
    if first in _LENGTH or first in _COUNT:
        return _sized(text, at, first)
    raise MessageRefused("message header is unreadable (a kind of value that never travels)")


def _sized(text: memoryview, at: int, first: int) -> tuple[int, int, int]:
    """The same of a value that says how long it is."""
    form = _LENGTH.get(first) or _COUNT[first]
    size = struct.calcsize(form)
    if at + size > len(text):
        raise MessageRefused("message truncated inside its header")
    (count,) = struct.unpack_from(form, text, at)
    at += size
    if first in _LENGTH:
        return at + count, TEXT + (count if first < 0xD0 else 4 * count), -1
    if first < 0xDE:
        return at, LIST + 8 * count, count
    return at, MAP + 104 * max(0, count - 5), 2 * count
