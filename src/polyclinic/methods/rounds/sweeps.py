"""SumALS's rounds: one pooled sweep, one sum a feature mode."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.rounds.phases import HEADROOM, Phase
from polyclinic.protocol.interfaces import Answer, Contribution, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.device import mttkrp

if TYPE_CHECKING:
    from polyclinic.methods.sumals import SumALS, SumPrivate, SumPublic

    Base = Phase[SumPublic, SumPrivate]
else:
    Base = Phase  # SumALS names the types: its file reads this one

Array = NDArray[np.float64]
SWEEPS = 3  # of HALS: docs/benchmarks/constants.md


class Sweeps(Base):
    """Sums as they are, 64 bits a number."""

    fit: SumALS

    def due(self, public: SumPublic) -> bool:
        return not (self.fit.packs and public.start.lifted)

    def enter(self, public: SumPublic) -> SumPublic:
        """Without what only packed sums need of the start."""
        start = replace(public.start, lifted=(), patients=None, diagonal=None, rows=None, sites=())
        return replace(public, start=start) if public.start.lifted else public

    def step(self, public: SumPublic) -> Step:
        shapes = {"mttkrp": public.factors[public.mode - 1].shape, "gram": (public.rank, public.rank), "aside": (2,)}
        return Step(public.round, f"mode{public.mode}", shapes, bound=HEADROOM, asides=("aside",))

    # ---- hospital k

    def contribute(self, step: Step, site: Site, private: SumPrivate, public: SumPublic) -> Answer[SumPrivate]:
        """M_k = X_k(n) kr(A_k, A_m != A_n) and A_k'A_k, for its own patients A_k = argmin ||X_k - [A_k, A_1, ...]||^2."""
        tensor, error = self.fit.records(site, public), np.zeros(2)
        if public.mode == 1:  # a new sweep begins with the patients
            private, error = self.solve_patients(site, private, public)
        patients = private.patients if public.mode == 1 else private.patients * public.scale
        return private, self.message(
            site, public, mttkrp(tensor, [patients, *public.factors], public.mode), patients, error
        )

    def solve_patients(self, site: Site, private: SumPrivate, public: SumPublic) -> tuple[SumPrivate, Array]:
        """A_k, with its squared error and the squared norm."""
        tensor = self.fit.records(site, public)
        restart = private.first or private.patients.shape[1] != len(public.scale)
        memberships = np.zeros((tensor.patients, len(public.scale))) if restart else private.patients * public.scale
        everyone, norm = [memberships, *public.factors], tensor.norm_squared()
        g, m = cp.gram(everyone, 0), mttkrp(tensor, everyone, 0)
        if self.fit.params.nonnegative:
            patients = cp.hals(memberships, g, m, sweeps=10 if restart else SWEEPS)
        else:
            patients = cp.least_squares(g, m)
        error = np.array([cp.squared_error(norm, patients, g, m), norm]) / public.norm
        return replace(private, patients=patients, first=False), error

    def message(self, site: Site, public: SumPublic, m: Array, own: Array, error: Array) -> Contribution:
        return Contribution({"mttkrp": m / public.norm, "gram": own.T @ own / public.norm, "aside": error})

    # ---- coordinator

    def combine(self, step: Step, public: SumPublic, total: Total) -> SumPublic:
        """A_n' = argmin_{A >= 0} tr(A G A') - 2 tr(A'M), G = (sum_k A_k'A_k) * prod_{m != n} A_m'A_m, M = sum_k M_k."""
        p, n, blind = self.fit.params, public.mode - 1, public.start.blind
        old = public.factors[n]
        g = total.arrays["gram"] * public.norm * cp.gram(public.factors, n)
        m = total.arrays["mttkrp"] * public.norm
        if not p.nonnegative:
            new = cp.least_squares(g, m)
        elif blind and public.round <= p.warmup:  # projected gradient: HALS from a random start settles too early
            new = np.maximum(old - (old @ g - m) / max(float(np.linalg.norm(g, 2)), 1e-300), 0.0)
        else:
            new = cp.hals(old, g, m, sweeps=SWEEPS)
        length = np.linalg.norm(new, axis=0)
        last_step = public.round >= p.rounds and public.mode == len(public.factors)
        if not n:
            sse, total_energy = (max(float(x) * public.norm, 0.0) for x in total.arrays["aside"])
            settled = not blind or public.round > p.warmup + 1  # the last sweep was no gradient step
            public = self.fit.plateau(public).judged(public, sse, total_energy, settled=settled)
            last_step = last_step or self.fit.plateau(public).arrived(public)
        state = self.turned(public, new / np.where(length > 0, length, 1.0), length, last_step)
        return replace(state, stage="score") if last_step else state

    def turned(self, public: SumPublic, new: Array, length: Array, ended: bool) -> SumPublic:
        """One mode's factor is new (columns of length 1; ``length`` goes to the patients): on to the next mode, or sweep."""
        n, alive = public.mode - 1, length > 0
        new = np.where(alive, new, public.factors[n])
        over = ended or public.mode == len(public.factors)
        return replace(
            public,
            round=public.round + (over and not ended),
            mode=1 if over else public.mode + 1,
            factors=(*public.factors[:n], new, *public.factors[n + 1 :]),
            scale=np.where(alive, length, 0.0) * (public.scale if n else 1.0),  # patients are new since mode 1
        )
