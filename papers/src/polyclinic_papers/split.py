"""The same patients spread over hospitals in another way: equal sites, or one site that holds most of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from polyclinic.datasets.truth import Truth
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Site, Sites, pooled, truth_of


def split(
    sites: Site | Sequence[Site],
    number: int | None = None,
    *,
    skew: float | None = None,
    shares: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> Sites:
    """Shuffle the patients of all sites and deal them out anew, so that only the way they are spread changes.

    Parameters
    ----------
    sites
        One pooled site or several; their codes must agree (``pc.align`` first where they do not).
    number
        So many sites of equal size; with ``skew``, the first holds that share and the others the rest in equal parts
        (TRIP's experiment: three hospitals, 1/3, 0.5, 0.7, 0.9).
    skew
        Share of the first site.
    shares
        Share of every site instead; they sum to 1.
    sizes
        Patients of every site instead; they sum to the number of patients.
    names
        Names of the new sites; ``site 01`` ... by default.
    seed
        The same seed deals the same patients.

    Returns
    -------
    Sites
        The truth, where there was one, follows the patients.

    Examples
    --------
    >>> one = Site("all", features=[[float(i)] for i in range(10)])
    >>> [s.patients for s in split(one, 3, skew=0.6)]
    [6, 2, 2]
    >>> [s.patients for s in split(one, sizes=[6, 4])]
    [6, 4]
    """
    hospitals = [sites] if isinstance(sites, Site) else list(sites)
    if not hospitals:
        raise ConfigError("split: the list of sites is empty")
    truth = truth_of(sites)
    everyone = pooled(hospitals)
    counts = _counts(everyone.patients, number, skew, shares, sizes)
    called = [f"site {k + 1:02d}" for k in range(len(counts))] if names is None else list(names)
    if len(set(called)) != len(counts):
        raise ConfigError(f"split: {len(counts)} sites need as many different names, given {called}")
    order = np.random.default_rng(seed).permutation(everyone.patients)
    parts = [order[a:b] for a, b in pairwise(np.cumsum([0, *counts]))]
    dealt = [everyone.take(rows) for rows in parts]
    if isinstance(truth, Truth):
        # pooled() orders by name, so memberships are laid under one another in the same order
        members = np.concatenate([truth.memberships[s.name] for s in sorted(hospitals, key=lambda s: s.name)])
        memberships_of = {name: members[rows] for name, rows in zip(called, parts)}
        present = np.array([(m > 0).any(0) for m in memberships_of.values()])
        truth = replace(truth, memberships=memberships_of, prevalence=present)
    return Sites([replace(s, name=name) for name, s in zip(called, dealt)], truth)


def _counts(
    patients: int,
    number: int | None,
    skew: float | None,
    shares: Sequence[float] | None,
    sizes: Sequence[int] | None,
) -> list[int]:
    if sum(x is not None for x in (number, shares, sizes)) != 1:
        raise ConfigError("split: give exactly one of number, shares and sizes")
    if skew is not None and (number is None or number < 2 or not 0 < skew < 1):
        raise ConfigError(
            f"split: skew {skew} with number {number}", hint="skew is in (0, 1) and needs 2 sites or more"
        )
    if sizes is not None:
        if any(n < 1 for n in sizes) or sum(sizes) != patients:
            raise ConfigError(f"split: sizes {list(sizes)} do not share out {patients} patients")
        return [int(n) for n in sizes]
    if number is not None:
        if not 1 <= number <= patients:
            raise ConfigError(f"split: {number} sites for {patients} patients")
        first = 1 / number if skew is None else skew
        shares = [first] + [(1 - first) / (number - 1)] * (number - 1) if number > 1 else [1.0]
    assert shares is not None
    if any(s <= 0 for s in shares) or abs(sum(shares) - 1) > 1e-9:
        raise ConfigError(f"split: shares {list(shares)} are not positive with sum 1")
    counts = np.diff(np.round(np.cumsum([0, *shares]) * patients)).astype(int).tolist()
    if min(counts) < 1:
        raise ConfigError(f"split: shares {list(shares)} leave a site without any of the {patients} patients")
    return [int(n) for n in counts]
