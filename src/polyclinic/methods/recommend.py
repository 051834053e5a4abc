"""Which method for which data: rules from measurements on open records (docs/howto/which-method.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.records.sites.from_data import Data, as_sites
from polyclinic.tensors.sparse import SparseTensor

FEW: Final = 1_000  # patients below which DPEM without noise predicts hidden codes better: docs/howto/which-method.md


@dataclass(frozen=True)
class Recommendation:
    """A method and why.

    Parameters
    ----------
    method
        Name of the class in ``polyclinic``.
    reason
        Why, in words.
    """

    method: str
    reason: str


def recommend(data: Data, *, privacy: Privacy | None = None) -> Recommendation:
    """Recommend a method from the kind and number of records. Counts are read here, nothing is fitted or sent.

    Parameters
    ----------
    data
        Sites, one site, or a tensor.
    privacy
        The guarantee that the study must give, or None.

    Examples
    --------
    >>> import polyclinic as pc
    >>> print(recommend(pc.datasets.planted_counts(patients=1500, seed=0)).method)
    Topics
    """
    sites = as_sites(data)
    tensors = [s.tensor for s in sites if s.tensor is not None]
    if tensors:
        return Recommendation("DPEM", "counts of codes with patient-level privacy") if privacy else _for_codes(tensors)
    if any(s.labels is not None for s in sites):
        return Recommendation("UnPSL", "features with classes: it learns which patients are alike")
    return Recommendation("GaussianMixture", "features without classes: it finds groups of patients")


def _for_codes(tensors: Sequence[SparseTensor]) -> Recommendation:
    modes = {a.name for a in tensors[0].axes}
    patients = sum(t.patients for t in tensors)
    if "visit" in modes:
        return Recommendation("PARAFAC2", "visits in order: each patient has a trajectory of their own")
    if "time" in modes:
        return Recommendation("TRIP", "the mode 'time' says when a code occurred, so cells are true pairs")
    if patients < FEW:
        return Recommendation("DPEM", f"{patients:,} patients are few: without noise it predicted hidden codes best")
    return Recommendation("Topics", f"codes of {patients:,} patients: it predicted hidden codes best")
