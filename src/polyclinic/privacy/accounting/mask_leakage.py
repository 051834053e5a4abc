"""Masks of finite variance: what they leak, as events for ledger and card."""

from __future__ import annotations

import math
from dataclasses import dataclass

from polyclinic.privacy.accounting.accountant import Event, Gaussian, Unbounded
from polyclinic.privacy.release import Step

__all__ = ["Masks"]


@dataclass(frozen=True)
class Masks:
    """Masks of finite variance under ``subspace``.

    Attributes
    ----------
    sd
        Standard deviation of one mask.
    honest_neighbours
        How many of them hide a site at least; for a graph: the second eigenvalue of the honest sites' Laplacian.
    per_scalar
        Where digits are masked and not the values: the largest change, over all sites, of one number's digits. None:
        values are masked, and change by the step's sensitivity.
    """

    sd: float
    honest_neighbours: float
    per_scalar: float | None = None

    def events(self, step: Step) -> list[Event]:
        """Two noisy views of each contribution (PRIVACY 2.4, 3.1). A weight is masked beside the values."""
        if not self.honest_neighbours > 0 or not self.sd > 0:
            return [Unbounded()]
        change = step.sensitivity if self.per_scalar is None else self.per_scalar * math.sqrt(step.size + 1)
        return [Gaussian(self.sd * math.sqrt(self.honest_neighbours) / change, 2)] if change else []
