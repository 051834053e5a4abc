"""The patients by whom an outcome is judged: everybody placed once, learned on 60 % of each site, judged on the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.evaluation.prediction import Labelled, labelled
from polyclinic.federation.protocol import ordered, seeds
from polyclinic.sites.site import Site

__all__ = ["SHARE", "Judging"]

Array = NDArray[np.float64]
SHARE: Final = 0.6


@dataclass(frozen=True, eq=False)
class Judging:
    """Rows are the patients with a known outcome, site after site as given; each property is computed at its first use.

    Parameters
    ----------
    model
        Fitted; its ``transform`` places patients. Its factors saw no label.
    sites
        Hospitals, some with labels.
    seed
        Of the split, and of the frozen random factors.
    factors
        Frozen random factors to compare with; default: a start of the model's size.
    """

    model: Any
    sites: Sequence[Site]
    seed: int = 0
    factors: Sequence[Array] | None = None

    @cached_property
    def known(self) -> Labelled:
        """Who has a known outcome."""
        return labelled(self.sites)

    @cached_property
    def labels(self) -> NDArray[Any]:
        """Their outcomes."""
        return np.concatenate([np.asarray(s.labels) for s in self.known.sites])

    @cached_property
    def placed(self) -> Array:
        """(patients, R) memberships."""
        return np.concatenate([np.asarray(self.model.transform(s), np.float64) for s in self.known.sites])

    @cached_property
    def random(self) -> Array:
        """(patients, R) memberships in random factors: what a model that learned nothing reaches."""
        from polyclinic.phenotypes.start import start
        from polyclinic.tensors.cp import solve_memberships

        shape, rank = self.known.sites[0].counts().shape[1:], len(self.model.weights_)
        used = self.factors if self.factors is not None else start(shape, rank, self.seed)
        return np.concatenate([solve_memberships(s.counts(), used) for s in self.known.sites])

    @cached_property
    def _split(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows that train and rows that judge, as :func:`~polyclinic.evaluation.prediction.split` draws them."""
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

    def halves(self, rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Of any rows those that train and those that judge."""
        train, test = self._split
        return rows[train], rows[test]
