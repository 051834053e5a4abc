"""What findings with a formal guarantee will cost and how far off they will be, from public numbers, before anything is spent.

The budget of the act (its part of mu^2) is split by ``SHARES`` over what is asked; a figure that could not be read at this size
is not bought, and its share goes to the others. Parts of one sum share its noise by :mod:`polyclinic.analysis.private.unit_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from polyclinic.analysis.private.unit_rows import Part, scaled
from polyclinic.analysis.statistics.intervals import Z
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.util.table import Table

# Of mu^2. Looked for on diabetes-130 (10,000 and 33,653 patients); confirmed on DE-SynPUF and generated ICU patients.
SHARES: Final[Mapping[str, float]] = {
    "carriers": 0.27,
    "people": 0.05,
    "pairs": 0.14,
    "gradient": 0.26,
    "scores": 0.15,
    "survival": 0.07,
    "placements": 0.02,
    "completion": 0.04,
}
COLUMNS: Final = ("figure", "error_95", "unit", "bought", "reason")
# the share that DPEM has for it: docs/benchmarks/private-em.md, when there is too little to learn
SIZE: Final = 0.005  # buys the number of patients where nobody said it
GRADIENTS: Final = 2  # of the regression, each a paid sum
BINS: Final = 12  # of the risk: fewer are biased, more are noise (10,000 to 40,000 patients)
PRODUCT: Final = 0.5  # weight of a product of two columns beside the columns
# limit: steps of a paid curve, since noise grows with their number
TIMES: Final = 12
# definition: the carriers that a forecast supposes
TYPICAL: Final = 0.2  # share of patients that a forecast supposes to carry a phenotype
READABLE: Final = {"carriers": 0.05, "people": 0.10, "outcome": 0.5, "auc": 0.05, "survival": 0.05, "completion": 0.1}


@dataclass(frozen=True)
class Asked:
    """Public facts of an act with a formal guarantee.

    Attributes
    ----------
    part
        Of the study's mu^2 that the findings get; the fit has the rest.
    variables, numbers, columns, levels
        Covariates of the regression, how many of them are numbers, their columns; levels of each variable of Table 1.
    size
        Public guess of the number of patients; None: bought.
    rate
        Public guess of the share with the outcome.
    spread
        Noise of the total over that of one contribution: root of the number of sites where each is seen, else 1.
    """

    privacy: Privacy
    what: tuple[str, ...]
    rank: int
    carried: int = 8
    variables: int = 0
    numbers: int = 0
    columns: int = 0
    levels: tuple[int, ...] = ()
    times: int = TIMES
    size: float | None = None
    rate: float = 0.1
    part: float = 1.0
    spread: float = 1.0

    @property
    def most(self) -> int:
        """Phenotypes that count for one patient."""
        return min(self.carried, self.rank)

    @property
    def width(self) -> int:
        """Columns of the regression, the intercept too."""
        return 1 + self.rank + self.columns

    def parts(self, what: Sequence[str]) -> dict[str, Part]:
        """Every part of a row that these figures need, without shares."""
        k, v, r = self.most, self.variables, self.rank
        p = self.width - 1
        out = [Part("carriers", (2 + r,), 2.0 + k, 0.0)]  # patients, those over the cap, carriers
        if "people" in what and self.levels:
            out.append(Part("people", (1 + r, sum(self.levels)), (1.0 + k) * len(self.levels), 0.0))
        if "outcome" in what:
            products = k * (k - 1) / 2 + k * v + v * (v - 1) / 2 + self.numbers
            most = 2.0 + 2 * v + k + PRODUCT**2 * products
            out.append(Part("pairs", (1 + self.columns + 1 + p + p * (p - 1) // 2 + self.numbers,), most, 0.0))
            out.append(Part("gradient", (self.width,), 1.0 + k + v, 0.0))
            out.append(Part("scores", (2, BINS), 1.0, 0.0))
        if "survival" in what:
            out.append(Part("survival", (1 + r, self.times, 2), 1.0 + k, 0.0))
        if "completion" in what:
            out += [Part("placements", (r,), 1.0, 0.0), Part("completion", (3,), 3.0, 0.0)]
        return {x.name: x for x in out}


@dataclass(frozen=True)
class Forecast:
    """One figure before it is bought: its error in ``unit`` for 95 % of releases, or why it is not bought."""

    figure: str
    error: float
    unit: str
    reason: str = ""


@dataclass(frozen=True)
class Spending:
    """What is bought, by which releases, at which noise.

    Attributes
    ----------
    tables, scores
        Parts of the first and of the last release.
    gradient
        The part of each gradient's release.
    multipliers
        Release -> noise multiplier: ``size``, ``tables``, ``gradient``, ``scores``.
    """

    what: tuple[str, ...]
    tables: tuple[Part, ...]
    gradient: Part | None
    scores: tuple[Part, ...]
    multipliers: Mapping[str, float]
    forecasts: tuple[Forecast, ...]

    @property
    def refused(self) -> dict[str, str]:
        """What is not bought, and why."""
        return {f.figure: f.reason for f in self.forecasts if f.reason}

    def table(self) -> Table:
        """The forecast as a table."""
        rows = [
            [f.figure, None if f.reason else f.error, f.unit, "no" if f.reason else "yes", f.reason]
            for f in self.forecasts
        ]
        return Table(list(COLUMNS), rows)


def _noise(asked: Asked, parts: Mapping[str, Part]) -> dict[str, float]:
    """Noise of an entry of each part, in patients, if these are all that is bought."""
    total = sum(SHARES[n] for n in parts)
    remainder = 1.0 - (SIZE if asked.size is None else 0.0)
    out = {}
    for n, p in parts.items():
        share = asked.part * remainder * SHARES[n] / total
        multiplier = calibrate(asked.privacy.epsilon, asked.privacy.delta, shares=(share,))[0]
        out[n] = multiplier * math.sqrt(p.most) * asked.privacy.max_sites_per_patient * asked.spread
    return out


def expected(asked: Asked, what: Sequence[str], size: float, rate: float) -> tuple[Forecast, ...]:
    """The error of every figure at this size, if these figures are bought; a reason where it cannot be read.

    Log odds ratios: sqrt(1 / H + s^2 / H^2) shrunk by the prior, with H = n r (1 - r) q (1 - q), q = .2. AUC: the noise of 2 x 12
    cells. Table 1: the share of a level among carriers. Curves: everybody's, at the last time.
    """
    sd = _noise(asked, asked.parts(what))
    n = max(size, 1.0)
    forecasts = [_readable("carriers", 100 * Z * sd["carriers"] / n, "percentage points of prevalence")]
    if "people" in sd:
        forecasts.append(_readable("people", 100 * Z * sd["people"] / (n * TYPICAL), "percentage points of a level"))
    if "gradient" in sd:
        forecasts += _of_outcome(sd, n, rate)
    if "survival" in sd:
        error = Z * sd["survival"] * math.sqrt(2 * asked.times) / n
        forecasts.append(_readable("survival", 100 * error, "percentage points of the survival curve"))
    if "completion" in sd:
        forecasts.append(_readable("completion", Z * 3 * sd["completion"] / n, "nats an event"))
    return tuple(forecasts)


def _readable(figure: str, error: float, unit: str) -> Forecast:
    """Forecast one figure, with the reason where its error is too large to read it."""
    limit = (100 if unit.startswith("percentage") else 1) * READABLE[figure]
    reason = f"the expected error is {error:.3g} {unit}, and the limit is {limit:.3g}" if error > limit else ""
    return Forecast(figure, error, unit, reason)


def _of_outcome(sd: Mapping[str, float], n: float, rate: float) -> tuple[Forecast, Forecast]:
    """Forecast the log odds ratios and the AUC. They are judged by their noise, without the sampling error."""
    events = max(n * rate, 1e-9)
    h = events * (1 - rate) * TYPICAL * (1 - TYPICAL)
    noise = sd["gradient"] / h
    variance = 1.0 / (1.0 / 0.49 + 1.0 / (1.0 / h + noise**2))
    area = sd["scores"] * math.sqrt(BINS / 12) / events
    reason = auc_reason = ""
    if noise > READABLE["outcome"]:
        reason = f"with about {round(events):,} events the noise of a log odds ratio is {noise:.2f}, and the limit is {READABLE['outcome']}"
    elif area > READABLE["auc"]:
        auc_reason = f"with about {round(events):,} events the noise of the AUC is {area:.3f}"
    return (
        Forecast("outcome", Z * math.sqrt(variance), "of a log odds ratio", reason),
        Forecast("auc", Z * area, "of the AUC", reason or auc_reason),
    )


def spend(asked: Asked, size: float) -> Spending:
    """Decide what is bought at this size. The shares of figures that cannot be read go to the others, again and again.

    >>> spending = spend(Asked(Privacy(1.0, 1e-6), ("carriers", "outcome"), rank=10), 10_000)
    >>> spending.what, round(spending.forecasts[0].error, 2)
    (('carriers', 'outcome'), 0.46)
    >>> spend(Asked(Privacy(1.0, 1e-6), ("carriers", "outcome"), rank=10), 300).what
    ()
    """
    figures = tuple(a for a in asked.what if a != "people" or asked.levels)
    dropped: dict[str, Forecast] = {}
    while True:
        forecasts = expected(asked, figures, size, asked.rate)
        by_figure = {f.figure: f for f in forecasts}
        unreadable = [f for f in forecasts if f.reason and (f.figure in figures or f.figure == "auc")]
        if not unreadable:
            break
        reason = by_figure["carriers"].reason
        if reason and "carriers" in figures:  # nothing can be read where this cannot
            unaffordable = tuple(replace(f, reason=f.reason or reason) for f in forecasts)
            return _nothing((*unaffordable, *(f for n, f in dropped.items() if n not in by_figure)))
        for f in unreadable:
            for name in _together(f.figure):
                dropped.setdefault(name, replace(by_figure[name], reason=by_figure[name].reason or f.reason))
        figures = tuple(a for a in figures if a not in {_together(f.figure)[0] for f in unreadable})
    forecasts = (*forecasts, *dropped.values())
    return _bought(asked, figures, forecasts) if figures else _nothing(forecasts)


def _together(figure: str) -> tuple[str, ...]:
    """Return the figures that are bought together: odds ratios and the AUC need each other's sums."""
    return ("outcome", "auc") if figure in ("outcome", "auc") else (figure,)


