"""A federated method in one file: how many patients have each code, and how heavy are those patients' records?

Run it: ``python examples/own_protocol.py``. The contract battery tells whether it is sound.
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
    """What everybody knows; also the checkpoint."""

    round: int
    carriers: Array
    heaviness: Array


@dataclass(frozen=True)
class Kept:
    """What stays at a hospital: nothing here."""

    seen: int = 0


class Carriers(Estimator[Params, Known, Kept]):
    """Round 1 counts the carriers of every code; round 2 averages how many events a carrier has."""

    name = "carriers"
    exact = 1e-12  # several hospitals give the result of one with all patients
    Public, Private = Known, Kept

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> Known:
        return Known(1, np.zeros(setting.shape[0]), np.zeros(setting.shape[0]))

    def next_step(self, public: Known) -> Step | None:
        if public.round == 1:
            return Step(1, "carriers", {"count": public.carriers.shape}, bound=N)
        if public.round == 2:
            return Step(2, "events", {"events": public.carriers.shape}, bound=N)
        return None

    def update_public(self, step: Step, public: Known, total: Total) -> Known:
        if step.round == 1:
            return replace(public, round=2, carriers=total.arrays["count"])
        return replace(public, round=3, heaviness=total.arrays["events"] / np.maximum(public.carriers, 1))

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
        self.carriers_: Array = outcome.public.carriers
        self.heaviness_: Array = outcome.public.heaviness


if __name__ == "__main__":
    print(pc.check_protocol(Carriers()))
    model = Carriers(aggregation="masked").fit(pc.datasets.icu_network(patients=600, seed=0))
    print("carriers of the ten most common procedures:", np.sort(model.carriers_)[::-1][:10].astype(int))
    print(model.privacy_)
