"""How a private fit spends its budget: rank, rounds and shares, from public numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, Literal

from polyclinic.privacy import accountant
from polyclinic.privacy.budget import Privacy

__all__ = ["ReleasePlan", "plan_for"]

MARGINALS: Final = (
    0.15  # share of the budget for how often every code occurs: they are in every column (docs: privacy.md)
)
SIZE: Final = (
    0.005  # share that buys the number of patients where nobody said it: 1 % off at epsilon 1 and 6,000 patients
)
READABLE: Final = (
    0.1  # least signal of a column against its noise; below, phenotypes are worse than marginals with the whole budget
)

VOTE: Final = 0.02  # share that asks whether a prior fits: one number, so little is enough
RANK, LEAST, ROUNDS, FREE_ROUNDS = 40, 20, 12, 20
FREE_RANK: Final = 30


@dataclass(frozen=True)
class ReleasePlan:
    """What is spent on what. ``multipliers`` (the count where it is bought, marginals, rounds) is empty without privacy."""

    rank: int  # phenotypes looked for, the background not counted; 0 = there is too little data for any
    rounds: int
    multipliers: tuple[float, ...] = ()


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
    """Choose what was left open by the public rule (docs: privacy.md): from numbers that are public or paid for, never the data.

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
        ``"asked"``: a share buys the vote about a prior, and there is no gate: phenotypes that the noise hides are the
        prior's then, no ghosts. ``"refused"``: the vote went against it, and the gate is asked with what is left.

    Notes
    -----
    The gate: a column holds about N / R patients' unit vectors over ``codes`` coordinates, each with noise s, so its
    signal against its noise is N / (R s sqrt(codes)). Below ``READABLE`` the whole budget goes to the marginals (rank 0).
    The rank is N / (40 s), from 20 to 40: two to three times what one would show, since more columns cost little under
    empirical Bayes; pieces are joined for display. At most twice the codes of the smallest mode.

    Examples
    --------
    >>> from polyclinic.privacy.budget import Privacy
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
    seen = sigma * privacy.max_sites_per_patient * sqrt(noisy_sites)
    first = (SIZE,) if bought else ()
    asked = (VOTE,) if prior != "none" else ()
    most = max(min(RANK, 2 * min(shape)), 1)
    if planning_size is not None:
        rank = rank or min(max(int(planning_size / (40 * seen)), LEAST), most)
        signal = planning_size / (rank * seen * sqrt(sum(shape)))
        if prior != "asked" and signal < READABLE:
            spent = (*first, *((MARGINALS, *asked) if asked else ()))  # the gate may close after the vote
            shares = [*spent, 1.0 - sum(spent)]
            return ReleasePlan(0, 0, accountant.calibrate(privacy.epsilon, privacy.delta, shares=shares))
    rank, rounds = rank or most, rounds or ROUNDS  # rounds are part of the price: fixed before any count is known
    early = (*first, MARGINALS, *asked)
    rising = [(1.0 - sum(early)) * 2 * t / (rounds * (rounds + 1)) for t in range(1, rounds + 1)]
    return ReleasePlan(rank, rounds, accountant.calibrate(privacy.epsilon, privacy.delta, shares=[*early, *rising]))
