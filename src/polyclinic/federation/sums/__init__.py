"""Ways to add over sites, interchangeable under every method: plain, masked, subspace, cycle, and robust rules."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from polyclinic.errors import ConfigError
from polyclinic.federation.protocol import Sum, SumFacts

__all__ = ["NAMES", "by_name", "facts_of"]

_WHERE = {
    "plain": ("plain", "Plain"),
    "masked": ("masked", "Masked"),
    "subspace": ("subspace", "Subspace"),
    "cycle": ("cycle", "Cycle"),
    "median": ("robust", "Median"),
    "trimmed": ("robust", "Trimmed"),
    "geometric": ("robust", "Geometric"),
    "krum": ("robust", "Krum"),
    "multikrum": ("robust", "MultiKrum"),
    "bounded": ("robust", "Bounded"),
}
NAMES = tuple(_WHERE)


def by_name(name: str, **options: Any) -> Sum:
    """The way to add that a study names.

    Parameters
    ----------
    name
        ``"plain"``; secure: ``"masked"``, ``"subspace"``, ``"cycle"``; robust: ``"median"``, ``"trimmed"``, ``"geometric"``,
        ``"krum"``, ``"multikrum"``, ``"bounded"``. Secure and robust exclude each other.
    options
        For that sum. ``identities`` (signing keys) are passed to secure sums and ignored by the others.

    >>> by_name("plain").reveals, by_name("masked").reveals
    ('each', 'total')
    """
    kind = _class(name)
    if kind.facts.reveals == "each":
        options.pop("identities", None)
    return kind(**options)


def facts_of(name: str) -> SumFacts:
    """What a way to add says of itself.

    >>> facts_of("cycle").topology
    'peers'
    """
    return _class(name).facts


def _class(name: str) -> type[Sum]:
    if "+" in name:
        raise ConfigError(
            f"aggregation {name!r}: a robust rule must see every contribution, a secure sum shows none",
            hint="choose one: secure masked, subspace, cycle, or robust (gives up that protection)",
        )
    if name not in _WHERE:
        raise ConfigError(f"unknown aggregation {name!r}", faults=[f"known: {', '.join(NAMES)}"])
    module, cls = _WHERE[name]
    return cast(type[Sum], getattr(import_module(f"{__name__}.{module}"), cls))
