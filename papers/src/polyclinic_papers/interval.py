"""A mean over repetitions with its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "Several", "interval", "mean_sd"]


@dataclass(frozen=True)
class Interval:
    """A mean over repetitions with its 95 % interval (Student); of one repetition, just the value."""

    mean: float
    low: float
    high: float
    n: int

    def above(self, bar: float) -> bool:
        """Whether the whole interval lies above the bar."""
        return self.low > bar

    def below(self, bar: float) -> bool:
        """Whether the whole interval lies below the bar."""
        return self.high < bar

    def __str__(self) -> str:
        if self.n < 2:
            return f"{self.mean:.4g} (one seed)"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] (95 %, {self.n} seeds)"


class Several(tuple[Interval, ...]):
    """Intervals of several comparisons that a claim needs all of."""

    __slots__ = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self))

    def __format__(self, spec: str) -> str:
        return str(self)


def interval(values: Sequence[float | None]) -> Interval:
    """Mean and 95 % Student interval; repetitions that gave nothing (None) are left out.

    >>> str(interval([0.1, 0.2, 0.3]))
    '0.2 [-0.04841, 0.4484] (95 %, 3 seeds)'
    """
    known = np.array([v for v in values if v is not None], float)
    if len(known) < 2:
        mean = float(known[0]) if len(known) else float("nan")
        return Interval(mean, mean, mean, len(known))
    from scipy.stats import t

    half = float(t.ppf(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    return Interval(float(known.mean()), float(known.mean()) - half, float(known.mean()) + half, len(known))


def mean_sd(values: Sequence[float | None]) -> str:
    """Mean and standard deviation over repetitions, as text.

    >>> mean_sd([1.0, 2.0, 3.0])
    '2.0000 ± 1.0000'
    >>> mean_sd([1.0])
    '1.0000 ± -'
    """
    known = [v for v in values if v is not None]
    if not known:
        return "-"
    sd = f"{np.std(known, ddof=1):.4f}" if len(known) > 1 else "-"
    return f"{np.mean(known):.4f} ± {sd}"
