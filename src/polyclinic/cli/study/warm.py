"""``polyclinic warm``: compile the kernels once, so that the first fit does not wait for the compiler."""

from __future__ import annotations

import warnings
from typing import Any, Final

from polyclinic.cli.console import Json, console, say

RANKS: Final = (
    8,
    16,
    24,
    32,
)  # kernels are compiled for ranks in steps of eight. Higher ranks compile at their first fit.


def command(as_json: Json = False) -> None:
    """Fit every method on small generated data. The compiled kernels stay on disk, for this version and processor."""
    import numpy as np

    import polyclinic as pc

    sites = pc.datasets.icu_network(patients=240, seed=0)
    courses = pc.datasets.planted_courses(patients=60, seed=0)
    rng = np.random.default_rng(0)
    features = [pc.Site(n, features=rng.normal(size=(60, 3)), labels=rng.integers(2, size=60)) for n in "ABC"]
    short: dict[str, Any] = {"rounds": 2, "seed": 0}
    methods = (pc.TRIP, pc.SumALS, pc.LocalTF, pc.DPFact, pc.Topics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fits are too short on purpose
        for rank in RANKS:
            for method in methods:
                method(rank=rank, aggregation="masked", **short).fit(sites)
        pc.DPEM(rank=8, aggregation="masked", privacy=pc.Privacy(2.0), **short).fit(sites)
        model = pc.CPALS(rank=8, seed=0).fit(sites)
        pc.evaluate(model, sites)
        pc.replicate(pc.SumALS(rank=8, **short), sites)
        pc.PARAFAC2(rank=3, **short).fit(courses)
        pc.GaussianMixture(n_components=2, aggregation="masked", **short).fit(features)
        pc.UnPSL(seed=0).fit_sites(features, rounds=2)
    say({"ranks": RANKS}, as_json) if as_json else console.print("The kernels are compiled.")
