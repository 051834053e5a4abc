"""Statistics of a privacy audit: what released values tell about who took part, against what the ledger promises.

Canaries are patients made up by the auditor; each takes part with probability 1/2, and each gets a score from the
released values. Two tests read the scores:

* the one-run lower bound of Steinke, Nasr and Jagielski (2023, theorem 5.2), which assumes nothing about the
  mechanism and finds gross errors;
* the sharper test of Gaussian noise: the distance ``mu`` between scores of those in and those out, in units of their
  spread, must be what the ledger says; it finds noise that is too small by a tenth.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom

from polyclinic.errors import ConfigError
from polyclinic.privacy.release import Adjacency

GUESSES: Final = (1.0, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03)  # parts of the canaries that are guessed
WIDE: Final = 3.5  # standard errors: a false alarm in 4,000 audits

Scores = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Audit:
    """Result of an audit.

    Attributes
    ----------
    epsilon, delta, adjacency
        What the ledger promises.
    lower_bound
        Epsilon that the releases certainly exceed, at ``confidence`` (one-run bound).
    mu, mu_hat, mu_se
        Distance between in and out that the ledger promises, the measured one, and its standard error.
    """

    method: str
    canaries: int
    epsilon: float
    delta: float
    adjacency: Adjacency
    lower_bound: float
    confidence: float
    mu: float
    mu_hat: float
    mu_se: float
    largest_norm: float = math.nan  # of one canary's contribution, over the announced sensitivity
    faults: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Literal["passed", "failed", "no power"]:
        """``"no power"``: nothing was found, but the canaries were seen less than they should have been."""
        if self.faults:
            return "failed"
        return "passed" if self.mu_hat >= self.mu - WIDE * self.mu_se else "no power"

    @property
    def passed(self) -> bool:
        """The releases kept what the ledger promises, and the audit could have seen otherwise."""
        return self.verdict == "passed"

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return {**asdict(self), "verdict": self.verdict, "passed": self.passed}

    def summary(self) -> dict[str, str]:
        """A few words for a card."""
        return {
            "verdict": self.verdict,
            "one-run lower bound": f"epsilon {self.lower_bound:.3g} at delta {self.delta:g} ({self.adjacency}-level, "
            f"{self.confidence:.0%} confidence), ledger {self.epsilon:.3g}",
            "mu": f"{self.mu_hat:.3g} (se {self.mu_se:.2g}), ledger {self.mu:.3g}",
        }

    def __str__(self) -> str:
        lines = [f"audit of {self.method}, {self.canaries} canary patients: {self.verdict}"]
        lines += [f"  {k}: {v}" for k, v in self.summary().items() if k != "verdict"]
        return "\n".join([*lines, *(f"  - {f}" for f in self.faults)])


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Probability of this many correct guesses, at most, if the mechanism were (epsilon, delta)-private.

    With W ~ Binomial(guesses, e^eps / (1 + e^eps)):  P[W >= v] + 2 m delta max_i (P[v - i <= W < v] / i).

    >>> round(one_run_p_value(100, 100, 70, 0.0, 0.0), 6)  # coin flips
    3.9e-05
    """
    q = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(correct - 1, guesses, q))
    if delta <= 0 or correct == 0:
        return min(beta, 1.0)
    i = np.arange(1, correct + 1)
    tail = np.cumsum(binom.pmf(correct - i, guesses, q))  # P[v - i <= W < v]
    return min(beta + 2 * canaries * delta * float((tail / i).max()), 1.0)


def one_run_epsilon(scores: Scores, included: Flags, *, delta: float, confidence: float = 0.95) -> float:
    """Epsilon that one run certainly exceeds; 0 if nothing is certain.

    The highest scores are guessed to be in and the lowest out, for several numbers of guesses; the confidence is
    divided among them (Bonferroni).
    """
    m = len(scores)
    order = np.argsort(scores, kind="stable")
    best = 0.0
    level = (1 - confidence) / len(GUESSES)
    for part in GUESSES:
        half = round(part * m / 2)
        if half < 1:
            continue
        correct = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())

        def excess(eps: float, half: int = half, correct: int = correct) -> float:
            return one_run_p_value(m, 2 * half, correct, eps, delta) - level

        if excess(0.0) >= 0:
            continue
        best = max(best, 50.0 if excess(50.0) < 0 else float(brentq(excess, 0.0, 50.0, xtol=1e-6)))
    return best


def mu_estimate(scores: Scores, included: Flags) -> tuple[float, float]:
    """Distance between the mean scores of those in and those out, over their spread; and its standard error."""
    a, b = scores[included], scores[~included]
    if min(len(a), len(b)) < 8:
        raise ConfigError(f"{len(scores)} canaries are too few for an audit", hint="use at least 50")
    spread = math.sqrt((((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()) / (len(scores) - 2))
    if spread == 0:
        return math.inf, 0.0
    mu = float(a.mean() - b.mean()) / spread
    return mu, math.sqrt(1 / len(a) + 1 / len(b) + mu * mu / (2 * (len(scores) - 2)))


def judge(
    method: str,
    scores: Scores,
    included: Flags,
    *,
    epsilon: float,
    delta: float,
    mu: float,
    adjacency: Adjacency = "patient",
    confidence: float = 0.95,
    largest_norm: float = math.nan,
) -> Audit:
    """Both tests, against what the ledger promises."""
    lower = one_run_epsilon(scores, included, delta=delta, confidence=confidence)
    mu_hat, _ = mu_estimate(scores, included)
    # the spread under the ledger's own mu: a wrong mechanism must not widen its own margin
    se = math.sqrt(4 / len(scores) + mu * mu / (2 * (len(scores) - 2)))
    faults = []
    if lower > epsilon:
        faults.append(
            f"{adjacency}-level epsilon is at least {lower:.3g} at delta {delta:g} with {confidence:.0%} confidence; "
            f"the ledger says {epsilon:.3g}"
        )
    if mu_hat > mu + WIDE * se:
        faults.append(
            f"those in and out differ by mu = {mu_hat:.3g}, {(mu_hat - mu) / se:.1f} standard errors above the "
            f"ledger's {mu:.3g}: too little noise, or contributions longer than announced"
        )
    return Audit(
        method, len(scores), epsilon, delta, adjacency, lower, confidence, mu, mu_hat, se, largest_norm, tuple(faults)
    )
