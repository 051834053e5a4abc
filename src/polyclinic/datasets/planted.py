"""Planted counts at any size: the law on which privacy and speed are measured (PRIVACY, header)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.datasets.law import draw_events, draw_outcome, unit_columns
from polyclinic.datasets.truth import Truth, refuse_impossible
from polyclinic.records.sites.site import Site, Sites
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

# log-normal spread of a patient's number of events: the busiest of 20,000 has ten times the median
SPREAD: Final = 0.63
CONCENTRATION: Final = 0.15  # Dirichlet of memberships: two or three phenotypes carry most of a patient's events
EFFECT: Final = 5.0  # spread of the log odds; gives AUC 0.82 to loadings fitted with the planted codes

Matrix = NDArray[np.float64]


def planted_counts(
    patients: int = 20000,
    procedures: int = 200,
    diagnoses: int = 300,
    phenotypes: int = 15,
    background: float = 0.15,
    seed: int = 0,
    *,
    sites: int = 1,
    events: float = 28.5,
    codes: tuple[int, int] = (12, 16),
    outcome: float = 0.3,
) -> Sites:
    """Make patients x procedures x diagnoses counts with known phenotypes, some background and one yes/no outcome.

    Parameters
    ----------
    patients
        Number over all sites, shared out equally.
    procedures, diagnoses
        Sizes of the vocabularies (anonymous public codes).
    phenotypes
        How many are planted; each has its own random codes, codes may serve several phenotypes.
    background
        Share of the events outside every phenotype.
    seed
        The same seed gives the same counts.
    sites
        Number of hospitals, named ``site 1`` ...
    events
        Median number of events of a patient (28.5 gives a median of 28 nonzeros).
    codes
        Procedures and diagnoses of one phenotype.
    outcome
        Share of the patients with the outcome.

    Returns
    -------
    Sites
        With tensor and labels; ``.truth`` holds factors, memberships and the Bayes AUC.

    Examples
    --------
    >>> net = planted_counts(patients=600, seed=3, sites=6)
    >>> len(net), net[0].tensor.shape, net.truth.rank
    (6, (100, 200, 300), 15)
    """
    return planted(
        patients,
        (procedures, diagnoses),
        ("procedure", "diagnosis"),
        phenotypes,
        background,
        seed,
        sites=sites,
        events=events,
        codes=codes,
        outcome=outcome,
    )


def planted(
    patients: int,
    dims: Sequence[int],
    names: Sequence[str],
    phenotypes: int,
    background: float,
    seed: int,
    *,
    sites: int,
    events: float,
    codes: Sequence[int],
    outcome: float,
) -> Sites:
    faults = [f"{n} {name} for {c} codes a phenotype" for name, n, c in zip(names, dims, codes) if not 1 <= c <= n]
    faults += [] if patients >= sites >= 1 else [f"{patients} patients over {sites} sites"]
    faults += [] if phenotypes >= 1 else [f"{phenotypes} phenotypes"]
    refuse_impossible("these counts cannot be planted", faults, events=events, background=background, outcome=outcome)
    rng = np.random.default_rng(seed)
    planted = [_phenotype_codes(n, c, phenotypes, rng) for n, c in zip(dims, codes)]
    common = [_zipf(n, rng) for n in dims]
    share = rng.dirichlet(np.full(phenotypes, CONCENTRATION), patients)
    total = events * np.exp(SPREAD * rng.standard_normal((patients, 1)))
    members = share * total * (1 - background)
    effect = rng.permutation(np.linspace(-1, 1, phenotypes)) * EFFECT
    # A patient's log odds follow what the patient has, not how many events were coded: memberships as shares.
    labels, intercept, auc = draw_outcome(share, effect, outcome, rng)
    mixed = [np.column_stack([p, c]) for p, c in zip(planted, common)]
    coords, values = draw_events(np.hstack([members, total * background]), mixed, rng)
    axes = tuple(
        Axis(name, tuple(f"{name[0].upper()}{j:03d}" for j in range(n)), None, "public") for name, n in zip(names, dims)
    )
    tensor = SparseTensor(coords, values, (patients, *dims), axes)
    edges = np.linspace(0, patients, sites + 1).round().astype(int)
    parts = [(f"site {k + 1}", np.arange(a, b)) for k, (a, b) in enumerate(pairwise(edges))]
    truth = Truth(
        names=tuple(f"phenotype {r + 1}" for r in range(phenotypes)),
        axes=axes,
        factors=tuple(unit_columns(p) for p in planted),
        memberships={name: share[rows] for name, rows in parts},
        prevalence=np.ones((sites, phenotypes), bool),
        coefficients=effect,
        intercept=intercept,
        bayes_auc=auc,
        background=background,
    )
    return Sites([Site(name, tensor.take(rows), labels=labels[rows]) for name, rows in parts], truth)


def _phenotype_codes(size: int, codes: int, phenotypes: int, rng: np.random.Generator) -> Matrix:
    """(size, phenotypes), each column a random choice of codes with weights that sum to 1."""
    out = np.zeros((size, phenotypes))
    for r in range(phenotypes):
        out[rng.choice(size, codes, replace=False), r] = rng.gamma(2.0, 1.0, codes) + 0.2
    return np.asarray(out / out.sum(0))


def _zipf(size: int, rng: np.random.Generator) -> Matrix:
    weight = 1 / np.sqrt(1.0 + rng.permutation(size))
    return np.asarray(weight / weight.sum())
