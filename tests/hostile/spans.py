"""The rank oracle: whether combinations of the sums that can be opened give the part of too few sites.

A sum over a list of sites is a row of zeros and ones. Sums of one number have the same contributions, and near convergence so
have exact sums that follow one another; so all of these rows can be combined. With ``c`` sites that pool with the coordinator,
every vector in their span must have 0 or at least ``c + 2`` entries that are not zero.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from polyclinic.aggregation.promise import Promise
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.wire import encoding as wire


def few(lists: Iterable[Sequence[str]], sites: Sequence[str], colluders: int = 1) -> list[tuple[str, ...]]:
    """Sets of at most ``colluders + 1`` sites whose parts are a combination of sums over the lists.

    A combination that vanishes outside a set S exists iff the rows lose rank when the columns of S are left out.
    """
    rows = np.array([[s in one for s in sites] for one in lists], float).reshape(-1, len(sites))
    rank = np.linalg.matrix_rank(rows) if rows.size else 0
    found = []
    for size in range(1, colluders + 2):
        for chosen in itertools.combinations(range(len(sites)), size):
            rest = np.delete(rows, chosen, axis=1)
            if (np.linalg.matrix_rank(rest) if rest.size else 0) < rank:
                found.append(tuple(sites[i] for i in chosen))
    return found


class Lists:
    """Lists of survivors that sites signed in one study, and what left to open them."""

    def __init__(self, order: StudyOrder) -> None:
        self.order = order
        self.signers: dict[tuple[int, int, tuple[str, ...]], set[str]] = {}
        self.unmasked: Counter[tuple[str, int, str, int]] = Counter()

    def seen(self, site: str, signed: Mapping[int, tuple[Promise, ...]], answer: Mapping[str, Any]) -> None:
        """What a site has on disk after an answer, and the answer."""
        for number, promises in list(signed.items()):
            for p in promises:
                self.signers.setdefault((number, p.attempt, p.members), set()).add(site)
        for raw in answer.get("letters") or ():
            sender, _, kind, round_, step, attempt = wire.decode(bytes(raw))[1:7]
            if kind == "unmask":
                self.unmasked[sender, round_, step, attempt] += 1

    def opened(self) -> dict[int, set[tuple[str, ...]]]:
        """By number, lists for which the honest signatures, with those of one that pools, are enough."""
        out: dict[int, set[tuple[str, ...]]] = {}
        for (number, _, members), sites in self.signers.items():
            if len(sites) >= self.order.least - 1:
                out.setdefault(number, set()).add(members)
        return out

    def faults(self) -> list[str]:
        """Everything that is wrong."""
        found, by_number = [], self.opened()
        paid = self.order.study.get("privacy") is not None
        groups = list(by_number.values()) if paid else [set().union(*by_number.values())]
        for group in groups:
            found += [f"{group} give {s}" for s in few(sorted(group), self.order.sites)]
        found += [f"{k} unmasked {n} times" for k, n in self.unmasked.items() if n > 1]
        if self.order.aggregation == "masked" and not (self.signers and self.unmasked):
            found.append("nothing was signed or unmasked: the oracle saw nothing")
        return found
