"""The patients that the papers' experiments run on, by name: planted ones, and open data where they are at hand."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from polyclinic.datasets import icu_network
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Sites
from polyclinic_papers.claims_data import load_mimic3_demo, load_synpuf
from polyclinic_papers.dpfact_data import dpfact_synthetic

__all__ = ["TITLES", "cohort"]

TITLES: Final = {
    "icu": "icu_network (for MIMIC-III)",
    "synthetic": "synthetic, 300 x 800",
    "mimic3_demo": "MIMIC-III demo by ICU",
    "cms_desynpuf": "DE-SynPUF, 5 samples",
}


def cohort(name: str, seed: int, patients: int) -> Sites:
    """Sites of one data set.

    Parameters
    ----------
    name
        ``icu``: six planted intensive care units. ``synthetic``: five sites of DPFact's shape and density.
        ``mimic3_demo``, ``cms_desynpuf``: open data, the same for every seed (a seed is then a start only).
    seed, patients
        Of the planted ones.

    Examples
    --------
    >>> len(cohort("icu", 0, 120)), len(cohort("synthetic", 0, 100))
    (6, 5)
    """
    if name not in TITLES:
        raise ConfigError(f"no cohort {name!r}", faults=[f"known: {', '.join(TITLES)}"])
    return _cohort(name, *((seed, patients) if name in ("icu", "synthetic") else (0, 0)))


@lru_cache(maxsize=12)
def _cohort(name: str, seed: int, patients: int) -> Sites:
    if name == "icu":
        return icu_network(patients=patients, seed=seed)
    if name == "synthetic":
        return dpfact_synthetic(seed, shape=(patients, 300, 800))
    return load_mimic3_demo() if name == "mimic3_demo" else load_synpuf()
