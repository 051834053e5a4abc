"""Every protocol of Polyclinic passes the contract battery; a broken one does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.auditing.contracts.result import example_sites
from polyclinic.errors import ConfigError
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Contribution

pytestmark = pytest.mark.protocol

METHODS = {
    "trip": lambda: pc.TRIP(rank=3, rounds=4, warmup=1),
    "trip-distinct": lambda: pc.TRIP(rank=3, rounds=4, warmup=1, distinct=0.01),
    "trip-paper": lambda: pc.TRIP(rank=3, rounds=3, variant="paper"),
    "trip-signed": lambda: pc.TRIP(rank=3, rounds=3, nonnegative=False),
    "localtf": lambda: pc.LocalTF(rank=3, rounds=3),
    "localtf-missing": lambda: pc.LocalTF(rank=3, rounds=3, zeros="missing", weights="nonzeros"),
    "dpfact": lambda: pc.DPFact(rank=3, rounds=3),
    "dpfact-paper": lambda: pc.DPFact(
        rank=3, rounds=3, variant="paper", zeros="missing", elastic=5, learning_rate=0.01
    ),
    "distributedsgd": lambda: pc.DistributedSGD(rank=3, rounds=3),
    "sumals": lambda: pc.SumALS(rank=3, rounds=3, warmup=1),
    "topics": lambda: pc.Topics(rank=3, rounds=2),
    "topics-starts": lambda: pc.Topics(rank=2, rounds=2, n_starts=2),
    "localmodel": lambda: pc.LocalModel(rank=3, rounds=5),
    "dpem": lambda: pc.DPEM(rank=4, rounds=3),
    "dpem-private": lambda: pc.DPEM(rank=4, rounds=3, privacy=pc.Privacy(2.0, 1e-6)),
    "mixture": lambda: pc.GaussianMixture(n_components=2, rounds=3),
    "parafac2": lambda: pc.PARAFAC2(rank=2, rounds=2, warmup=1, order="procedure"),
    "latentclass": lambda: pc.LatentClass(n_components=2, rounds=3),
    "latentclass-private": lambda: pc.LatentClass(
        n_components=3,
        rounds=3,
        kinds={f"feature {j}": "continuous" for j in range(3)},
        bounds={f"feature {j}": (-6.0, 6.0) for j in range(3)},
        privacy=pc.Privacy(2.0, 1e-6),
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_method_passes_the_contract_battery(name: str) -> None:
    battery = pc.check_protocol(METHODS[name]())  # type: ignore[arg-type, no-untyped-call]
    assert battery.passed
    assert sum(p.state == "passed" for p in battery.parts) >= 8, str(battery)


@pytest.mark.parametrize("cls", [pc.SumALS, pc.TRIP])
def test_methods_that_start_from_the_gram_pass_the_battery(cls: type) -> None:
    """But for two parts: packed sums are rounded by site, so one site alone differs by the rounding ("twin"); and how many words they
    have follows from the sums before, so it moves with everybody's patients ("releases"), though with no site's own."""
    sites = list(pc.datasets.planted_counts(1200, 16, 20, phenotypes=3, codes=(4, 5), sites=3, seed=4))
    assert cls(rank=3, rounds=2).fit(sites).start_.kind == "gram"
    parts = ["order", "resume", "silent", "wire", "degenerate", "sums", "retry", "return", "publish"]
    battery = pc.check_protocol(cls(rank=3, rounds=2), sites, parts=parts)
    assert battery.passed and all(p.state == "passed" for p in battery.parts), str(battery)


class Forgetful(pc.LocalTF):
    """Keeps state outside of Private: a resumed run differs."""

    name = "forgetful"
    seen = 0

    def contribute(self, step: Any, site: Any, private: Any, public: Any, rng: Any) -> Any:
        private, c = super().contribute(step, site, private, public, rng)
        Forgetful.seen += 1
        return private, replace(c, arrays={k: a * (1 + 1e-6 * Forgetful.seen) for k, a in c.arrays.items()})


class Leaky(pc.LocalTF):
    """Sends an array whose size is the number of patients."""

    name = "leaky"

    def contribute(self, step: Any, site: Any, private: Any, public: Any, rng: Any) -> Any:
        private, c = super().contribute(step, site, private, public, rng)
        return private, Contribution({**c.arrays, "patients": np.zeros(site.patients)}, c.weight)


class Keeping(pc.LocalTF):
    """Has a row for every patient in its value."""

    name = "keeping"

    def learned(self, origin: Any) -> Any:
        value = super().learned(origin)
        rows = np.concatenate(list(self.memberships_.values()))
        axis = pc.Axis("patient", tuple(f"p{i}" for i in range(len(rows))))
        return replace(value, factors=(rows, *value.factors), axes=(axis, *value.axes))


class Unpicklable(pc.LocalTF):
    """Holds something that cannot be pickled."""

    name = "unpicklable"

    def publish(self, outcome: Any) -> None:
        super().publish(outcome)
        self.helper_ = lambda: None


class Clinging(pc.LocalTF):
    """Its model needs what stayed at the sites."""

    name = "clinging"

    def _publish(self, outcome: Any) -> None:
        super()._publish(outcome)
        self.weights_ = self.weights_ * (1 + sum(len(a) for a in self.memberships_.values()))


class Naming(pc.LocalTF):
    """Its history names a patient."""

    name = "naming"

    def publish(self, outcome: Any) -> None:
        super().publish(outcome)
        self.history_ = [*self.history_[:-1], {**self.history_[-1], "worst": "patient-0-7"}]


@pytest.mark.parametrize(
    ("method", "part"),
    [
        (Forgetful, "seed"),
        (Forgetful, "resume"),
        (Forgetful, "starts"),
        (Leaky, "releases"),
        (Keeping, "fit"),
        (Unpicklable, "pickle"),
        (Clinging, "publish"),
        (Naming, "report"),
        (Forgetful, 3),
    ],
)
def test_the_battery_catches_a_broken_method(method: Any, part: int | str) -> None:
    with pytest.raises(AssertionError, match="failed"):
        pc.check_protocol(method(rank=2, rounds=3), parts=[part])


def test_parts_have_names_and_a_wrong_one_is_told_the_right_ones() -> None:
    done = pc.check_protocol(pc.TRIP(rank=2, rounds=2), parts=["save", 2])
    assert [(p.number, p.name, p.state) for p in done.parts] == [(16, "save", "passed"), (2, "order", "passed")]
    with pytest.raises(ConfigError, match="no such check") as e:
        pc.check_protocol(pc.TRIP(rank=2, rounds=2), parts=["reprot", 99])
    assert "'reprot'" in str(e.value) and "99" in str(e.value) and "report" in str(e.value)


def test_a_method_without_a_name_or_with_a_model_that_is_none_is_told() -> None:
    class Unnamed(pc.TRIP):
        name = ""

    class Loose(pc.TRIP):
        def learned(self, origin: Any) -> Any:
            return {"factors": self.factors_}

    class Asked(Loose):
        def learned(self, origin: Any) -> Any:
            return Estimator.learned(self, origin)

    with pytest.raises(AssertionError, match=r"facts +failed .* name '' must be lower-case without blanks"):
        pc.check_protocol(Unnamed(rank=2, rounds=2), parts=["facts"])
    sites = example_sites()
    with pytest.raises(ConfigError, match=r"learned\(\) of Loose gave a dict, not a model\n.*pc.Phenotypes"):
        Loose(rank=2, rounds=2).fit(sites)
    with pytest.raises(ConfigError, match="this Asked is fitted, and learns no value"):
        Asked(rank=2, rounds=2).fit(sites).save("nowhere.model")
