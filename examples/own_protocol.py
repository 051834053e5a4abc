"""A federated method in one file: how many patients have each code, and how many events each of them has.

Run it: ``python examples/own_protocol.py``. The contract checks show whether the method is sound.
"""

from dataclasses import dataclass, replace

import numpy as np

import polyclinic as pc
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.params import Params

Array = np.ndarray[tuple[int], np.dtype[np.float64]]
N = 1e9  # no hospital network has more patients


@dataclass(frozen=True)
class Known:
    """Public state: every party has it. It is also the checkpoint."""

    round: int
    patients: Array  # patients with each code
    events: Array  # events of each code per patient who has it


@dataclass(frozen=True)
class Kept:
    """Private state of a hospital. It stays at the hospital."""

    seen: int = 0


class CodeCounts(Estimator[Params, Known, Kept]):
    """Round 1 counts the patients with each code. Round 2 averages how many events of the code they have."""

    name = "code-counts"
    exact = 1e-12  # several hospitals give the result of one with all patients
    Public, Private = Known, Kept

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> Known:
        return Known(1, np.zeros(setting.shape[0]), np.zeros(setting.shape[0]))

    def next_step(self, public: Known) -> Step | None:
        if public.round == 1:
            return Step(1, "patients", {"count": public.patients.shape}, bound=N)
        if public.round == 2:
            return Step(2, "events", {"events": public.patients.shape}, bound=N)
        return None

    def update_public(self, step: Step, public: Known, total: Total) -> Known:
        if step.round == 1:
            return replace(public, round=2, patients=total.arrays["count"])
        return replace(public, round=3, events=total.arrays["events"] / np.maximum(public.patients, 1))

    # ---- hospital

    def init_site(self, site: pc.Site, public: Known, rng: np.random.Generator) -> Kept:
        return Kept()

    def contribute(
        self, step: Step, site: pc.Site, private: Kept, public: Known, rng: np.random.Generator
    ) -> tuple[Kept, Contribution]:
        tensor = site.counts()
        who, code = tensor.coords[:, 0], tensor.coords[:, 1]
        if step.round == 1:
            pairs = np.unique(np.column_stack([who, code]), axis=0)
            count = np.bincount(pairs[:, 1], minlength=tensor.shape[1]).astype(float)
            return private, Contribution({"count": count})
        events = np.bincount(code, weights=tensor.values, minlength=tensor.shape[1]).astype(float)
        return Kept(private.seen + 1), Contribution({"events": events})

    def finalize_site(self, site: pc.Site, private: Kept, public: Known) -> Arrays:
        return {}

    def _publish(self, outcome: Outcome) -> None:
        self.patients_: Array = outcome.public.patients
        self.events_: Array = outcome.public.events


if __name__ == "__main__":
    print(pc.check_protocol(CodeCounts()))
    model = CodeCounts(aggregation="masked").fit(pc.datasets.icu_network(patients=600, seed=0))
    print("patients with each of the ten most common procedures:", np.sort(model.patients_)[::-1][:10].astype(int))
    print(model.privacy_)
