"""How many columns? As many as two halves of the patients confirm in pairs of codes, plus one; or none."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from polyclinic.analysis.replication.negative_control import permuted
from polyclinic.methods.phenotypes import Topics
from polyclinic.methods.starts.directions import columns_for
from polyclinic.records.sites.from_data import Data, as_sites


@dataclass(frozen=True)
class RankSuggestion:
    """A rank, and what supports it.

    Parameters
    ----------
    rank
        Columns to fit: one more than ``confirmed``, because the marginals take one. None: no rank is supported.
    reason
        Why, in words.
    confirmed
        Directions of codes that occur together which two halves of the patients confirm.
    control
        Directions confirmed on codes permuted inside every hospital, where asked for: what chance gives.
    """

    rank: int | None
    reason: str
    confirmed: int
    control: int | None = None


def suggest_rank(data: Data, *, seed: int = 0, aggregation: str | None = None, control: bool = False) -> RankSuggestion:
    """Suggest the number of columns from one secure sum of pairs of codes in each of two halves of the patients.

    The rank is an upper bound for the number of phenotypes: fit it, and keep what replicates (:func:`polyclinic.replicate`).

    Parameters
    ----------
    data
        Sites, one site, or a tensor.
    seed
        Of the halves.
    aggregation
        How the hospitals' sums are added, for example ``"masked"``. Default: ``"plain"``.
    control
        Ask permuted codes as well. A rank is suggested only if the data confirm more directions than they do.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(patients=2400, procedures=40, diagnoses=50, phenotypes=5, codes=(5, 6), sites=3, seed=0)
    >>> suggest_rank(sites).rank
    7
    """
    sites = as_sites(data)
    found = max(_confirmed(sites, seed, aggregation), 0)
    chance = max(_confirmed(permuted(sites, seed), seed, aggregation), 0) if control else None
    if found <= (chance or 0):
        beyond = "no direction" if not chance else f"no more directions than permuted codes have ({chance})"
        return RankSuggestion(None, f"no rank is supported: two halves of the patients confirm {beyond}", found, chance)
    reason = (
        f"two halves of the patients confirm {found} direction{'s' if found > 1 else ''} of codes that occur together"
    )
    return RankSuggestion(columns_for(found), reason, found, chance)


def _confirmed(sites: Data, seed: int, aggregation: str | None) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit of one column asks for more
        return int(Topics(rank=1, rounds=1, seed=seed, aggregation=aggregation or "plain").fit(sites).confirmed_)
