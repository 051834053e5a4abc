"""A prior while its fit goes on and at the end: when it has said enough, and what is returned where the fit is no better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyclinic.methods.dpem.params import DPEMParams
from polyclinic.methods.dpem.state import DPEMPublic


def untold(public: DPEMPublic) -> DPEMPublic:
    """The fit goes on as any other: the prior has led it to its phenotypes, and is asked again at the end.

    Sums are taken with the phenotypes as they are, so they agree with a prior that is still believed, right or wrong: its
    errors would stay. (Without a prior: as it is.)
    """
    return replace(public, told=(), expected=(), rival=(), shares=None, spoken=0, pieces=None)


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
