"""Two models side by side: which phenotypes are the same, how far apart they are, and what differs in how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.models.base import Array
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.tensors.matching import cosines, match
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from polyclinic.models.file import Learned


@dataclass(frozen=True, eq=False)
class Difference:
    """Two models side by side.

    Parameters
    ----------
    pairs
        One row per phenotype of either model: its place in both (None: only one has it), the distance 1 - product of
        cosines over the codes that both have, and its heaviest codes.
    codes
        Mode -> (codes of both, of the first only, of the second only).
    settings
        One row per key of method, parameters, rule or card that differs: where, first, second.
    same
        The numbers are the same, bit for bit.
    """

    pairs: Table
    codes: Mapping[str, tuple[int, int, int]]
    settings: Table
    same: bool

    @property
    def match(self) -> float | None:
        """Mean 1 - distance of the matched phenotypes."""
        distances = [d for d in self.pairs["distance"] if d is not None]
        return 1.0 - float(np.mean(distances)) if distances else None


def compare(first: Learned, second: Learned) -> Difference:
    """Match the phenotypes of two models by their codes' labels; other kinds: what differs in how they were made."""
    if first.kind != second.kind:
        raise ConfigError(f"{first.kind} and {second.kind} cannot be compared", hint="compare two models of one kind")
    settings = Table(["what", "first", "second"], differences(_facts(first), _facts(second)))
    a, b = first.arrays(), second.arrays()
    equal = a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)
    if not isinstance(first, Phenotypes) or not isinstance(second, Phenotypes):
        return Difference(Table(["first", "second", "distance", "codes"], []), {}, settings, equal)
    first_factors, second_factors, codes = _common(first, second)
    likeness = cosines(first_factors, second_factors)
    pairing = match(first_factors, second_factors)
    rows: list[list[object]] = [
        [int(i), int(j), 1.0 - float(likeness[i, j]), _told(first, int(i))] for i, j in zip(pairing.left, pairing.right)
    ]
    rows.sort()
    rows += [[r, None, None, _told(first, r)] for r in range(first.rank) if r not in set(pairing.left.tolist())]
    rows += [[None, r, None, _told(second, r)] for r in range(second.rank) if r not in set(pairing.right.tolist())]
    return Difference(Table(["first", "second", "distance", "codes"], rows), codes, settings, equal)


def _common(first: Phenotypes, second: Phenotypes) -> tuple[list[Array], list[Array], dict[str, tuple[int, int, int]]]:
    """Factors over the union of both models' codes; a code that one does not have weighs nothing there."""
    first_names, second_names = [a.name for a in first.axes], [a.name for a in second.axes]
    if len(first_names) != len(second_names):
        raise ConfigError(f"models of {', '.join(first_names)} and of {', '.join(second_names)} cannot be compared")
    by_name = sorted(first_names) == sorted(second_names) and len(set(first_names)) == len(first_names)
    first_factors, second_factors, codes = [], [], {}
    for n, (x, f) in enumerate(zip(first.axes, first.factors)):
        k = second_names.index(x.name) if by_name else n
        y, g = second.axes[k], second.factors[k]
        if x.labels is None or y.labels is None:
            if len(f) != len(g):
                raise ConfigError(f"{x.name}: {len(f)} and {len(g)} codes without names cannot be compared")
            only = 0
        else:
            f, g, only = _united(x.labels, f, y.labels, g)
        first_factors.append(f)
        second_factors.append(g)
        shared = len(y.labels or f) - only
        codes[x.name] = (shared, len(x.labels or f) - shared, only)
    return first_factors, second_factors, codes


def _united(x: Sequence[str], f: Array, y: Sequence[str], g: Array) -> tuple[Array, Array, int]:
    """Two factors over the codes of both, and how many only the second has."""
    union = list(dict.fromkeys([*x, *y]))
    place = {code: i for i, code in enumerate(union)}
    widened = np.zeros((len(union), g.shape[1]))
    widened[[place[code] for code in y]] = g
    only = len(union) - len(x)
    return np.concatenate([f, np.zeros((only, f.shape[1]))]), widened, only


def _told(model: Phenotypes, r: int) -> str:
    out = []
    for axis, f in zip(model.axes, model.factors):
        out += [axis.describe(int(i)) for i in np.argsort(-np.abs(f[:, r]), kind="stable")[:2] if f[i, r]]
    return ", ".join(out)


def _facts(model: Learned) -> dict[str, object]:
    o = model.origin
    card = {
        k: v for k, v in o.card.to_dict().items() if k in ("guarantee", "epsilon", "delta", "adjacency", "aggregation")
    }
    return {
        "method": o.method,
        "rank": model.rank,
        "parameters": dict(o.parameters),
        "rule": dict(o.rule),
        "privacy": card,
        "versions": dict(o.versions),
        "last round": dict(o.history[-1]) if o.history else {},
    }


def differences(first: object, second: object, where: str = "") -> list[list[str]]:
    """Every key whose value differs, with both values.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}, "d": 4})
    [['b.c', '2', '3'], ['d', '', '4']]
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        out = []
        for key in sorted({*first, *second}, key=str):
            out += differences(first.get(key), second.get(key), f"{where}.{key}" if where else str(key))
        return out
    if first == second:
        return []
    return [[where, *("" if v is None else f"{v:.6g}" if isinstance(v, float) else str(v) for v in (first, second))]]
