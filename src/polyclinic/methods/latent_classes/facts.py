"""What is known about latent classes between hospitals: paper, attacks with their sizes, steps in words."""

from __future__ import annotations

from typing import Final

from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning

__all__ = ["FACTS"]

FACTS: Final = MethodFacts(
    paper="latent class analysis by sums (this program)",
    formal=True,
    attacks=(
        KnownAttack(
            "sum",
            "exact pairwise tables show a patient who alone has two answers together; sums over several rounds give "
            "equations enough to solve for the records of small sites",
        ),
    ),
    steps={
        "count": StepMeaning("how many patients"),
        "zoom-*": StepMeaning("sums of values and of their distances from the mean, per column"),
        "second-moments": StepMeaning("how values vary, column by column"),
        "levels": StepMeaning(
            "how many of your patients have each level of each column", "a level that one patient has"
        ),
        "pairs": StepMeaning(
            "how many of your patients have two answers together, for every two answers",
            "a patient who alone has two answers together",
        ),
        "statistics": StepMeaning(
            "for each class, how many of your patients belong to it, and the sums of their answers and values",
            "the record of a patient who is nearly a class alone",
        ),
        "score": StepMeaning("how likely your patients are under the model"),
    },
)
