"""A prior while its fit goes on and at the end: where a fit may leave it, and what is returned where it had better not."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from polyclinic.federation.protocol import seeds
from polyclinic.phenotypes.dpem_learn import RENEWED
from polyclinic.phenotypes.dpem_params import DPEMParams
from polyclinic.phenotypes.dpem_state import DPEMPublic
from polyclinic.phenotypes.regroup import breadth

__all__ = ["as_told", "divided"]

HEAVY: Final = 2.0  # mass times breadth of a column that may hold two phenotypes, against the median column's
LIGHT: Final = 0.5  # mass of a column that can be spared, against the mean column's


def divided(p: DPEMParams, public: DPEMPublic) -> DPEMPublic:
    """Columns that hold little are given to halves of those that seem to hold two phenotypes (post-processing).

    A prior in which one column stands for two phenotypes holds EM there. Of the halves the prior has nothing to say: they
    lean on the marginals, as does a phenotype of the prior that was given up. One column in ``RENEWED``, at least one.
    """
    assert public.precision is not None
    assert public.pieces is not None
    rank = public.factors[0].shape[1]
    mass = public.mixture[:rank]
    worth = mass * breadth(public.factors, public.marginals)
    spare = [
        int(r) for r in np.argsort(mass, kind="stable")[: max(rank // RENEWED, 1)] if mass[r] < LIGHT * mass.mean()
    ]
    heavy = [
        int(r) for r in np.argsort(-worth, kind="stable") if worth[r] > HEAVY * np.median(worth) and r not in spare
    ]
    rng = seeds(p.seed, "divided", public.round)
    factors, told = [f.copy() for f in public.factors], [t.copy() for t in public.told]
    mixture, precision = public.mixture.copy(), public.precision.copy()
    pieces = np.append(public.pieces, np.full(rank, -1))[:rank]
    for one, other in zip(heavy, spare):
        for f, t, m in zip(factors, told, public.marginals):
            part = rng.uniform(size=len(m))
            f[:, other], f[:, one] = f[:, one] * (1.0 - part), f[:, one] * part
            f[:, [one, other]] /= f[:, [one, other]].sum(0)
            t[:, [one, other]] = m[:, None]
        mixture[[one, other]] = mixture[one] / 2.0
        precision[[one, other]], pieces[[one, other]] = 0.0, -1
    return replace(
        public,
        factors=tuple(factors),
        told=tuple(told),
        mixture=mixture / mixture.sum(),
        precision=precision,
        pieces=pieces,
    )


def as_told(p: DPEMParams, public: DPEMPublic) -> DPEMPublic:
    """The prior by itself: its own columns place the patients, and it shows what it showed."""
    assert public.alone_shares is not None
    assert public.alone_parts is not None
    shares, parts = public.alone_shares, public.alone_parts
    groups = [np.flatnonzero(parts == k) for k in range(int(parts.max()) + 1)]
    mass = np.array([shares[g].sum() for g in groups])
    factors = tuple(np.stack([a[:, g] @ (shares[g] / shares[g].sum()) for g in groups], axis=1) for a in public.alone)
    mixture = np.append(mass, max(1.0 - float(mass.sum()), 0.0)) if p.background else mass
    return replace(
        public,
        stage="end",
        factors=factors,
        mixture=mixture / mixture.sum(),
        precision=None,
        shown=public.alone_shown or tuple(f > 0 for f in factors),
        energy=np.square(mass),
        fine=public.alone,
        fine_mixture=shares,
        parts=parts,
    )
