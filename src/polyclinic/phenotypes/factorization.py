"""What every phenotype model gives its user, central or federated: factors, weights, memberships, table, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyclinic.errors import DataError, ProtocolMismatch
from polyclinic.federation.estimator import Configured, Estimator
from polyclinic.federation.fold import Outcome
from polyclinic.federation.params import Params
from polyclinic.tensors import cp, kernels
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.site import Site
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.table import Table
from polyclinic.tensors.weighting import weighted

__all__ = ["FactorParams", "Factorization", "FederatedFactorization", "WeightedParams", "power_of_two"]

Array = NDArray[np.float64]


class FactorParams(Params):
    """Parameters of every phenotype model."""

    rank: int = Field(10, ge=1, le=10_000, description="Number of phenotypes (R).")
    nonnegative: bool = Field(True, description="Weights of codes and memberships are never negative.")
    zeros: Literal["observed", "missing"] = Field(
        "observed", description="Absent entries are zeros of the model (observed), or unknown (missing; ERRATA E0.4)."
    )
    n_starts: int = Field(1, ge=1, le=1000, description="Random starts; the best one is kept.")


class WeightedParams(FactorParams):
    """Parameters of the least-squares methods, where a patient counts by the square of the record."""

    weighting: Literal["saturating", "none"] = Field(
        "saturating",
        description="How much a patient weighs: it grows with the record and saturates, so that no few patients make the "
        "phenotypes; or not at all (none; always with variant='paper', zeros='missing' and privacy of level 'entry').",
    )
    saturation: float | None = Field(
        None, gt=0, description="n0, the squared size at which half of the weight is reached; None: from two sums."
    )

    @model_validator(mode="after")
    def _as_printed(self) -> Self:
        # The papers weigh every count as it is, and their noise is scaled to counts (CONCORD 14).
        # Where absent cells are unknown, a model speaks of the values themselves, cell by cell.
        entry = self.privacy is not None and self.privacy.level == "entry"
        if self.variant == "paper" or entry or self.zeros == "missing":
            object.__setattr__(self, "weighting", "none")
        return self

    @property
    def estimates(self) -> bool:
        """Whether n0 has to be asked from the sites."""
        return self.weighting == "saturating" and self.saturation is None

    @property
    def public_saturation(self) -> float | None:
        """n0 as far as it is known before anybody is asked; None also where patients are not weighted."""
        return self.saturation if self.weighting == "saturating" else None


class Factorization(Configured):
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
    history_: list[dict[str, Any]]
    traffic_: Any
    privacy_: Any
    saturation_: float | None = None

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

    @property
    def phenotypes_(self) -> Table:
        """One row per phenotype and code: what the phenotype is made of, heaviest codes first."""
        rows: list[list[Any]] = []
        for r in range(len(self._fitted("weights_"))):
            for axis, f in zip(self.axes_, self.factors_):
                column = f[:, r]
                total = float(np.abs(column).sum()) or 1.0
                for i in np.argsort(-np.abs(column), kind="stable"):
                    if column[i] == 0.0:
                        break
                    rows.append(
                        [r, axis.name, axis.label(i), axis.describe(i), float(column[i]), float(abs(column[i])) / total]
                    )
        return Table(["phenotype", "mode", "code", "name", "weight", "share"], rows)

    def transform(self, data: SparseTensor | Site) -> Array:
        """(patients, R) memberships of new patients on the learned phenotypes."""
        return cp.solve_memberships(
            weighted(self._checked(data), self.saturation_),
            self.factors_,
            nonnegative=getattr(self.params, "nonnegative", True),
            zeros=getattr(self.params, "zeros", "observed"),
        )

    def _model(self, tensor: SparseTensor) -> list[Array]:
        """Factors of all modes, patients first, that together explain these patients."""
        return [self.transform(tensor), *self.factors_]

    def _checked(self, data: SparseTensor | Site) -> SparseTensor:
        """The tensor of new patients, refused if it does not speak of the model's codes."""
        tensor = data.counts() if isinstance(data, Site) else data
        if not isinstance(tensor, SparseTensor):
            raise DataError(f"patients are a pc.SparseTensor or a pc.Site, not a {type(data).__name__}")
        factors = self._fitted("factors_")
        expected = tuple(len(f) for f in factors)
        if tensor.shape[1:] != expected:
            raise ProtocolMismatch(
                f"new patients have feature modes of sizes {tensor.shape[1:]}, the model {expected}",
                hint="align them to the model's codes first (pc.align)",
            )
        for a, b in zip(tensor.axes[1:], self.axes_):
            if a.labels is not None and b.labels is not None and a.labels != b.labels:
                raise ProtocolMismatch(
                    f"new patients have other {a.name} codes than the model", hint="call pc.align first"
                )
        return tensor

    def score(self, data: SparseTensor | Site | Sequence[Site]) -> dict[str, float]:
        """Reconstruction with memberships solved anew: ``rmse_observed`` over nonzeros, ``rmse_full`` over all cells,
        ``fit`` = 1 - ||O - X|| / ||O||. O are the cells as fitted: weighted where ``saturation_`` is a number."""
        given = [data] if isinstance(data, SparseTensor | Site) or not isinstance(data, Sequence) else data
        tensors = [self._checked(d) for d in given]
        if not tensors:
            raise DataError("nothing to score: no sites given")
        full = observed = norm = cells = 0.0
        nonzeros = 0
        for given_tensor in tensors:
            factors, t = self._model(given_tensor), weighted(given_tensor, self.saturation_)
            residual = kernels.residuals_at(t, factors)
            observed += float(residual @ residual)
            nonzeros += t.nnz
            norm += t.norm_squared()
            inner = float(t.values @ (t.values - residual))
            full += max(0.0, t.norm_squared() - 2 * inner + float(cp.gram(factors, None).sum()))
            cells += float(np.prod([float(d) for d in t.shape]))
        return {
            "rmse_observed": float(np.sqrt(observed / max(nonzeros, 1))),
            "rmse_full": float(np.sqrt(full / max(cells, 1.0))),
            "fit": 1.0 - float(np.sqrt(full / norm)) if norm else 1.0,
        }


