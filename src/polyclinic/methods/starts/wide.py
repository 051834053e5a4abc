"""A start without a Gram: few patients, sums of a few bits, and more phenotypes than are asked for.

Fewer than sixteen patients a cell show too much of themselves in a Gram of hashed cells. There a random start of 1.8 times as many
phenotypes (:func:`searched`) is swept a few times, coarsely rounded; many models of the asked rank are fitted to that one
offline, and one number per candidate decides which goes on ("audition", as after a Gram).

    rows      sum of squares of every code, A_k'A_k for the random columns            sum of codes + W (W + 1) / 2 numbers
    overlap   A_k'A_k, where columns are left with 512 codes only                      W (W + 1) / 2
    wide      M_n,k G^(-1/2) and A_k'A_k, mode after mode, with new A_k every time     W codes + W (W + 1) / 2, WIDE times
    audition  ||O_k - X^||^2 of every candidate                                       at most 12

Of more than 1,024 codes only the 512 with most energy in their mode are searched among; the others enter when the fit has arrived. Few
of so many codes carry nearly all energy (DE-SynPUF: 512 of 5,613 codes, and 1 % of what a model explains is lost without the others).

Every part is a function of the site's records and of public values alone, so a sum can be asked for again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.packing.packed_sums import FAR, Field, Packing
from polyclinic.methods.starts.gram import GramStart
from polyclinic.methods.starts.rounding import reach, roots, solve_rounded
from polyclinic.methods.starts.state import Far, StartPublic
from polyclinic.protocol.interfaces import Contribution, Step, Total, seeds
from polyclinic.tensors import cp
from polyclinic.tensors import deterministic as ordered
from polyclinic.tensors.device import mttkrp
from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]
VOCABULARY: Final = 1024  # limit: codes, at most, that are all searched among
SEARCHED: Final = 512  # limit: of more codes: those with most energy in their mode
STEPS: Final = 64  # of the rounding, in the window of a code's energy among so many: the few larger ones are put right
ROUNDS: Final = 15  # limit: of a fit, at least: a search needs room
WIDE: Final = 5  # sweeps: docs/benchmarks/constants.md
VAST: Final = 4  # ... among the heaviest of many codes
# docs/benchmarks/constants.md
ROUNDING: Final = (4e-2, 3e-2, 1e-2)  # share of the explained energy that rounding a sum costs: sweep 1, 2, ...
SWEEPS: Final = 3  # of HALS: docs/benchmarks/constants.md
# docs/benchmarks/constants.md
COMING: Final = 0.03  # of the energy: what a model will explain at least; random columns explain next to nothing
LEAST: Final = 1e-6  # limit: of the energy: what a model is taken to explain at least, so that rounding has a unit
# docs/benchmarks/constants.md
AWAY: Final = 2.5  # windows, in units of the last sum's root mean square distance from its prediction
# docs/benchmarks/constants.md
SLACK: Final = 0.0  # and so many steps of the grid more (rounding itself has 4.5 standard deviations)
EVERY: Final = 100  # one of so many numbers may lie outside its window: docs/benchmarks/constants.md
MENDS: Final = 4  # docs/benchmarks/constants.md
# docs/benchmarks/constants.md
LOOSE: Final = 2  # sweeps whose model says little of the next one's sums: energies are their windows


class WideStart:
    """The start of one study with few patients: both halves of its sums.

    Parameters
    ----------
    gram
        The study's Gram start: sizes, rank, seed; what follows a search is its audition.
    """

    def __init__(self, gram: GramStart) -> None:
        self.gram, self.shape, self.seed = gram, gram.shape, gram.seed

    # ---- everybody

    def begin(self, start: StartPublic, unit: float) -> StartPublic:
        """Random columns, public by the seed; ``unit``: of squared counts."""
        assert self.gram.rank != "auto"
        rng, columns = seeds(self.seed, "wide"), searched(self.gram.rank)
        factors = tuple(ordered.unit(rng.random((n, columns)))[0] for n in self.shape)
        return replace(start, stage="rows", coarse=factors, unit=unit, sweep=1, mode=1)

    def again(self, start: StartPublic) -> StartPublic:
        """After a Gram that found little: what it found leads to poorer optima than chance."""
        unknown = Far(np.empty((0, 1)), np.empty((1, 0)))
        state = self.begin(replace(start, lifted=(), patients=None, wider=0), start.unit)
        return replace(state, stage="overlap", far=(unknown,) * len(self.shape))

    @property
    def vast(self) -> bool:
        """Too many codes to search among all of them."""
        return sum(self.shape) > VOCABULARY

    def _floors(self, rows: Array) -> tuple[float, ...]:
        """The energy, per mode, that a code needs to be searched among: 512 codes, as many of every mode as there are."""
        room, parts = SEARCHED, np.split(rows, np.cumsum(self.shape)[:-1])
        out = [0.0] * len(parts)
        for done, m in enumerate(sorted(range(len(parts)), key=lambda m: (self.shape[m], m))):
            take = min(room // (len(parts) - done), self.shape[m])
            out[m], room = float(np.sort(parts[m])[-take]), room - take
        return tuple(out)

    def packing(self, start: StartPublic) -> Packing:
        """How the coming sum travels."""
        columns = start.coarse[0].shape[1]
        overlap, mends, windows = columns * (columns + 1) // 2, MENDS, FAR
        fields = {"aside": Field((2,), start.unit * 2.0**-26, 0.0, start.unit * 8.0)}
        if start.stage == "rows":
            grid = self._fine(start)
            fields["rows"] = Field((sum(self.shape),), grid, 0.0, STEPS * grid if self.vast else start.unit)
            if self.vast:
                mends, windows = sum(self.shape) // 40, int(start.unit / grid) // STEPS
        if start.stage == "wide":
            fields["products"], mends = self._products(start)
            assert start.patients is not None
            most = max(2.0 * ordered.inner(np.diagonal(start.patients), np.ones(columns)), LEAST * start.unit)
            fields["gram"] = Field((overlap,), most * 2.0**-12, 0.0, most)
        elif start.stage == "overlap" or not self.vast:
            fields["gram"] = Field((overlap,), start.unit * 2.0**-20, 0.0, start.unit)
        label = f"{start.stage} {start.sweep} {start.mode} {start.wider}"
        return Packing(fields, start.sites, label, self.seed, mends=mends, far=windows).widened(start.wider)

    def _fine(self, start: StartPublic) -> float:
        """Rounding of codes' energies; of very many the large ones are enough."""
        return start.unit * 2.0 ** (-15 if self.vast else -18)

    def _products(self, start: StartPublic) -> tuple[Field, int]:
        """Windows of whitened products: by the codes' energies at first, then around what the model predicts; and how many
        numbers that lie outside are put right."""
        n, columns = start.mode - 1, start.coarse[0].shape[1]
        share = ROUNDING[min(start.sweep, len(ROUNDING)) - 1]
        grid = self.gram.grid(start, share, columns * self.gram.sent(start, n))
        bound = self.gram.bounds(start, n)
        bound = np.where(bound < 0.7 * grid, 0.0, bound)
        numbers = columns * int((bound > 0).sum())
        if start.sweep <= LOOSE:
            reach = bound * self._share(start) * np.ones((1, columns))
            return Field((self.shape[n], columns), grid, -0.2 * reach, reach), MENDS + numbers // 64
        likely = np.where(bound > 0, self._predicted(start), 0.0)
        room = np.where(bound > 0, np.maximum(start.far[n].window() + SLACK * grid, 0.1 * grid), 0.0)
        return Field(likely.shape, grid, likely - room, likely + room), max(MENDS, numbers // EVERY)

    def _share(self, start: StartPublic) -> float:
        """How much of a code's root energy a phenotype may have: all of it among few patients, else what a model explains."""
        if start.patients_summed < self.gram.least:
            return 1.0
        return float(np.sqrt(min(start.explained / max(start.everything, 1e-300), 1.0)))

    def _overlap(self, start: StartPublic, patients: Array) -> Array:
        """G of the coming mode: A'A times the other modes' Grams."""
        g = patients
        for q, f in enumerate(start.coarse):
            if q != start.mode - 1:
                g = g * ordered.transposed_product(f, f)
        return g

    def roots(self, start: StartPublic) -> tuple[Array, Array]:
        """G^(-1/2) and G^(1/2) as far as everybody knows G before the sum."""
        assert start.patients is not None
        return roots(self._overlap(start, start.patients))

    def _predicted(self, start: StartPublic) -> Array:
        return ordered.product(start.coarse[start.mode - 1], self.roots(start)[1])

    def step(self, start: StartPublic) -> Step:
        """The coming sum."""
        name = f"wide{start.sweep}mode{start.mode}" if start.stage == "wide" else start.stage
        return self.packing(start).step(0, name + (f"+{start.wider}" if start.wider else ""))

    def combine(self, start: StartPublic, total: Total) -> StartPublic:
        """Energies of codes; then A_n = argmin_{A >= 0} tr(A G A') - 2 tr(A'M), M = sum_k M_k, mode after mode."""
        sums = self.packing(start).opened(total)
        if sums is None:
            return replace(start, wider=start.wider + 1)
        columns, start = start.coarse[0].shape[1], replace(start, wider=0)
        if start.stage == "rows":
            noise = float(np.sqrt(max(len(start.sites), 1) / 12.0)) * self._fine(start)
            if not float(np.max(sums["rows"])) > 5.0 * noise:  # nobody has a count
                return StartPublic("random", reason=start.reason, patients_summed=start.patients_summed)
            rows, unknown = np.maximum(sums["rows"], 0.0) + 2.0 * noise, Far(np.empty((0, 1)), np.empty((1, 0)))
            start = replace(start, rows=rows, far=(unknown,) * len(self.shape))
            if self.vast:
                start = replace(start, stage="overlap", floors=self._floors(rows))
                searched_codes = [self.gram.bounds(start, m) > 0 for m in range(len(self.shape))]
                return replace(
                    start, coarse=tuple(ordered.unit(f * k)[0] for f, k in zip(start.coarse, searched_codes))
                )
        patients = np.zeros((columns, columns))
        patients[np.triu_indices(columns)] = sums["gram"]
        patients = np.maximum(patients + np.triu(patients, 1).T, 0.0)  # memberships are not negative; rounding may be
        residual, total_energy = (float(x) for x in sums["aside"])
        explained = max(total_energy - residual, COMING * total_energy, LEAST * start.unit)
        if start.stage != "wide":
            return replace(start, stage="wide", patients=patients, explained=explained, everything=total_energy)
        return self._swept(start, sums, patients, explained)

    def _swept(self, start: StartPublic, opened: Mapping[str, Array], patients: Array, explained: float) -> StartPublic:
        n, products = start.mode - 1, opened["products"]
        g, grid = self._overlap(start, patients), self.packing(start).fields["products"].grid
        right = ordered.product(products, self.roots(start)[1])
        noise = float(np.sqrt(max(len(start.sites), 1) / 12.0)) * grid
        new, length = ordered.unit(solve_rounded(g, right, noise, SWEEPS, start.coarse[n]))
        new = np.where(length > 0, new, start.coarse[n])
        factors = (*start.coarse[:n], new, *start.coarse[n + 1 :])
        windows = (*start.far[:n], reach(products - self._predicted(start), AWAY), *start.far[n + 1 :])
        patients = patients * length[:, None] * length
        start = replace(start, coarse=factors, patients=patients, explained=explained, far=windows)
        if start.mode < len(factors):
            return replace(start, mode=start.mode + 1)
        sweeps = VAST if start.floors else WIDE
        if start.sweep < sweeps:
            on = factors
            if start.sweep > 1:  # as far again on the way of the last sweep
                on = tuple(ordered.unit(np.maximum(2.0 * f - old, 0.0))[0] for f, old in zip(factors, start.last))
            return replace(start, mode=1, sweep=start.sweep + 1, coarse=on, last=factors)
        return replace(start, stage="audition", lifted=factors, coarse=(), far=(), last=())

    # ---- a hospital

    def contribute(self, tensor: SparseTensor, start: StartPublic, name: str) -> Contribution:
        """M_kn = X_k(n) kr(A_k, A_m != A_n) G^(-1/2) and A_k'A_k, for its own patients A_k = argmin_{A >= 0} ||X_k - [A, A_1, ...]||^2."""
        memberships, error = _members(tensor, start.coarse)
        arrays, packing = (
            {"gram": (memberships.T @ memberships)[np.triu_indices(memberships.shape[1])], "aside": error},
            self.packing(start),
        )
        if start.stage == "rows":
            arrays["rows"] = np.concatenate([_energies(tensor, m, n) for m, n in enumerate(self.shape)])
        if start.stage == "wide":
            arrays["products"] = mttkrp(tensor, [memberships, *start.coarse], start.mode) @ self.roots(start)[0]
        return packing.contribution(arrays, name)


def searched(rank: int) -> int:
    """Phenotypes of a search: 1.8 for each that is asked for, but no more than 18 until that is 1.5 of each.

    >>> [searched(r) for r in (5, 10, 12, 20)]
    [9, 18, 18, 30]
    """
    return int(max(min(np.ceil(1.8 * rank), 18), np.ceil(1.5 * rank)))


def _members(tensor: SparseTensor, factors: Sequence[Array]) -> tuple[Array, Array]:
    """Memberships of a site's patients, and (squared error, squared norm)."""
    everyone = [np.zeros((tensor.patients, factors[0].shape[1])), *factors]
    g, m = cp.gram(everyone, 0), mttkrp(tensor, everyone, 0)
    memberships, norm = cp.hals(everyone[0], g, m, sweeps=10), tensor.norm_squared()
    return memberships, np.array([cp.squared_error(norm, memberships, g, m), norm])


def _energies(tensor: SparseTensor, mode: int, codes: int) -> Array:
    """(codes,) summed squares of a mode's codes."""
    return np.asarray(np.bincount(tensor.codes[mode], np.square(tensor.values), codes), np.float64)
