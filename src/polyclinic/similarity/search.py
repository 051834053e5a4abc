"""Patients like this one, at other hospitals: a prototype goes out, counts and outcome shares come back, never rows.

The query of a search by a patient would be the patient's own row. So the default query is a prototype: a phenotype, a
cluster's centre, a profile typed by hand; a patient's row is sent only if the asking and every answering hospital allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from polyclinic.errors import ConfigError, DataError, PolicyRefusal
from polyclinic.federation.estimator import Estimator
from polyclinic.federation.fold import Fold, Outcome
from polyclinic.federation.params import Params
from polyclinic.federation.protocol import Arrays, Contribution, Setting, Step, Total
from polyclinic.privacy.door import Door
from polyclinic.privacy.policy import Policy
from polyclinic.similarity.metric import SimilarityMetric
from polyclinic.tensors.site import Site

__all__ = ["Answer", "PrototypeSearch", "search"]

Array = NDArray[np.float64]
HIDDEN = -1.0  # what a site answers instead of a small count


class SearchParams(Params):
    """Parameters of a search."""

    threshold: float = Field(1.0, description="Similar means s >= threshold.")
    min_cell: int = Field(11, ge=2, description="Counts from 1 to one less are never answered.")
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")


@dataclass(frozen=True)
class SearchPublic:
    """The prototype in the learned space, and what came back, one row a site: similar patients, share with the outcome."""

    query: Array
    asked: bool
    answers: Array
    sites: tuple[str, ...]


@dataclass(frozen=True)
class Nothing:
    """A site needs no memory here."""

    empty: bool = True


@dataclass(frozen=True)
class Answer:
    """One hospital's answer; None where the number is too small to be told."""

    site: str
    similar: int | None
    outcome_share: float | None


class PrototypeSearch(Estimator):
    """Ask every hospital how many of its patients resemble a prototype, and which share of them has the outcome."""

    name = "prototype-search"
    needs = "features"
    Params = SearchParams
    Public = SearchPublic
    Private = Nothing
    params: Any
    metric: SimilarityMetric
    query: Array

    def begin(self, setting: Setting, rng: np.random.Generator) -> SearchPublic:
        return SearchPublic(self.query, False, np.zeros((len(setting.sites), 2)), setting.sites)

    def next(self, public: SearchPublic) -> Step | None:
        if public.asked:
            return None
        bound = float(self.params.max_patients)
        return Step(0, "search", {"answer": (2,)}, bound=bound, how="gather", counts=False)

    def open(self, site: Site, public: SearchPublic, rng: np.random.Generator) -> Nothing:
        return Nothing()

    def contribute(
        self, step: Step, site: Site, private: Nothing, public: SearchPublic, rng: np.random.Generator
    ) -> tuple[Nothing, Contribution]:
        alike = self.metric.transform(site.matrix()) @ public.query >= self.params.threshold
        return private, Contribution({"answer": np.array(_told(alike, site.labels, self.params.min_cell))})

    def combine(self, step: Step, public: SearchPublic, total: Total) -> SearchPublic:
        rows = [total.gathered[s].arrays["answer"] if s in total.gathered else np.full(2, HIDDEN) for s in public.sites]
        return replace(public, asked=True, answers=np.stack(rows))

    def close(self, site: Site, private: Nothing, public: SearchPublic) -> Arrays:
        return {}

    def _publish(self, outcome: Outcome) -> None:
        self.answers_ = tuple(
            Answer(s, None if a[0] < 0 else round(float(a[0])), None if a[1] < 0 else float(a[1]))
            for s, a in zip(outcome.public.sites, outcome.public.answers)
        )


def _told(alike: NDArray[np.bool_], labels: Any, min_cell: int) -> tuple[float, float]:
    """Count and outcome share as they may be told: a share only if both its cells are large enough or empty.

    >>> _told(np.ones(30, bool), np.array([1] * 15 + [0] * 15), 11), _told(np.ones(30, bool), np.array([1] * 3 + [0] * 27), 11)
    ((30.0, 0.5), (30.0, -1.0))
    """
    count = int(alike.sum())
    rest = len(alike) - count  # the complement, which the number of patients gives away
    if 0 < count < min_cell or 0 < rest < min_cell:
        return HIDDEN, HIDDEN
    if labels is None or count == 0:
        return float(count), HIDDEN
    ill = int((np.asarray(labels)[alike] == 1).sum())
    small = 0 < ill < min_cell or 0 < count - ill < min_cell
    return float(count), HIDDEN if small else ill / count


def search(
    metric: SimilarityMetric,
    sites: Sequence[Site],
    query: ArrayLike,
    *,
    kind: Literal["prototype", "patient"] = "prototype",
    policies: Mapping[str, Policy] | None = None,
    allow_patient_query: bool = False,
    threshold: float | None = None,
    min_cell: int = 11,
) -> tuple[Answer, ...]:
    """Who resembles this profile, by hospital.

    Parameters
    ----------
    metric
        A fitted similarity that every hospital has.
    sites
        The hospitals that are asked.
    query
        (d,) the profile, in the features' own units.
    kind
        ``"patient"``: the profile is a patient's row; needs ``allow_patient_query`` (the asking hospital's consent) and
        ``allow_gather`` in the policy of every hospital that is named in ``policies``.
    policies
        The answering hospitals' policies; one that forbids showing a contribution by itself refuses.
    threshold
        Similar means s >= threshold; default the metric's own.
    min_cell
        Smallest count that is answered; a policy may ask for more.
    """
    profile = np.asarray(query, float).reshape(-1)
    if profile.shape != (metric.n_features_in_,):
        raise DataError(f"the profile has {profile.size} features, the metric {metric.n_features_in_}")
    rules = dict(policies or {})
    if kind == "patient":
        silent = sorted(s.name for s in sites if s.name not in rules or not rules[s.name].allow_gather)
        faults = [f"{n!r} has no policy that allows it" for n in silent]
        if not allow_patient_query:
            faults.insert(0, "the asking hospital did not allow a patient's row to leave (allow_patient_query)")
        if faults:
            raise PolicyRefusal(
                "a patient's row may not be sent as a query", faults=faults, hint="ask with a prototype"
            )
    elif kind != "prototype":
        raise ConfigError(f"kind {kind!r} is neither 'prototype' nor 'patient'")
    smallest = max([min_cell, *(p.min_cell for p in rules.values())])
    method = PrototypeSearch(threshold=metric.bias_ if threshold is None else threshold, min_cell=smallest)
    method.metric, method.query = metric, metric.transform(profile[None, :])[0]
    doors = {n: Door(n, policy=p) for n, p in rules.items()}
    method.publish(Fold(method, sites, doors=doors).run())
    return method.answers_
