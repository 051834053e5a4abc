"""Attacks that must succeed where a card says so, and fail where it promises privacy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polyclinic.evaluation.attacks.tap import Attack

__all__ = ["Attack", "every_attack"]


def every_attack(seed: int = 0) -> Iterator[Attack]:
    """All known attacks, each against the variant it breaks and the one that stops it (``polyclinic audit --attacks``)."""
    from polyclinic.evaluation.attacks import polynomial, trip

    yield from polynomial.run(seed)
    yield from trip.run(seed)
    yield from _mixture(seed)
    yield from _similarity(seed)


def _mixture(seed: int) -> Iterator[Attack]:
    """Three honest sites of one record each: exact sums give them away, however they were added."""
    from polyclinic.evaluation.attacks import em_inversion
    from polyclinic.federation.protocol import seeds
    from polyclinic.privacy.budget import Privacy
    from polyclinic.tensors.site import Site

    centres = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    honest = ("n0", "n1", "n2")
    exact: dict[str, Any] = {"rounds": 2, "tol": 0, "aggregation": "masked", "start": "box"}
    paid: dict[str, Any] = {"radius": 10.0, "aggregation": "masked", "privacy": Privacy(4.0, 1e-6), "starts": 6}
    for label, crowd, more, expected in (
        ("mixture, exact sums, masked", 21, exact, True),
        ("mixture, patient-level epsilon 4 at delta 1e-6, formal", 600, paid, False),
    ):
        x = centres[np.arange(3 + crowd) % 3] + seeds(seed, "em inversion").normal(size=(3 + crowd, 2))
        sites = [*(Site(n, features=x[i : i + 1]) for i, n in enumerate(honest)), Site("z", features=x[3:])]
        result = em_inversion.run(sites, honest, seed=seed, n_components=3, **more)
        yield Attack(
            "EM inversion: records from sums",
            label,
            result.succeeded,
            expected,
            f"largest error {result.error:.2g} of a spread of {result.spread:.2g}",
        )


def _similarity(seed: int) -> Iterator[Attack]:
    from importlib.util import find_spec

    if find_spec("polyclinic.evaluation.attacks.gradient_span") is None:
        return
    from polyclinic.evaluation.attacks import gradient_span

    yield from gradient_span.attacks(seed)
