"""The estimators of the federated phenotype methods: ``pc.TRIP`` is :class:`polyclinic.methods.trip.TRIP` with ``fit`` around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods import dpfact, local_model, localtf, parafac2, sumals, trip
from polyclinic.methods.dpem import method as dpem
from polyclinic.methods.dpem.params import DPEMParams
from polyclinic.methods.dpem.state import DPEMPrivate, DPEMPublic
from polyclinic.methods.estimators.factorization import FittedFactorization
from polyclinic.methods.starts.choice import WEAK, Started, StartedParams, StartedPublic
from polyclinic.methods.starts.directions import warn_of_low_rank
from polyclinic.methods.starts.saved import StartModel
from polyclinic.methods.starts.state import StartPublic
from polyclinic.methods.topics import method as topics
from polyclinic.models.phenotypes.projection import Events, Placing, SideBySide
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Pri
from polyclinic.protocol.outcome import Outcome
from polyclinic.records.sites.from_data import warn_of_odd_counts
from polyclinic.records.sites.site import Site
from polyclinic.tensors.kernels import em as em_kernels
from polyclinic.tensors.sparse import SparseTensor

SP = TypeVar("SP", bound=StartedParams)
SPub = TypeVar("SPub", bound=StartedPublic)


@dataclass(frozen=True)
class Start:
    """How a fit started (``model.start_``).

    Parameters
    ----------
    kind
        ``"gram"``, ``"random"`` or ``"model"``.
    reason
        Why not the Gram, where it was asked for.
    cells
        Cells of the Gram whose second moments over all patients were shown; 0 without.
    confirmed
        Directions in which codes occur together that two halves of the patients confirm; None: not looked for.
    gain
        Share of the explained energy that the first sweep after the start gained.
    searched
        The Gram found little, and a search by a wide start followed.
    """

    kind: str
    reason: str = ""
    cells: int = 0
    confirmed: int | None = None
    gain: float | None = None
    searched: bool = False

    @property
    def weak(self) -> bool | None:
        """Whether the structure is weak: the start found little of what the first sweep then explained, or of what the cells show."""
        return None if self.gain is None or self.kind != "gram" else self.searched or self.gain > WEAK


class FittedStarted(FittedFactorization[SP, SPub, Pri], Started[SP, SPub, Pri]):
    """The estimator of a method with a shared start."""

    def _runs(self, sites: Sequence[Site]) -> int:
        """One, where the starts are tried on the Gram or a model is given; else as many as asked for."""
        p = self.params
        if isinstance(p.start, StartModel):
            return 1
        if p.n_starts == 1 or p.start != "gram" or self.starter.hindrance() or any(s.tensor is None for s in sites):
            return p.n_starts
        gram = self.starter.gram(sites[0].counts().shape[1:])
        return 1 if sum(s.patients for s in sites) >= gram.least else p.n_starts

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        start: StartPublic = outcome.public.start
        gram = start.kind == "gram"
        self.start_ = Start(
            start.kind,
            "" if gram or start.reason == "asked for" else start.reason,
            self.starter.gram(outcome.public.shape).cells if gram else 0,
            None if start.confirmed < 0 else start.confirmed,
            outcome.public.gain,
            gram and start.sweep > 0,
        )
        warn_of_low_rank(self.params.rank, start.confirmed)


class TRIP(FittedStarted[trip.TRIPParams, trip.TRIPPublic, trip.TRIPPrivate], trip.TRIP):
    """Fit one set of phenotypes for all hospitals by consensus ADMM.

    The result is close to the CP (PARAFAC) factorization of pooled data. Each site solves for its own copy of the factors.
    A sum of the copies gives the consensus. The start is a hashed co-occurrence matrix if there are enough patients. The fit
    stops when two rounds in a row (three after a random start) change the explained sum of squares by less than ``tol``.

    Attributes
    ----------
    start_
        How the fit started (:class:`Start`).

    See Also
    --------
    SumALS : the same objective by exact sums, in fewer rounds of larger messages.
    Topics : the model for records with any number of modes side by side.

    References
    ----------
    Kim, Sun, Yu, Jiang. Federated Tensor Factorization for Computational Phenotyping. KDD 2017.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> m = pc.TRIP(rank=4, rounds=5, seed=0).fit(sites)
    >>> len(m.factors_), m.traffic_.rounds
    (2, 5)
    """


class SumALS(FittedStarted[sumals.SumALSParams, sumals.SumPublic, sumals.SumPrivate], sumals.SumALS):
    """Fit CP by alternating least squares from sums over the sites, as on pooled data.

    Every update of a mode is one sum. A round costs R x R more numbers per mode than TRIP, and fewer rounds are needed. The
    start is a hashed co-occurrence matrix if there are enough patients. The fit stops when an ALS iteration (two after a
    random start) gains less than ``tol`` of the explained sum of squares, or with packed sums is expected to gain less.

    Attributes
    ----------
    start_
        How the fit started (:class:`Start`).

    See Also
    --------
    CPALS : the same on pooled data.
    TRIP : the consensus method of the literature.

    References
    ----------
    Kolda, Bader. Tensor Decompositions and Applications. SIAM Review 51(3), 2009.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.SumALS(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """


class LocalTF(FittedFactorization[localtf.LocalParams, localtf.LocalPublic, localtf.LocalPrivate], localtf.LocalTF):
    """Fit phenotypes by local SGD: sites take ``local_passes`` passes alone, then continue from the average of their factors.

    Several sites start from the codes that occur together, as :class:`Topics` does. One site starts at random.

    ``tol`` is the relative change of the squared error during a pass, over all cells (``zeros="observed"``) or over the
    nonzeros (``"missing"``).

    See Also
    --------
    DPFact : elastic averaging, which lets a site keep phenotypes of its own.
    DistributedSGD : the baseline that communicates after every pass.

    References
    ----------
    Pan. Communication Efficient Distributed Tensor Factorization based on Local SGD for Collaborative Health Data Analysis.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.LocalTF(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """


class DistributedSGD(LocalTF, localtf.DistributedSGD):
    """Fit phenotypes by distributed SGD: LocalTF with communication after every pass (``local_passes=1``).

    See Also
    --------
    LocalTF : several passes between two communications.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.DistributedSGD(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """


class DPFact(LocalTF, dpfact.DPFact):
    """Fit phenotypes by elastic averaging SGD: sites are drawn to a shared model and may keep phenotypes of their own.

    See Also
    --------
    LocalTF : plain averaging.

    References
    ----------
    Ma, Zhang, Lou, Ho, Xiong, Jiang. Privacy-Preserving Tensor Factorization for Collaborative Health Data Analysis. CIKM 2019.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.DPFact(rank=4, rounds=3, seed=0).fit(sites).traffic_.rounds
    3
    """

    params: dpfact.DPFactParams


class DPEM(FittedFactorization[DPEMParams, DPEMPublic, DPEMPrivate], dpem.DPEM):
    """Fit phenotypes with patient-level differential privacy, by EM on noisy sums.

    With ``privacy=pc.Privacy(epsilon, delta)`` every release of a hospital is charged to its ledger. Without it this is EM.
    With ``aggregation="masked"`` the noise is added once for all sites. With ``"plain"`` every site adds all of it, so the
    noise grows with the root of the number of sites. Memberships are expected numbers of events and stay at the hospital.
    With a ``prior`` the privacy card includes the epsilon of the prior. A patient of both studies has the sum.

    Attributes
    ----------
    shown_
        Per mode (I_n, R), True for the codes that the known noise does not explain. ``phenotypes_`` lists only these.
    background_
        Per mode (I_n,), the distribution of codes over all patients.
    too_little_data_
        The public rule spent the whole budget on the marginals, and the one component is the background.

    See Also
    --------
    Topics : the same family of models without noise.

    References
    ----------
    Park, Foulds, Chaudhuri, Welling. DP-EM: Differentially Private Expectation Maximization. AISTATS 2017.

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
    """Fit phenotypes from records: every patient is a mixture of phenotypes, every phenotype a distribution of codes per mode.

    The modes stand side by side, so any number of modes works, also one. Rank and start come from one summed co-occurrence
    matrix. Memberships are expected numbers of log-damped events and stay at the hospital.

    Attributes
    ----------
    confirmed_
        Number of directions in which codes occur together, confirmed in two halves of the patients. A rank below it gives a warning.
    guided_
        Column of ``factors_`` of every guide.

    See Also
    --------
    DPEM : the same family with differential privacy.
    TRIP : for tensors of true pairs.

    References
    ----------
    Blei, Ng, Jordan. Latent Dirichlet Allocation. Journal of Machine Learning Research 3, 2003.

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
        warn_of_low_rank(self.params.rank, self.confirmed_)

    def _placing(self) -> SideBySide:
        return self.placer(self._public, self._scale, self.order_)


class PARAFAC2(
    FittedFactorization[parafac2.PARAFAC2Params, parafac2.CoursePublic, parafac2.CoursePrivate], parafac2.PARAFAC2
):
    """Fit phenotypes with a trajectory over time, for patients with different numbers of visits.

    Give sites whose tensor has a mode of visits in order (``pc.from_frame(..., time=...)``) or of relative time
    (``[time] bins``), and one mode of codes. ``factors_`` are the mean trajectories and the codes. The trajectory of a patient
    is in ``courses_`` and stays at the hospital. The start is random and public, with flat trajectories.

    Attributes
    ----------
    courses_
        Site -> (visits, R) trajectories of its patients, visit by visit.
    visits_
        Site -> (visits, 2) patient and position on the ordered axis of every row of ``courses_``.

    References
    ----------
    Kiers, ten Berge, Bro. PARAFAC2 - Part I. A Direct Fitting Algorithm for the PARAFAC2 Model. Journal of Chemometrics 13, 1999.

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
    """Fit CPALS at each site alone and average the matched components once, the local baseline of the TRIP paper.

    Components are matched by the Hungarian method to the site with the most nonzeros and averaged with equal weights.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> pc.LocalModel(rank=4, rounds=5, seed=0).fit(sites).traffic_.rounds
    1
    """
