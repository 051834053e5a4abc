"""Patients like this one, at other hospitals: a prototype goes out, rounded counts and shares come back, never rows.

The query of a search by a patient would be the patient's own row. So the default query is a prototype: a phenotype, a
cluster's centre, a profile typed by hand; a patient's row is sent only if the asking and every answering hospital allow it.

Differencing. Two searches that differ in one patient would tell that patient's outcome if answers were exact. So

* a profile is rounded to quarters of a standard deviation and a threshold to tenths of similarity, by the hospital that
  answers: a patient cannot be singled out by moving either of them a little;
* counts are multiples of the smallest cell (5 at least), rounded up or down at random in proportion to the remainder; the
  choice follows from who is similar, so that asking again gives the same answer and nothing to average;
* fewer patients than the smallest cell, none included, are not told, and a share only if patients with and without the
  outcome both reach it.

What this does not do. It is no differential privacy and is not charged to a ledger as one: the sites' policy must allow
contributions that are shown by themselves. One pair of searches that isolates a patient says little about that patient (57 % of
586 guesses were right; tests/methods/similarity/test_search.py has the attack); hundreds of different pairs, from somebody who knows
the rows of everybody else, say more. A hospital that answers strangers should look at what it answers and how often.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from polyclinic.errors import ConfigError, DataError, PolicyRefusal
from polyclinic.methods.moments.moments import complete
from polyclinic.methods.similarity import facts as known
from polyclinic.methods.similarity.labels import classes_of_all
from polyclinic.methods.similarity.metric import SimilarityMetric
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.balance import Balance
from polyclinic.privacy.policy.policy import Policy, StudyRequest
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.params import Params
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]
HIDDEN = -1.0  # definition: what a site answers instead of a small count
SMALLEST_CELL = 5  # limit: counts are multiples of it, or of the smallest cell where that is larger
TENTHS, QUARTERS = 10, 4  # steps of a threshold in a unit of similarity, of a profile in a standard deviation


class SearchParams(Params):
    """Parameters of a search."""

    threshold: float = Field(1.0, description="Similar means s >= threshold, rounded to tenths.")
    min_cell: int = Field(11, ge=2, description="Smaller counts are never answered; larger ones are multiples of it.")
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")

    @property
    def cell(self) -> int:
        """Smallest count that is told, and the step between counts."""
        return max(SMALLEST_CELL, self.min_cell)


@dataclass(frozen=True)
class SearchPublic:
    """The profile in standard deviations from the mean, and what came back, one row a site: similar, and their share."""

    query: Array
    asked: bool
    answers: Array
    sites: tuple[str, ...]


@dataclass(frozen=True)
class NoneKept:
    """A site needs no memory here."""

    empty: bool = True


@dataclass(frozen=True)
class Count:
    """One hospital's answer: rounded; None where the number is too small to be told, and ``note`` says so."""

    site: str
    similar: int | None
    outcome_share: float | None
    note: str = ""


