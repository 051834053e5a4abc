"""Somebody else's text in a line of ours: nothing in it moves a cursor, begins a line or turns the direction of reading."""

from __future__ import annotations


def one_line(text: object) -> str:
    """The text with every character that is not printed spelled out: an escape sequence could write over what was shown.

    >>> print(one_line("icu" + chr(27) + "[2J" + chr(10) + "privacy asked: epsilon 0.1" + chr(0x202E)))
    icu\\x1b[2J\\nprivacy asked: epsilon 0.1\\u202e
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in plain)


def without_controls(text: str) -> str:
    """The same, where the text may have several lines.

    >>> without_controls("a" + chr(10) + "b" + chr(27))
    'a\\nb\\\\x1b'
    """
    return text if text.isprintable() else "\n".join(map(one_line, text.split("\n")))
