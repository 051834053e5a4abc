"""How many phenotypes? Those that come back from every start, as long as each still explains something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from polyclinic.errors import ConfigError, DataError
from polyclinic.federation.fold import Fold
from polyclinic.federation.protocol import Step, Total
from polyclinic.phenotypes.als import CPALS
from polyclinic.phenotypes.central import Data
from polyclinic.phenotypes.coarse import AGREE, RANKS, replicable_rank
from polyclinic.phenotypes.gramstart import STARTS, GramStart
from polyclinic.phenotypes.sumals import SumALS

__all__ = ["RankSuggestion", "RankTrial", "suggest_rank"]


@dataclass(frozen=True)
class RankTrial:
    """One rank tried: fit of the best start, and factor match score between the starts (1 = all agree).

    By sums: no fit (NaN), and the weakest phenotype's match between two halves of the patients.
    """

    rank: int
    fit: float
    stability: float


@dataclass(frozen=True)
class RankSuggestion:
    """The suggested rank (None, by sums only: none), why, and everything that was tried."""

    rank: int | None
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
    aggregation: str | None = None,
) -> RankSuggestion:
    """Suggest the number of phenotypes: from pooled data, or between hospitals by sums alone (``aggregation="masked"``).

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
    aggregation
        How hospitals add; None: ``data`` are pooled here. By sums, three small ones show the Grams of 64 hashed cells over two
        halves of the patients (at least 2,048 in the sum), and the largest rank of which both halves give the same phenotypes
        is proposed, or none. ``ranks`` and the settings of the pooled fits do not matter then. A proposal, which moves with
        ``seed``: what of it comes back over codes, :func:`polyclinic.replicate` says.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(patients=600, procedures=30, diagnoses=40, phenotypes=3, seed=0)
    >>> suggest_rank(sites, (2, 3, 4)).rank
    3
    """
    if aggregation is not None:
        return _by_sums(data, aggregation, seed)
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


class _Halved(Fold):
    """The first sums of a fit, until the Grams of both halves are known."""

    trials: tuple[RankTrial, ...] | None = None

    def fold(self, step: Step, total: Total) -> Any:
        start = self.public.start
        if start.kind == "gram" and start.stage == "cells":
            gram = GramStart(self.setting.shape, "auto", self.method.params.seed, STARTS)
            opened = gram.packing(start).opened(total)
            if opened is not None:
                _, weakest = replicable_rank(*gram.halves(start, opened), gram.sizes, ranks=RANKS, seed=gram.seed)
                self.trials = tuple(RankTrial(r, float("nan"), w) for r, w in weakest.items())
                return self.public
        return super().fold(step, total)


def _by_sums(data: Data, aggregation: str, seed: int) -> RankSuggestion:
    if not isinstance(data, Sequence):
        raise DataError("a rank by sums is between hospitals", hint="pass a list of pc.Site, or aggregation=None")
    fold = _Halved(SumALS(rank="auto", aggregation=aggregation, seed=seed), data)
    while fold.trials is None and fold.advance():
        pass
    trials = fold.trials or ()
    good = [t for t in trials if t.stability >= AGREE]
    if good:
        best = good[-1]
        reason = f"the largest rank at which two halves of the patients agree on every phenotype (weakest match {best.stability:.2f})"
        return RankSuggestion(best.rank, reason, trials)
    reason = "none: at no rank do two halves of the patients agree on every phenotype"
    return RankSuggestion(None, reason, trials)
