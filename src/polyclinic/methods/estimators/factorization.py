"""What every phenotype model gives its user, central or federated: factors, weights, memberships, table, scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Literal, Self, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.methods.rounds.factorization import FactorParams, FactorPublic
from polyclinic.methods.starts.saved import StartModel
from polyclinic.models.base import Unseen
from polyclinic.models.origin import Origin
from polyclinic.models.phenotypes.compare import Difference, compare
from polyclinic.models.phenotypes.coverage import Coverage
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.models.phenotypes.projection import LeastSquares, Placing
from polyclinic.protocol.estimator import Configured, Estimator
from polyclinic.protocol.interfaces import Pri
from polyclinic.protocol.loop import SimulationOptions
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.records.sites.from_data import Data, as_sites, warn_of_odd_counts
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.table import Table

Array = NDArray[np.float64]
FP = TypeVar("FP", bound=FactorParams)
FPub = TypeVar("FPub", bound=FactorPublic)


class Factorization(Configured[FP]):
    """The results of a fit, in canonical form.

    Attributes
    ----------
    factors_
        One (I_n, R) array per feature mode; columns of length 1, in order of weight, signs fixed.
    weights_
        (R,) product of all column norms, largest first.
    memberships_
        Site -> (patients, R) loadings on ``factors_``; they never leave the site.
    saturation_
        n0 of the saturating weights that the fit gave its patients, and ``transform`` gives new ones; None: no weights.
    """

    factors_: list[Array]
    weights_: Array
    memberships_: dict[str, Array]
    axes_: tuple[Axis, ...]
    saturation_: float | None = None
    result_: Phenotypes

    def _set(
        self, factors: Sequence[Array], energy: Array, memberships: Mapping[str, Array], axes: Sequence[Axis]
    ) -> None:
        """Store a model: ``energy`` (R,) is the sum over all patients of squared memberships for the factors as given."""
        unit, norms = cp.normalise(factors)
        weights = np.sqrt(np.maximum(energy, 0.0)) * norms
        signs = np.ones(len(weights))
        for n, f in enumerate(unit):
            top = np.sign(f[np.abs(f).argmax(0), np.arange(f.shape[1])])
            top[top == 0] = 1.0
            unit[n] = f * top
            signs *= top
        order = np.argsort(-weights, kind="stable")
        self.order_ = order
        self.factors_ = [np.ascontiguousarray(f[:, order]) for f in unit]
        self.weights_ = weights[order]
        self.memberships_ = {s: np.ascontiguousarray((a * (norms * signs))[:, order]) for s, a in memberships.items()}
        self.axes_ = tuple(axes)

    def _placing(self) -> Placing:
        """How new patients are placed on the factors."""
        p = self.params
        return LeastSquares(p.nonnegative, p.zeros, self.saturation_)

    def learned(self, origin: Origin) -> Phenotypes:
        stability = self.__dict__.get("stability_")
        return Phenotypes(
            origin, tuple(self.factors_), self.weights_, self.axes_, self._placing(), self._shown(), stability
        )

    def _shown(self) -> tuple[NDArray[np.bool_], ...]:
        return ()

    @property
    def phenotypes_(self) -> Table:
        """One row per phenotype and code: what the phenotype is made of, heaviest codes first."""
        return self._value().table()

    def _value(self) -> Phenotypes:
        value: Phenotypes = self._fitted("result_")
        return value

    @overload
    def transform(
        self,
        data: SparseTensor | Site,
        *,
        unseen: Unseen = ...,
        coverage: Literal[False] = ...,
        min_coverage: float = ...,
    ) -> Array: ...
    @overload
    def transform(
        self, data: SparseTensor | Site, *, unseen: Unseen = ..., coverage: Literal[True], min_coverage: float = ...
    ) -> tuple[Array, Coverage]: ...
    def transform(
        self, data: SparseTensor | Site, *, unseen: Unseen = "error", coverage: bool = False, min_coverage: float = 0.5
    ) -> Array | tuple[Array, Coverage]:
        """(patients, R) memberships of new patients on the learned phenotypes; codes are found by their labels.

        See :meth:`polyclinic.models.phenotypes.phenotypes.Phenotypes.transform`.
        """
        memberships, cover = self._value().transform(data, unseen=unseen, coverage=True, min_coverage=min_coverage)
        tensor = data.counts() if isinstance(data, Site) else data
        out: Array = self._framed(memberships, tensor.axes[0].labels)
        return (out, cover) if coverage else out

    def memberships(self, data: SparseTensor | Site, *, frame: bool = False, unseen: Unseen = "drop") -> Array | Table:
        """As :meth:`polyclinic.models.phenotypes.phenotypes.Phenotypes.memberships`."""
        return self._value().memberships(data, frame=frame, unseen=unseen)

    def fit_transform(self, data: SparseTensor | Site, y: object = None, **options: Unpack[SimulationOptions]) -> Array:
        """Learn from one hospital's patients, and place them: (patients, R)."""
        if not isinstance(data, SparseTensor | Site):
            federation = isinstance(data, Sequence) and len(data) and all(isinstance(s, Site) for s in data)
            if federation:
                raise ConfigError(
                    "a federation is fitted, never passed on: its patients stay at their hospitals, so there is no one "
                    "matrix of memberships for a Pipeline's next step",
                    hint="m.fit(sites), then m.memberships_ at each site; outcomes across hospitals: pc.evaluate(m, sites)",
                )
            as_sites(data)  # says which door to take
        fitted: Self = self.fit(data, y, **options)  # type: ignore[attr-defined]
        return fitted.transform(data)

    def quality(self, data: SparseTensor | Site | Sequence[Site]) -> dict[str, float]:
        """Reconstruction with memberships solved anew: ``rmse_observed`` over nonzeros, ``rmse_full`` over all cells,
        ``fit`` = 1 - ||O - X|| / ||O||. O are the cells as fitted: weighted where ``saturation_`` is a number."""
        return self._value().quality(data)

    def score(self, data: SparseTensor | Site | Sequence[Site], y: object = None) -> float:
        """The fit, 1 - ||O - X|| / ||O||: larger is better, 1 is perfect. All figures: :meth:`quality`."""
        return self._value().score(data)


