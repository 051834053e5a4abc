"""Records that repeat: visits that bring earlier codes back, and a background whose codes go together."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.datasets.law import draw_outcome, unit_columns
from polyclinic.datasets.truth import Truth
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Site, Sites
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

NAMES: Final = ("procedure", "diagnosis")
SLOTS: Final = 4  # codes of one mode in a visit, at most

Matrix = NDArray[np.float64]
Codes = NDArray[np.int64]


def repeated_records(
    patients: int = 4000,
    codes: int = 150,
    phenotypes: int = 8,
    seed: int = 0,
    *,
    sites: int = 5,
    background: float = 0.45,
    repeats: float = 0.5,
    visits: float = 4.0,
    outcome: float = 0.3,
) -> Sites:
    """Make visits of patients whose codes repeat, over a background with a structure of its own.

    Every visit belongs to one phenotype of its patient or to the background, and has one to four codes a mode. A code may be
    carried over from an earlier visit. All pairs of codes of one visit are cells of the tensor, as records are read in practice.

    Parameters
    ----------
    patients
        Number over all sites, shared out equally.
    codes
        Codes of each of the two modes.
    phenotypes
        How many are planted.
    seed
        The same seed gives the same records.
    sites
        Number of hospitals. Each has its own mixture of phenotypes.
    background
        Mean share of the visits that belong to no phenotype.
    repeats
        Probability that a code of a later visit comes from an earlier visit of the patient.
    visits
        Mean number of visits.
    outcome
        Share of the patients with the outcome.

    Examples
    --------
    >>> net = repeated_records(patients=300, codes=40, phenotypes=3, seed=1, sites=3)
    >>> len(net), net[0].tensor.shape, net.truth.rank
    (3, (100, 40, 40), 3)
    """
    _check(patients=patients, codes=codes, phenotypes=phenotypes, sites=sites, shares=(background, repeats, outcome))
    rng = np.random.default_rng(seed)
    edges = np.linspace(0, patients, sites + 1).round().astype(int)
    mixtures = rng.dirichlet(np.full(phenotypes, 3.0), sites) * phenotypes
    share = np.concatenate([rng.dirichlet(0.2 * mixtures[k], b - a) for k, (a, b) in enumerate(pairwise(edges))])
    background_share = rng.beta(2.0, 2.0 / background - 2.0, patients)
    planted = [_columns(codes, phenotypes, rng) for _ in NAMES]
    common = [_background(codes, rng) for _ in NAMES]
    effect = rng.permutation(np.linspace(-1, 1, phenotypes)) * 5.0
    labels, intercept, auc = draw_outcome(share, effect, outcome, rng)
    mixed = np.column_stack(
        [share * (1 - background_share)[:, None], background_share[:, None] * rng.dirichlet((0.5, 0.5), patients)]
    )
    columns = [np.column_stack([p, c]) for p, c in zip(planted, common)]
    coords = _visits(mixed, columns, 1 + rng.poisson((visits - 1) * rng.gamma(2.0, 0.5, patients)), repeats, rng)
    axes = tuple(Axis(n, tuple(f"{n[0].upper()}{j:03d}" for j in range(codes)), None, "public") for n in NAMES)
    tensor = SparseTensor(coords, np.ones(len(coords)), (patients, codes, codes), axes)
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


def _check(*, patients: int, codes: int, phenotypes: int, sites: int, shares: tuple[float, float, float]) -> None:
    faults = [] if patients >= sites >= 1 else [f"{patients} patients over {sites} sites"]
    faults += [] if codes >= 20 else [f"{codes} codes, at least 20 are needed"]
    faults += [] if phenotypes >= 1 else [f"{phenotypes} phenotypes"]
    names = ("background", "repeats", "outcome")
    faults += [f"{n} {s} is not between 0 and 1" for n, s in zip(names, shares) if not 0 < s < 1]
    if faults:
        raise ConfigError("these records cannot be made", faults=faults)


def _columns(codes: int, phenotypes: int, rng: np.random.Generator) -> Matrix:
    """(codes, phenotypes): 6 to 12 codes a phenotype with unequal weights."""
    out = np.zeros((codes, phenotypes))
    for r in range(phenotypes):
        members = rng.choice(codes, rng.integers(6, 13), replace=False)
        out[members, r] = rng.gamma(1.0, 1.0, len(members)) + 0.1
    return np.asarray(out / out.sum(0))


def _background(codes: int, rng: np.random.Generator) -> Matrix:
    """(codes, 2): two broad groups that share the frequent codes, so that the background's codes go together."""
    frequent = 1 / (1.0 + rng.permutation(codes)) ** 0.7
    out = frequent[:, None] * rng.gamma(0.5, 2.0, (codes, 2))
    return np.asarray(out / out.sum(0))


def _visits(mixed: Matrix, columns: list[Matrix], visits: Codes, repeats: float, rng: np.random.Generator) -> Codes:
    """(cells, 3) patient and the pair of codes, visit by visit of all patients at once."""
    earlier: list[list[Codes]] = [[] for _ in columns]
    cells: list[Codes] = []
    cumulated = [np.cumsum(c, axis=0).T for c in columns]
    for v in range(int(visits.max())):
        present = np.flatnonzero(visits > v)
        topic = _draw(np.cumsum(mixed[present], axis=1), rng)
        drawn = []
        for past, table in zip(earlier, cumulated):
            number = 1 + np.minimum(rng.poisson(1.0, len(present)), SLOTS - 1)
            fresh = np.stack([_draw(table[topic], rng) for _ in range(SLOTS)], axis=1)
            if past:
                stored = np.stack(past)[
                    rng.integers(0, v, fresh.shape), present[:, None], rng.integers(0, SLOTS, fresh.shape)
                ]
                fresh = np.where((rng.random(fresh.shape) < repeats) & (stored >= 0), stored, fresh)
            fresh[np.arange(SLOTS) >= number[:, None]] = -1
            past.append(np.full((len(visits), SLOTS), -1))
            past[-1][present] = fresh
            drawn.append(fresh)
        cells += [
            np.column_stack([present, drawn[0][:, a], drawn[1][:, b]])[(drawn[0][:, a] >= 0) & (drawn[1][:, b] >= 0)]
            for a in range(SLOTS)
            for b in range(SLOTS)
        ]
    return np.concatenate(cells)


def _draw(cumulated: Matrix, rng: np.random.Generator) -> Codes:
    """One index a row of cumulated probabilities."""
    spot = rng.random(len(cumulated)) * cumulated[:, -1]
    return np.asarray((cumulated < spot[:, None]).sum(1))
