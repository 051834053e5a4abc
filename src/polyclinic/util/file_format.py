"""The format number of the folders that outlive a process: run folders, a coordinator's folder, a site's kit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from polyclinic.errors import ConfigError

FORMAT: Final = 1  # version 103ad43 and earlier wrote none


def check_format(value: Mapping[str, Any], what: str, todo: str) -> None:
    """Refuse a folder of another format in one sentence that says what to do.

    >>> check_format({"format": 1}, "run folder 'icu'", "run the study again")
    >>> check_format({}, "run folder 'icu'", "run the study again")
    Traceback (most recent call last):
    polyclinic.errors.ConfigError: [PC200] run folder 'icu' was written by version 103ad43 or earlier: run the study again
    """
    number = value.get("format")
    if number is None:
        raise ConfigError(f"{what} was written by version 103ad43 or earlier: {todo}")
    if number != FORMAT:
        raise ConfigError(f"{what} has format {number!r}, and this version reads format {FORMAT}: update Polyclinic")
