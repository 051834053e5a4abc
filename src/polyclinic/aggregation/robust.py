"""Robust rules: a total that a few malicious sites cannot move far, whatever they send.

They must look at every contribution, so they exclude ``masked`` and ``subspace``: the coordinator sees each site's part,
every site adds the full noise, and the report says that this was traded. The result is ``sites`` times a robust centre of
the contributions, so a method sees an ordinary sum; sites count alike, since a claimed weight could be a lie too.

``malicious`` is the number of sites assumed to lie, by default a quarter of them (at least one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from polyclinic.aggregation.plain import Collector, Sender
from polyclinic.aggregation.promise import Promises
from polyclinic.errors import ConfigError, ProtocolMismatch
from polyclinic.privacy.release import Array
from polyclinic.protocol.interfaces import Aggregator, AggregatorFacts, Contribution, Message, Roster, Step, Total


def _facts(name: str) -> AggregatorFacts:
    looks = f"each site's contribution, {{values}} (rule {name!r} must look: no secure sum, full noise at every site)"
    return AggregatorFacts(name, "each", saw={"the coordinator": looks, "other sites": "the rule's total, {values}"})


class Robust(Aggregator):
    """What the rules share: contributions as rows, one centre, times the number of sites."""

    least: ClassVar[str] = "more than 2 f sites"
    adds = False

    def __init__(self, malicious: int | None = None) -> None:
        self.malicious = malicious

    def noise_share(self, roster: Roster) -> float:
        """Every site adds the full noise: the coordinator sees each contribution alone."""
        return 1.0

    def exchange(
        self,
        me: str,
        roster: Roster,
        step: Step,
        mine: Contribution | None,
        *,
        promises: Promises | None = None,
    ) -> Sender | WaryCollector:
        """A site's sender, or the coordinator's wary collector."""
        self.liars(len(roster.sites))
        return WaryCollector(me, roster, step, self) if mine is None else Sender(me, roster, step, mine)

    def liars(self, n: int) -> int:
        """How many of ``n`` sites are assumed to lie; refuses more than the rule can stand."""
        f = self.within(n) if self.malicious is None else self.malicious
        if f < 0 or not self.stands(n, f):
            raise ConfigError(
                f"rule {self.name!r} cannot stand {f} malicious of {n} sites: it needs {self.least}",
                hint="use more sites, or assume fewer malicious ones",
            )
        return f

    def stands(self, n: int, f: int) -> bool:
        """Whether the rule's guarantee holds."""
        return n > 2 * f

    def within(self, n: int) -> int:
        """How many to guard against when ``n`` sites answered; fewer sites stand fewer liars."""
        f = max(1, (n - 1) // 4) if self.malicious is None else self.malicious
        while f and not self.stands(n, f):
            f -= 1
        return f

    def centre(self, rows: Array, f: int) -> Array:
        """The robust centre of contributions (sites, scalars)."""
        raise NotImplementedError

    def spread(self, n: int, f: int) -> float:
        """Standard deviation of the total when every honest site adds Gaussian noise of 1; a plain sum has sqrt(n)."""
        return float(np.sqrt(n))

    def add(self, step: Step, parts: Mapping[str, Contribution]) -> tuple[dict[str, Any], float]:
        """``sites`` times the centre, and ``sites`` times the median weight."""
        sites, names = sorted(parts), list(step.shapes)
        rows = np.array([np.concatenate([np.ravel(parts[s].arrays[k]) for k in names]) for s in sites])
        n = len(sites)
        weight = n * float(np.median([parts[s].weight for s in sites]))
        centre = self.centre(rows, self.within(n)) * weight
        ends = np.cumsum([int(np.prod(step.shapes[k])) for k in names])[:-1]
        return {k: v.reshape(step.shapes[k]) for k, v in zip(names, np.split(centre, ends))}, weight


class WaryCollector(Collector):
    """A coordinator that leaves out, and names, a contribution that is not what the step announced."""

    def __init__(self, me: str, roster: Roster, step: Step, rule: Robust) -> None:
        super().__init__(me, roster, step, rule.add)
        self.rule = rule
        self.refused: dict[str, str] = {}

    def receive(self, message: Message) -> list[Message]:
        """A false shape, NaN or a value above the public bound is the sender's loss, not the study's."""
        try:
            return super().receive(message)
        except ProtocolMismatch as e:
            self.refused[message.sender] = str(e)
            return []

    def result(self) -> Total | Literal["pending", "aborted"]:
        sites, n = len(self.roster.sites), len(self.parts)
        if n + len(self.refused) < sites and not self.over:
            return "pending"
        if n + len(self.refused) < max(1, self.roster.threshold) or 2 * n <= sites:
            return "aborted"
        arrays, weight = self.add(self.step, self.parts)
        sd = self.step.noise_sd * self.rule.spread(n, self.rule.within(n))
        return Total(arrays, weight, n, sd, dict(self.parts) if self.step.how == "gather" else {})


class Median(Robust):
    """Coordinate by coordinate the middle value."""

    facts: ClassVar[AggregatorFacts] = _facts("median")

    def centre(self, rows: Array, f: int) -> Array:
        return np.asarray(np.median(rows, axis=0))

    def spread(self, n: int, f: int) -> float:
        return float(np.sqrt(n * np.pi / 2))


class Trimmed(Robust):
    """Coordinate by coordinate the mean without the f smallest and f largest values."""

    facts: ClassVar[AggregatorFacts] = _facts("trimmed")

    def centre(self, rows: Array, f: int) -> Array:
        return np.asarray(np.sort(rows, axis=0)[f : len(rows) - f].mean(axis=0))

    def spread(self, n: int, f: int) -> float:
        """Winsorised variance over the kept share, for Gaussian noise."""
        from scipy.special import ndtri

        if not f:
            return float(np.sqrt(n))
        share = f / n
        q = float(-ndtri(share))
        inner_variance = 1 - 2 * share - 2 * q * float(np.exp(-(q**2) / 2)) / float(np.sqrt(2 * np.pi))
        return float(np.sqrt(n * (inner_variance + 2 * share * q**2)) / (1 - 2 * share))


class Geometric(Robust):
    """The point with the smallest sum of distances to all contributions (Weiszfeld's iteration)."""

    facts: ClassVar[AggregatorFacts] = _facts("geometric")

    def centre(self, rows: Array, f: int) -> Array:
        return geometric_median(rows)


def geometric_median(rows: Array, *, tol: float = 1e-10, most: int = 1000) -> Array:
    """Smoothed Weiszfeld iteration from the coordinate median.

    >>> geometric_median(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1e9, 1e9]])).round(3)
    array([0.789, 0.789])
    """
    point = np.median(rows, axis=0)
    scale = float(np.median(np.linalg.norm(rows - point, axis=1))) or 1.0
    for _ in range(most):
        distance = np.sqrt(((rows - point) ** 2).sum(axis=1) + (1e-9 * scale) ** 2)
        new = (rows / distance[:, None]).sum(axis=0) / (1 / distance).sum()
        if float(np.linalg.norm(new - point)) <= tol * scale:
            return np.asarray(new)
        point = new
    return np.asarray(point)


class Krum(Robust):
    """The ONE contribution nearest to its ``sites - f - 2`` nearest others (Blanchard et al. 2017)."""

    facts: ClassVar[AggregatorFacts] = _facts("krum")
    least: ClassVar[str] = "at least 2 f + 3 sites"
    keep: ClassVar[bool] = False  # keep only the best

    def stands(self, n: int, f: int) -> bool:
        return n >= 2 * f + 3

    def spread(self, n: int, f: int) -> float:
        return float(n / np.sqrt(n - f if self.keep else 1))

    def centre(self, rows: Array, f: int) -> Array:
        n = len(rows)
        squared = ((rows[:, None] - rows[None]) ** 2).sum(axis=-1) if rows.shape[1] < 64 else _distances(rows)
        scores = np.sort(squared, axis=1)[:, 1 : max(2, n - f - 1)].sum(axis=1)
        best = np.argsort(scores, kind="stable")
        return np.asarray(rows[best[: n - f if self.keep else 1]].mean(axis=0))


def _distances(rows: Array) -> Array:
    squared = np.empty((len(rows), len(rows)))
    for i, row in enumerate(rows):
        squared[i] = ((rows - row) ** 2).sum(axis=1)
    return squared


class MultiKrum(Krum):
    """The mean of the ``sites - f`` contributions with the best Krum scores."""

    facts: ClassVar[AggregatorFacts] = _facts("multikrum")
    keep: ClassVar[bool] = True


class Bounded(Robust):
    """The plain weighted sum, after every site's contribution was shortened to at most ``norm``.

    Parameters
    ----------
    norm
        Largest length of one site's contribution, over all arrays; None: twice the median length of this step.
    """

    facts: ClassVar[AggregatorFacts] = _facts("bounded")

    def __init__(self, malicious: int | None = None, *, norm: float | None = None) -> None:
        super().__init__(malicious)
        self.norm = norm

    def add(self, step: Step, parts: Mapping[str, Contribution]) -> tuple[dict[str, Any], float]:
        sites = sorted(parts)
        lengths = {s: float(np.sqrt(sum(float((a**2).sum()) for a in parts[s].arrays.values()))) for s in sites}
        bound = 2 * float(np.median(list(lengths.values()))) if self.norm is None else self.norm
        total = {k: np.zeros(shape) for k, shape in step.shapes.items()}
        for s in sites:
            factor = parts[s].weight * min(1.0, bound / lengths[s]) if lengths[s] else parts[s].weight
            for k, a in parts[s].arrays.items():
                total[k] = total[k] + factor * a
        return total, float(sum(parts[s].weight for s in sites))
