"""First rounds after a random start: one pass over a hospital's own patients, factors averaged by what each has of them.

ADMM from a random start settles too early: hospitals name the phenotypes differently. Averaged gradient passes (LocalTF's round,
weighted by energy) bring them together first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.rounds.observed_pass import observed_pass
from polyclinic.methods.rounds.phases import Exact, Rounds, modes
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp

Array = NDArray[np.float64]


class WarmUp(Rounds[Any, Any]):
    """Rounds of averaged passes."""

    name = "warm"

    def due(self, public: Any) -> bool:
        return bool(self.fit.warms(public.start))

    def transport(self, public: Any) -> Exact:
        size = max(float(np.abs(f).max(initial=0.0)) for f in public.factors)
        return Exact({**modes(public.factors), "aside": (3,)}, max(size, 1.0), ("aside",))

    def update_local(self, site: Site, private: Any, public: Any) -> Any:
        """P_k, A_k after one pass from the shared A."""
        tensor = self.fit.records(site, public)
        rng = seeds(self.fit.params.seed, "pass", public.round)
        result = observed_pass(tensor, private.patients, public.factors, rng, public.round)
        scores = np.array([result.squared_error, 0.0, tensor.norm_squared()]) / public.norm
        return replace(private, patients=result.patients, locals=tuple(result.factors), first=False, aside=scores)

    def message(self, private: Any, public: Any) -> dict[str, Array]:
        """A_k by the energy that the hospital has of each phenotype."""
        energy = np.square(private.patients).sum(0) / public.norm
        return {f"mode{n}": f * energy for n, f in enumerate(private.locals, start=1)} | {"aside": private.aside}

    def update_shared(self, public: Any, sums: Mapping[str, Array], members: int) -> Any:
        """A = sum_k e_k A_k, columns of length 1."""
        p, (sse, _, total_energy) = self.fit.params, (float(x) * public.norm for x in sums["aside"])
        shared = tuple(cp.unit_columns(sums[f"mode{n}"], f) for n, f in enumerate(public.factors, start=1))
        state = self.fit.plateau(public).judged(public, max(sse, 0.0), total_energy, settled=False)
        state = self.fit.begun_from(replace(state, factors=shared))
        if public.round >= p.rounds:
            return replace(state, stage="score")
        state = replace(state, round=public.round + 1)
        return self.fit.onward(state) if public.round >= p.warmup else state
