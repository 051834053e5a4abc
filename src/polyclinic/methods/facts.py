"""What is known about the phenotyping methods, for cards, reviews and consent: papers, attacks with their sizes, steps in words."""

from __future__ import annotations

from typing import Final

from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning

SETUP: Final = StepMeaning(
    "how large the counts are in all, and how many patients", "the size of a site, where it is shown alone"
)
SCORE: Final = StepMeaning("how well the model fits, and how much each phenotype carries", "little but for tiny sites")
FACTORS: Final = "for each code and phenotype, how strongly your patients load on it"
RARE: Final = "a code that few of your patients have; the record of a patient who alone has it"

GRAM: Final = KnownAttack(
    "sum",
    "who knows a whole record and thousands of others tells from the exact second moments of 64 cells whether it was counted: "
    "AUC .62 (claims) and .75 (intensive care) among 1,000 patients, .61 and .62 among 2,000, .52 (claims) among 4,000",
    step="cells",
)
START: Final = {
    "energies*": StepMeaning("squared counts, for each of 64 public groups of codes and for each code", RARE),
    "cells*": StepMeaning(
        "how often two public groups of codes occur in one patient: second moments of 64 cells over all patients",
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

TRIP: Final = MethodFacts(
    paper="Kim et al. 2017 (TRIP)",
    attacks=(
        KnownAttack("each", "the coordinator recovers each site's Gram matrix and statistics from its normal messages"),
        KnownAttack(
            "each", "a code that a single patient carries is seen, and the record of such a patient can be rebuilt"
        ),
        KnownAttack(
            "sum", "presence of the only carrier of a code shows in exact totals (tried: 3 and 6 sites of 150 patients)"
        ),
        GRAM,
    ),
    steps={
        "setup": SETUP,
        **START,
        "scale": StepMeaning("how large your factors are, one number a mode"),
        "warm": StepMeaning(FACTORS, RARE),
        "sweep": StepMeaning(FACTORS, RARE),
        "score": SCORE,
    },
)

LOCALTF: Final = MethodFacts(
    paper="Ma et al. 2021 (LocalTF)",
    attacks=(
        KnownAttack(
            "noise", "one entry decides whether a site leaves a saddle point; the claim then fails in every run"
        ),
        KnownAttack(
            "sum",
            "presence of the only carrier of a code: right in 16 of 16 held-out runs after 8 shadow runs (3 sites of 150 "
            "patients, exact totals)",
        ),
    ),
    steps={"setup": SETUP, "factors": StepMeaning(FACTORS, RARE), "score": SCORE},
)

DPFACT: Final = MethodFacts(
    paper="Ma et al. 2019 (DPFact)",
    attacks=(
        KnownAttack("noise", "one entry decides whether a site leaves a saddle point: shifts up to 89 times the claim"),
        *(a for a in LOCALTF.attacks or () if a.against == "sum"),
    ),
    steps=LOCALTF.steps,
)

SUMALS: Final = MethodFacts(
    paper="alternating least squares by sums (this program)",
    attacks=(
        KnownAttack(
            "sum",
            "presence of the only carrier of a code shows in exact totals: 12 of 12 (3 and 6 sites of 150 patients)",
        ),
        KnownAttack(
            "sum",
            "the whole record of a patient who alone has a code comes out of exact totals: 6 of 6 without non-negativity "
            "(3 and 6 sites of 150 patients, rank 8, 12 rounds)",
        ),
        GRAM,
    ),
    steps={
        "setup": SETUP,
        **START,
        "mode*": StepMeaning(f"{FACTORS}; and how phenotypes overlap among them", RARE),
        "likelihood": StepMeaning("for each code and phenotype, how many of your patients' events belong to it", RARE),
        "score": SCORE,
    },
)

PARAFAC2: Final = MethodFacts(
    paper="PARAFAC2 by sums (this program), after Kiers et al. 1999 and Cohen and Bro 2018",
    attacks=(
        KnownAttack(
            "sum",
            "exact sums by code show a code that a single patient carries, as in alternating least squares by sums "
            "(not tried on this method by itself)",
        ),
    ),
    steps={
        "setup": SETUP,
        "courses": StepMeaning(f"{FACTORS} over their visits; and how courses of phenotypes overlap", RARE),
        "mean-course": StepMeaning(
            "the mean course of each phenotype over visits or times, and how much each phenotype carries",
            "the course of a patient who alone has so many visits",
        ),
    },
)

DPEM: Final = MethodFacts(
    paper="this program, after Foulds et al. 2017 (private EM)",
    formal=True,
    attacks=(KnownAttack("sum", "without noise, exact sums show a code that few patients have, and who alone has it"),),
    steps={
        "size": StepMeaning("how many patients have any event"),
        "vote": StepMeaning("how many more of your patients a given model explains better than worse"),
        "verdict": StepMeaning(
            "how much better this fit explains your patients than a given model, each counting at most 1"
        ),
        "marginals": StepMeaning("how many of your patients have each code, each patient counting 1 in all", RARE),
        "statistics": StepMeaning("for each code and phenotype, how many of your patients' codes belong to it", RARE),
    },
)

LOCALMODEL: Final = MethodFacts(
    paper="each site's own factorization, side by side",
    attacks=(KnownAttack("each", "each site's model is shown as it is: a code that a single patient carries is seen"),),
    steps={"setup": SETUP, "factors": StepMeaning(f"your own model: {FACTORS}", RARE)},
)
