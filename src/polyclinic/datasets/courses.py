"""Planted courses: patients with different numbers of visits, whose phenotypes rise, fall or pass; counts are Poisson."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Site, Sites
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
SHAPES: Final[tuple[Callable[[Matrix], Matrix], ...]] = (
    lambda u: np.exp(-3 * u),  # passes
    lambda u: u**1.5,  # grows
    lambda u: np.exp(-(((u - 0.5) / 0.18) ** 2)),  # one episode
    lambda u: 0.5 + 0 * u,  # stays
    lambda u: 1 - 0.9 * np.exp(-(((u - 0.5) / 0.2) ** 2)),  # remission
    lambda u: 1 / (1 + np.exp(-15 * (u - 0.6))),  # sets in late
)


@dataclass(frozen=True, eq=False)
class PlantedCourses:
    """What was planted: codes (J, R), and per site memberships (patients, R) and courses (visits, R), patient by patient."""

    factors: tuple[Matrix, ...]
    memberships: dict[str, Matrix]
    courses: dict[str, Matrix]


def planted_courses(
    patients: int = 1200,
    codes: int = 120,
    phenotypes: int = 6,
    seed: int = 0,
    *,
    sites: int = 3,
    visits: tuple[int, int] = (4, 13),
    events: float = 12.0,
) -> Sites:
    """Make patients x visits x codes counts whose phenotypes have a course.

    Parameters
    ----------
    patients, sites
        Number over all sites, shared out equally; the sites are ``site 1`` ...
    codes, phenotypes
        Codes, and phenotypes of 12 codes each (at most six: passing, growing, an episode, lasting, a remission, late).
    seed
        The same seed gives the same counts.
    visits
        Fewest and most visits of a patient.
    events
        Mean number of events of a visit.

    Examples
    --------
    >>> sites = planted_courses(patients=30, seed=0)
    >>> [a.name for a in sites[0].tensor.axes], sites.truth.factors[0].shape
    (['patient', 'visit', 'code'], (120, 6))
    """
    if not 1 <= phenotypes <= len(SHAPES) or codes < 12 or not 1 <= visits[0] <= visits[1]:
        raise ConfigError(f"at most {len(SHAPES)} phenotypes, at least 12 codes and one visit")
    rng = np.random.default_rng([seed, 20])
    V = np.full((codes, phenotypes), 0.01)
    for r in range(phenotypes):
        V[rng.choice(codes, 12, replace=False), r] += rng.gamma(2.0, 1.0, 12)
    V /= np.linalg.norm(V, axis=0)
    axes = [
        Axis("visit", tuple(f"{t + 1:02d}" for t in range(visits[1])), vocabulary="public"),
        Axis("code", tuple(f"c{j:03d}" for j in range(codes)), vocabulary="public"),
    ]
    hospitals, memberships, courses = [], {}, {}
    for k, mine in enumerate(np.array_split(np.arange(patients), sites)):
        name = f"site {k + 1}"
        coords, values, site_courses, w = [], [], [], np.zeros((len(mine), phenotypes))
        for i in range(len(mine)):
            T = int(rng.integers(visits[0], visits[1] + 1))
            u = 0.6 * (np.arange(T) + 0.5) / T + 0.4 * np.sort(rng.random(T))
            u = np.clip(u + rng.normal(0, 0.05), 0, 1)
            B = np.stack([SHAPES[r](u) for r in range(phenotypes)], axis=1) + 1e-3
            B /= np.linalg.norm(B, axis=0)
            w[i] = rng.gamma(0.8, 1.0, phenotypes) * (rng.random(phenotypes) < 0.6)
            w[i, rng.integers(phenotypes)] += 0.3
            rate = (B * w[i]) @ V.T
            scale = events * T / rate.sum() * np.exp(rng.normal(0, 0.4))
            w[i] *= scale
            x = rng.poisson(rate * scale)
            x[x.sum(1) == 0, 0] = 1  # a visit leaves a trace
            t, j = np.nonzero(x)
            coords.append(np.column_stack([np.full(len(t), i), t, j]))
            values.append(x[t, j].astype(float))
            site_courses.append(B)
        people = Axis("patient", tuple(f"{k}-{i}" for i in range(len(mine))))
        coordinates = np.concatenate(coords) if coords else np.zeros((0, 3), np.int64)
        cells = np.concatenate(values) if values else np.zeros(0)
        hospitals.append(Site(name, SparseTensor(coordinates, cells, (len(mine), visits[1], codes), [people, *axes])))
        memberships[name], courses[name] = (
            w,
            np.concatenate(site_courses) if site_courses else np.zeros((0, phenotypes)),
        )
    return Sites(hospitals, PlantedCourses((V,), memberships, courses))
