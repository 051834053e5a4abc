"""A planted tensor of four modes."""

from __future__ import annotations

from polyclinic.datasets.planted import planted
from polyclinic.records.sites.site import Sites


def planted_four_mode(
    patients: int = 3000,
    dims: tuple[int, int, int] = (60, 80, 24),
    phenotypes: int = 8,
    background: float = 0.1,
    seed: int = 0,
    *,
    sites: int = 3,
    events: float = 60.0,
    codes: tuple[int, int, int] = (6, 8, 4),
    outcome: float = 0.3,
) -> Sites:
    """Make a planted tensor of four modes: patients x procedures x diagnoses x drugs.

    Examples
    --------
    >>> planted_four_mode(patients=90, seed=0)[0].tensor.shape
    (30, 60, 80, 24)
    """
    names = ("procedure", "diagnosis", "drug")
    return planted(
        patients, dims, names, phenotypes, background, seed, sites=sites, events=events, codes=codes, outcome=outcome
    )
