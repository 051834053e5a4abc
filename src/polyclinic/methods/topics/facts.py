"""What is known about Topics, for cards, reviews and consent."""

from __future__ import annotations

from typing import Final

from polyclinic.methods.facts import RARE, SCORE
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning

PAIRS: Final = {
    "codes": StepMeaning("how many of your patients have each code", RARE),
    "pairs": StepMeaning(
        "how often two codes occur in one patient, for each half of your patients; only codes that at least 20 patients "
        "have over all sites",
        "that two codes occur together in few patients",
    ),
}

TOPICS: Final = MethodFacts(
    paper="this program, after Blei et al. 2003 (latent Dirichlet allocation) and Li et al. 2020 (MixEHR)",
    attacks=(
        KnownAttack(
            "sum",
            "exact sums of pairs of codes show pairs that few patients have, among codes of at least 20 patients "
            "(not tried on this method by itself)",
        ),
    ),
    steps={
        **PAIRS,
        "choice": StepMeaning("how well each of at most six models predicts held-out codes, one number each"),
        "counts": StepMeaning("for each code and phenotype, how many of your patients' codes belong to it", RARE),
        "score": SCORE,
    },
)
