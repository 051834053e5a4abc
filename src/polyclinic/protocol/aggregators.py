"""Ways to add over sites, interchangeable under every method: plain, masked and robust rules; open to plug-ins (``polyclinic.sums``)."""

from __future__ import annotations

from inspect import signature
from typing import cast

from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean, locate, next_door, plugged
from polyclinic.protocol.interfaces import Aggregator, AggregatorFacts

_WHERE = {
    "plain": "plain:Plain",
    "masked": "secure.masked:Masked",
    "median": "robust:Median",
    "trimmed": "robust:Trimmed",
    "geometric": "robust:Geometric",
    "krum": "robust:Krum",
    "multikrum": "robust:MultiKrum",
    "bounded": "robust:Bounded",
}
NAMES = tuple(_WHERE)


def by_name(name: str, **options: object) -> Aggregator:
    """The way to add that a study names.

    Parameters
    ----------
    name
        ``"plain"``; secure: ``"masked"``; robust: ``"median"``, ``"trimmed"``, ``"geometric"``,
        ``"krum"``, ``"multikrum"``, ``"bounded"``. Secure and robust exclude each other.
        Or the name of a plugged one (entry point group ``polyclinic.sums``): ``"subspace"`` and ``"cycle"`` come with polyclinic-papers.
    options
        For that sum. ``identities`` (signing keys) are passed to sums that take them and ignored by the others.

    >>> by_name("plain").reveals, by_name("masked").reveals
    ('each', 'total')
    """
    kind = kind_of(name)
    takes = signature(kind).parameters.values()
    if not any(t.name == "identities" or t.kind is t.VAR_KEYWORD for t in takes):
        options.pop("identities", None)
    return kind(**options)


def facts_of(name: str) -> AggregatorFacts:
    """What a way to add says of itself.

    >>> facts_of("masked").topology
    'star'
    """
    return kind_of(name).facts


def unknown(name: str) -> str:
    """What is said of a name that stands for no sum, with the nearest that does; empty where it is known."""
    names = [*NAMES, *plugged("polyclinic.sums")]
    if name in names or "+" in name:
        return ""
    suggestion = next_door(name) or did_you_mean(name, names)
    return f"unknown aggregation {name!r}; {suggestion + ' ' if suggestion else ''}known: {', '.join(names)}"


def kind_of(name: str) -> type[Aggregator]:
    """The class of a way to add."""
    if "+" in name:
        raise ConfigError(
            f"aggregation {name!r}: a robust rule must see every contribution, a secure sum shows none",
            hint="choose one: secure (masked) or robust (gives up that protection)",
        )
    if name in _WHERE:
        return cast(type[Aggregator], locate(f"polyclinic.aggregation.{_WHERE[name]}"))
    if fault := unknown(name):
        raise ConfigError(f"unknown aggregation {name!r}", faults=[fault])
    entry = plugged("polyclinic.sums")[name]
    kind = entry.load()
    if not (isinstance(kind, type) and issubclass(kind, Aggregator)):
        raise ConfigError(
            f"aggregation {name!r} is no sum: {entry.value} is plugged in, and is not a class of Sum",
            hint="derive it from polyclinic.protocol.interfaces.Sum",
        )
    return kind