class FittedFactorization(Factorization[FP], Estimator[FP, FPub, Pri]):
    """The estimator of a phenotype method (:class:`~polyclinic.methods.rounds.factorization.FederatedFactorization`).

    Attributes
    ----------
    phenotypes_, result_
        Table of codes, weights and shares of every phenotype, and the model as a value (:class:`polyclinic.Phenotypes`), which
        can be saved and applied elsewhere. ``phenotypes_.where(phenotype=0)`` is one phenotype.
    factors_
        One (codes, R) array per feature mode. Columns have length 1 and are in order of weight.
    weights_
        (R,) total weight of each phenotype, largest first.
    memberships_
        Site -> (patients, R) weights of each patient on each phenotype. They never leave the site.
    privacy_
        The privacy card: guarantee, assumptions, what each party saw.
    traffic_
        Rounds, and bytes between the sites and the coordinator.
    history_
        Figures of every round.
    changed_
        After a start from a saved model: its phenotypes and those of this fit, matched (``start`` names the model).
    """

    changed_: Difference

    def _look_at_counts(self, tensors: Sequence[SparseTensor]) -> None:
        """Say what this model cannot explain, and refuse a rank above the codes, before anything is computed."""
        if self.params.nonnegative:
            warn_of_odd_counts(tensors)
        sizes = [max(n) for n in zip(*(t.shape[1:] for t in tensors), strict=False)]  # other modes are refused later
        rank = self.params.rank
        if sizes and isinstance(rank, int) and rank > prod(sizes):  # each combination can be a phenotype at most
            raise ConfigError(
                f"rank {rank} is above what the codes allow: {' x '.join(map(str, sizes))} codes have {prod(sizes)} combinations",
                hint="choose a smaller rank, see docs/howto/choose-rank.md",
            )

    def fit(
        self,
        sites: Data,
        y: object = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        **options: Unpack[SimulationOptions],
    ) -> Self:
        """Learn phenotypes from the sites; best of ``n_starts`` by the last known objective.

        Parameters
        ----------
        sites
            The hospitals, in any order; or one tensor: the patients of one hospital.
        y
            Ignored; pipelines pass it.
        progress
            Called with every progress event.
        """
        sites = as_sites(sites)
        self._look_at_counts([s.tensor for s in sites if s.tensor is not None])
        runs = self._runs(sites)
        if runs == 1:
            return super().fit(sites, progress=progress, **options)
        best: Self | None = None
        fits: list[Self] = []
        least = np.inf
        for start in range(runs):
            m = self.with_params(seed=self.params.seed + start, n_starts=1)
            Estimator.fit(m, sites, progress=progress, **options)
            fits.append(m)
            goal = m.objective_ if m.objective_ is not None else np.inf
            if best is None or goal < least:  # without an objective (noise) the first stays
                best, least = m, goal
        assert best is not None
        best.chosen_from([m for m in fits if m is not best])  # all of them were released
        params = self.params
        self.__dict__.update(best.__dict__)
        self.params = params
        self._conclude()  # with these parameters, not those of the one start
        return self

    def _conclude(self) -> None:
        super()._conclude()
        start = dict(self.params).get("start")
        if isinstance(start, StartModel) and isinstance(start.model, Phenotypes):
            self.changed_ = compare(start.model, self._value())

    def _runs(self, sites: Sequence[Site]) -> int:
        """Fits that ``n_starts`` costs."""
        return int(self.params.n_starts)

    def _publish(self, outcome: Outcome) -> None:
        public: FactorPublic = outcome.public
        memberships = {n: c["memberships"] for n, c in outcome.closed.items()}
        energy = public.energy
        if energy is None:
            energy = sum((np.square(a).sum(0) for a in memberships.values()), np.zeros(public.factors[0].shape[1]))
        self.objective_ = public.objective
        self.saturation_ = vars(public).get("saturation")  # DPEM has patients of unit length, and no weights
        self._set(list(public.factors), np.asarray(energy), memberships, outcome.setting.axes)
