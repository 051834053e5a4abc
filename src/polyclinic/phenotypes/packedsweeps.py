"""SumALS's packed sweeps: sums of a few bits a number, what they gain, and a search where the structure is weak."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.federation.packing import Field as Packed
from polyclinic.federation.packing import Packing
from polyclinic.federation.protocol import Total
from polyclinic.phenotypes.rounded import roots, solve_rounded, within
from polyclinic.phenotypes.started import WEAK, Started
from polyclinic.tensors import ordered
from polyclinic.tensors.ordered import power

if TYPE_CHECKING:
    from polyclinic.phenotypes.sumals import SumALSParams, SumPrivate, SumPublic

    Base = Started[SumALSParams, SumPublic, SumPrivate]
else:
    Base = Started  # SumALS names the types: its file reads this one

__all__ = ["SWEEPS", "PackedSweeps"]

Array = NDArray[np.float64]
SWEEPS = 3
UNSURE = (
    8.0  # before the first sweep explained energy is known over cells only, where codes that collide explain each other
)
CAREFUL = 2  # sweeps by projected gradient where the start saw little of the structure: they find better optima than HALS at once
LEAST = 1e-6  # of the energy: what a model is taken to explain at least, so that rounding has a unit
WIDE = 3  # sweeps of a search
SEARCHING = (2e-2, 1e-2)  # ROUNDING in a search
ROUNDING = (1e-3, 5e-4, 4e-4)  # share of explained energy that rounding a packed sum costs: sweep 1, 2, ...


class PackedSweeps(Base):
    """What SumALS does with packed sums, after a start from the Gram."""

    def _turned(self, public: SumPublic, new: Array, length: Array, aside: Array | None) -> SumPublic:
        raise NotImplementedError

    def _nth(self, public: SumPublic) -> int:
        """Which sweep this is since the factors were made."""
        return public.round - public.base

    def _packing(self, public: SumPublic) -> Packing:
        """How a packed sum travels: products of records and model whitened by the Gram that is known so far, A'A and scores."""
        gram, rank = self._gram(public.factors), len(public.scale)
        n, nth = public.mode - 1, self._nth(public)
        sure = public.explained if nth > 1 or n or public.search == "done" else public.explained / UNSURE
        begun = replace(public.start, explained=sure)
        shares = SEARCHING if public.search == "wide" else ROUNDING
        grid = gram.grid(begun, shares[min(nth, len(shares)) - 1], rank * gram.shape[n])
        bound = gram.bounds(begun, n)
        bound = np.where(bound < 0.7 * grid, 0.0, bound)
        likely = np.where(bound > 0, self._predicted(public), 0.0) if nth > 1 else np.zeros((len(bound), rank))
        low, high = (0.3, 1.3) if nth == 1 else (public.spread[n], public.spread[n])
        fields = {"mttkrp": Packed(likely.shape, grid, likely - low * bound, likely + high * bound)}
        if public.mode == 1:
            assert public.patients is not None
            unit = 2.0 * ordered.inner(np.diagonal(public.patients), np.square(public.scale))
            unit = max(unit, LEAST * public.norm)
            fields["gram"] = Packed((rank * (rank + 1) // 2,), unit * 2.0**-16, 0.0, unit)
            fields["aside"] = Packed((2,), public.norm * 2.0**-30, 0.0, public.norm * 8.0)
        label = f"{public.round} mode{public.mode} {public.wider}"
        return Packing(fields, begun.sites, label, self.params.seed).widened(public.wider)

    def _roots(self, public: SumPublic) -> tuple[Array, Array]:
        """G^(-1/2) and G^(1/2) of the mode's Gram as far as everybody knows it before the sum."""
        assert public.patients is not None
        return roots(self._known_gram(public, public.patients * public.scale[:, None] * public.scale))

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

    def _rounded(self, public: SumPublic, total: Total) -> SumPublic:
        """A packed sum: the same sweep, from rounded numbers and in a fixed order; or once more, with wider fields."""
        n, nth, rank, packing = public.mode - 1, self._nth(public), len(public.scale), self._packing(public)
        opened = packing.opened(total)
        assert public.patients is not None
        patients, least = public.patients, LEAST * public.norm
        if opened is not None and not n:  # what the model explains is known exactly now
            truth = max(float(opened["aside"][1] - opened["aside"][0]), least)
            if nth == 1 and not public.wider and truth < public.explained / UNSURE / 4:
                opened = None  # rounded too coarsely to be of use
                patients = within(patients, 2.0 * truth)  # nor does a phenotype explain more than all of them
                public = replace(public, explained=UNSURE * truth, patients=patients)
        if opened is None:
            again = replace(public, wider=public.wider + 1)
            if n:
                return again
            turned = patients * public.scale[:, None] * public.scale  # sites have taken the scale in by now
            return replace(again, patients=turned, scale=np.ones(rank))
        _, root = self._roots(public)
        right = ordered.product(opened["mttkrp"], root)
        aside = None
        if not n:
            patients = np.zeros((rank, rank))
            patients[np.triu_indices(rank)] = opened["gram"]
            patients = np.maximum(
                patients + np.triu(patients, 1).T, 0.0
            )  # memberships are not negative; rounding may be
            aside = opened["aside"]
        own = patients if not n else patients * public.scale[:, None] * public.scale
        g = self._known_gram(public, own)
        noise = float(np.sqrt(len(packing.sites) / 12.0)) * packing.fields["mttkrp"].grid
        solved = solve_rounded(g, right, noise, SWEEPS, public.factors[n])
        if aside is not None and public.round == 1:  # what was seen over cells is little of what is there
            gain = (float(aside[0]) - _left(float(aside[1]), solved, right, g)) / max(
                float(aside[1] - aside[0]), 1e-300
            )
            if gain > WEAK and public.start.spare and public.round + WIDE + 2 <= self.params.rounds:
                begun = self._gram(public.factors).widened(public.start)
                anew = replace(
                    public, stage="start", start=begun, search="wide", round=2, base=1, patients=None, wider=0
                )
                return replace(anew, gain=gain, explained=max(float(aside[1] - aside[0]), least))
            spared = replace(public.start, spare=(), spare_patients=None, diagonal=None)
            public = replace(public, careful=gain > WEAK, start=spared)
        if public.careful and public.round <= CAREFUL:
            solved = _gradient(public.factors[n], g, right)
        new, length = ordered.unit(solved)
        bound = self._gram(public.factors).bounds(public.start, n)
        away = np.abs(opened["mttkrp"] - self._predicted(public)) / np.where(bound > 0, bound, np.inf)
        # Before the first sum the Gram is an estimate over cells, so it is further off than the next will be.
        factor, most = (0.7, 0.5) if nth == 1 else (1.6, 1.5)
        spread = min(max(factor * float(np.max(away)), 0.03), most)
        public = replace(public, spread=(*public.spread[:n], spread, *public.spread[n + 1 :]))
        if aside is not None:
            public = replace(public, explained=max(float(aside[1] - aside[0]), least), everything=float(aside[1]))
        public = replace(public, patients=patients, wider=0)
        if public.mode < len(public.factors):
            return self._turned(public, new, length, aside)
        left = _left(public.everything, new * length, right, g)
        swept = self._turned(replace(public, end=left), new, length, aside)
        return self._reduced(swept) if public.search == "wide" and nth == WIDE else swept

    def _reduced(self, public: SumPublic) -> SumPublic:
        """The end of a search: the coming sum is the audition of models of the asked rank within the wide one."""
        assert public.patients is not None
        patients = public.patients * public.scale[:, None] * public.scale
        begun = replace(public.start, stage="audition", lifted=public.factors, patients=patients)
        return replace(
            public,
            stage="start",
            start=begun,
            search="done",
            base=public.round - 1,
            patients=None,
            objective=None,
            end=None,
            before=None,
            still=0,
        )

    def _expecting(self, public: SumPublic) -> SumPublic:
        """After a packed sweep: its own sums tell what it gained, and so what another one would (gains fall by their last ratio).

        The first sweep has no gain before it: as much again is expected of the next.
        """
        assert public.end is not None and public.objective is not None
        if public.before is None:
            gained = (2 * public.objective - public.end) / public.explained
            expected = gained
        else:
            gained = (public.before - public.end) / public.explained
            expected = gained * min(max(gained / max(public.gained, 1e-300), 0.0), 1.0)
        public = replace(public, before=public.end, gained=gained)
        return self._rested(public, expected <= self._tol(public.start))

    def _rested(self, public: SumPublic, rests: bool) -> SumPublic:
        return replace(public, still=public.still + 1 if rests else 0)


def _left(everything: float, factor: Array, right: Array, gram: Array) -> float:
    """Squared error ||O||^2 - 2 <F, M> + <F'F, G> of a mode's factor, by its sums."""
    inner = ordered.inner(ordered.transposed_product(factor, factor), gram)
    return everything - 2.0 * ordered.inner(factor, right) + inner


def _gradient(factor: Array, gram: Array, right: Array) -> Array:
    """One projected step against the gradient, of length 1 / ||G||."""
    step = 1.0 / max(float(power(np.ascontiguousarray(gram), 20)), 1e-300)
    return np.maximum(factor - step * (ordered.product(factor, gram) - right), 0.0)