class PrototypeSearch(Estimator[SearchParams, SearchPublic, NoneKept]):
    """Ask every hospital about how many of its patients resemble a prototype, and which share of them has the outcome."""

    name = "prototype-search"
    facts = known.SEARCH
    needs = "features"
    Params = SearchParams
    Public = SearchPublic
    Private = NoneKept
    params: SearchParams
    metric: SimilarityMetric
    query: Array  # (d,) standard deviations from the mean
    outcome: object = None  # the class whose share is told

    def init_public(self, setting: Schema, rng: np.random.Generator) -> SearchPublic:
        """The query, and nobody asked."""
        return SearchPublic(self.query, False, np.zeros((len(setting.sites), 2)), setting.sites)

    def next_step(self, public: SearchPublic) -> Step | None:
        """One gathered answer of two counts a hospital."""
        if public.asked:
            return None
        bound = 3.0 * max(self.params.max_patients, self.params.cell)  # rounded up, each of two counts
        return Step(0, "search", {"answer": (2,)}, bound=bound, how="gather", counts=False)

    def init_site(self, site: Site, public: SearchPublic, rng: np.random.Generator) -> NoneKept:
        complete(site)
        return NoneKept()

    def contribute(
        self, step: Step, site: Site, private: NoneKept, public: SearchPublic, rng: np.random.Generator
    ) -> tuple[NoneKept, Contribution]:
        """(n, n_outcome) of its patients with s(x, query) >= threshold, rounded up to cells; fewer than a cell are HIDDEN."""
        m = self.metric
        # rounded here, not by the asker: the answering site protects itself
        query = np.rint(public.query * QUARTERS) / QUARTERS
        X = site.matrix()
        profile = np.where(np.isinf(m.scale_), m.mean_, m.mean_ + np.where(np.isinf(m.scale_), 0.0, m.scale_) * query)
        similar = m.transform(X) @ m.transform(profile[None, :])[0] >= np.rint(self.params.threshold * TENTHS) / TENTHS
        with_outcome = None if site.labels is None or self.outcome is None else np.asarray(site.labels) == self.outcome
        return private, Contribution(
            {
                "answer": np.array(
                    _answer(X[similar], None if with_outcome is None else with_outcome[similar], self.params.cell)
                )
            }
        )

    def update_public(self, step: Step, public: SearchPublic, total: Total) -> SearchPublic:
        """answers_k = what hospital k told, or HIDDEN."""
        rows = [total.gathered[s].arrays["answer"] if s in total.gathered else np.full(2, HIDDEN) for s in public.sites]
        return replace(public, asked=True, answers=np.stack(rows))

    def finalize_site(self, site: Site, private: NoneKept, public: SearchPublic) -> Arrays:
        return {}

    def _publish(self, outcome: Outcome) -> None:
        too_few = f"fewer than {self.params.cell}"
        self.answers_ = tuple(
            Count(s, None, None, f"{too_few} similar patients")
            if a[0] < 0
            else Count(s, round(float(a[0])), None, f"no classes, or {too_few} with or without the outcome")
            if a[1] < 0
            else Count(s, round(float(a[0])), float(a[1]))
            for s, a in zip(outcome.public.sites, outcome.public.answers)
        )


def _answer(rows: Array, has: NDArray[np.bool_] | None, cell: int) -> tuple[float, float]:
    """Count and outcome share of the similar patients (their rows, who has the outcome) as they may be told.

    >>> rows = np.arange(30.0)[:, None]
    >>> _answer(rows[:10], None, 11), _answer(rows[:22], None, 11), _answer(rows[:22], np.arange(22) < 11, 11)
    ((-1.0, -1.0), (22.0, -1.0), (22.0, 0.5))
    """
    count = len(rows)
    if count < cell:
        return HIDDEN, HIDDEN
    # one key for all that is told of these patients: a key of the ill alone would stay when a well one is added, and show it
    key = hashlib.sha256(np.ascontiguousarray(rows).tobytes()).digest()
    ill = 0 if has is None else int(has.sum())
    if has is None or min(ill, count - ill) < cell:
        return float(_rounded(count, cell, key, "all")), HIDDEN
    ill_count, well_count = _rounded(ill, cell, key, "with"), _rounded(count - ill, cell, key, "without")
    return float(ill_count + well_count), ill_count / (ill_count + well_count)


def _rounded(count: int, cell: int, key: bytes, what: str) -> int:
    """A multiple of ``cell``: right on average over keys, and for the same key always the same."""
    low, over = divmod(count, cell)
    drawn = int.from_bytes(hashlib.sha256(key + what.encode()).digest()[:8], "big")
    return cell * (low + (drawn < over / cell * 2.0**64))


