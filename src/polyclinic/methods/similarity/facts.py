"""What is known about the similarity methods: paper, attacks with their sizes, steps in words."""

from __future__ import annotations

from typing import Final

from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning

UNPSL: Final = MethodFacts(
    paper="Wang et al. (UnPSL), consensus form",
    attacks=(
        KnownAttack(
            "each", "messages give the exact local gradient: with fewer patients than features membership is certain"
        ),
    ),
    steps={
        "count": StepMeaning("how many patients"),
        "zoom-*": StepMeaning("sums of values and of their distances from the mean, per feature"),
        "second-moments": StepMeaning("how features vary, alone and together", "a value far from all others"),
        "pairs": StepMeaning("how many pairs of your patients are alike, and how many differ"),
        "scale": StepMeaning("how well a few trial metrics separate your pairs"),
        "slope": StepMeaning("how steep the loss is at the start"),
        "consensus": StepMeaning(
            "your own metric: which features make patients alike", "patients of a site with few of them"
        ),
    },
)

UNPSL_PRIVATE: Final = MethodFacts(
    paper="this program, after UnPSL",
    formal=True,
    attacks=(),
    assumptions=("classes are a public list",),
    steps={
        "moments": StepMeaning(
            "how many patients, their mean and spread, per feature and class, each patient at most 1"
        ),
        "gradient": StepMeaning("in which direction the metric should move, each patient at most 1"),
    },
)
