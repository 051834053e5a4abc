"""Phenotypes: what a factorization learned, ready for patients it has never seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError
from polyclinic.models.base import Array, StoredArrays, Unseen, Value, all_finite, frozen
from polyclinic.models.origin import Origin
from polyclinic.models.phenotypes.background import background
from polyclinic.models.phenotypes.coverage import Coverage, on_codes, patients_of
from polyclinic.models.phenotypes.projection import Courses, Events, LeastSquares, Placing, restored, stored
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.json_types import JsonMap
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from polyclinic.models.phenotypes.local_comparison import Adapted

NDBool = NDArray[np.bool_]
WHOLE: Final = 0.9  # share of a phenotype's squared weight with which patients may still be placed on it


@dataclass(frozen=True, eq=False)
class Phenotypes(Value):
    """Keep phenotypes as a value: save, load, apply to new patients. It contains codes and weights, and no patient.

    A fitted estimator has it as ``result_``, and :func:`polyclinic.load` reads it from a file.

    Parameters
    ----------
    factors
        One (I_n, R) array per feature mode; columns of length 1, in order of weight.
    weights
        (R,) product of all column norms over the patients that were fitted.
    axes
        The codes of every mode.
    placing
        How the memberships of a patient are computed.
    shown
        Per mode (I_n, R), the codes that stand out from privacy noise; empty: all.
    stability
        Mean match between the kept start and the others, or None. It is no evidence for a phenotype.
    names
        (R,) names that a person gave (:meth:`rename`), "" without a name. Empty: no names.

    See Also
    --------
    load : reads a model file.
    compare : compares two models.

    Examples
    --------
    >>> import polyclinic as pc
    >>> p = pc.CPALS(rank=2, seed=0).fit(pc.datasets.icu_network(patients=200, seed=0)).result_
    >>> p.kind, p.rank, [a.name for a in p.axes]
    ('phenotypes', 2, ['procedure', 'diagnosis'])
    """

    factors: tuple[Array, ...]
    weights: Array
    axes: tuple[Axis, ...]
    placing: Placing
    shown: tuple[NDBool, ...] = ()
    stability: float | None = None
    names: tuple[str, ...] = ()

    kind: ClassVar[str] = "phenotypes"
    keys: ClassVar[tuple[str, ...]] = ("axes", "placing", "stability", "names")

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "factors", tuple(frozen(f) for f in self.factors))
        set_(self, "weights", frozen(self.weights))
        set_(self, "shown", tuple(frozen(s, np.bool_) for s in self.shown))
        set_(self, "axes", tuple(self.axes))
        faults = [*self._factor_faults(), *self._axis_faults(), *self._name_faults()]
        if faults:
            raise DataError("these are not phenotypes", faults=faults)

    def _factor_faults(self) -> Iterator[str]:
        for n, f in enumerate(self.factors, 1):
            if f.shape[1:] != (self.rank,):
                yield f"mode {n}: factor {f.shape}, expected (codes, {self.rank})"
        if self.shown and [s.shape for s in self.shown] != [f.shape for f in self.factors]:
            yield "shown has other shapes than the factors"
        if not all_finite(*self.factors, self.weights):
            yield "numbers that are not finite"

    def _axis_faults(self) -> Iterator[str]:
        sizes = [len(f) for f in self.factors]
        if len(self.axes) != len(sizes) or not sizes:
            yield f"{len(self.axes)} axes for {len(sizes)} factors"
        for a, size in zip(self.axes, sizes):
            if a.labels is not None and len(a.labels) != size:
                yield f"{a.name}: {len(a.labels)} codes for {size} rows"
        if isinstance(self.placing, Events) and len(self.placing.stacked) != sum(sizes):
            yield f"placing knows {len(self.placing.stacked)} codes, the factors {sum(sizes)}"

    def _name_faults(self) -> Iterator[str]:
        if self.names and len(self.names) != self.rank:
            yield f"{len(self.names)} names for {self.rank} phenotypes"
        yield from (f"name {n!r} is given twice" for n, times in sorted(Counter(self.names).items()) if n and times > 1)

    @property
    def rank(self) -> int:
        """Number of phenotypes."""
        return len(self.weights)

    @property
    def background(self) -> NDBool:
        """(R,) True where a component is close to the others together: background, no phenotype."""
        return background(self.factors, self.weights)

    @property
    def saturation(self) -> float | None:
        """n0 of the saturating weights by which patients are placed; None: they are not weighted."""
        return self.placing.saturation if isinstance(self.placing, LeastSquares | Courses) else None

    # ---- patients

    @overload
    def transform(
        self,
        data: SparseTensor | Site,
        *,
        unseen: Unseen = ...,
        coverage: Literal[False] = ...,
        min_coverage: float = ...,
        allow_censored: bool = ...,
    ) -> Array: ...
    @overload
    def transform(
        self,
        data: SparseTensor | Site,
        *,
        unseen: Unseen = ...,
        coverage: Literal[True],
        min_coverage: float = ...,
        allow_censored: bool = ...,
    ) -> tuple[Array, Coverage]: ...
    def transform(
        self,
        data: SparseTensor | Site,
        *,
        unseen: Unseen = "error",
        coverage: bool = False,
        min_coverage: float = 0.5,
        allow_censored: bool = False,
    ) -> Array | tuple[Array, Coverage]:
        """(patients, R) memberships of new patients; codes are found by their labels.

        Parameters
        ----------
        data
            New patients; codes in any order.
        unseen
            Codes that the model does not know: ``"error"`` names them, ``"drop"`` leaves their events out.
        coverage
            Also return how much was read.
        min_coverage
            Refused where a smaller share of the events can be read.
        allow_censored
            Place patients even where codes that hold more than a tenth of a phenotype were removed before this model
            was written (``report --export``): a model with holes is not the model.
        """
        holes = [] if allow_censored else self._holes()
        if holes:
            raise DataError(
                "this model is censored: codes that may not be shown were removed, so patients would be placed wrongly",
                faults=[f"phenotype {r}: {left:.0%} of its squared weight is left" for r, left in holes],
                hint="use the whole model (the run folder's own), or allow_censored=True",
            )
        tensor, cover = on_codes(patients_of(data), self.axes, self.factors, unseen=unseen, least=min_coverage)
        memberships = self.placing.place(tensor, self.factors)
        return (memberships, cover) if coverage else memberships

    def memberships(self, data: SparseTensor | Site, *, frame: bool = False, unseen: Unseen = "drop") -> Array | Table:
        """Return the memberships of a hospital's own patients: (patients, R), or a table with the patients' identifiers.

        Parameters
        ----------
        data
            The patients. Without labels they are called 0, 1, 2 ...
        frame
            Whether to return a table: ``patient_id`` and a column a phenotype. ``table.to_pandas()`` is a data frame.
        unseen
            Codes that the model does not know, as in :meth:`transform`.
        """
        from polyclinic.models.phenotypes.cohort import memberships_table

        placed = self.transform(data, unseen=unseen)
        names = patients_of(data).axes[0].labels or tuple(map(str, range(len(placed))))
        return memberships_table(placed, names) if frame else placed

    def _holes(self) -> list[tuple[int, float]]:
        """Phenotypes, counted from 1, of which a censored file lacks more than a tenth, and how much is left."""
        if not self.origin.censored:
            return []
        shares = self.origin.further.get("kept") or [[0.0]] * self.rank
        return [(r, float(min(k))) for r, k in enumerate(shares, start=1) if min(k) < WHOLE]

    def quality(self, data: SparseTensor | Site | Sequence[Site]) -> dict[str, float]:
        """How well patients are explained, memberships solved anew, over the cells as they were counted.

        ``rmse_observed`` over nonzeros, ``rmse_full`` over all cells, ``fit`` = 1 - ||O - X|| / ||O||.
        """
        hospitals = [data] if isinstance(data, SparseTensor | Site) or not isinstance(data, Sequence) else list(data)
        if not hospitals:
            raise DataError("nothing to score: no sites given")
        full = observed = norm = cells = 0.0
        nonzeros = 0
        for d in hospitals:
            t, _ = on_codes(patients_of(d), self.axes, self.factors)
            factors, t = self.placing.model(t, self.factors), self.placing.cells(t)
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

    def score(self, data: SparseTensor | Site | Sequence[Site], y: object = None) -> float:
        """The fit, 1 - ||O - X|| / ||O||. Larger is better, 1 is perfect."""
        return self.quality(data)["fit"]

    def adapt(
        self,
        site: Site | SparseTensor,
        *,
        own: int | Literal["auto"] = "auto",
        seed: int = 0,
        min_coverage: float = 0.5,
        before: Site | SparseTensor | None = None,
    ) -> Adapted:
        """This hospital beside the network; see :func:`polyclinic.models.phenotypes.local_comparison.adapt`."""
        from polyclinic.models.phenotypes.local_comparison import adapt

        return adapt(self, site, own=own, seed=seed, min_coverage=min_coverage, before=before)

    # ---- people

    def table(self) -> Table:
        """One row per phenotype and code: what the phenotype is made of, heaviest codes first."""
        return self.top(None)

    @property
    def phenotypes(self) -> Table:
        """The same as :meth:`table`."""
        return self.table()

    def top(self, codes: int | None = 10) -> Table:
        """The table with at most so many codes of each mode, without those whose weight is rounding."""
        rows: list[list[object]] = []
        for r in range(self.rank):
            for n, (axis, f) in enumerate(zip(self.axes, self.factors)):
                column, size = f[:, r], np.abs(f[:, r])
                for mode, of_mode in axis.modes(len(f)):
                    total = float(size[of_mode].sum()) or 1.0
                    order = np.asarray(of_mode)[np.argsort(-size[of_mode], kind="stable")]
                    order = order[(self.shown[n][order, r] if self.shown else size[order] > 1e-6 * size.max())][:codes]
                    rows += [
                        [r, mode, axis.code(i), axis.describe(i), float(column[i]), float(size[i]) / total]
                        for i in order
                    ]
        return Table(["phenotype", "mode", "code", "name", "weight", "share"], rows)

    def rename(self, names: Mapping[int, str]) -> Self:
        """Give phenotypes names of your own, by their number from 0; the model file keeps them, the report shows them.

        >>> import polyclinic as pc
        >>> p = pc.CPALS(rank=2, seed=0).fit(pc.datasets.icu_network(patients=200, seed=0)).result_
        >>> p.rename({1: "Heart failure"}).names
        ('', 'Heart failure')
        """
        faults = [f"phenotype {k}: there are 0 to {self.rank - 1}" for k in names if k not in range(self.rank)]
        if faults:
            raise DataError("these phenotypes cannot be renamed", faults=faults)
        all_names = dict(enumerate(self.names)) | {k: str(n).strip() for k, n in names.items()}
        return replace(self, names=tuple(all_names.get(r, "") for r in range(self.rank)))

    def __repr__(self) -> str:
        modes = " x ".join(f"{len(f):,} {a.name}" for f, a in zip(self.factors, self.axes))
        return f"<Phenotypes {self.rank} by {self.method}, {modes}; {self.card.headline}>"

    # ---- the file

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        out: dict[str, NDArray[np.generic]] = {f"factor{n}": f for n, f in enumerate(self.factors, start=1)}
        out |= {"weights": self.weights} | {f"shown{n}": s for n, s in enumerate(self.shown, start=1)}
        return out | stored(self.placing)[1]

    def described(self) -> dict[str, object]:
        axes = [{**a.to_json(), "digest": a.digest()} for a in self.axes]
        names_given = {"names": list(self.names)} if any(self.names) else {}
        return {"axes": axes, "placing": stored(self.placing)[0], "stability": self.stability, **names_given}

    @classmethod
    def restored(cls, origin: Origin, described: JsonMap, arrays: StoredArrays) -> Self:
        axes = tuple(Axis.from_json(a) for a in described["axes"])
        changed_modes = [a.name for a, d in zip(axes, described["axes"]) if a.digest() != d["digest"]]
        if changed_modes:
            raise DataError(f"codes of {', '.join(changed_modes)} are not those that were written")
        modes = range(1, sum(name.startswith("factor") for name in arrays) + 1)
        return cls(
            origin,
            tuple(arrays[f"factor{n}"] for n in modes),
            arrays["weights"],
            axes,
            restored(described["placing"], arrays),
            tuple(arrays[f"shown{n}"] for n in modes if f"shown{n}" in arrays),
            described["stability"],
            tuple(described.get("names") or ()),
        )
