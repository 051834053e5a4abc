"""How a private fit spends its budget: rank, rounds and shares, from public numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Final, Literal

from polyclinic.privacy.accounting import accountant
from polyclinic.privacy.accounting.budget import Privacy

# docs/benchmarks/private-em.md, how DPEM spends
MARGINALS: Final = 0.15  # share of the budget for how often every code occurs: they are in every column
# docs/benchmarks/private-em.md, when there is too little to learn
SIZE: Final = (
    0.005  # share that buys the number of patients where nobody said it: 1 % off at epsilon 1 and 6,000 patients
)
# docs/benchmarks/private-em.md, when there is too little to learn
READABLE: Final = (
    0.1  # least signal of a column against its noise; below, phenotypes are worse than marginals with the whole budget
)

# docs/benchmarks/private-em.md, a prior: one number, so little is enough
VOTE: Final = 0.02  # share that asks whether a prior fits
# docs/benchmarks/private-em.md, a prior
VERDICT: Final = 0.02  # share that asks at the end whether the fit is better than its prior by itself
RANK, LEAST, FREE_ROUNDS = 40, 20, 20
# docs/dev/decisions/0013-dpem-budget-plan.md
CLEAR: Final = (
    2.0,
    4.0,
)  # signal of a column against its noise: up to the first it is searched for, from the second it is found early
# docs/dev/decisions/0013-dpem-budget-plan.md
ROUNDS: Final = (16, 12)  # there a fit has so many rounds
# docs/dev/decisions/0013-dpem-budget-plan.md
RISING: Final = (0.5, 2.0)  # there the shares of the rounds rise like this power of their number
# docs/dev/decisions/0013-dpem-budget-plan.md
MEMORY: Final = (0.85, 0.95)  # a release counts for so much less with every later one
# docs/dev/decisions/0013-dpem-budget-plan.md
STEPS: Final = (
    32,
    12,
    4,
)  # and a patient is placed by so many EM steps within a round; by the last where noise is soft
# docs/dev/decisions/0013-dpem-budget-plan.md
SOFT: Final = (6.0, 18.0)  # signal from which the noise no longer shakes EM loose, and from which it does not at all
# docs/benchmarks/private-em.md, without noise
FREE_RANK: Final = 30


@dataclass(frozen=True)
class ReleasePlan:
    """What is spent on what. ``multipliers`` (the count where it is bought, marginals, rounds) is empty without privacy."""

    rank: int  # phenotypes looked for, the background not counted; 0 = there is too little data for any
    rounds: int
    multipliers: tuple[float, ...] = ()
    memory: float = MEMORY[0]  # what a release still counts after one more, where nothing is seen to move
    steps: int = STEPS[0]  # EM steps that place a patient within a round

    @property
    def clear(self) -> bool:
        """Phenotypes stand out so clearly that they are found early."""
        return bool(self.multipliers) and self.memory >= MEMORY[1]


def clearness(signal: float, ends: tuple[float, float] = CLEAR) -> float:
    """Where between two ends of the rule a fit stands: 0 up to a signal of 2, 1 from 4, by its logarithm between.

    Examples
    --------
    >>> [round(clearness(q), 2) for q in (0.1, 2.0, 3.0, 4.0, 50.0)]
    [0.0, 0.0, 0.58, 1.0, 1.0]
    """
    low, high = ends
    return min(max(log(signal / low) / log(high / low), 0.0), 1.0)


def plan_for(
    privacy: Privacy | None,
    shape: Sequence[int],
    *,
    rank: int | None = None,
    rounds: int | None = None,
    planning_size: int | None = None,
    noisy_sites: int = 1,
    bought: bool = False,
    prior: Literal["none", "asked", "refused"] = "none",
) -> ReleasePlan:
    """Choose what was left open by the public rule (docs/benchmarks/private-em.md): from public numbers or released ones, never the data.

    Parameters
    ----------
    privacy
        The budget; None: no noise.
    shape
        Sizes of the feature modes.
    rank, rounds
        None: the rule decides.
    planning_size
        A public guess of the number of patients, never counted from the data. None: rank 40.
    noisy_sites
        How many sites add the full noise each: all of them under a plain sum, one under a secure one.
    bought
        The number of patients is itself a paid release, the first one. Everything that follows from it (the gate, the
        rank) is post-processing; both branches of the gate spend the whole budget.
    prior
        ``"asked"``: shares buy the vote about a prior and the verdict at the end, and there is no gate: phenotypes that the
        noise hides are the prior's then, no ghosts. ``"refused"``: the vote went against it, and the gate is asked with what
        is left.

    Notes
    -----
    The gate: a column holds about N / R patients' unit vectors over ``codes`` coordinates, each with noise s, so its
    signal against its noise is N / (R s sqrt(codes)). Below ``READABLE`` the whole budget goes to the marginals (rank 0).
    The rank is N / (40 s), from 20 to 40: two to three times what one would show, since more columns cost little under
    empirical Bayes; pieces are joined for display. At most twice the codes of the smallest mode.

    Rounds, shares, memory, steps: 16 rounds to 12 by :func:`clearness` of the same signal; the budget of round t is t^p of all, p = 1/2 to 2; the
    memory goes from 0.85 to 0.95 with it, and a patient's EM steps from 32 to 12, then to 4 as the signal goes from 6 to 18.
    Phenotypes that stand out clearly are found in the first rounds, loud as these are, and gain most by many quiet sums of the
    last ones; where little stands out the early rounds decide which phenotypes are found, and sums taken before they were
    found mislead. Patients who are placed in few steps are placed less sharply, which keeps EM from dividing phenotypes
    wrongly where the noise does not (docs/dev/decisions/0013).

    Examples
    --------
    >>> from polyclinic.privacy.accounting.budget import Privacy
    >>> p = plan_for(Privacy(1.0, 1e-6), (200, 300), planning_size=20_000)
    >>> p.rank, p.rounds, len(p.multipliers)
    (40, 12, 13)
    >>> plan_for(Privacy(0.1, 1e-6), (200, 300), planning_size=1_000).rank  # too little data for any phenotype
    0
    """
    if privacy is None:
        return ReleasePlan(rank or FREE_RANK, rounds or FREE_ROUNDS)
    # One release with everything, as the coordinator would see it.
    sigma = accountant.calibrate(privacy.epsilon, privacy.delta)[0]
    noise_seen = sigma * privacy.max_sites_per_patient * sqrt(noisy_sites)
    first = (SIZE,) if bought else ()
    vote, verdict = ((VOTE,), (VERDICT,)) if prior != "none" else ((), ())
    rank = rank or _rank_for(shape, noise_seen, planning_size)
    signal = 0.0 if planning_size is None else planning_size / (rank * noise_seen * sqrt(sum(shape)))
    if planning_size is not None and prior != "asked" and signal < READABLE:
        charged = (*first, *((MARGINALS, *vote) if vote else ()))  # the gate may close after the vote
        shares = [*charged, 1.0 - sum(charged) - sum(verdict), *verdict]
        return ReleasePlan(0, 0, accountant.calibrate(privacy.epsilon, privacy.delta, shares=shares))
    clear, soft = (clearness(max(signal, 1e-9), ends) for ends in (CLEAR, SOFT))
    power, memory, steps = (low + clear * (high - low) for low, high in (RISING, MEMORY, STEPS[:2]))
    rounds = rounds or round(ROUNDS[0] + clear * (ROUNDS[1] - ROUNDS[0]))
    steps += soft * (STEPS[2] - STEPS[1])
    shares = _rising_shares((*first, MARGINALS, *vote), rounds, power, verdict)
    multipliers = accountant.calibrate(privacy.epsilon, privacy.delta, shares=shares)
    return ReleasePlan(rank, rounds, multipliers, memory, round(steps))


def _rank_for(shape: Sequence[int], noise_seen: float, planning_size: int | None) -> int:
    """Columns by the public rule: N / (40 s) from 20 to 40, at most twice the codes of the smallest mode."""
    most = max(min(RANK, 2 * min(shape)), 1)
    return most if planning_size is None else min(max(int(planning_size / (40 * noise_seen)), LEAST), most)


def _rising_shares(early: tuple[float, ...], rounds: int, power: float, verdict: tuple[float, ...]) -> list[float]:
    """Shares of the budget: the releases before the rounds, round t like t^power of what they leave, the verdict."""
    rising = [t**power for t in range(1, rounds + 1)]
    return [*early, *((1.0 - sum(early) - sum(verdict)) * w / sum(rising) for w in rising), *verdict]
