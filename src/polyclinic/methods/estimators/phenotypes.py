"""The estimators of the federated phenotype methods: ``pc.TRIP`` is :class:`polyclinic.methods.trip.TRIP` with ``fit`` around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods import dpfact, local_model, localtf, parafac2, sumals, trip
from polyclinic.methods.dpem import method as dpem
from polyclinic.methods.dpem.params import DPEMParams
from polyclinic.methods.dpem.state import DPEMPrivate, DPEMPublic
from polyclinic.methods.estimators.factorization import FittedFactorization
from polyclinic.methods.rounds.step_size import Conditions, conditions, rate_at
from polyclinic.methods.starts.choice import Start, Started, StartedParams, StartedPublic
from polyclinic.methods.starts.pairs import warn_of_low_rank
from polyclinic.methods.starts.state import StartPublic
from polyclinic.methods.topics import method as topics
from polyclinic.models.phenotypes.projection import Events, Likely, Placing, SideBySide
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Pri
from polyclinic.protocol.outcome import Outcome
from polyclinic.records.sites.from_data import warn_of_odd_counts
from polyclinic.records.sites.site import Site
from polyclinic.tensors.kernels import em as em_kernels
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted

SP = TypeVar("SP", bound=StartedParams)
SPub = TypeVar("SPub", bound=StartedPublic)


class FittedStarted(FittedFactorization[SP, SPub, Pri], Started[SP, SPub, Pri]):
    """The estimator of a method with a shared start.

    Attributes
    ----------
    start_
        How the fit started.
    """

    def _runs(self, sites: Sequence[Site]) -> int:
        """One, where the starts are tried on the Gram or a model is given; else as many as asked for."""
        p = self.params
        if isinstance(p.start, tuple):
            return 1
        if p.n_starts == 1 or p.start != "gram" or self.starter.hindrance() or any(s.tensor is None for s in sites):
            return p.n_starts
        gram = self.starter.gram(sites[0].counts().shape[1:])
        return 1 if sum(s.patients for s in sites) >= gram.least else p.n_starts

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        begun: StartPublic = outcome.public.start
        gram = begun.kind == "gram"
        self.start_ = Start(
            begun.kind,
            "" if gram or begun.reason == "asked for" else begun.reason,
            self.starter.gram(outcome.public.shape).cells if gram else 0,
            begun.proposed or None,
            outcome.public.gain,
            gram and begun.sweep > 0,
        )


class TRIP(FittedStarted[trip.TRIPParams, trip.TRIPPublic, trip.TRIPPrivate], trip.TRIP):
    """Phenotypes that all hospitals agree on, by consensus ADMM; close to pooling the data, without pooling it.

    It starts from the Gram of hashed cells where that may be taken (``start_`` says so), with few patients from more random
    columns than are asked for, else at random with a warm-up, and
    ends when two rounds in a row (three after a random start) change the explained energy by less than ``tol`` (known one round late).

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> m = pc.TRIP(rank=4, rounds=5, seed=0).fit(sites)
    >>> len(m.factors_), m.traffic_.rounds
    (2, 5)
    """


class SumALS(FittedStarted[sumals.SumALSParams, sumals.SumPublic, sumals.SumPrivate], sumals.SumALS):
    """Exactly pooled least squares by sums: the baseline to beat in rounds, at the price of R x R more numbers a mode.

    With ``loss="poisson"`` (counts) or ``"bernoulli"`` (yes/no) the likelihood is climbed instead, one sum a round
    (:mod:`polyclinic.methods.rounds.losses`), and ``score`` is the share of the deviance that is explained.

    It starts from the Gram of hashed cells where that may be taken (``start_`` says so), with few patients from more random
    columns than are asked for, else at random with a warm-up, and
    ends when a sweep (two after a random start) gains less than ``tol`` of the explained energy. Packed sums tell at the end of a sweep
    what it gained; they end when the next one is expected to gain less than ``tol``.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.SumALS(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        if self.params.loss != "squares":
            self.saturation_ = None  # it weighed the start only

    def _placing(self) -> Placing:
        return super()._placing() if self.params.loss == "squares" else Likely(self.params.loss)


class LocalTF(FittedFactorization[localtf.LocalParams, localtf.LocalPublic, localtf.LocalPrivate], localtf.LocalTF):
    """Phenotypes by averaging: hospitals learn alone for a while, meet, average, and go on from the average.

    ``tol`` is the relative change of the squared error met during a pass (observed: over all cells; missing: over nonzeros).

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.LocalTF(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """

    def conditions(self, site: Site) -> Conditions:
        """The paper's conditions on the step at a site, for the fitted model (beta and L; eta <= 2/beta)."""
        p = self.params
        factors = [self.memberships_[site.name], *self.factors_]
        return conditions(
            weighted(site.counts(), self.saturation_),
            factors,
            learning_rate=rate_at(p.learning_rate, 1, p.zeros),
            elastic=self._pull(),
            clip=p.privacy.clip if p.privacy else None,
        )


class DistributedSGD(LocalTF, localtf.DistributedSGD):
    """Distributed SGD: communication after every pass; LocalTF with ``local_passes=1``."""


class DPFact(LocalTF, dpfact.DPFact):
    """Phenotypes by elastic averaging, with phenotypes of a site's own.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.DPFact(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """

    params: dpfact.DPFactParams


class DPEM(FittedFactorization[DPEMParams, DPEMPublic, DPEMPrivate], dpem.DPEM):
    """Phenotypes that say nothing about any one patient: differential privacy for whole patients, by EM on noisy sums.

    With ``privacy=pc.Privacy(epsilon, delta)`` everything that leaves a hospital is paid for; without it this is plain
    EM. Under ``aggregation="masked"`` the noise is added once, under ``"plain"`` by every site (more noise by the root
    of the number of sites). Memberships are expected numbers of events and stay at the hospital.

    Attributes
    ----------
    shown_
        Per mode (I_n, R), True for the codes that the known noise does not explain; ``phenotypes_`` lists only these.
    background_
        Per mode (I_n,), what everybody has.
    privacy_
        The card; with a ``prior`` its own epsilon is in it (a patient of both studies has the sum of both).
    too_little_data_
        The public rule spent the whole budget on the marginals; the one "phenotype" is the background.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(600, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    >>> m = pc.DPEM(rank=4, rounds=4, privacy=pc.Privacy(epsilon=8, delta=1e-5), aggregation="masked").fit(sites)
    >>> m.privacy_.guarantee, m.privacy_.adjacency, m.traffic_.rounds
    ('formal', 'patient', 4)
    """

    def _look_at_counts(self, tensors: Sequence[SparseTensor]) -> None:
        for t in tensors:
            em_kernels.stacked_rows(t)  # what is below zero is refused, so that it needs no warning
        warn_of_odd_counts(tensors, way_out="counts of events are whole")

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        self._add_prior_to_card()
        self.public_: DPEMPublic = outcome.public
        self.shown_ = [s[:, self.order_] for s in self.public_.shown]
        self.background_ = list(self.public_.marginals)
        self.too_little_data_ = self.public_.plan.rank == 0
        self._scale = np.prod([np.linalg.norm(f, axis=0) for f in self.public_.factors], axis=0)

    def _add_prior_to_card(self) -> None:
        p = self.params
        if p.prior is not None:
            self.privacy_ = p.prior.joined(self.privacy_, public=p.prior_is_public)

    def chosen_from(self, others: Sequence[Estimator]) -> None:
        super().chosen_from(others)
        self._add_prior_to_card()

    def _shown(self) -> tuple[NDArray[np.bool_], ...]:
        return tuple(self.shown_)

    def _placing(self) -> Events:
        return self._events(self.public_, self._scale, self.order_)


class Topics(FittedFactorization[topics.TopicsParams, topics.TopicsPublic, topics.TopicsPrivate], topics.Topics):
    """Phenotypes from records: mixtures of codes, the modes side by side, any number of modes.

    Rank and start come from one sum of codes that occur together. Memberships are expected numbers of damped events and
    stay at the hospital.

    Attributes
    ----------
    confirmed_
        Directions in which codes occur together that two halves of the patients confirm. A rank below it gives a warning.
    guided_
        Column of ``factors_`` of every guide.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.repeated_records(600, 40, 3, 0, sites=3)
    >>> m = pc.Topics(seed=0).fit(sites)
    >>> [f.shape for f in m.factors_], m.confirmed_
    ([(40, 5), (40, 5)], 4)
    """

    def _runs(self, sites: Sequence[Site]) -> int:
        """One: starts are compared inside the fit."""
        return 1

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        self._public: topics.TopicsPublic = outcome.public
        self.confirmed_ = self._public.pairs.confirmed
        self.guided_ = {g: int(np.flatnonzero(self.order_ == r)[0]) for r, g in enumerate(self.params.guides or {})}
        self._scale = np.prod([np.linalg.norm(f, axis=0) for f in self._public.factors], axis=0)
        warn_of_low_rank(self.params.rank, self._public.pairs)

    def _placing(self) -> SideBySide:
        return self.placer(self._public, self._scale, self.order_)


class PARAFAC2(
    FittedFactorization[parafac2.PARAFAC2Params, parafac2.CoursePublic, parafac2.CoursePrivate], parafac2.PARAFAC2
):
    """Phenotypes with a course: what comes after what, for patients with different numbers of visits.

    Give sites whose tensor has a mode of visits in order (``pc.from_frame(..., time=...)``) or of relative time
    (``[time] bins``), and one mode of codes. ``factors_`` are the mean courses and the codes; every patient's own course
    is in ``courses_`` and never leaves. The start is random and public, with flat courses.

    Attributes
    ----------
    courses_
        Site -> (visits, R) courses of its patients, visit by visit.
    visits_
        Site -> (visits, 2) patient and position on the ordered axis of every row of ``courses_``.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_courses(patients=90, sites=3, codes=20, phenotypes=2, seed=0)
    >>> m = pc.PARAFAC2(rank=2, rounds=20, seed=0).fit(sites)
    >>> [a.name for a in m.axes_], m.courses_["site 1"].shape[1]
    (['visit', 'code'], 2)
    """

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        self._public = outcome.public
        self.courses_ = {s: np.ascontiguousarray(c["courses"][:, self.order_]) for s, c in outcome.closed.items()}
        self.visits_ = {s: c["visits"].astype(np.int64) for s, c in outcome.closed.items()}

    def _placing(self) -> Placing:
        way = self._way(self._public)
        return replace(way, shape=way.shape[:, self.order_])


class LocalModel(
    FittedFactorization[local_model.LocalModelParams, local_model.AlonePublic, local_model.AlonePrivate],
    local_model.LocalModel,
):
    """What hospitals find alone: CPALS at each site, columns matched by the Hungarian method to the site with the most
    nonzeros (TRIP's pivot), averaged once with equal weights, as in the TRIP paper.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.LocalModel(rank=4, rounds=5, seed=0).fit(sites).traffic_.rounds
    1
    """
