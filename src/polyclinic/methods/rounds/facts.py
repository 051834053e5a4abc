"""What is known about the sums that several phenotyping methods take, for cards, reviews and consent."""

from __future__ import annotations

from typing import Final

from polyclinic.privacy.facts import KnownAttack, StepMeaning

SETUP: Final = StepMeaning(
    "how large the counts are in all, and how many patients", "the size of a site, where it is shown alone"
)
SCORE: Final = StepMeaning("how well the model fits, and how much each phenotype carries", "little but for tiny sites")
FACTORS: Final = "for each code and phenotype, how strongly your patients load on it"
RARE: Final = "a code that few of your patients have; the record of a patient who alone has it"

GRAM: Final = KnownAttack(
    "sum",
    "membership inference: an attacker who knows a patient's record and thousands of others can tell from the exact start-up "
    "statistics whether the patient took part (AUC 0.62 on claims and 0.75 in intensive care at 1,000 patients, 0.61 and 0.62 at "
    "2,000, 0.52 on claims at 4,000)",
    step="cells",
)
START: Final = {
    "energies*": StepMeaning("squared counts, for each of 64 public groups of codes and for each code", RARE),
    "cells*": StepMeaning(
        "how often two public groups of codes occur in one patient: second moments of 64 cells over all patients, and of 48 "
        "groups in each of two halves of them",
        "that a known record was counted, where fewer than some thousand patients are in the sum",
    ),
    "lift*": StepMeaning(f"{FACTORS}; and how phenotypes overlap among them", RARE),
    "rows*": StepMeaning(
        "squared counts for each code, and how random groups of codes overlap among your patients", RARE
    ),
    "overlap*": StepMeaning("how random groups of codes overlap among your patients"),
    "wide*": StepMeaning(f"{FACTORS}; and how phenotypes overlap among them", RARE),
    "audition": StepMeaning("how well each of at most twelve models fits your patients, one number each"),
}
PAIRS: Final = {
    "codes": StepMeaning("how many of your patients have each code", RARE),
    "pairs": StepMeaning(
        "how often two codes occur in one patient, for each half of your patients; only codes that at least 20 patients "
        "have over all sites",
        "that two codes occur together in few patients",
    ),
}
RARE_PAIRS: Final = KnownAttack(
    "sum",
    "exact sums of pairs of codes show pairs that few patients have, among codes of at least 20 patients "
    "(not tried on this method by itself)",
    step="pairs",
)
