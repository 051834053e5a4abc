"""What is known about Topics, for cards, reviews and consent."""

from __future__ import annotations

from typing import Final

from polyclinic.methods.rounds.facts import PAIRS, RARE, RARE_PAIRS, SCORE
from polyclinic.privacy.facts import MethodFacts, StepMeaning

TOPICS: Final = MethodFacts(
    paper="this program, after Blei et al. 2003 (latent Dirichlet allocation) and Li et al. 2020 (MixEHR)",
    attacks=(RARE_PAIRS,),
    steps={
        **PAIRS,
        "choice": StepMeaning("how well each of at most six models predicts held-out codes, one number each"),
        "counts": StepMeaning("for each code and phenotype, how many of your patients' codes belong to it", RARE),
        "score": SCORE,
    },
)
