"""What others plug in: entry points of installed distributions, and the nearest names to a misspelt one.

A distribution declares, in its ``pyproject.toml``, what it adds::

    [project.entry-points."polyclinic.sums"]
    mine = "my_package.mine:Mine"

Groups: ``polyclinic.methods``, ``polyclinic.sums``, ``polyclinic.sources``, ``polyclinic.sections``, ``polyclinic.datasets``,
``polyclinic.attacks``, ``polyclinic.commands``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

__all__ = ["PAPERS", "did_you_mean", "next_door", "plug", "plugged"]

PAPERS: Final = "polyclinic-papers"  # the distribution of the five papers, in this repository
_NEXT_DOOR: Final = (
    "papers", "cycle", "dpfact_synthetic", "unpsl_synthetic", "PlantedSimilarity", "Samples", "gene_filter",
    "load_colon", "load_leukemia", "load_parkinsons",
)  # fmt: skip


@dataclass(frozen=True)
class Plugged:
    """What was plugged in without being installed; read like an entry point."""

    name: str
    thing: Any

    @property
    def value(self) -> str:
        """Where it was made."""
        made = self.thing if isinstance(self.thing, type) or callable(self.thing) else type(self.thing)
        return f"{made.__module__}:{made.__qualname__}"

    def load(self) -> Any:
        """The thing itself."""
        return self.thing


_here: Final[dict[tuple[str, str], Plugged]] = {}


@cache
def plugged(group: str) -> dict[str, EntryPoint | Plugged]:
    """Entry points of a group, by name; of two with one name the first distribution's."""
    found: dict[str, EntryPoint | Plugged] = {n: p for (g, n), p in _here.items() if g == group}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, entry)
    return found


@contextmanager
def plug(group: str, name: str, thing: object) -> Iterator[None]:
    """Plug something in for the length of a block, without installing it: to try it, or in a test.

    >>> with plug("polyclinic.sums", "mine", object):
    ...     "mine" in plugged("polyclinic.sums")
    True
    >>> "mine" in plugged("polyclinic.sums")
    False
    """
    _here[group, name] = Plugged(name, thing)
    plugged.cache_clear()
    try:
        yield
    finally:
        del _here[group, name]
        plugged.cache_clear()


def next_door(name: str) -> str:
    """How to get what this name stands for, where it lives in the papers' distribution; else nothing."""
    return f"{name} is in {PAPERS}: pip install {PAPERS}" if name in _NEXT_DOOR else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the nearest known names; empty where none is near.

    >>> did_you_mean("tripp", ["trip", "dpfact"])
    "did you mean 'trip'?"
    """
    lower = {k.lower(): k for k in known}
    cutoff = 0.6 if len(name) > 2 else 0.5  # of two letters one may be wrong: l3 for l1
    near = [lower[n] for n in get_close_matches(name.lower(), lower, n=3, cutoff=cutoff)]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""