def _nothing(forecasts: tuple[Forecast, ...]) -> Spending:
    return Spending((), (), None, (), {}, forecasts)


def _bought(asked: Asked, what: tuple[str, ...], forecasts: tuple[Forecast, ...]) -> Spending:
    """Split the budget over the releases of these figures."""
    parts = asked.parts(what)
    groups = {
        "tables": [p for n, p in parts.items() if n not in ("gradient", "scores", "completion")],
        "gradient": [parts["gradient"]] if "gradient" in parts else [],
        "scores": [p for n, p in parts.items() if n in ("scores", "completion")],
    }
    total = sum(SHARES[n] for n in parts)
    first = SIZE if asked.size is None else 0.0
    shares: dict[str, float] = {"size": first} if first else {}
    for name, group in groups.items():
        if group:
            times = GRADIENTS if name == "gradient" else 1  # the gradients share theirs equally
            share = sum(SHARES[p.name] for p in group) / times
            shares[name] = (1.0 - first) * share / total
    levels = calibrate(asked.privacy.epsilon, asked.privacy.delta, shares=[asked.part * s for s in shares.values()])
    return Spending(
        what,
        scaled(groups["tables"], SHARES),
        next(iter(scaled(groups["gradient"], SHARES)), None),
        scaled(groups["scores"], SHARES),
        dict(zip(shares, levels)),
        forecasts,
    )
