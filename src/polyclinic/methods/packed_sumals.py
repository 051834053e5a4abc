"""SumALS's packed sweeps: sums of a few bits a number, what they gain, and a search where the structure is weak."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.extra_columns import BESIDE, REACH, columns_beside, roots_beside, worth_hearing
from polyclinic.methods.packing.packed_sums import Field as Packed
from polyclinic.methods.packing.packed_sums import Packing
from polyclinic.methods.rounds.sweeps import SWEEPS, Sweeps
from polyclinic.methods.starts.choice import WEAK
from polyclinic.methods.starts.gram import GramStart
from polyclinic.methods.starts.rounding import reach, roots, solve_rounded, within
from polyclinic.methods.starts.state import Far
from polyclinic.methods.starts.wide import WideStart
from polyclinic.protocol.interfaces import Contribution, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import deterministic as ordered
from polyclinic.tensors.deterministic import power

if TYPE_CHECKING:
    from polyclinic.methods.sumals import SumPublic

Array = NDArray[np.float64]
KEPT = 3  # sweeps of a half that keeps all phenotypes of its search (docs/dev/decisions/0012)
# before the first sweep explained energy is known over cells only, where codes that collide explain each other
UNSURE = 8.0  # docs/benchmarks/constants.md
CAREFUL = 2  # sweeps by projected gradient where the start saw little of the structure: they find better optima than HALS at once
PATIENT = 1e-3  # `tol` where the structure is weak
LEAST = 1e-6  # limit: of the energy: what a model is taken to explain at least, so that rounding has a unit
# docs/benchmarks/constants.md
AUDITIONED = 0.08  # of a code's energy: how far the first sum after a search may lie from what the wide model says
LOOSE = 0.15  # typical distance from a start's prediction above which it says nothing of the coming sums
# docs/benchmarks/constants.md
AWAY = 2.5  # windows, in units of the last sum's root mean square distance from its prediction
# and so many steps of the grid more (rounding itself has 4.5 standard deviations): sweep 1, 2, ...
SLACK = (2.0, 0.5, -0.5)  # docs/benchmarks/constants.md
EVERY = (144, 160, 176)  # one of so many numbers may lie outside its window: docs/benchmarks/constants.md
MENDS = 4  # docs/benchmarks/constants.md
# docs/benchmarks/constants.md
ROUNDING = (1e-3, 5e-4, 4e-4)  # share of explained energy that rounding a packed sum costs: sweep 1, 2, ...
RARE = 4.0  # steps of the grid in one of the grid for codes that enter at last
SEEN = 3.5  # standard deviations of that rounding: so many rare codes show by chance otherwise
WORTH = 8.0  # times SEEN that a rare code's root energy is, at least


UNKNOWN = Far(np.empty((0, 1)), np.empty((1, 0)))


def weak(public: SumPublic) -> bool:
    """Whether the start saw little of the structure: the first sweep gained much."""
    return public.gain is not None and public.gain > WEAK


class PackedSweeps(Sweeps):
    """The same sweeps after a start that found something: sums in windows around what the model predicts."""

    def due(self, public: SumPublic) -> bool:
        return bool(public.start.lifted)

    def enter(self, public: SumPublic) -> SumPublic:
        """From what the start knows: A'A, what the model explains, and how far the first sums may lie from it."""
        start, rank = public.start, public.rank
        spread = [UNKNOWN] * len(public.factors)
        if start.sweep:  # a search came first
            codes = self._gram(public).bounds(start, 0)
            spread[0] = Far(AUDITIONED * codes, np.ones((1, rank)))
            public = replace(public, searched=True, base=public.round - 1)
        trimmed_start = replace(start, lifted=(), patients=None, diagonal=None)
        state = replace(
            public, start=trimmed_start, patients=start.patients, explained=start.explained, spread=tuple(spread)
        )
        return self._beside(state)

    def step(self, public: SumPublic) -> Step:
        name = f"mode{public.mode}" + (f"+{public.wider}" if public.wider else "")
        return self.fit._packing(public).step(public.round, name)

    def message(self, site: Site, public: SumPublic, m: Array, own: Array, error: Array) -> Contribution:
        arrays = {"mttkrp": m @ self._roots(public)[0]}
        arrays |= {"rare": arrays["mttkrp"]} if public.whole else {}
        if public.mode == 1:
            arrays |= {"gram": (own.T @ own)[np.triu_indices(own.shape[1])], "aside": error * public.norm}
        return self.fit._packing(public).contribution(arrays, site.name)

    def _gram(self, public: SumPublic) -> GramStart:
        return self.fit.starter.gram(public.shape)

    def _beside(self, public: SumPublic) -> SumPublic:
        """The first sweep after a Gram tries columns beside the found ones, unless more were found than asked for, and auditioned."""
        no_audition = public.round > 1 or public.start.kind != "gram" or public.start.confirmed > public.rank
        if no_audition or not self._searches or len(public.factors) < 2:
            return public
        assert public.patients is not None
        factors, patients = columns_beside(public.factors, public.patients, self.fit.params.seed)
        return replace(public, factors=factors, patients=patients, scale=np.ones(len(patients)), beside=BESIDE)

    def _nth(self, public: SumPublic) -> int:
        """Which sweep this is since the factors were made."""
        return public.round - public.base

    def packing(self, public: SumPublic) -> Packing:
        """How a packed sum travels: products of records and model whitened by the Gram that is known so far, A'A and scores."""
        gram, rank = self._gram(public), len(public.scale)
        n, nth = public.mode - 1, self._nth(public)
        sure = public.explained if nth > 1 or n or public.searched else public.explained / UNSURE
        corrected_start = replace(public.start, explained=sure)
        grid = gram.grid(corrected_start, ROUNDING[min(nth, len(ROUNDING)) - 1], rank * gram.sent(corrected_start, n))
        bound = gram.bounds(corrected_start, n)
        bound = np.where(bound < 0.7 * grid, 0.0, bound)
        likely, (low, high), mends = self._windows(public, bound, grid)
        fields = {"mttkrp": Packed(likely.shape, grid, low, high)}
        if public.whole:
            fields["rare"], extra_mends = self._rare(public, grid)
            mends += extra_mends
        if public.mode == 1:
            assert public.patients is not None
            unit = 2.0 * ordered.inner(np.diagonal(public.patients), np.square(public.scale))
            unit = max(unit, LEAST * public.norm)
            fields["gram"] = Packed((rank * (rank + 1) // 2,), unit * 2.0**-16, 0.0, unit)
            fields["aside"] = Packed((2,), public.norm * 2.0**-30, 0.0, public.norm * 8.0)
        label = f"{public.round} mode{public.mode} {public.wider}"
        return Packing(fields, corrected_start.sites, label, self.fit.params.seed, mends=mends).widened(public.wider)

    def _rare(self, public: SumPublic, fine: float) -> tuple[Packed, int]:
        """The last sweep's sums of codes that were left out until then, coarsely; and how many may lie outside their windows."""
        gram, n, rank = self._gram(public), public.mode - 1, len(public.scale)
        grid, searched = RARE * fine, gram.bounds(public.start, n) > 0
        least = WORTH * SEEN * grid * float(np.sqrt(len(public.start.sites) / 12.0))
        bound = gram.bounds(replace(public.start, floors=()), n)
        bound = np.where(searched | (bound < least), 0.0, bound) * np.ones((1, rank))
        return Packed(bound.shape, grid, -0.05 * bound, 0.15 * bound), int((bound > 0).sum()) // EVERY[0]

    def _windows(self, public: SumPublic, bound: Array, grid: float) -> tuple[Array, tuple[Array, Array], int]:
        """What is expected of a packed sum, between what it is read, and how many numbers may lie outside and are put right."""
        n, nth, rank = public.mode - 1, self._nth(public), len(public.scale)
        if not len(public.spread[n].rows):  # nothing is known but the codes' energies
            prediction, high = np.zeros((len(bound), rank)), 1.1 * bound * np.ones((1, rank))
            high[:, rank - public.beside :] *= REACH / 1.1 if not n else 1.0
            return prediction, (prediction - 0.15 * bound, high), MENDS + rank * len(bound) // 400
        likely = np.where(bound > 0, self._predicted(public), 0.0)
        room = public.spread[n].window() + SLACK[min(nth, len(SLACK)) - 1] * grid
        room = np.where(bound > 0, np.maximum(room, 0.1 * grid), 0.0)
        low, high = likely - room, likely + room
        if nth == 1:
            low, high = (
                np.maximum(low, np.minimum(-0.3 * bound, likely)),
                np.minimum(high, np.maximum(1.3 * bound, likely)),
            )
        most = max(MENDS, rank * int((bound > 0).sum()) // EVERY[min(nth, len(EVERY)) - 1])
        return likely, (low, high), most + MENDS * (public.beside > 0)

    def _roots(self, public: SumPublic) -> tuple[Array, Array]:
        """G^(-1/2) and G^(1/2) of the mode's Gram as far as everybody knows it before the sum."""
        assert public.patients is not None
        gram = self._known_gram(public, public.patients * public.scale[:, None] * public.scale)
        return (
            roots_beside(gram, public.beside, public.explained) if public.beside and public.mode == 1 else roots(gram)
        )

    def _predicted(self, public: SumPublic) -> Array:
        """What the whitened products would be if the model were at rest: F G^(1/2)."""
        return ordered.product(public.factors[public.mode - 1], self._roots(public)[1])

    @staticmethod
    def _known_gram(public: SumPublic, patients: Array) -> Array:
        g = patients
        for q, f in enumerate(public.factors):
            if q != public.mode - 1:
                g = g * ordered.transposed_product(f, f)
        return g

    def combine(self, step: Step, public: SumPublic, total: Total) -> SumPublic:
        """A_n' = argmin_{A >= 0} tr(A G A') - 2 tr(A'M), from rounded sums and in a fixed order; or once more, with wider fields."""
        assert public.patients is not None
        n, packing = public.mode - 1, self.fit._packing(public)
        sums = packing.opened(total)
        if sums is None:
            return self._repeated(public)
        patients, scores = public.patients * public.scale[:, None] * public.scale, sums.get("aside")
        if scores is not None:  # mode 1: what the model explains, and A'A, are known exactly now
            explained = max(float(scores[1] - scores[0]), LEAST * public.norm)
            if self._too_coarse(public, explained):
                return self._repeated(_corrected(public, explained))
            patients = _symmetric(sums["gram"], len(public.scale))
        products = sums["mttkrp"] + sums.get("rare", 0.0)  # rare codes enter in the last sweep
        right, gram = ordered.product(products, self._roots(public)[1]), self._known_gram(public, patients)
        solved = solve_rounded(gram, right, self._noise(public, packing), SWEEPS, public.factors[n])
        if scores is not None and public.round == 1 and not public.start.sweep:
            gain = (float(scores[0]) - _left(float(scores[1]), solved, right, gram)) / max(
                float(scores[1] - scores[0]), 1e-300
            )
            if gain > WEAK and self._searches:
                return self._searching(public, gain)
            public = replace(public, careful=gain > WEAK)
        if public.careful and public.round <= CAREFUL:
            solved = _gradient(public.factors[n], gram, right)
        new, length = ordered.unit(solved)
        public = replace(public, spread=self._reach(public, sums["mttkrp"] - self._predicted(public)), wider=0)
        if scores is not None:
            public = replace(public, patients=patients, explained=explained, everything=float(scores[1]))
        if public.mode < len(public.factors):
            return self._swept(public, new, length, scores)
        public = replace(public, end=_left(public.everything, new * length, right, gram))
        return self._chosen(public, new, length) if public.beside else self._swept(public, new, length, scores)

    @property
    def _searches(self) -> bool:
        """Whether a wide start may follow where the first sum shows weak structure."""
        return self.fit.starter.searches and self.fit.params.rank != "auto"

    def _too_coarse(self, public: SumPublic, explained: float) -> bool:
        """Whether the start said far too much of what it explains, so that the first sum was rounded too coarsely to be of use."""
        return self._nth(public) == 1 and not public.wider and explained < public.explained / UNSURE / 4

    @staticmethod
    def _repeated(public: SumPublic) -> SumPublic:
        """The same sum is asked again, with wider fields."""
        repeated = replace(public, wider=public.wider + 1)
        if public.mode > 1:
            return repeated
        assert public.patients is not None
        turned = public.patients * public.scale[:, None] * public.scale  # sites have taken the scale in by now
        return replace(repeated, patients=turned, scale=np.ones(len(public.scale)))

    def _noise(self, public: SumPublic, packing: Packing) -> float | Array:
        """Standard deviation of a summed product, by rounding; of codes that enter at last, what `solve_rounded` cuts at SEEN."""
        noise = float(np.sqrt(len(packing.sites) / 12.0)) * packing.fields["mttkrp"].grid
        if not public.whole:
            return noise
        searched = self._gram(public).bounds(public.start, public.mode - 1) > 0
        return np.where(searched, noise, SEEN / 1.5 * RARE * noise)  # solve_rounded cuts at 1.5 standard deviations

    def _searching(self, public: SumPublic, gain: float) -> SumPublic:
        """What the cells showed is little of what is there: a wide start follows."""
        start, count = WideStart(self._gram(public)).again(public.start), len(public.scale) - public.beside
        public = replace(public, factors=tuple(f[:, :count] for f in public.factors), scale=np.ones(count))
        return replace(public, stage="start", start=start, round=2, base=1, patients=None, wider=0, gain=gain, beside=0)

    def _swept(self, public: SumPublic, new: Array, length: Array, scores: Array | None) -> SumPublic:
        """A mode is new; ``scores`` of the sweep that begins. At its last mode a sweep is judged, and may be the last."""
        last = public.mode == len(public.factors)
        if scores is not None:
            sse, energy = (max(float(x), 0.0) for x in scores)
            public = replace(self.fit.plateau(public).judged(public, sse, energy), still=public.still)
        elif last:
            public = self._expecting(public)
        ending = last and self._arrived(public, judged=scores is None)
        if ending and public.start.floors and not public.whole:  # one sweep more, with the codes that were left out
            public, ending = replace(public, whole=True), False
        state = self.turned(public, new, length, ending)
        if ending and public.end is not None:  # the last sums tell how much there is of what
            assert state.patients is not None
            energies = np.diagonal(state.patients) * np.square(state.scale)
            return replace(state, stage="end", energy=energies, objective=max(public.end, 0.0) / 2)
        if last and not ending:
            factors, last_factors = self._further(public, state.factors)
            state = replace(state, factors=factors, last=last_factors)
        return state

    def _arrived(self, public: SumPublic, *, judged: bool) -> bool:
        """Whether the sweep that ends is the last one."""
        if public.whole or public.round >= self.fit.most(public):
            return True
        return judged and self._enough(public) > 0 and public.still >= self.fit.plateau(public).rest

    def _chosen(self, public: SumPublic, new: Array, length: Array) -> SumPublic:
        """After the first sweep: on with the columns that the Gram found, or an audition of those beside them."""
        assert public.patients is not None
        factors = (*public.factors[:-1], np.where(length > 0, new, public.factors[-1]))
        count = len(length) - public.beside
        scale = public.scale * length
        patients = public.patients * scale[:, None] * scale
        if worth_hearing(factors, patients, public.beside):
            audition = replace(public.start, stage="audition", lifted=factors, patients=patients)
            return replace(public, stage="start", start=audition, round=public.round + 1, mode=1, beside=0)
        narrowed = replace(
            public,
            beside=0,
            factors=tuple(f[:, :count] for f in public.factors),
            scale=public.scale[:count],
            patients=public.patients[:count, :count],
        )
        return self._swept(narrowed, new[:, :count], length[:count], None)

    def _reach(self, public: SumPublic, away: Array) -> tuple[Far, ...]:
        """How far the coming sums may lie from what is expected, by how far this one lay; per mode.

        Where the start said little (more than LOOSE of the codes' energies), its error says little of the next one's.
        """
        n, nth, gram = public.mode - 1, self._nth(public), self._gram(public)
        bound, away = gram.bounds(public.start, n), away[:, : away.shape[1] - public.beside]
        share = np.abs(away) / np.where(bound > 0, bound, np.inf)
        typical = float(np.sqrt(ordered.inner(share, share) / max(int((bound > 0).sum()) * away.shape[1], 1)))
        out = list(public.spread)
        if nth == 1 and not n and typical > LOOSE:
            out[n] = Far(min(max(0.7 * float(np.max(share)), 0.03), 0.5) * bound, np.ones((1, away.shape[1])))
            return tuple(out)
        out[n] = reach(away, AWAY)
        if nth == 1 and not n:  # other modes have not been summed since: they are expected to be as far away
            for q in range(1, len(out)):
                columns = np.ones((1, away.shape[1] + public.beside))
                columns[:, away.shape[1] :] = 1.0 / max(1.5 * typical, 1e-3)
                out[q] = Far(1.5 * typical * gram.bounds(public.start, q), columns)
        return tuple(out)

    def _expecting(self, public: SumPublic) -> SumPublic:
        """After a packed sweep: its own sums tell what it gained, and so what another one would (gains fall by their last ratio).

        The first sweep has no gain before it: as much again is expected of the next.
        """
        assert public.end is not None and public.objective is not None
        if public.before is None:
            gain = (2 * public.objective - public.end) / public.explained
            expected = gain
        else:
            gain = (public.before - public.end) / public.explained
            expected = gain * min(max(gain / max(public.gained, 1e-300), 0.0), 1.0)
        public = replace(public, before=public.end, gained=gain)
        return replace(public, still=public.still + 1 if expected <= self._enough(public) else 0)

    def _enough(self, public: SumPublic) -> float:
        """The share of the explained energy below which a packed sweep gains little: less where the way is long."""
        patient = self.fit.params.tol is None and weak(public)
        return PATIENT if patient else self.fit.tolerance(public.start)

    def _further(self, public: SumPublic, factors: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Where the next sweep begins, after the sweep that ended with ``factors``; and what is kept of them for the one after.

        Where the structure is weak, sweeps go on in one direction for long: the next one begins as far again on the way of the last one
        (F + (F - F_before), not below 0), unless that one lost. Nothing more is sent; the next sum's error tells whether it was right.
        """
        if not weak(public):
            return factors, ()
        if len(public.last) != len(factors) or public.last[0].shape != factors[0].shape or public.gained < 0:
            return factors, factors
        return tuple(ordered.unit(np.maximum(2.0 * f - old, 0.0))[0] for f, old in zip(factors, public.last)), factors


def _symmetric(upper: Array, rank: int) -> Array:
    """A'A from its upper triangle; memberships are not negative, rounding may be."""
    gram = np.zeros((rank, rank))
    gram[np.triu_indices(rank)] = upper
    return np.maximum(gram + np.triu(gram, 1).T, 0.0)


def _corrected(public: SumPublic, explained: float) -> SumPublic:
    """The state with what the model truly explains: no phenotype explains more than all of them together."""
    assert public.patients is not None
    return replace(public, explained=UNSURE * explained, patients=within(public.patients, 2.0 * explained))


def _left(everything: float, factor: Array, right: Array, gram: Array) -> float:
    """Squared error ||O||^2 - 2 <F, M> + <F'F, G> of a mode's factor, by its sums."""
    inner = ordered.inner(ordered.transposed_product(factor, factor), gram)
    return everything - 2.0 * ordered.inner(factor, right) + inner


def _gradient(factor: Array, gram: Array, right: Array) -> Array:
    """One projected step against the gradient, of length 1 / ||G||."""
    step = 1.0 / max(float(power(np.ascontiguousarray(gram), 20)), 1e-300)
    return np.maximum(factor - step * (ordered.product(factor, gram) - right), 0.0)
