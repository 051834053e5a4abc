"""A record from totals: the row of a code that ONE patient in the whole network has is that patient's row alone.

Under ``masked`` the coordinator of SumALS has the exact sum of MTTKRPs. Of a sole carrier with record o (her counts over the
other mode) the row of her code is ``y = a * (C'o)`` with ``a = G^-1 (b * (C'o))``, b, C and G public: a dozen sweeps give a dozen
such equations for the thirty unknown counts, and least squares finds them. A patient's weight stays unknown, so counts
come out up to one factor, which whole numbers give away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

import polyclinic.tensors.cp as cp
from polyclinic.auditing.attacks import Attack
from polyclinic.records.sites.site import Site
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.attacks.tap import Tapped, listen
from polyclinic_papers.attacks.trip import CODE, RECORD, hospitals

Array = NDArray[np.float64]


def network(seed: int = 0) -> list[Site]:
    """Three hospitals of 150 patients; one patient of the first has a code that nobody else in the network has."""
    out = []
    for site in hospitals(seed):
        t = site.counts()
        coords = t.coords.copy()
        if site.name != "a":
            coords[coords[:, 1] == CODE, 1] = CODE + 1
        out.append(Site(site.name, SparseTensor(coords, t.values, t.shape)))
    return out


def recovered(heard: Sequence[Tapped], diagnoses: int) -> Array:
    """The record of the sole carrier as the totals tell it, in units of its smallest count; zeros if they do not."""
    rows = [s for s in heard if s.step.name == "mode1" and s.total is not None and "mttkrp" in s.total.arrays]
    parts: list[tuple[Array, Array, Array, Array]] = []
    for s in rows:
        before = vars(s.before).get("inner", s.before)  # under a floor the method's own state is inside
        b, c = before.factors
        assert s.total is not None
        y = s.total.arrays["mttkrp"][CODE] * before.norm
        parts.append((b[CODE], c, cp.gram([b[:0], b, c], 0), y))
    if not any(y.any() for *_, y in parts):
        return np.zeros(diagnoses)

    def misfit(o: Array) -> Array:
        found = [np.linalg.solve(g, b * (c.T @ o)) * (c.T @ o) - y for b, c, g, y in parts]
        return np.concatenate(found)

    fits = [
        least_squares(misfit, np.full(diagnoses, x), bounds=(0, np.inf), xtol=1e-14, ftol=1e-14, max_nfev=300)
        for x in (0.3, 1.0)
    ]
    o: Array = min(fits, key=lambda f: float(f.cost)).x
    large = o > 0.2 * o.max()
    return np.where(large, o / o[large].min(), 0.0)


def run(seed: int = 0) -> Iterator[Attack]:
    """Exact totals give the whole record; of a code that fewer than eleven have, a floor leaves no row to read."""
    from polyclinic.methods.phenotypes import SumALS
    from polyclinic.protocol.minimum_patients import MinimumPatients

    def make() -> SumALS:
        return SumALS(rank=8, rounds=12, seed=seed, aggregation="masked", nonnegative=False)

    size = "exact totals, masked, 3 sites of 150 patients"
    kinds: tuple[tuple[str, Any, bool], ...] = (
        (f"SumALS without non-negativity, {size}", make(), True),
        (f"the same with a floor of 11 patients, {size}", MinimumPatients(make(), 11), False),
    )
    for label, method, expected in kinds:
        sites = network(seed)
        diagnoses = sites[0].counts().shape[2]
        truth = np.zeros(diagnoses)
        truth[list(RECORD)] = list(RECORD.values())
        found = recovered(listen(method, sites), diagnoses)
        right = set(np.flatnonzero(found)) == set(RECORD)
        error = float(np.abs(found - truth).max())
        yield Attack(
            "the whole record of the only carrier of a code",
            label,
            right and error < 0.2,
            expected,
            f"{len(set(np.flatnonzero(found)) & set(RECORD))} of her {len(RECORD)} diagnoses, largest error of a count {error:.2g}",
        )
