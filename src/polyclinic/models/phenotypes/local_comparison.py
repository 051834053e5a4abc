"""A hospital beside the network: what the shared phenotypes explain here, how they differ, and what is this hospital's own.

Own phenotypes are columns that are added to the shared ones, which are held: with shared factors A_n and own factors B_n::

    min  || O - [a, A_1, ..., A_N] - [b, B_1, ..., B_N] ||^2     over memberships (a, b) and B_n >= 0

so the residual is explained and nothing that is shared is touched. Everything is computed here, from this hospital's
records and the model; nothing leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.models.base import Array, frozen
from polyclinic.models.phenotypes.changed_codes import FEW, changed_codes
from polyclinic.models.phenotypes.coverage import Coverage, modes_in_order, on_codes, patients_of
from polyclinic.models.phenotypes.projection import LeastSquares
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from polyclinic.models.phenotypes.phenotypes import Phenotypes

TRIED: Final = (0, 1, 2, 4)  # own columns that `auto` tries
WITHIN: Final = 0.01  # the fewest columns within 1 % of the best held-out error
STARTS: Final = 6
SWEEPS: Final = 60
SETTLED: Final = 1e-6
CARRIED: Final = 0.05  # of a patient's recorded activity
LEAST: Final = 40  # patients, below which halves say nothing: then `auto` adds nothing


@dataclass(frozen=True, eq=False)
class Adapted:
    """A hospital beside the network.

    Parameters
    ----------
    shared
        The network's phenotypes, as they came.
    phenotypes
        Shared and own ones together, over the model's codes and then this hospital's own: it places patients here.
    own
        One (codes, k) array per mode: this hospital's own phenotypes.
    drift
        (R,) 1 - product of cosines between a shared phenotype and its local refit; NaN where fewer than 11 patients
        carry it: then it says nothing.
    carriers
        (R + k,) patients here who carry the phenotype (at least 5 % of what was recorded of them).
    coverage
        How much of the records the shared model can read.
    fits
        ``network`` (of the study, if it was kept), ``here`` (shared phenotypes on these patients), ``refit`` (shared ones
        fitted anew here), ``adapted`` (shared and own).
    tried
        Own columns -> RMSE of hidden events of held-out patients of this hospital, where several were tried.
    codes
        Codes that changed most, the largest change first: patients before and now, and whether the model knows the code.
    """

    shared: Phenotypes
    phenotypes: Phenotypes
    own: tuple[Array, ...]
    drift: Array
    carriers: NDArray[np.int64]
    coverage: Coverage
    fits: dict[str, float | None]
    tried: dict[int, float]
    codes: Table

    @property
    def rank(self) -> int:
        """Number of own phenotypes."""
        return int(self.own[0].shape[1])

    def transform(self, data: SparseTensor | Site) -> Array:
        """(patients, R + k) memberships on shared and own phenotypes."""
        return self.phenotypes.transform(data, unseen="drop")

    def table(self) -> Table:
        """One row per phenotype: carriers here, drift, its heaviest codes."""
        rows: list[list[object]] = []
        for r in range(self.phenotypes.rank):
            is_own = r >= self.shared.rank
            codes = [
                axis.describe(int(i))
                for axis, f in zip(self.phenotypes.axes, self.phenotypes.factors)
                for i in np.argsort(-np.abs(f[:, r]), kind="stable")[:3]
                if abs(f[i, r]) > 0.01 * np.abs(f[:, r]).max()  # less is rounding, not a code of the phenotype
            ]
            drift = None if is_own or np.isnan(self.drift[r]) else float(self.drift[r])
            patients = f"fewer than {FEW}" if self.carriers[r] < FEW else str(self.carriers[r])
            rows.append([r, "own" if is_own else "shared", patients, drift, ", ".join(codes)])
        return Table(["phenotype", "whose", "carriers", "drift", "codes"], rows)

    def __repr__(self) -> str:
        fits = ", ".join(f"{k} {v:.3f}" for k, v in self.fits.items() if v is not None)
        return f"<Adapted {self.shared.rank} shared, {self.rank} own phenotypes; fit: {fits}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.coverage._repr_html_()}{self.table().from_one('phenotype')._repr_html_()}"


def adapt(
    model: Phenotypes,
    site: Site | SparseTensor,
    *,
    own: int | Literal["auto"] = "auto",
    seed: int = 0,
    min_coverage: float = 0.5,
    before: Site | SparseTensor | None = None,
) -> Adapted:
    """Set a hospital beside the network that it was not part of.

    Parameters
    ----------
    model
        Shared phenotypes.
    site
        The hospital's patients; codes that the model does not know may be part of own phenotypes.
    own
        Number of own phenotypes, or ``"auto"``: 0, 1, 2 or 4, the fewest whose error on hidden events of held-out
        patients of this hospital is within 1 % of the best.
    seed
        Of starts and halves.
    min_coverage
        Refused where the model can read a smaller share of the events.
    before
        Earlier records of this hospital, for the codes that changed most. Without them only codes unknown to the model are listed.
    """
    if own != "auto" and (type(own) is not int or not 0 <= own <= 100):
        raise ConfigError(f"own = {own!r} is neither 'auto' nor a number from 0 to 100")
    records = modes_in_order(patients_of(site), model.axes)
    if not records.nnz:
        raise DataError("this hospital has no events: there is nothing to adapt to")
    _, cover = on_codes(records, model.axes, model.factors, unseen="drop", least=min_coverage)
    widened, placing = _widened(model, records)
    tensor, _ = on_codes(records, widened.axes, widened.factors)
    cells, work = placing.cells(tensor), _Work(list(widened.factors), placing.nonnegative)
    errors = work.errors(tensor, cells, seed) if own == "auto" and tensor.patients >= LEAST else {}
    k = (
        own
        if own != "auto"
        else min((n for n in errors if errors[n] <= min(errors.values()) * (1 + WITHIN)), default=0)
    )
    columns = work.own(cells, k, seed)
    joined = [np.column_stack([f, b]) for f, b in zip(work.shared, columns)]
    adapted = _with_own(widened, placing, joined, cells)
    memberships = adapted.placing.place(tensor, adapted.factors)
    refit, local = work.refit(cells)
    carriers = _carriers(memberships, adapted.factors)
    earlier = None if before is None else modes_in_order(patients_of(before), model.axes)
    return Adapted(
        model,
        adapted,
        tuple(frozen(b) for b in columns),
        frozen(np.where(carriers[: model.rank] >= FEW, _drift(work.shared, refit), np.nan)),
        carriers,
        cover,
        {
            "network": _last_fit(model),
            "here": work.fit(cells, [np.zeros((len(f), 0)) for f in work.shared]),
            "refit": local,
            "adapted": work.fit(cells, columns),
        },
        errors,
        changed_codes(model.axes, records, earlier),
    )


@dataclass(frozen=True, eq=False)
class _Work:
    """The fits: shared factors (columns of length 1) are held unless said otherwise."""

    shared: list[Array]
    nonnegative: bool

    def place(self, cells: SparseTensor, factors: Sequence[Array]) -> Array:
        return cp.solve_memberships(cells, list(factors), nonnegative=self.nonnegative)

    def residual(self, cells: SparseTensor, factors: Sequence[Array]) -> float:
        """||O - X||^2 over all cells, memberships solved anew."""
        a = self.place(cells, factors)
        model = [a, *factors]
        inner = float(cells.values @ (cells.values - kernels.residuals_at(cells, model)))
        return cp.residual_norm_squared(cells.norm_squared(), inner, cp.gram(model, None))

    def joined(self, own: Sequence[Array]) -> list[Array]:
        return [np.ascontiguousarray(np.column_stack([f, b])) for f, b in zip(self.shared, own)]

    def error(self, seen: SparseTensor, hidden: SparseTensor, own: Sequence[Array]) -> float:
        """RMSE over all cells of hidden events, patients placed by the seen ones."""
        factors = self.joined(own)
        model = [self.place(seen, factors), *factors]
        inner = float(hidden.values @ (hidden.values - kernels.residuals_at(hidden, model)))
        residual = cp.residual_norm_squared(hidden.norm_squared(), inner, cp.gram(model, None))
        return float(np.sqrt(residual / max(float(np.prod([float(d) for d in hidden.shape])), 1.0)))

    def fit(self, cells: SparseTensor, own: Sequence[Array]) -> float:
        """1 - ||O - X|| / ||O||."""
        norm = cells.norm_squared()
        return 1.0 - float(np.sqrt(self.residual(cells, self.joined(own)) / norm)) if norm else 1.0

    def errors(self, tensor: SparseTensor, cells: SparseTensor, seed: int) -> dict[int, float]:
        """Own columns -> error on hidden events of held-out patients."""
        order = np.random.default_rng([seed, 1]).permutation(tensor.patients)
        train, test = np.sort(order[::2]), np.sort(order[1::2])
        visible, masked = _thinned(tensor.take(test), cells.take(test), np.random.default_rng([seed, 3]))
        return {n: self.error(visible, masked, self.own(cells.take(train), n, seed)) for n in TRIED}

    def own(self, cells: SparseTensor, k: int, seed: int) -> list[Array]:
        """k own columns, the best of some starts."""
        empty = [np.zeros((len(f), 0)) for f in self.shared]
        if not k or not cells.nnz:
            return [np.zeros((len(f), k)) for f in self.shared] if k else empty
        residual = self._left(cells)
        runs = [
            self._columns(cells, self._start(residual, k, np.random.default_rng([seed, 2, s]))) for s in range(STARTS)
        ]
        return min(runs, key=lambda r: r[0])[1]

    def _left(self, cells: SparseTensor) -> SparseTensor:
        """What the shared phenotypes leave unexplained of the recorded cells."""
        residual = kernels.residuals_at(cells, [self.place(cells, self.shared), *self.shared])
        keep = residual > 0 if self.nonnegative else residual != 0
        return SparseTensor(cells.coords[keep], residual[keep], cells.shape, cells.axes)

    def _start(self, left: SparseTensor, k: int, rng: np.random.Generator) -> list[Array]:
        """Own columns begin as the residual of patients drawn by its square, each far from those before."""
        columns = [np.zeros((len(f), k)) for f in self.shared]
        size = np.zeros(left.patients)
        if left.nnz:
            size[left.rows] = np.add.reduceat(np.square(left.values), left.indptr[:-1])
        for j in range(k):
            if size.sum() <= 0:
                for c in columns:
                    c[:, j] = rng.random(len(c))
                continue
            first = int(rng.choice(left.patients, p=size / size.sum()))
            record = left.take([first])
            marks = [np.bincount(c, record.values, len(f)) for c, f in zip(record.codes, self.shared)]
            # patients whose residual lies on the same cells speak with it; the others are candidates for the next column
            alike = np.ones(left.nnz)
            for c, m in zip(left.codes, marks):
                alike *= m[c] / max(float(np.linalg.norm(m)), 1e-300)
            speak = np.zeros(left.patients)
            speak[left.rows] = np.add.reduceat(alike * left.values, left.indptr[:-1])
            share = speak / np.sqrt(np.maximum(size, 1e-300))
            patient = np.repeat(left.rows, np.diff(left.indptr))
            for c, column in zip(left.codes, columns):
                column[:, j] = np.bincount(c, left.values * np.maximum(share, 0.0)[patient], len(column))
                column[:, j] /= max(float(np.linalg.norm(column[:, j])), 1e-300)
            size = size * np.square(np.clip(1.0 - share, 0.0, 1.0))
            size[first] = 0.0
        return [c + 1e-3 * rng.random(c.shape) / np.sqrt(len(c)) for c in columns]

    def _columns(self, cells: SparseTensor, own: list[Array]) -> tuple[float, list[Array]]:
        """HALS over the own columns only, until the error settles."""
        rank, last_goal, goal = self.shared[0].shape[1], np.inf, np.inf
        norm = cells.norm_squared()
        for _ in range(SWEEPS):
            factors = self.joined(own)
            a = self.place(cells, factors)
            for n in range(len(own)):
                model = [a, *factors]
                g, m = cp.gram(model, n + 1), kernels.mttkrp(cells, model, n + 1)
                f = factors[n]
                for j in range(rank, f.shape[1]):
                    if g[j, j] > 0:
                        column = f[:, j] + (m[:, j] - f @ g[:, j]) / g[j, j]
                        f[:, j] = np.maximum(column, 0.0) if self.nonnegative else column
                goal = cp.squared_error(norm, f, g, m)
            unit, length = cp.normalise([f[:, rank:] for f in factors])
            own = [np.where(length > 0, u, 0.0) for u in unit]
            if last_goal - goal <= SETTLED * norm:
                break
            last_goal = goal
        return goal, own

    def refit(self, cells: SparseTensor) -> tuple[list[Array], float]:
        """The shared factors fitted anew to this hospital, from where they are; and the fit."""
        factors, last_goal, norm = [np.array(f) for f in self.shared], np.inf, cells.norm_squared()
        for _ in range(SWEEPS):
            a = self.place(cells, factors)
            for n in range(len(factors)):
                all_factors = [a, *factors]
                g, m = cp.gram(all_factors, n + 1), kernels.mttkrp(cells, all_factors, n + 1)
                factors[n] = cp.hals(factors[n], g, m, sweeps=2, nonnegative=self.nonnegative)
            goal = cp.squared_error(norm, factors[-1], g, m)
            unit, length = cp.normalise(factors)
            factors = [np.ascontiguousarray(np.where(length > 0, u, s)) for u, s in zip(unit, self.shared)]
            if last_goal - goal <= SETTLED * norm:
                break
            last_goal = goal
        return factors, 1.0 - float(np.sqrt(self.residual(cells, factors) / norm)) if norm else 1.0


def _thinned(counts: SparseTensor, cells: SparseTensor, rng: np.random.Generator) -> tuple[SparseTensor, SparseTensor]:
    """Every event goes to one of two tensors with equal chance, under its patient's weight.

    Placed by the very events that it is judged by, a patient is explained better by every further column, a phenotype cut
    in two included; by half of the events only where the column is there.
    """
    events = np.rint(np.abs(counts.values)).astype(np.int64)
    first = np.where(
        events == counts.values, rng.binomial(events, 0.5) / np.maximum(events, 1), rng.integers(0, 2, counts.nnz)
    )
    coords = cells.coords
    return tuple(  # type: ignore[return-value]
        SparseTensor(coords[part > 0], (cells.values * part)[part > 0], cells.shape, cells.axes)
        for part in (first, 1.0 - first)
    )


def _widened(model: Phenotypes, tensor: SparseTensor) -> tuple[Phenotypes, LeastSquares]:
    """The model over its codes and then this hospital's, on which shared phenotypes weigh nothing; placed by least squares."""
    axes, factors = [], []
    for axis, f, own in zip(model.axes, model.factors, tensor.axes[1:]):
        widened = _with_codes(axis, own)
        added = 0 if widened is axis else len(widened.labels or ()) - len(f)
        axes.append(widened)
        factors.append(np.concatenate([f, np.zeros((added, f.shape[1]))]))
    placing = replace(model.placing, zeros="observed") if isinstance(model.placing, LeastSquares) else LeastSquares()
    return replace(model, factors=tuple(factors), axes=tuple(axes), placing=placing, shown=()), placing