def search(
    metric: SimilarityMetric,
    sites: Sequence[Site],
    query: ArrayLike,
    *,
    kind: Literal["prototype", "patient"] = "prototype",
    policies: Mapping[str, Policy] | None = None,
    allow_patient_query: bool = False,
    outcome: object = None,
    threshold: float | None = None,
    min_cell: int = 11,
) -> tuple[Count, ...]:
    """Who resembles this profile, by hospital: rounded counts, and the share with an outcome.

    Answers are rounded so that two searches do not give away the patient in whom they differ; the module's text says what
    that is worth: no differential privacy, and no defence against hundreds of chosen searches.

    Parameters
    ----------
    metric
        A fitted similarity that every hospital has.
    sites
        The hospitals that are asked.
    query
        (d,) the profile, in the features' own units; hospitals round it to quarters of a standard deviation.
    kind
        ``"patient"``: the profile is a patient's row; needs ``allow_patient_query`` (the asking hospital's consent) and
        ``sums = ["gather"]`` in the policy of every hospital.
    policies
        The answering hospitals' policies, by name; a hospital without one has the default policy, which forbids showing a
        contribution by itself and so refuses.
    outcome
        The class whose share is told; needed unless classes are 0 and 1 (then 1).
    threshold
        Similar means s >= threshold, in tenths; default the metric's own, to the nearest tenth.
    min_cell
        Smallest count that is answered, and step between counts (5 at least); a policy may ask for more.
    """
    if kind not in ("prototype", "patient"):
        raise ConfigError(f"kind {kind!r} is neither 'prototype' nor 'patient'")
    profile, tenth = _profile(metric, query), _tenth(metric, threshold)
    rules = _rules(sites, policies)
    faults = [f"{s.name!r}: {f}" for s in sites for f in _refusals(s, rules[s.name], len(sites), policies or {})]
    by_patient = kind == "patient"
    if by_patient and not allow_patient_query:
        faults.insert(0, "the asking hospital did not allow a patient's row to leave (allow_patient_query)")
    if faults and by_patient:
        raise PolicyRefusal(
            "a patient's row may not be sent as a query; nothing was computed",
            faults=faults,
            hint="ask with a prototype",
        )
    if faults:
        raise PolicyRefusal(
            "hospitals refuse the search; nothing was computed",
            faults=faults,
            hint="policies={'north': Policy(sums=('gather',)), ...} where the owner agrees",
        )
    method = PrototypeSearch(threshold=tenth, min_cell=max([min_cell, *(p.min_cell for p in rules.values())]))
    bare = copy(metric)  # columns are brought into its order below; transform need not ask for their names again
    bare.__dict__.pop("feature_names_in_", None)
    method.metric, method.query = bare, np.asarray((profile - metric.mean_) / metric.scale_)
    method.outcome = _outcome(sites, outcome)
    columns = vars(metric).get("feature_names_in_")
    doors = {n: ReleaseGate(n, policy=p, study="search") for n, p in rules.items()}
    method.publish(Simulation(method, [s.arranged(columns) for s in sites], doors=doors).run())
    return method.answers_


def _profile(metric: SimilarityMetric, query: ArrayLike) -> Array:
    profile = np.asarray(query, float).reshape(-1)
    if profile.shape != (metric.n_features_in_,):
        raise DataError(f"the profile has {profile.size} features, the metric {metric.n_features_in_}")
    if not np.isfinite(profile).all():
        raise DataError(
            f"the profile lacks {int((~np.isfinite(profile)).sum())} value(s)", hint="the mean is a neutral one"
        )
    return profile


def _tenth(metric: SimilarityMetric, threshold: float | None) -> float:
    """The threshold in tenths: the metric's own to the nearest, another one only where it is in tenths."""
    level = float(metric.bias_ if threshold is None else threshold)
    tenth = float(np.rint(level * TENTHS) / TENTHS)
    if threshold is not None and abs(level - tenth) > 1e-9:
        raise ConfigError(
            f"threshold {threshold!r} is not in tenths",
            hint=f"threshold={tenth:g}: finer steps would single out patients",
        )
    return tenth


def _refusals(site: Site, policy: Policy, sites: int, policies: Mapping[str, Policy]) -> list[str]:
    """Why a hospital's policy does not allow it to answer."""
    request = StudyRequest("search", PrototypeSearch.name, None, sites, site.patients)
    faults = policy.study_faults(Balance(), request)
    if "gather" not in policy.sums:
        owner = "its policy" if site.name in policies else "the default policy, as none was given,"
        faults.insert(0, f"{owner} does not allow a contribution to be shown by itself ([policy] sums = ['gather'])")
    return faults


def _rules(sites: Sequence[Site], policies: Mapping[str, Policy] | None) -> dict[str, Policy]:
    """Every hospital's policy; a name that is no hospital's is an error, or a misspelt one would answer unprotected."""
    names = [s.name for s in sites]
    strangers = sorted(set(policies or {}) - set(names))
    if strangers:
        raise ConfigError(
            "policies name hospitals that are not asked",
            faults=[repr(n) for n in strangers],
            hint=f"asked: {', '.join(names)}",
        )
    return {n: (policies or {}).get(n, Policy()) for n in names}


def _outcome(sites: Sequence[Site], outcome: object) -> object:
    """The class whose share is told; None where no hospital has classes."""
    classes = classes_of_all(sites).tolist()
    class_list = ", ".join(repr(c) for c in classes[:10])
    if outcome is None:
        if set(classes) <= {0, 1}:
            return 1 if classes else None
        raise ConfigError(
            "whose share is to be told?", faults=[f"classes: {class_list}"], hint=f"outcome={classes[0]!r}"
        )
    if outcome not in classes:
        raise ConfigError(
            f"outcome {outcome!r} is no class of these hospitals", faults=[f"classes: {class_list or 'none'}"]
        )
    return outcome
