"""Records that repeat."""

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.errors import ConfigError


def test_same_seed_gives_the_same_records_and_another_seed_others() -> None:
    one, same, other = (pc.datasets.repeated_records(300, 40, 4, seed, sites=3) for seed in (1, 1, 2))
    assert all(a.tensor == b.tensor for a, b in zip(one, same))
    assert any(a.tensor != b.tensor for a, b in zip(one, other))


def test_a_patient_has_fewer_different_codes_when_codes_repeat() -> None:
    def different(repeats: float) -> float:
        tensor = pc.datasets.repeated_records(500, 60, 4, 0, sites=1, repeats=repeats)[0].counts()
        return len(np.unique(tensor.coords[:, :2], axis=0)) / tensor.patients

    assert different(0.8) < 0.85 * different(0.05)


def test_impossible_records_are_refused_with_all_faults() -> None:
    with pytest.raises(ConfigError) as e:
        pc.datasets.repeated_records(2, 10, 0, sites=3, background=1.5)
    assert len(e.value.faults) == 4
