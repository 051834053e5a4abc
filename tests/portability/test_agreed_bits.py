"""One ``combine`` on unlike processors: from the same bits the same step, and states that differ far less than a method's slack.

The totals and states of a run are stored; other processes, told to use other BLAS kernels and fewer instructions, combine each
total from the stored state. This is what every site does between hosts (``Folding.follow``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.analysis.outcome import OutcomeAnalysis
from polyclinic.analysis.private.moments import PrivateFindings
from polyclinic.analysis.projection import Covariates, Projector
from polyclinic.protocol.interfaces import Step
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.wire import encoding as wire
from polyclinic.protocol.wire.chain import state_digest

KERNELS = {
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "Prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "Sandybridge without AVX2": {
        "OPENBLAS_CORETYPE": "Sandybridge",
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
    },
}


def _act(kind: str, **more: Any) -> Any:
    """An act over fixed phenotypes: what a fit would learn is not the question here."""
    rng = np.random.default_rng(0)
    factors = [rng.gamma(0.3, size=(n, 3)) for n in pc.datasets.icu_network(patients=300, seed=0)[0].counts().shape[1:]]

    def place(site: Any) -> Any:
        t = site.counts()
        out = np.zeros((t.patients, 3))
        who = np.repeat(t.rows, np.diff(t.indptr))
        np.add.at(out, who, t.values[:, None] * factors[0][t.codes[0]] * factors[1][t.codes[1]])
        return out

    return kind(model=Projector(factors, place), seed=1, **more)  # type: ignore[operator]


METHODS = {
    "outcome": lambda: _act(OutcomeAnalysis, covariates=Covariates(site=False)),  # type: ignore[arg-type]
    "paid": lambda: _act(PrivateFindings, what=("carriers", "outcome"), privacy=pc.Privacy(200.0), planning_size=10**6),  # type: ignore[arg-type]
    "trip": lambda: pc.TRIP(rank=3, rounds=4, seed=1),
    "sumals": lambda: pc.SumALS(rank=3, rounds=6, seed=1),
    "sumals from the Gram": lambda: pc.SumALS(rank=4, seed=1),
    "sumals from the Gram, 64 bits": lambda: pc.SumALS(rank=4, rounds=4, seed=1, packed=False),
    "trip from the Gram": lambda: pc.TRIP(rank=4, rounds=4, seed=1),
    "sumals, wide start": lambda: pc.SumALS(rank=7, rounds=15, tol=0.1, seed=1),
    "trip, wide start": lambda: pc.TRIP(rank=7, rounds=15, tol=0.1, seed=1),
    "dpem": lambda: pc.DPEM(rank=3, rounds=4, seed=1),
    "localtf": lambda: pc.LocalTF(rank=3, rounds=4, seed=1),
    "mixture": lambda: pc.GaussianMixture(n_components=2, rounds=8, seed=1),
}
FIXED = ("sumals from the Gram", "sumals, wide start")  # fixed orders alone: the same bits
SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, {here!r})
from test_agreed_bits import METHODS
from polyclinic.protocol import wire
from polyclinic.protocol.wire.chain import state_digest, within
from polyclinic.protocol.interfaces import Total
from polyclinic.privacy.release import Step
method, stored = METHODS[{name!r}](), wire.decode(open({path!r}, "rb").read(), limit=2**40)
same = 0
for one in stored:
    public = wire.unpack(method.Public, one["public"])
    step = wire.unpack(Step, one["step"])
    total = Total(one["arrays"], one["weight"], one["members"], one["noise_sd"])
    mine = wire.canonical(method.update_public(step, public, total))
    after = wire.unpack(method.Public, one["after"])
    assert within(wire.pack(mine), wire.pack(after), 2.0**-36), (one["number"], step.name)
    assert within(wire.pack(method.next_step(mine)), wire.pack(method.next_step(after)), 2.0**-36), one["number"]
    same += state_digest(mine) == state_digest(after)
print(same, len(stored))
"""


def _record(name: str, path: Path) -> None:
    """A run in this process, sum by sum."""
    method = METHODS[name]()  # type: ignore[no-untyped-call]
    if method.needs == "features":
        rng = np.random.default_rng(0)
        sites = [pc.Site(n, features=rng.normal(size=(80, 3)) + 2 * rng.integers(2, size=(80, 1))) for n in "abc"]
    elif "Gram" in name:
        sites = list(pc.datasets.planted_counts(1200, 30, 40, phenotypes=4, codes=(5, 6), sites=3, seed=0))
    else:
        sites = pc.datasets.icu_network(patients=300, seed=0)[:3]
    fold, kept = Simulation(method, sites), []  # type: ignore[var-annotated]
    honest = method.combine

    def combine(step: Step, public: Any, total: Any) -> Any:
        after = wire.canonical(honest(step, public, total))
        kept.append(
            {
                "number": len(kept),
                "public": wire.pack(public),
                "step": wire.pack(step),
                "arrays": dict(total.arrays),
                "weight": float(total.weight),
                "members": total.members,
                "noise_sd": float(total.noise_sd),
                "after": wire.pack(after),
            }
        )
        return after

    method.combine = combine
    fold.run()
    assert kept
    assert state_digest(wire.unpack(method.Public, kept[-1]["after"]))
    path.write_bytes(wire.encode(kept, limit=2**40))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", METHODS)
def test_unlike_processors_agree_far_within_the_slack(name: str, tmp_path: Path) -> None:
    path = tmp_path / "sums.bin"
    _record(name, path)
    for kernel, values in KERNELS.items():
        script = SCRIPT.format(here=str(Path(__file__).parent), name=name, path=str(path))
        done = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, **values}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, (kernel, done.stderr[-2000:])
        same, of = map(int, done.stdout.split())
        print(f"FIGURE {name}, {kernel}: {same} of {of} states bit-equal, all within 2^-36")
        assert of > 0 and (name not in FIXED or same == of)
