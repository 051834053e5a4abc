"""flow: how many patients are left after each step of the study, and how well the model describes their records. One sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.base import PATIENTS, Analysis, NoMemory
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.weighting import weighted

Array = NDArray[np.float64]


@dataclass(frozen=True)
class CohortFlowPublic:
    """Sums over all patients of all sites."""

    done: bool
    patients: Array  # (3,) in the source, with codes, taking part
    squares: Array  # (4,) squares of all cells, squared residuals of all and of observed cells, observed cells


class CohortFlow(Analysis):
    """Patients by step and the fit of the model, as sums that the owner sees in the review."""

    name = "flow"
    facts = MethodFacts(
        steps={
            "flow": StepMeaning(
                "how many patients are in the source, have codes and take part, and squared errors of the model",
                "whether a known patient is among few",
            )
        }
    )
    Public = CohortFlowPublic

    def init_public(self, setting: Schema, rng: np.random.Generator) -> CohortFlowPublic:
        """All sums 0."""
        return CohortFlowPublic(False, np.zeros(3), np.zeros(4))

    def next_step(self, public: CohortFlowPublic) -> Step | None:
        """One sum of seven numbers."""
        if public.done:
            return None
        shapes = {"patients": public.patients.shape, "squares": public.squares.shape}
        return Step(1, "flow", shapes, bound=2.0**10 * PATIENTS, counts=False)

    def update_public(self, step: Step, public: CohortFlowPublic, total: Total) -> CohortFlowPublic:
        """patients = round(sum_k x_k), whole counts; squares = sum_k y_k."""
        return replace(public, done=True, patients=np.rint(total.arrays["patients"]), squares=total.arrays["squares"])

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: CohortFlowPublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """(source, with codes, taking part) and (|O|^2, |O - X|^2, the same over observed cells, their number)."""
        source, coded = site.source or (site.patients, site.patients)
        squares = np.zeros(4)
        if self.placer.squares and site.patients:
            t = weighted(site.counts(), self.placer.saturation)
            factors = [self.placer.placed(site), *(np.array(f) for f in self.placer.factors)]
            residual = kernels.residuals_at(t, factors)
            inner = float(t.values @ (t.values - residual))
            full = max(0.0, t.norm_squared() - 2 * inner + float(cp.gram(factors, None).sum()))
            squares[:] = t.norm_squared(), full, float(residual @ residual), t.nnz
        return private, Contribution({"patients": np.array([source, coded, site.patients], float), "squares": squares})

    def fit(self, public: CohortFlowPublic) -> dict[str, float | None]:
        """``rmse_observed``, ``rmse_full`` and ``fit`` = 1 - |O - X| / |O|, as a model's ``quality`` gives them."""
        norm, full, observed, nonzeros = (float(x) for x in public.squares)
        cells = float(public.patients[-1]) * float(np.prod([float(len(f)) for f in self.placer.factors]))
        if norm <= 0:
            return dict.fromkeys(("rmse_observed", "rmse_full", "fit"))
        return {
            "rmse_observed": float(np.sqrt(observed / max(round(nonzeros), 1))),
            "rmse_full": float(np.sqrt(full / cells)),
            "fit": 1.0 - float(np.sqrt(full / norm)),
        }