def _with_codes(axis: Axis, own: Axis) -> Axis:
    """The model's codes, then those that this hospital alone has; the axis itself where there are none, or no labels."""
    model_codes = set(axis.labels or ())
    new = [i for i, x in enumerate(own.labels or ()) if x not in model_codes] if axis.labels is not None else []
    if not new:
        return axis
    labels, extra = axis.labels or (), own.take(new)
    unnamed = axis.names is None and extra.names is None
    names = None if unnamed else (*(axis.names or labels), *(extra.names or extra.labels or ()))
    return Axis(axis.name, (*labels, *(extra.labels or ())), names, axis.vocabulary)


def _with_own(wide: Phenotypes, placing: LeastSquares, joined: Sequence[Array], cells: SparseTensor) -> Phenotypes:
    a = cp.solve_memberships(cells, list(joined), nonnegative=placing.nonnegative)
    weights = np.linalg.norm(a, axis=0) * np.prod([np.linalg.norm(f, axis=0) for f in joined], axis=0)
    return replace(
        wide,
        factors=tuple(joined),
        weights=np.concatenate([wide.weights, weights[wide.rank :]]),
        stability=None,
    )


def _last_fit(model: Phenotypes) -> float | None:
    fits = [h["fit"] for h in model.history if h.get("fit") is not None]
    return fits[-1] if fits else model.origin.figures.get("fit")


def _drift(shared: Sequence[Array], refit: Sequence[Array]) -> Array:
    """(R,) 1 - product over modes of the cosine of a column and its refit."""
    likeness = np.ones(shared[0].shape[1])
    for a, b in zip(shared, refit):
        lengths = np.linalg.norm(a, axis=0) * np.linalg.norm(b, axis=0)
        likeness *= np.abs((a * b).sum(0)) / np.maximum(lengths, 1e-300)
    return np.clip(1.0 - likeness, 0.0, 1.0)


def _carriers(memberships: Array, factors: Sequence[Array]) -> NDArray[np.int64]:
    """(R,) patients for whom a phenotype is at least 5 % of what was recorded."""
    mass = np.abs(memberships) * np.prod([np.abs(f).sum(0) for f in factors], axis=0)
    total = mass.sum(1, keepdims=True)
    return np.asarray(((mass >= CARRIED * total) & (total > 0) & (mass > 0)).sum(0), np.int64)
