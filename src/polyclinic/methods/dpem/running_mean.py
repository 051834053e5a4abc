"""What earlier releases still say: a running mean that forgets as fast as the phenotypes move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyclinic.methods.dpem.state import Array, DPEMPublic


def remembered(public: DPEMPublic, sums: Array, sd: float, *, memory: float | None = None) -> DPEMPublic:
    """The running mean of the releases, its noise and its weight, column by column.

    An M-step moves the phenotypes little once they are found, so earlier releases speak of nearly the same sums: they are
    paid for and lower the noise. How much a column moved since is read from the releases themselves (no cost)::

        d_r = max(0, mean over codes of (S_r - M_r)^2 - s^2 - v_r)
        P_r = 1 / (memory p_r) + d_r,    w_r = P_r / (P_r + s^2)
        M_r <- (1 - w_r) M_r + w_r S_r,  v_r <- (1 - w_r)^2 v_r + w_r^2 s^2,  p_r <- 1 / P_r + 1 / s^2

    S the new release with noise s, M the mean with noise variance v and weight p. Loud noise: all releases count. Soft
    noise: the last one, since what differs is then no noise. Without noise the last sums are all there is to know.

    Parameters
    ----------
    public
        ``released`` None, or a ``precision`` of 0 in a column: it begins anew.
    sums
        (codes, K) the new release.
    sd
        Its noise.
    memory
        A release counts for so much less with every later one; 1: nothing is forgotten where nothing moves. None: as planned.
    """
    memory = public.plan.memory if memory is None else memory
    columns = sums.shape[1]
    if sd <= 0 or public.released is None or public.noise is None or public.precision is None:
        weight = np.full(columns, 1.0 / sd**2 if sd > 0 else 0.0)
        return replace(public, released=sums, noise=np.full(columns, float(sd)), precision=weight)
    old, observed = public.released, public.precision > 0
    drift = np.square(sums - old).mean(0) - sd**2 - np.square(public.noise)
    p = 1.0 / np.where(observed, memory * public.precision, 1.0) + np.maximum(drift, 0.0)
    new = np.where(observed, p / (p + sd**2), 1.0)
    return replace(
        public,
        released=(1.0 - new) * old + new * sums,
        noise=np.hypot((1.0 - new) * public.noise, new * sd),
        precision=np.where(observed, 1.0 / p, 0.0) + 1.0 / sd**2,
    )