def power_of_two(size: float) -> float:
    """The next power of two: a unit by which floats are divided and multiplied without rounding.

    >>> power_of_two(1000.0), power_of_two(0.0)
    (1024.0, 1.0)
    """
    return float(2.0 ** np.ceil(np.log2(size))) if size > 0 else 1.0


class FederatedFactorization(Factorization, Estimator):
    """A phenotype model learned by a protocol of the fold.

    Its Public state has ``factors`` (tuple of feature factors), ``energy`` (R,) or None, ``objective`` and ``last``
    (figures); its ``close`` gives ``{"memberships": ...}``.
    """

    def fit(self, sites: Sequence[Site], **options: Any) -> Any:
        """Learn phenotypes from the sites; best of ``n_starts`` by the last known objective."""
        if self.params.n_starts == 1:
            return super().fit(sites, **options)
        best: Any = None
        for start in range(self.params.n_starts):
            m = self.with_params(seed=self.params.seed + start, n_starts=1)
            Estimator.fit(m, sites, **options)
            goal = m.objective_ if m.objective_ is not None else np.inf
            if best is None or goal < best.objective_:
                best = m
        params = self.params
        self.__dict__.update(best.__dict__)
        self.params = params
        return self

    def _publish(self, outcome: Outcome) -> None:
        public = outcome.public
        memberships = {n: c["memberships"] for n, c in outcome.closed.items()}
        energy = public.energy
        if energy is None:
            energy = sum((np.square(a).sum(0) for a in memberships.values()), np.zeros(public.factors[0].shape[1]))
        self.objective_ = public.objective
        self.saturation_ = getattr(public, "saturation", None)  # DPEM has patients of unit length, and no weights
        self._set(list(public.factors), np.asarray(energy), memberships, outcome.setting.axes)
