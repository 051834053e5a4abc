"""What is known about the mixtures: paper, attacks with their sizes, steps in words."""

from __future__ import annotations

from typing import Final

from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning

__all__ = ["FACTS"]

SUMS: Final = "for each group, how many of your patients belong to it, and the sums of their values and squares"
FACTS: Final = MethodFacts(
    paper="privacy-preserving EM by distributed optimisation",
    formal=True,
    attacks=(
        KnownAttack(
            "sum",
            "exact sums over several rounds give equations enough to solve for the records of small sites",
        ),
    ),
    steps={
        "count": StepMeaning("how many patients, and how many have each value"),
        "zoom-*": StepMeaning("sums of values and of their distances from the mean, per feature"),
        "second-moments": StepMeaning("how features vary together"),
        "votes": StepMeaning("to which of some public points your patients are nearest, as counts"),
        "lloyd-*": StepMeaning("sums of values by the nearest centre", "a patient who alone is near a centre"),
        "statistics": StepMeaning(SUMS, "the record of a patient who is nearly a group alone"),
        "score": StepMeaning("how likely your patients are under the model"),
        "moments": StepMeaning("mean and spread of the records, each patient at most 1"),
        "coarse": StepMeaning("how many of your patients lie in each box of a public grid"),
        "fine": StepMeaning("how many of your patients lie in each box of a finer grid"),
    },
)
