"""The grid that privacy noise is drawn on, and why a sum of discrete Gaussians costs exactly what a Gaussian costs.

**Lemma.** Let Z be discrete Gaussian noise of parameter s on h Z^d (probability of k h proportional to
``exp(-k^2 h^2 / (2 s^2))``), and r = 2h. Round a continuous Y ~ N(0, s^2 - r^2) to the grid by a discrete Gaussian of
parameter r centred at Y: a post-processing that commutes with shifts on the grid. By Poisson summation the result has the
law of Z up to a factor 1 +- 4 exp(-2 pi^2 r^2 / h^2) < 1 +- 1e-33 per coordinate. A sum of independent discrete Gaussians of
parameters s_k is one of parameter sqrt(sum s_k^2) up to factors 1 +- 4 exp(-2 pi^2 s_a^2 s_b^2 / (h^2 (s_a^2 + s_b^2))),
less than 1e-100 for s_k >= 8h. So the released sum is as private as the continuous Gaussian of standard deviation
``sqrt(s^2 - 4 h^2)``, in any dimension, up to 1e-25 in epsilon for d <= 2^24. On coarser grids this is FALSE: many shares of
less than a grid step each have far less variance than their parameters squared.

**Rule.** h is the step's grid divided by a power of two until each share has at least 8h, preferably 2^10 h, while
``(bound + 20 sd) / h <= 2^53``: then every value is a whole number in float64, and the sum of 64 sites stays below 2^59.
The total's parameter is ``sqrt((m D)^2 + 4 h^2)``, D the sensitivity over all sites of one patient; the charge is exactly
``Gaussian(m)``. A step that does not fit is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from polyclinic.errors import ConfigError, ProtocolMismatch
from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded, gaussian_mu
from polyclinic.privacy.release import Contribution, Step

EXACT: Final = 2.0**53  # whole numbers up to here are exact in float64
LEAST: Final = 8.0  # grid steps of noise in a share, below which the lemma is not used
FINE: Final = 2.0**10


@dataclass(frozen=True)
class NoiseScale:
    """Parameter of the total's noise and the grid it is drawn on; both 0 and None without noise."""

    sd: float
    grid: float | None


def noise_scale(step: Step, share: float = 1.0) -> NoiseScale:
    """Noise of the total, and the grid, for a step of which every site adds ``share`` of the noise variance.

    Parameters
    ----------
    step
        What is released.
    share
        Part of the noise variance that one site adds.

    Examples
    --------
    Votes on a grid of 1 get a finer one:

    >>> votes = Step(0, "votes", {"votes": (9,)}, bound=1e6, sensitivity=1.0, multiplier=2.0, grid=1.0)
    >>> scale = noise_scale(votes, share=1 / 30)
    >>> scale.grid, round(scale.sd, 6)
    (0.000244140625, 2.0)
    """
    if step.sensitivity is None or step.multiplier is None or not step.noise_sd > 0:
        return NoiseScale(0.0, step.grid)
    grid, sensitivity = step.grid, step.sensitivity
    if grid is None:
        # No grid announced: values are rounded onto one of our own. Rounding moves a sum by at most half a step in each
        # coordinate, in both worlds; the sensitivity grows by that (less than 2^-16 of itself).
        grid = 2.0 ** math.floor(math.log2(step.sensitivity * 2.0**-16 / math.sqrt(max(step.size, 1))))
        sensitivity += grid * math.sqrt(step.size)
    least_sd = step.multiplier * sensitivity * step.sites_per_patient

    def sd(h: float) -> float:
        return math.sqrt(least_sd**2 + 4 * h * h)

    while math.sqrt(share) * sd(grid) < FINE * grid and (step.bound + 20 * sd(grid / 2)) / (grid / 2) <= EXACT:
        grid /= 2
    faults = []
    if math.sqrt(share) * sd(grid) < LEAST * grid:
        faults.append(f"a share has {math.sqrt(share) * sd(grid) / grid:.3g} grid steps of noise, {LEAST:g} are needed")
    if (step.bound + 20 * sd(grid)) / grid > EXACT:
        faults.append(f"bound {step.bound:g} is too large for a grid of {grid:g}")
    if faults:
        raise ConfigError(
            f"step {step.name!r}: its noise has no proven cost",
            faults=faults,
            hint="announce a smaller bound or another grid",
        )
    return NoiseScale(sd(grid), grid)


def on_grid(step: Step, share: float) -> Step:
    """The step with the grid its noise will be drawn on, so that a secure sum can count in whole numbers of it."""
    if step.grid is None or not step.noise_sd > 0:
        return step
    return replace(step, grid=noise_scale(step, share).grid)


def check_grid(step: Step, mine: Contribution, site: str) -> None:
    """Refuse values that are not whole multiples of the grid that was announced."""
    if step.grid is None:
        return
    off = [k for k, v in mine.arrays.items() if (np.rint(v / step.grid) * step.grid != v).any()]
    if off:
        raise ProtocolMismatch(
            f"site {site!r}, round {step.round}, step {step.name!r}: contribution refused",
            faults=[f"{k}: not whole multiples of the announced grid {step.grid:g}" for k in off],
        )


def event_of(step: Step, also: Sequence[Event] = ()) -> Event:
    """The charge of a step: ``Gaussian(multiplier)``, by the lemma above, and what the sum itself leaks."""
    if step.sensitivity is None or step.multiplier is None or not step.noise_sd > 0:
        return Unbounded()
    return together([Gaussian(step.multiplier), *also])


def together(events: Sequence[Event]) -> Event:
    """One event as costly as several Gaussian ones; without a bound if one has none."""
    if len(events) == 1:
        return events[0]
    mu = gaussian_mu(events)
    return Unbounded() if mu is None or not 0 < mu < math.inf else Gaussian(1 / mu)
