"""The patients by whom an outcome is judged: everybody placed once, learned on 60 % of each site, judged on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.simulated.prediction import Labelled, labelled
from polyclinic.errors import ConfigError
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.protocol.interfaces import ordered, seeds
from polyclinic.records.sites.site import Site

__all__ = ["SHARE", "Judging"]

Array = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)
# definition: part of a site's patients that trains, the others judge
SHARE: Final = 0.6


@dataclass(frozen=True, eq=False)
class Judging:
    """Rows are the patients with a known outcome, site after site as given; each property is computed at its first use.

    Parameters
    ----------
    model
        A fitted estimator, or its phenotypes, which place patients. Their factors saw no label.
    sites
        Hospitals, some with labels.
    seed
        Of the split, and of the frozen random factors.
    factors
        Frozen random factors to compare with; default: a start of the model's size.
    """

    model: object
    sites: Sequence[Site]
    seed: int = 0
    factors: Sequence[Array] | None = None

    @cached_property
    def phenotypes(self) -> Phenotypes:
        """What was learned."""
        fitted = self.model if isinstance(self.model, Phenotypes) else vars(self.model).get("result_")
        if not isinstance(fitted, Phenotypes):
            raise ConfigError(
                f"a {type(self.model).__name__} has no phenotypes to judge", hint="fit a phenotype method first"
            )
        return fitted

    @cached_property
    def known(self) -> Labelled:
        """Who has a known outcome."""
        return labelled(self.sites)

    @cached_property
    def labels(self) -> NDArray[np.generic]:
        """Their outcomes."""
        return np.concatenate([np.asarray(s.labels) for s in self.known.sites])

    @cached_property
    def placed(self) -> Array:
        """(patients, R) memberships."""
        return np.concatenate([self.phenotypes.transform(s) for s in self.known.sites])

    @cached_property
    def random(self) -> Array:
        """(patients, R) memberships in random factors: what a model that learned nothing reaches."""
        from polyclinic.methods.starts.random import start
        from polyclinic.tensors.cp import solve_memberships

        shape, rank = self.known.sites[0].counts().shape[1:], self.phenotypes.rank
        factors = self.factors if self.factors is not None else start(shape, rank, self.seed)
        return np.concatenate([solve_memberships(s.counts(), factors) for s in self.known.sites])

    @cached_property
    def _split(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows that train and rows that judge, as :func:`~polyclinic.analysis.simulated.prediction.split` draws them."""
        first = dict(
            zip((s.name for s in self.known.sites), np.cumsum([0, *(s.patients for s in self.known.sites)]).tolist())
        )
        train, test = [], []
        for s in ordered(self.known.sites):
            order = seeds(self.seed, "split", s.name).permutation(s.patients)
            cut = round(SHARE * s.patients)
            train.append(first[s.name] + np.sort(order[:cut]))
            test.append(first[s.name] + np.sort(order[cut:]))
        return np.concatenate(train), np.concatenate(test)

    def halves(self, rows: NDArray[T]) -> tuple[NDArray[T], NDArray[T]]:
        """Of any rows those that train and those that judge."""
        train, test = self._split
        return rows[train], rows[test]
