"""The Gram start: which phenotypes there are, from one small sum; what they consist of, from a second one.

Codes are hashed to a few public buckets per mode, so a patient becomes K cells. The Gram of the cells over all patients tells
patients' phenotypes apart without any patient-sized array (:mod:`.starts.hashed_cp`); any number of starts and ranks is tried on it
without another byte. One further sum carries the cells' phenotypes over to the codes ("lift"); where more phenotypes were found
than asked for, one number per candidate decides which are kept ("audition").

    energies  sums of squares of every cell: D^2                                  K
    cells     C_k = X_k'X_k / (D D'), D^2 = summed diagonal                     K (K - 1) / 2 numbers
              pairs of 48 hashed codes, two halves of the patients (:mod:`.starts.pairs`): which rank replicates
    lift      M_m,k = mode m in codes, the others hashed, times A_k; A_k'A_k     R (sum of codes) + R^2
    audition  ||O_k - X^||^2 of every candidate                                 at most 12

The Gram is exact: second moments of K cells over ALL patients. It is taken only over at least 16 patients a cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import DataError, PolicyRefusal
from polyclinic.methods.packing.packed_sums import Field, Packing
from polyclinic.methods.starts.candidates import candidates
from polyclinic.methods.starts.directions import columns_for, damped_rows, in_halves, replicating, squares
from polyclinic.methods.starts.hashed_cp import coarse
from polyclinic.methods.starts.hashing import blocks, bucket_sizes, cells_of, code_buckets, maps, row_energies
from polyclinic.methods.starts.rounding import energy, full, positive, reduced, roots, solve_rounded, within
from polyclinic.methods.starts.state import StartPublic
from polyclinic.protocol.interfaces import Contribution, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors import deterministic as ordered
from polyclinic.tensors.kernels.mttkrp import mttkrp
from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]
PATIENTS: Final = 16  # limit: patients a cell, at least, in every Gram that is shown
STARTS: Final = 6  # docs/benchmarks/constants.md
WIDEST: Final = 16  # limit: phenotypes of the lift, where more replicate than are asked for
# docs/benchmarks/constants.md
CORRELATION: Final = 0.006  # standard deviation of a summed correlation of cells, by rounding
# docs/benchmarks/constants.md
TOGETHER: Final = 0.01  # the same of a sum over pairs of buckets, in roots of the patients
# docs/benchmarks/constants.md
ROUNDING: Final = 0.003  # share of the explained energy that rounding may cost in the lift
LIFT: Final = 20  # HALS sweeps of the lift: docs/benchmarks/constants.md


class GramStart:
    """The start of one study: public maps, and both halves of its sums.

    Parameters
    ----------
    shape
        Sizes of the feature modes.
    rank
        Phenotypes asked for; ``"auto"``: one more than the directions that two halves of the patients confirm.
    starts
        Starts of the coarse fit; they cost no byte.
    buckets
        Buckets per mode instead of the rule's.
    """

    def __init__(
        self,
        shape: Sequence[int],
        rank: int | Literal["auto"],
        seed: int,
        starts: int = STARTS,
        buckets: int | None = None,
    ) -> None:
        self.shape, self.rank, self.seed, self.starts = tuple(shape), rank, seed, starts
        self.sizes = bucket_sizes(shape, buckets)
        self.cells = int(np.prod(self.sizes))
        self.bucket_of = code_buckets(sum(self.shape), seed)
        self.buckets = int(self.bucket_of.max()) + 1
        self.maps = maps(self.shape, self.sizes, seed)
        self.least = PATIENTS * self.cells

    # ---- everybody

    def begin(self, start: StartPublic, patients: float, unit: float) -> StartPublic:
        """After the set-up sum: whether there are patients enough."""
        if patients >= self.least:
            return replace(start, stage="energies", patients_summed=patients, unit=unit)
        return self._random(f"the sum has {patients:,.0f}", patients)

    def _random(self, held: str, patients: float) -> StartPublic:
        need = f"{self.least:,} patients ({PATIENTS} for each of {self.cells} cells)"
        if self.rank == "auto":
            raise DataError(f"rank='auto' needs {need}; {held}", hint="give a rank")
        return StartPublic("random", reason=f"the Gram start needs {need}; {held}", patients_summed=patients)

    def pairs(self, start: StartPublic) -> bool:
        """Whether pairs of hashed codes are summed in two halves of the patients, too: they tell which rank replicates."""
        return self.rank == "auto" or start.patients_summed >= 2 * self.least

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
            fields = {"cells": Field((pairs,), grid, 0.0, 1.0)}
            if self.pairs(start):
                grid = TOGETHER * float(np.sqrt(12.0 / n * start.patients_summed))
                size, most = self.buckets * (self.buckets - 1) // 2, start.patients_summed / 8
                fields |= {half: Field((size,), grid, 0.0, most) for half in ("first", "second")}
        else:
            columns = start.coarse[0].shape[1]
            for m in range(len(self.shape)):
                fields[f"mode{m + 1}"] = self._window(start, m)
            unit = self._unit(start)
            fields["gram"] = Field((columns * (columns + 1) // 2,), unit * 2.0**-15, 0.0, unit)
        label = f"{start.stage} {start.wider}" if start.stage != "lift" else f"lift {columns} {start.wider}"
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
        rows = np.maximum(start.rows[first : first + self.shape[mode], None], 0.0)
        return np.sqrt(np.where(rows >= start.floors[mode], rows, 0.0) if start.floors else rows)

    def sent(self, start: StartPublic, mode: int) -> int:
        """Codes of a mode that are not left out."""
        return int((self.bounds(start, mode) > 0).sum()) if start.floors else self.shape[mode]

    def _window(self, start: StartPublic, mode: int) -> Field:
        columns = start.coarse[0].shape[1]
        grid = self.grid(start, ROUNDING, columns * sum(self.shape))
        bound = self.bounds(start, mode) * np.ones((1, columns))
        bound[bound < 0.7 * grid] = 0.0
        return Field((self.shape[mode], columns), grid, -0.15 * bound, 1.05 * bound)

    def whitening(self, start: StartPublic) -> list[tuple[Array, Array]]:
        """Per mode: G^(-1/2) and G^(1/2) of the public estimate of its Gram."""
        assert start.patients is not None
        grams = [ordered.transposed_product(f, f) for f in start.coarse]
        out = []
        for m in range(len(grams)):
            g = np.array(start.patients)
            for q, other in enumerate(grams):
                g = g if q == m else g * other
            out.append(roots(g))
        return out

    def step(self, start: StartPublic) -> Step:
        """The coming sum."""
        if start.stage == "audition":
            return Step(0, "audition", {"errors": (len(self.candidates(start)),)}, bound=4.0, counts=False)
        name = start.stage + (f"+{start.wider}" if start.wider else "")
        least_alone = self.least if start.stage == "cells" and start.apart else 0
        return self.packing(start).step(0, name, counts=start.stage != "energies", patients=least_alone)

    def candidates(self, start: StartPublic) -> list[tuple[Array, ...]]:
        """Models of the asked rank within the lifted one; a function of public values."""
        assert start.patients is not None and self.rank != "auto"
        return candidates(start.lifted, start.patients, self.rank, self.seed)

    def combine(self, step: Step, start: StartPublic, total: Total) -> StartPublic:
        """Energies, then coarse factors from S = sum_k X_k'X_k of hashed cells, then lifted A_n = M_n G^-1; the best of them."""
        if start.stage == "audition":
            best = int(np.argmin(total.arrays["errors"]))
            winner = self.candidates(start)[best]
            assert start.patients is not None
            aa = within(positive(reduced(start.lifted, start.patients, winner)), 2.0 * start.unit)
            explained = min(energy(winner, aa), 2.0 * start.unit)
            return replace(start, stage="over", lifted=winner, patients=aa, explained=explained)
        sums = self.packing(start).opened(total)
        if sums is None:
            return replace(start, wider=start.wider + 1)
        start = replace(start, wider=0)
        if start.stage == "energies":
            return self._energies(start, sums)
        return self._coarse(start, sums) if start.stage == "cells" else self._lift(start, sums)

    def _energies(self, start: StartPublic, opened: Mapping[str, Array]) -> StartPublic:
        small = float(opened["small"][0])
        if start.shown and small >= 0.5:
            reason = f"{small:.0f} sites have fewer, and a plain sum between hosts shows each one's own Gram"
            return self._random(reason, start.patients_summed)
        if not float(np.max(opened["rows"])) > 0:
            return self._random("none of them has a count", start.patients_summed)
        # Above the truth by the rounding, so that correlations stay below 1 and products below their bounds.
        margin = 2.0 * float(np.sqrt(max(len(start.sites), 1) / 12.0))
        cells, codes = self._grids(start)
        diagonal = np.maximum(opened["cells"], 0.0) + margin * cells
        rows = np.maximum(opened["rows"], 0.0) + margin * codes
        return replace(start, stage="cells", diagonal=diagonal, rows=rows)

    def _coarse(self, start: StartPublic, opened: Mapping[str, Array]) -> StartPublic:
        assert start.diagonal is not None
        diagonal, d = start.diagonal, np.sqrt(start.diagonal)
        confirmed = replicating(*squares(opened, self.buckets)) if self.pairs(start) else -1
        if self.rank == "auto" and confirmed < 1:
            raise DataError(
                "rank='auto': two halves of the patients confirm no direction in which codes occur together",
                hint="give a rank; what it shows is then decided by replication, not by the fit",
            )
        columns = columns_for(confirmed) if self.rank == "auto" else max(self.rank, min(confirmed, WIDEST))
        gram = positive(full(opened["cells"], diagonal, d))
        fitted = coarse(gram, self.sizes, columns, starts=self.starts, seed=self.seed, cancelling=False)
        explained = max(ordered.inner(np.diagonal(gram), np.ones(self.cells)) - fitted.error, 1e-300)
        state = replace(start, coarse=fitted.factors, patients=fitted.patients, confirmed=confirmed, gram=gram)
        return replace(state, stage="lift", explained=explained)

    def _lift(self, start: StartPublic, opened: Mapping[str, Array]) -> StartPublic:
        columns = start.coarse[0].shape[1]
        aa = np.zeros((columns, columns))
        aa[np.triu_indices(columns)] = opened["gram"]
        aa = np.maximum(aa + np.triu(aa, 1).T, 0.0)
        grams = [ordered.transposed_product(f, f) for f in start.coarse]
        noise = float(np.sqrt(max(len(start.sites), 1) / 12.0))
        factors, lengths = [], np.ones(columns)
        for m, (hashed, f, (_, root)) in enumerate(zip(self.maps, start.coarse, self.whitening(start))):
            g = aa.copy()
            for q, other in enumerate(grams):
                if q != m:
                    g = g * other
            grid = self._window(start, m).grid
            b = solve_rounded(g, ordered.product(opened[f"mode{m + 1}"], root), noise * grid, LIFT)
            b, length = ordered.unit(b)
            if (length <= 0).any():  # a phenotype without a code: spread over the buckets where the coarse fit has it
                spread, _ = ordered.unit(f[hashed])
                b = np.where(length > 0, b, spread)
            factors.append(b)
            lengths = lengths * length  # nobody is known to have such a phenotype on the codes
        scaled = within(aa * lengths[:, None] * lengths[None, :], 2.0 * start.unit)
        ask = columns if self.rank == "auto" else self.rank
        explained = min(energy(factors, scaled), 2.0 * start.unit)
        state = replace(start, lifted=tuple(factors), patients=scaled, coarse=(), explained=explained, gram=None)
        return replace(state, kept=self._kept(start, factors), stage="audition" if ask < columns else "over")

    def _kept(self, start: StartPublic, lifted: Sequence[Array]) -> float:
        """tr((W'W)^-1 W'S W), W the lifted phenotypes over cells, as a share of what the coarse ones explain of S."""
        if start.gram is None:  # nothing to compare with
            return 1.0
        weights = np.ones((1, lifted[0].shape[1]))
        for b, hashed, size in zip(lifted, self.maps, self.sizes):
            f = np.stack([np.bincount(hashed, column, size) for column in b.T], axis=1)
            weights = (weights[:, None, :] * f[None, :, :]).reshape(-1, f.shape[1])
        overlap = ordered.transposed_product(weights, weights)
        overlap += 1e-9 * float(np.max(overlap)) * np.eye(len(overlap))
        inner = ordered.transposed_product(weights, ordered.product(start.gram, weights))
        return ordered.inner(np.diagonal(ordered.solve(overlap, inner)), np.ones(len(overlap))) / start.explained

    # ---- a hospital

    def energies(self, tensor: SparseTensor) -> dict[str, Array]:
        """Sums of squares of every cell, and of every code with the other modes hashed; whether the site's own patients are
        too few for a Gram of their own."""
        cells, rows = np.zeros(self.cells), [np.zeros(n) for n in self.shape]
        for part in blocks(tensor):
            cells += np.square(cells_of(part, self.maps, self.sizes)).sum(0)
            for m, n in enumerate(self.shape):
                rows[m] += row_energies(part, self.maps, self.sizes, m, n)
        small = np.array([float(tensor.patients < self.least)])
        return {"cells": cells, "rows": np.concatenate(rows), "small": small}

    def contribute(self, step: Step, site: Site, tensor: SparseTensor, start: StartPublic, unit: float) -> Contribution:
        """One site's part, S_k = X_k'X_k over hashed cells, or M_kn = X_k(n) kr(A_k, coarse factors) and A_k'A_k.

        ``tensor`` are its counts as fitted (weighted), ``unit`` the public unit of squared counts.
        """
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
        for part in blocks(tensor):
            right = cells_of(part, self.maps, self.sizes) @ weights
            memberships = np.zeros((part.patients, rank))
            first = np.maximum(right / np.maximum(np.diagonal(gram), 1e-300), 0.0)
            memberships[part.rows] = cp.hals(first, gram, right, sweeps=30)
            for m in range(1, len(self.shape) + 1):
                arrays[f"mode{m}"] += mttkrp(part, [memberships, *expanded], m)
            own_gram += memberships.T @ memberships
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
        gram = np.zeros((self.cells, self.cells))
        for part in blocks(tensor):
            x = cells_of(part, self.maps, self.sizes) * scale
            gram += x.T @ x
        arrays = {"cells": gram[np.triu_indices(self.cells, 1)]}
        if self.pairs(start):
            arrays |= in_halves(site, damped_rows(site).grouped(self.bucket_of, self.buckets), f"gram {self.seed}")
        return arrays


def _error(tensor: SparseTensor, factors: Sequence[Array]) -> float:
    a = cp.solve_memberships(tensor, factors)
    everyone = [a, *factors]
    return cp.squared_error(tensor.norm_squared(), a, cp.gram(everyone, 0), mttkrp(tensor, everyone, 0))
