"""How many phenotypes? Those that come back from every start, as long as each still explains something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.phenotypes.als import CPALS
from polyclinic.phenotypes.central import Data

__all__ = ["RankSuggestion", "RankTrial", "suggest_rank"]


@dataclass(frozen=True)
class RankTrial:
    """One rank tried: fit of the best start, and factor match score between the starts (1 = all agree)."""

    rank: int
    fit: float
    stability: float


@dataclass(frozen=True)
class RankSuggestion:
    """The suggested rank, why, and everything that was tried."""

    rank: int
    reason: str
    trials: tuple[RankTrial, ...]


def suggest_rank(
    data: Data,
    ranks: Sequence[int] = (2, 4, 6, 8, 10, 12, 15, 20),
    *,
    n_starts: int = 3,
    stable: float = 0.9,
    worth: float = 0.25,
    rounds: int = 100,
    seed: int = 0,
    nonnegative: bool = True,
) -> RankSuggestion:
    """Suggest the number of phenotypes.

    A rank is replicable if different random starts tell the same story (mean factor match score of at least
    ``stable``), and worth it if each phenotype it adds gains at least ``worth`` of what a phenotype gained on average
    before it. The largest rank that is both is suggested; where none is replicable, the most stable one.

    Parameters
    ----------
    data
        Sites, one site, or a tensor.
    ranks
        Ranks to try.
    n_starts
        Starts a rank, at least 2.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(patients=600, procedures=30, diagnoses=40, phenotypes=3, seed=0)
    >>> suggest_rank(sites, (2, 3, 4)).rank
    3
    """
    tried = sorted(set(ranks))
    if n_starts < 2 or not tried or tried[0] < 1:
        raise ConfigError(f"need ranks of at least 1 (got {list(ranks)}) and at least 2 starts (got {n_starts})")
    trials = []
    for rank in tried:
        m = CPALS(rank=rank, n_starts=n_starts, rounds=rounds, tol=1e-5, seed=seed, nonnegative=nonnegative).fit(data)
        assert m.stability_ is not None
        trials.append(RankTrial(rank, float(m.history_[-1]["fit"]), m.stability_))
    good = [trials[0]] if trials[0].stability >= stable else []
    for before, t in pairwise(trials):
        gain = (t.fit - before.fit) / (t.rank - before.rank)
        if t.stability >= stable and gain >= worth * before.fit / before.rank:
            good.append(t)
    if good:
        best = good[-1]
        reason = (
            f"the largest rank whose starts agree (match score {best.stability:.2f}) and whose phenotypes still add fit"
        )
        return RankSuggestion(best.rank, reason, tuple(trials))
    best = trials[int(np.argmax([t.stability for t in trials]))]
    reason = f"no rank is replicable; this one is the most stable (match score {best.stability:.2f}): read with care"
    return RankSuggestion(best.rank, reason, tuple(trials))
