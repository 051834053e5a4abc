"""What others plug in: entry points of installed distributions, and the nearest names to a misspelt one.

A distribution declares, in its ``pyproject.toml``, what it adds::

    [project.entry-points."polyclinic.sums"]
    mine = "my_package.mine:Mine"

Groups: ``polyclinic.methods``, ``polyclinic.sums``, ``polyclinic.sources``, ``polyclinic.sections``, ``polyclinic.datasets``,
``polyclinic.attacks``, ``polyclinic.commands``, ``polyclinic.models``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import FunctionType
from typing import Final

from polyclinic.errors import ConfigError

PAPERS: Final = "polyclinic-papers"  # the distribution of the five papers, in this repository
_NEXT_DOOR: Final = (
    "papers", "cycle", "subspace", "dpfact_synthetic", "unpsl_synthetic", "planted_four_mode", "split", "PlantedSimilarity", "Samples",
    "gene_filter", "open_data", "load_aminoacid", "load_colon", "load_diabetes130", "load_leukemia", "load_mimic3_demo",
    "load_parkinsons", "load_synpuf",
)  # fmt: skip


@dataclass(frozen=True)
class Plugin:
    """One thing that a package plugs in.

    Parameters
    ----------
    group, name
        Where it is plugged in, and by which name studies find it.
    value
        Where it is defined, ``module:name``.
    package
        The distribution that brings it.
    get
        Imports it.
    rivals
        Other distributions that bring another thing under this name.
    """

    group: str
    name: str
    value: str
    package: str
    get: Callable[[], object]
    rivals: tuple[str, ...] = ()

    def load(self) -> object:
        """The thing itself; where nobody can tell which is meant, or it cannot be imported, an error that names the package."""
        entry = f"{self.group.removeprefix('polyclinic.')}: {self.name!r}"
        if self.rivals:
            packages = ", ".join((self.package, *self.rivals))
            raise ConfigError(
                f"{entry} is plugged in by {1 + len(self.rivals)} packages: {packages}",
                hint="uninstall all but one of them, or ask their authors for another name",
            )
        try:
            return self.get()
        except Exception as e:  # another's code: whatever stops its import
            raise ConfigError(
                f"{entry} of the package {self.package} cannot be imported",
                faults=[f"{self.value}: {type(e).__name__}: {e}"],
                hint=f"install what it lacks or another version of {self.package}, or uninstall it",
            ) from e


_here: Final[dict[tuple[str, str], Plugin]] = {}


@cache
def plugged(group: str) -> dict[str, Plugin]:
    """What is plugged in, by name; what a block plugs in (:func:`plug`) stands before what is installed."""
    plugins: dict[str, Plugin] = {}
    for entry in entry_points(group=group):
        package = entry.dist.name if entry.dist is not None else entry.value.split(":")[0].split(".")[0]
        plugin = Plugin(group, entry.name, entry.value, package, entry.load)
        rival = plugins.get(entry.name)
        if rival is None:
            plugins[entry.name] = plugin
        elif (rival.value, rival.package) != (plugin.value, plugin.package):  # a package may be found twice on the path
            plugins[entry.name] = replace(rival, rivals=(*rival.rivals, package))
    return plugins | {n: p for (g, n), p in _here.items() if g == group}


def _made_at(thing: object) -> str:
    kind = thing if isinstance(thing, type | FunctionType) else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"


@contextmanager
def plug(group: str, name: str, thing: object) -> Iterator[None]:
    """Plug something in for the length of a block, without installing it: to try it, or in a test.

    >>> with plug("polyclinic.sums", "mine", object):
    ...     "mine" in plugged("polyclinic.sums")
    True
    >>> "mine" in plugged("polyclinic.sums")
    False
    """
    place = _made_at(thing)
    _here[group, name] = Plugin(group, name, place, place.split(":")[0].split(".")[0], lambda: thing)
    plugged.cache_clear()
    try:
        yield
    finally:
        del _here[group, name]
        plugged.cache_clear()


def locate(value: str) -> object:
    """Import what ``module:name`` stands for.

    >>> locate("polyclinic.plugins:locate") is locate
    True
    """
    module, name = value.split(":")
    return getattr(import_module(module), name)


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
    matches = [lower[n] for n in get_close_matches(name.lower(), lower, n=3, cutoff=cutoff)]
    return f"did you mean {' or '.join(map(repr, matches))}?" if matches else ""
