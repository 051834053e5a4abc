"""The Gram start: which phenotypes there are, from one small sum; what they consist of, from a second one.

Codes are hashed to a few public buckets per mode, so a patient becomes K cells. The Gram of the cells over all patients tells
patients' phenotypes apart without any patient-sized array (:mod:`.coarse`); any number of starts and ranks is tried on it
without another byte. One further sum carries the cells' phenotypes over to the codes ("lift"); where more phenotypes were found
than asked for, one number per candidate decides which are kept ("audition").

    energies  sums of squares of every cell: D^2                                  K
    cells     C_k = X_k'X_k / (D D'), D^2 = summed diagonal                     K (K - 1) / 2 numbers, twice for two halves
    lift      M_m,k = mode m in codes, the others hashed, times A_k; A_k'A_k     R (sum of codes) + R^2
    audition  ||O_k - X^||^2 of every candidate                                 at most 12

The Gram is exact: second moments of K cells over ALL patients. It is taken only over at least 16 patients a cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError, PolicyRefusal
from polyclinic.federation.halves import halves_of
from polyclinic.federation.packing import Field, Packing
from polyclinic.federation.protocol import Contribution, Step, Total, seeds
from polyclinic.phenotypes.audition import candidates
from polyclinic.phenotypes.coarse import RANKS, coarse, replicable_rank
from polyclinic.tensors import cp, ordered
from polyclinic.tensors.kernels import mttkrp
from polyclinic.tensors.site import Site
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["GramStart", "StartPublic", "bucket_sizes", "cells_of", "maps", "within"]

Array = NDArray[np.float64]
CELLS: Final = 64
PATIENTS: Final = 16  # patients a cell, at least, in every Gram that is shown
STARTS: Final = 6
AUDITIONED: Final = 12  # ranks up to which more phenotypes than asked for are looked for
CORRELATION: Final = 0.006  # standard deviation of a summed correlation of cells, by rounding
ROUNDING: Final = 0.003  # share of the explained energy that rounding may cost in the lift
LIFT: Final = 20  # HALS sweeps of the lift
BLOCK: Final = 65_536  # patients whose cells are held at once


def bucket_sizes(shape: Sequence[int], buckets: int | None = None) -> tuple[int, ...]:
    """Buckets per mode: the largest equal numbers whose product is at most 64, never more than codes; small modes first, so
    that what they leave goes to the others. With more than four modes the smallest ones are summed out (1 bucket).

    >>> bucket_sizes((120, 300)), bucket_sizes((60, 80, 24)), bucket_sizes((5, 300)), bucket_sizes((9,) * 6)
    ((8, 8), (4, 4, 4), (5, 12), (1, 1, 3, 3, 3, 3))
    """
    order = sorted(range(len(shape)), key=lambda m: (shape[m], m))
    sizes = [1] * len(shape)
    order = order[max(0, len(order) - 4) :]
    room = CELLS
    for done, m in enumerate(order):
        left = len(order) - done
        equal = 1
        while (equal + 1) ** left <= room:
            equal += 1
        sizes[m] = min(shape[m], buckets if buckets is not None else max(equal, 3))
        room = max(room // sizes[m], 1)
    return tuple(sizes)


def maps(shape: Sequence[int], sizes: Sequence[int], seed: int) -> tuple[NDArray[np.int64], ...]:
    """Public: the bucket of every code, a random balanced permutation per mode.

    >>> [np.bincount(h).tolist() for h in maps((7, 4), (3, 4), seed=0)]
    [[3, 2, 2], [1, 1, 1, 1]]
    """
    return tuple(
        (seeds(seed, "hash", m).permutation(int(n)) % int(p)).astype(np.int64)
        for m, (n, p) in enumerate(zip(shape, sizes))
    )


def cells_of(tensor: SparseTensor, hashed: Sequence[NDArray[np.int64]], sizes: Sequence[int]) -> Array:
    """(stored patients, K) counts per cell, patients in the order of ``tensor.rows``."""
    k = int(np.prod(sizes))
    cell = np.zeros(tensor.nnz, np.int64)
    for h, p, codes in zip(hashed, sizes, tensor.codes):
        cell = cell * int(p) + h[codes]
    row = np.repeat(np.arange(len(tensor.rows)), np.diff(tensor.indptr))
    counts = np.bincount(row * k + cell, tensor.values, len(tensor.rows) * k)
    return np.asarray(counts, np.float64).reshape(-1, k)


@dataclass(frozen=True)
class StartPublic:
    """What everybody knows of the start.

    Parameters
    ----------
    kind
        How the fit starts in the end: from the Gram, at random, or from a given model.
    stage
        The coming sum; ``"over"`` once the method's own sums begin.
    reason
        Why not the Gram, where it was asked for.
    diagonal
        (K,) summed squares of the cells.
    coarse
        Phenotypes over cells, per mode (buckets, Q).
    lifted
        Phenotypes over codes, per mode (codes, Q), and ``patients`` (Q, Q) A'A for them.
    proposed
        The rank at which the two halves agree; 0: none, or not asked.
    patients_summed
        Patients of all sites.
    sites
        Their names, for the dither of packed sums.
    unit
        Public unit of squared counts.
    rows
        (sum of codes,) energy of every code, the other modes hashed: it bounds what a sum can be.
    explained
        Energy that the model so far explains.
    wider
        How often the coming sum was repeated because a part of it lay outside its window.
    shown
        Contributions are seen one by one outside their sites (plain sums between hosts).
    apart
        The sites are hosts of their own: each one's door refuses a Gram of few patients that would be seen by itself.
    spare
        A coarse model of more phenotypes (and its A'A, and what it explains), for a search where the structure turns out weak.
    """

    kind: Literal["gram", "random", "model"]
    stage: Literal["energies", "cells", "lift", "audition", "over"] = "over"
    reason: str = ""
    diagonal: Array | None = None
    coarse: tuple[Array, ...] = ()
    lifted: tuple[Array, ...] = ()
    patients: Array | None = None
    proposed: int = 0
    patients_summed: float = 0.0
    shown: bool = False
    apart: bool = False
    sites: tuple[str, ...] = ()
    unit: float = 1.0
    rows: Array | None = None
    explained: float = 0.0
    wider: int = 0
    spare: tuple[Array, ...] = ()
    spare_patients: Array | None = None
    spare_explained: float = 0.0


class GramStart:
    """The start of one study: public maps, and both halves of its sums.

    Parameters
    ----------
    shape
        Sizes of the feature modes.
    rank
        Phenotypes asked for; ``"auto"``: those that two halves of the patients agree on.
    starts
        Starts of the coarse fit; they cost no byte.
    buckets
        Buckets per mode instead of the rule's.
    search
        Keep a coarse model of more phenotypes beside (``spare``, :func:`searched`).
    """

    def __init__(
        self,
        shape: Sequence[int],
        rank: int | Literal["auto"],
        seed: int,
        starts: int = STARTS,
        buckets: int | None = None,
        search: bool = False,
    ) -> None:
        self.shape, self.rank, self.seed, self.starts, self.search = tuple(shape), rank, seed, starts, search
        self.sizes = bucket_sizes(shape, buckets)
        self.cells = int(np.prod(self.sizes))
        self.maps = maps(self.shape, self.sizes, seed)
        self.least = PATIENTS * self.cells

    # ---- everybody

    def begin(self, start: StartPublic, patients: float, unit: float) -> StartPublic:
        """After the set-up sum: whether there are patients enough."""
        halves = 2 if self.rank == "auto" else 1
        if patients >= self.least * halves:
            return replace(start, stage="energies", patients_summed=patients, unit=unit)
        return self._random(f"the sum has {patients:,.0f}", patients)

    def _random(self, held: str, patients: float) -> StartPublic:
        halves = 2 if self.rank == "auto" else 1
        need = f"{self.least * halves:,} patients ({PATIENTS * halves} for each of {self.cells} cells)"
        if self.rank == "auto":
            raise DataError(f"rank='auto' needs {need}; {held}", hint="give a rank")
        return StartPublic("random", reason=f"the Gram start needs {need}; {held}", patients_summed=patients)

    def halved(self, start: StartPublic) -> bool:
        """Whether two Grams are taken, one for each half of the patients (both must be large enough)."""
        above = self.rank == "auto" or self.rank <= AUDITIONED
        return above and start.patients_summed >= 2 * self.least

    def packing(self, start: StartPublic) -> Packing:
        """How the coming sum travels."""
        n = max(len(start.sites), 1)
        fields: dict[str, Field] = {}
        if start.stage == "energies":
            cells, rows = self._grids(start)
            fields["cells"] = Field((self.cells,), cells, 0.0, start.unit * 2.0**4)
            fields["rows"] = Field((sum(self.shape),), rows, 0.0, start.unit)
            fields["small"] = Field((1,), 2.0**-6, 0.0, float(n))
        elif start.stage == "cells":
            pairs, grid = self.cells * (self.cells - 1) // 2, CORRELATION * float(np.sqrt(12.0 / n))
            parts = {"first": pairs + self.cells, "second": pairs} if self.halved(start) else {"cells": pairs}
            fields = {name: Field((size,), grid, 0.0, 1.0) for name, size in parts.items()}
        else:
            wide = start.coarse[0].shape[1]
            for m in range(len(self.shape)):
                fields[f"mode{m + 1}"] = self._window(start, m)
            unit = self._unit(start)
            fields["gram"] = Field((wide * (wide + 1) // 2,), unit * 2.0**-15, 0.0, unit)
        label = f"{start.stage} {start.wider}" if start.stage != "lift" else f"lift {wide} {start.wider}"
        return Packing(fields, start.sites, label, self.seed).widened(start.wider)

    def _grids(self, start: StartPublic) -> tuple[float, float]:
        """Rounding of the energies of cells and of codes: more codes have less each."""
        return start.unit * 2.0**-12, start.unit * 2.0 ** -(16 if sum(self.shape) <= 512 else 22)

    def grid(self, start: StartPublic, share: float, numbers: int) -> float:
        """Q whose rounding of so many sums of whitened products costs ``share`` of the explained energy."""
        return float(np.sqrt(12.0 * share * start.explained / (max(len(start.sites), 1) * numbers)))

    def bounds(self, start: StartPublic, mode: int) -> Array:
        """(codes, 1) root of every code's energy: no product of records and model, divided by the root of its Gram, exceeds it."""
        assert start.rows is not None
        first = sum(self.shape[:mode])
        return np.sqrt(np.maximum(start.rows[first : first + self.shape[mode], None], 0.0))

    def _window(self, start: StartPublic, mode: int) -> Field:
        wide = start.coarse[0].shape[1]
        grid = self.grid(start, ROUNDING, wide * sum(self.shape))
        bound = self.bounds(start, mode) * np.ones((1, wide))
        bound[bound < 0.7 * grid] = 0.0
        return Field((self.shape[mode], wide), grid, -0.15 * bound, 1.05 * bound)

    def whitening(self, start: StartPublic) -> list[tuple[Array, Array]]:
        """Per mode: G^(-1/2) and G^(1/2) of the public estimate of its Gram."""
        assert start.patients is not None
        own = [ordered.transposed_product(f, f) for f in start.coarse]
        out = []
        for m in range(len(own)):
            g = np.array(start.patients)
            for q, other in enumerate(own):
                g = g if q == m else g * other
            out.append(roots(g))
        return out

    def step(self, start: StartPublic) -> Step:
        """The coming sum."""
        if start.stage == "audition":
            return Step(0, "audition", {"errors": (len(self.candidates(start)),)}, bound=4.0, counts=False)
        name = start.stage + (f"+{start.wider}" if start.wider else "")
        alone = self.least if start.stage == "cells" and start.apart else 0
        return self.packing(start).step(0, name, counts=start.stage != "energies", patients=alone)

    def candidates(self, start: StartPublic) -> list[tuple[Array, ...]]:
        """Models of the asked rank within the lifted one; a function of public values."""
        assert start.patients is not None and self.rank != "auto"
        return candidates(start.lifted, start.patients, self.rank, self.seed)

    def combine(self, step: Step, start: StartPublic, total: Total) -> StartPublic:
        """The next public state from a sum."""
        if start.stage == "audition":
            best = int(np.argmin(total.arrays["errors"]))
            chosen = self.candidates(start)[best]
            assert start.patients is not None
            aa = within(positive(reduced(start.lifted, start.patients, chosen)), 2.0 * start.unit)
            explained = min(_energy(chosen, aa), 2.0 * start.unit)
            return replace(start, stage="over", lifted=chosen, patients=aa, explained=explained)
        opened = self.packing(start).opened(total)
        if opened is None:
            return replace(start, wider=start.wider + 1)
        start = replace(start, wider=0)
        if start.stage == "energies":
            return self._energies(start, opened)
        return self._coarse(start, opened) if start.stage == "cells" else self._lift(start, opened)

    def _energies(self, start: StartPublic, opened: Mapping[str, Array]) -> StartPublic:
        small = float(opened["small"][0])
        if start.shown and small >= 0.5:
            held = f"{small:.0f} sites have fewer, and a plain sum between hosts shows each one's own Gram"
            return self._random(held, start.patients_summed)
        if not float(np.max(opened["rows"])) > 0:
            return self._random("none of them has a count", start.patients_summed)
        # Above the truth by the rounding, so that correlations stay below 1 and products below their bounds.
        above = 2.0 * float(np.sqrt(max(len(start.sites), 1) / 12.0))
        cells, codes = self._grids(start)
        diagonal = np.maximum(opened["cells"], 0.0) + above * cells
        rows = np.maximum(opened["rows"], 0.0) + above * codes
        return replace(start, stage="cells", diagonal=diagonal, rows=rows)

    def _coarse(self, start: StartPublic, opened: Mapping[str, Array]) -> StartPublic:
        assert start.diagonal is not None
        diagonal, d = start.diagonal, np.sqrt(start.diagonal)
        rank, proposed = self.rank, 0
        if "first" in opened:
            a, b = self.halves(start, opened)
            ranks = RANKS if rank == "auto" else tuple(r for r in RANKS if r > rank)
            found, _ = replicable_rank(a, b, self.sizes, ranks=ranks, seed=self.seed)
            proposed = found or 0
            if rank == "auto":
                if found is None:
                    raise DataError(
                        "rank='auto': at no rank of at least 3 do two halves of the patients agree on the phenotypes",
                        hint="give a rank; what it shows is then decided by replication, not by the fit",
                    )
                rank = found
            gram = a + b
        else:
            gram = positive(_full(opened["cells"], diagonal, d))
        assert rank != "auto"
        fitted = coarse(gram, self.sizes, max(rank, proposed), starts=self.starts, seed=self.seed)
        explained = max(ordered.inner(np.diagonal(gram), np.ones(self.cells)) - fitted.error, 1e-300)
        known = replace(start, coarse=fitted.factors, patients=fitted.patients, proposed=proposed)
        wide = searched(rank)
        if self.search and self.rank != "auto" and wide <= self.cells // 2:
            more = coarse(gram, self.sizes, wide, starts=3, seed=self.seed)
            trace = ordered.inner(np.diagonal(gram), np.ones(self.cells))
            known = replace(
                known,
                spare=more.factors,
                spare_patients=more.patients,
                spare_explained=max(trace - more.error, 1e-300),
            )
        return replace(known, stage="lift", explained=explained)

    def widened(self, start: StartPublic) -> StartPublic:
        """The same start once more, with the spare model: the coming sum is its lift, and no audition follows at once."""
        return replace(
            start,
            stage="lift",
            coarse=start.spare,
            patients=start.spare_patients,
            explained=start.spare_explained,
            lifted=(),
            spare=(),
            spare_patients=None,
        )

    def halves(self, start: StartPublic, opened: Mapping[str, Array]) -> tuple[Array, Array]:
        """The Grams of the two halves of the patients."""
        assert start.diagonal is not None
        diagonal, d, pairs = start.diagonal, np.sqrt(start.diagonal), self.cells * (self.cells - 1) // 2
        own = np.clip(opened["first"][pairs:], 0.0, 1.0) * diagonal
        first = positive(_full(opened["first"][:pairs], own, d))
        return first, positive(_full(opened["second"], diagonal - own, d))

    def _lift(self, start: StartPublic, opened: Mapping[str, Array]) -> StartPublic:
        wide = start.coarse[0].shape[1]
        aa = np.zeros((wide, wide))
        aa[np.triu_indices(wide)] = opened["gram"]
        aa = np.maximum(aa + np.triu(aa, 1).T, 0.0)
        own = [ordered.transposed_product(f, f) for f in start.coarse]
        noise = float(np.sqrt(max(len(start.sites), 1) / 12.0))
        lifted, lengths = [], np.ones(wide)
        for m, (hashed, f, (_, root)) in enumerate(zip(self.maps, start.coarse, self.whitening(start))):
            g = aa.copy()
            for q, other in enumerate(own):
                if q != m:
                    g = g * other
            grid = self._window(start, m).grid
            b = solve_rounded(g, ordered.product(opened[f"mode{m + 1}"], root), noise * grid, LIFT)
            b, length = ordered.unit(b)
            if (length <= 0).any():  # a phenotype without a code: spread over the buckets where the coarse fit has it
                spread, _ = ordered.unit(f[hashed])
                b = np.where(length > 0, b, spread)
            lifted.append(b)
            lengths = lengths * length  # nobody is known to have such a phenotype on the codes
        scaled = within(aa * lengths[:, None] * lengths[None, :], 2.0 * start.unit)
        # Of a spare model all phenotypes go on, and are auditioned when they have been fitted.
        ask = wide if self.rank == "auto" or (self.search and not start.spare and start.spare_explained) else self.rank
        explained = min(_energy(lifted, scaled), 2.0 * start.unit)
        known = replace(start, lifted=tuple(lifted), patients=scaled, coarse=(), explained=explained)
        return replace(known, stage="audition" if ask < wide else "over")

    # ---- a hospital

    def energies(self, tensor: SparseTensor) -> dict[str, Array]:
        """Sums of squares of every cell, and of every code with the other modes hashed; whether the site's own patients are
        too few for a Gram of their own."""
        cells, rows = np.zeros(self.cells), [np.zeros(n) for n in self.shape]
        for part in _blocks(tensor):
            cells += np.square(cells_of(part, self.maps, self.sizes)).sum(0)
            for m, n in enumerate(self.shape):
                rows[m] += _row_energies(part, self.maps, self.sizes, m, n)
        small = np.array([float(tensor.patients < self.least)])
        return {"cells": cells, "rows": np.concatenate(rows), "small": small}

    def contribute(self, step: Step, site: Site, tensor: SparseTensor, start: StartPublic, unit: float) -> Contribution:
        """One site's part: ``tensor`` are its counts as fitted (weighted), ``unit`` the public unit of squared counts."""
        if start.stage == "audition":
            errors = [_error(tensor, f) for f in self.candidates(start)]
            return Contribution({"errors": np.array(errors) / unit})
        if start.stage == "energies":
            arrays = self.energies(tensor)
        elif start.stage == "cells":
            arrays = self._cells(site, tensor, start)
        else:
            arrays = self._lifting(tensor, start)
        return self.packing(start).contribution(arrays, site.name)

    def _lifting(self, tensor: SparseTensor, start: StartPublic) -> dict[str, Array]:
        weights = np.ones((1, start.coarse[0].shape[1]))
        for f in start.coarse:
            weights = (weights[:, None, :] * f[None, :, :]).reshape(-1, f.shape[1])
        gram = weights.T @ weights
        rank = weights.shape[1]
        expanded = [f[h] for f, h in zip(start.coarse, self.maps)]
        arrays = {f"mode{m}": np.zeros((n, rank)) for m, n in enumerate(self.shape, start=1)}
        own_gram = np.zeros((rank, rank))
        for part in _blocks(tensor):
            right = cells_of(part, self.maps, self.sizes) @ weights
            own = np.zeros((part.patients, rank))
            first = np.maximum(right / np.maximum(np.diagonal(gram), 1e-300), 0.0)
            own[part.rows] = cp.hals(first, gram, right, sweeps=30)
            for m in range(1, len(self.shape) + 1):
                arrays[f"mode{m}"] += mttkrp(part, [own, *expanded], m)
            own_gram += own.T @ own
        for m, (white, _) in enumerate(self.whitening(start), start=1):
            arrays[f"mode{m}"] = arrays[f"mode{m}"] @ white
        arrays["gram"] = own_gram[np.triu_indices(rank)]
        return arrays

    def _unit(self, start: StartPublic) -> float:
        """A power of two above the energy of all cells: no entry of the lift exceeds it."""
        assert start.diagonal is not None
        return ordered.power_of_two(ordered.inner(start.diagonal, np.ones(self.cells)))

    def _cells(self, site: Site, tensor: SparseTensor, start: StartPublic) -> dict[str, Array]:
        assert start.diagonal is not None
        if start.shown and tensor.patients < self.least:
            raise PolicyRefusal(
                f"a Gram of {tensor.patients:,} patients over {self.cells} cells would be seen by itself; at least "
                f"{self.least:,} are needed",
                hint="aggregation='masked', or start='random'",
            )
        d = np.sqrt(start.diagonal)
        scale = np.where(d > 0, 1.0 / np.where(d > 0, d, 1.0), 0.0)
        grams = np.zeros((2, self.cells, self.cells))
        halved = self.halved(start)
        coin = halves_of(site, f"gram {self.seed}") if halved else np.zeros(tensor.patients, np.int64)
        at = 0
        for part in _blocks(tensor):
            x = cells_of(part, self.maps, self.sizes) * scale
            side = coin[at + part.rows]
            at += part.patients
            for h in (0, 1) if halved else (0,):
                mine = x[side == h]
                grams[h] += mine.T @ mine
        upper = np.triu_indices(self.cells, 1)
        if not halved:
            return {"cells": grams[0][upper]}
        return {"first": np.concatenate([grams[0][upper], np.diagonal(grams[0])]), "second": grams[1][upper]}


def searched(rank: int) -> int:
    """Phenotypes of a search: 1.8 for each that is asked for, but no more than 18 until that is 1.5 of each.

    >>> [searched(r) for r in (5, 10, 12, 20)]
    [9, 18, 18, 30]
    """
    return int(max(min(np.ceil(1.8 * rank), 18), np.ceil(1.5 * rank)))


def positive(symmetric: Array) -> Array:
    """The nearest positive semidefinite matrix: negative eigenvalues become 0.

    >>> positive(np.array([[1.0, 2.0], [2.0, 1.0]])).round(6).tolist()
    [[1.5, 1.5], [1.5, 1.5]]
    """
    values, vectors = ordered.eigen(symmetric)
    return ordered.product(vectors * np.maximum(values, 0.0), np.ascontiguousarray(vectors.T))


def within(gram: Array, most: float) -> Array:
    """A'A with no column above ``most``: a non-negative phenotype has no more energy than all records together, whatever an
    estimate over cells says, whose loadings are free to cancel each other.

    >>> within(np.array([[4.0, 2.0], [2.0, 9.0]]), 4.0).round(6).tolist()
    [[4.0, 1.333333], [1.333333, 4.0]]
    """
    d = np.sqrt(np.minimum(most / np.maximum(np.diagonal(gram), 1e-300), 1.0))
    return gram * d[:, None] * d


def roots(gram: Array) -> tuple[Array, Array]:
    """G^(-1/2) and G^(1/2) of a positive matrix, eigenvalues raised to a fiftieth of their mean at least: where phenotypes
    hardly differ, or one is nearly nobody's, an estimate of G says little, and its inverse root would blow up the sums.

    >>> [x.round(6).tolist() for x in roots(np.diag([4.0, 9.0]))]
    [[[0.5, 0.0], [0.0, 0.333333]], [[2.0, 0.0], [0.0, 3.0]]]
    """
    values, vectors = ordered.eigen(0.5 * (gram + gram.T))
    mean = ordered.inner(values, np.ones(len(values))) / len(values)
    size = np.sqrt(np.maximum(values, max(mean / 50.0, 1e-300)))
    back = np.ascontiguousarray(vectors.T)
    return ordered.product(vectors / size, back), ordered.product(vectors * size, back)


def solve_rounded(gram: Array, right: Array, noise: float, sweeps: int, first: Array | None = None) -> Array:
    """Non-negative least squares from rounded sums: what is no more than the rounding (1.5 standard deviations) is 0.

    ``noise`` is the standard deviation of an entry of ``right`` times G^(-1/2).
    """
    diagonal = np.diagonal(gram)
    if first is None:
        first = np.maximum(right / np.where(diagonal > 0, diagonal, 1.0), 0.0)
    out = ordered.hals(first, gram, right, sweeps)
    floor = 1.5 * noise / np.sqrt(np.where(diagonal > 0, diagonal, np.inf))
    return np.where(out > floor, out, 0.0)


def reduced(lifted: Sequence[Array], patients: Array, chosen: Sequence[Array]) -> Array:
    """(R, R) A'A of the loadings on ``chosen`` that explain the lifted model best."""
    inner, own = np.ones((len(patients), chosen[0].shape[1])), np.ones((chosen[0].shape[1],) * 2)
    for b, c in zip(lifted, chosen):
        inner, own = inner * ordered.transposed_product(b, c), own * ordered.transposed_product(c, c)
    turn = ordered.solve(own, inner)
    return ordered.product(ordered.transposed_product(turn, patients), turn)


def _energy(factors: Sequence[Array], patients: Array) -> float:
    out = patients
    for f in factors:
        out = out * ordered.transposed_product(f, f)
    return max(ordered.inner(out, np.ones_like(out)), 1e-300)


def _row_energies(
    tensor: SparseTensor, hashed: Sequence[NDArray[np.int64]], sizes: Sequence[int], mode: int, codes: int
) -> Array:
    """(codes,) sum over patients and the other modes' buckets of squared counts."""
    others = np.zeros(tensor.nnz, np.int64)
    for m, (h, p, c) in enumerate(zip(hashed, sizes, tensor.codes)):
        if m != mode:
            others = others * int(p) + h[c]
    k = int(np.prod([p for m, p in enumerate(sizes) if m != mode], dtype=np.int64))
    row = np.repeat(np.arange(len(tensor.rows)), np.diff(tensor.indptr))
    code = tensor.codes[mode].astype(np.int64)
    place, back = np.unique((row * codes + code) * k + others, return_inverse=True)
    sums = np.bincount(back, tensor.values, len(place))
    return np.asarray(np.bincount((place // k) % codes, np.square(sums), codes), np.float64)


def _full(upper: Array, diagonal: Array, d: Array) -> Array:
    """The symmetric Gram from scaled entries above the diagonal and the diagonal itself."""
    out = np.zeros((len(d), len(d)))
    out[np.triu_indices(len(d), 1)] = upper
    out = (out + out.T) * d[:, None] * d[None, :]
    out[np.diag_indices_from(out)] = np.maximum(diagonal, 0.0)
    return out


def _blocks(tensor: SparseTensor) -> list[SparseTensor]:
    if tensor.patients <= BLOCK:
        return [tensor]
    return [tensor.take(np.arange(a, min(a + BLOCK, tensor.patients))) for a in range(0, tensor.patients, BLOCK)]


def _error(tensor: SparseTensor, factors: Sequence[Array]) -> float:
    a = cp.solve_memberships(tensor, factors)
    everyone = [a, *factors]
    return cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), mttkrp(tensor, everyone, 0))
