"""When a group of sites has left exact secure sums for good, the support of those who stay comes first; once, and taken back if it burns."""

from __future__ import annotations

import numpy as np

import polyclinic as pc
from polyclinic.node.signed_study import StudyOrder
from polyclinic.protocol.interfaces import Total
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.minimum_patients import SUPPORT, MinimumPatients
from polyclinic.protocol.wire import encoding as wire

SITES = pc.datasets.icu_network(patients=240, seed=4)


def test_support_is_taken_again_and_no_code_comes_back() -> None:
    fold = Simulation(MinimumPatients(pc.SumALS(rank=2, rounds=2, seed=0), 12), SITES)
    for _ in range(3):
        fold.advance()
    before, kept = wire.encode(fold.state()["public"]), [k.copy() for k in fold.public.kept]
    step = fold.step()
    fold.stand(left=True)
    again = fold.step()
    assert again is not None and again.name == SUPPORT
    fold.stand(left=True)  # twice is once
    assert fold.step() == again
    assert wire.encode(fold.state()["public"]) == before  # a checkpoint knows nothing of an attempt
    fold.stand(left=False)
    assert fold.step() == step
    fold.stand(left=True)
    assert isinstance(fold.method, MinimumPatients)
    few = fold.method.counted(SITES[:5])
    total = Total({f"mode{n}": c for n, c in enumerate(few, start=1)}, 5.0, 5, 0.0)
    fold.take(fold.fold(again, total))
    assert [k.tolist() for k in fold.public.kept] == [(a & (c >= 12)).tolist() for a, c in zip(kept, few)]
    assert any(a.sum() > k.sum() for a, k in zip(kept, fold.public.kept))
    assert fold.step() == step  # and goes on where it was
    fold.advance()
    assert all(np.isfinite(f).all() for f in fold.public.inner.factors)


def test_a_method_without_a_floor_goes_on_as_it_was() -> None:
    fold = Simulation(pc.SumALS(rank=2, rounds=2, seed=0), SITES)
    fold.advance()
    step = fold.step()
    fold.stand(left=True)
    assert fold.step() == step


def test_who_left() -> None:
    order = StudyOrder("x", {"method": {"aggregation": "masked"}}, {}, {}, 3, 1.0, lost="group")
    assert order.left("ab", "abcde") and not order.left("abcde", "abcde") and not order.left("abcf", "abcde")
    assert not StudyOrder("x", {}, {}, {}, 3, 1.0, lost="show").left("ab", "abcde")
