"""What federation costs in compute: `python benchmarks/rounds.py [PATIENTS]`.

1. A federated round of LocalTF, DPFact and TRIP over six sites against one pooled pass (CPSGD, CPALS) over the same
   nonzeros, interleaved, minima of several repetitions (process time, one thread).
2. The loop itself: seconds a round of 10 sites that each send 200 KB and compute nothing.
3. What it costs that a masked total is checked (`python benchmarks/rounds.py checks` runs this part alone): processor seconds
   of the tag's word and its check at every site, of a whole masked sum over 10 sites, at 20 kB and at 10 MB a site.
"""

import sys
import time
from dataclasses import dataclass, replace

import numpy as np

import polyclinic as pc
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.aggregation.secure.total_check import TotalCheck, TotalTag
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Contribution, Roster, Step
from polyclinic.protocol.loop import Simulation, deliver
from polyclinic.protocol.params import Params


def per_round(make, data, rounds: int = 24, skip: int = 12) -> float:
    """CPU seconds of a late round (whole-site passes): difference between a longer and a shorter run."""
    used = []
    for n in (skip, rounds):
        model = make(n)
        begun = time.process_time()
        model.fit(data)
        used.append(time.process_time() - begun)
    return (used[1] - used[0]) / (rounds - skip)


@dataclass(frozen=True)
class Public:
    round: int
    total: np.ndarray


@dataclass(frozen=True)
class Private:
    nothing: int = 0


class Idle(Estimator[Params, Public, Private]):
    """Sites that send 200 KB and compute nothing."""

    name, Params, Public, Private = "idle", Params, Public, Private

    def init_public(self, setting, rng):
        return Public(1, np.zeros(25_000))

    def next_step(self, public):
        return None if public.round > self.params.rounds else Step(public.round, "x", {"x": (25_000,)}, bound=1e9)

    def update_public(self, step, public, total):
        return replace(public, round=public.round + 1, total=total.arrays["x"])

    def init_site(self, site, public, rng):
        return Private()

    def contribute(self, step, site, private, public, rng):
        return private, Contribution({"x": np.ones(25_000)})

    def finalize_site(self, site, private, public):
        return {}


def checks(numbers: int, sums: int) -> tuple[float, float]:
    """Processor seconds of one masked sum over ten sites, from encoding to the checked total; and of the checks in it."""
    names = tuple(f"s{k}" for k in range(10))
    step = Step(1, "x", {"x": (numbers,)}, bound=2.0)
    adder = Masked()
    roster = adder.enrol(Roster(names, "coordinator", threshold=10))
    rng = np.random.default_rng(0)
    parts = {n: Contribution({"x": rng.random(numbers)}) for n in names}
    spent = 0.0
    acts = [
        (TotalTag, "__init__"),
        (TotalTag, "word"),
        (TotalTag, "over"),
        (TotalCheck, "read"),
        (TotalCheck, "opened"),
    ]
    kept = [(owner, name, owner.__dict__[name]) for owner, name in acts]

    def timed(act):
        def run(*args):
            nonlocal spent
            begun = time.process_time()
            out = act(*args)
            spent += time.process_time() - begun - clock
            return out

        return run

    clock = min(-(time.process_time() - time.process_time()) for _ in range(1000))  # what reading it takes is left out
    for owner, name in acts:
        act = timed(getattr(owner, name))
        setattr(owner, name, staticmethod(act) if name == "read" else act)
    try:
        whole = 0.0
        for number in range(sums + 1):
            begun, spent = time.process_time(), spent if number > 1 else 0.0  # the first one agrees on keys
            sides = {n: adder.exchange(n, roster, step, parts.get(n)) for n in (*names, "coordinator")}
            deliver(sides)
            for n in names:
                sides[n].check(sides["coordinator"].opened, names)
            whole += (time.process_time() - begun) if number else 0.0
        return whole / sums, spent / sums
    finally:
        for owner, name, act in kept:
            setattr(owner, name, act)


if __name__ == "__main__":
    for numbers, sums in ((2_500, 9), (1_250_000, 3)):
        checks(numbers, 1)
        whole, spent = min((checks(numbers, sums) for _ in range(3)), key=lambda x: x[1] / x[0])
        print(
            f"checks of a masked sum, 10 sites x {8 * numbers / 1e3:,.0f} kB: {1e3 * spent:.2f} of {1e3 * whole:.1f} ms CPU a sum, "
            f"{100 * spent / (whole - spent):.1f} % more than without"
        )
    if sys.argv[1:] == ["checks"]:
        sys.exit()
    sites = pc.datasets.icu_network(patients=int(sys.argv[1]) if len(sys.argv) > 1 else 60_000, seed=0)
    rank = 14
    makers = {
        "pooled pass (CPSGD)": lambda n: pc.CPSGD(rank=rank, rounds=n, seed=0),
        "LocalTF": lambda n: pc.LocalTF(rank=rank, rounds=n, seed=0),
        "DPFact": lambda n: pc.DPFact(rank=rank, rounds=n, seed=0, sparsity=0.0),
        "pooled sweep (CPALS)": lambda n: pc.CPALS(rank=rank, rounds=n, tol=0, seed=0, warmup=0),
        "TRIP": lambda n: pc.TRIP(rank=rank, rounds=n, seed=0, warmup=0, start="random", tol=0.0),
    }
    for make in makers.values():  # compile first
        make(2).fit(sites)
    best = dict.fromkeys(makers, np.inf)
    for _ in range(4):
        for name, make in makers.items():
            best[name] = min(best[name], per_round(make, sites))
    nonzeros = sum(s.tensor.nnz for s in sites)
    print(f"{nonzeros:,} nonzeros over {len(sites)} sites, rank {rank}; CPU ms a round, and against the pooled pass")
    for name, seconds in best.items():
        base = best["pooled sweep (CPALS)"] if name in ("TRIP", "pooled sweep (CPALS)") else best["pooled pass (CPSGD)"]
        print(f"  {name:<22} {1e3 * seconds:8.1f}  {seconds / base:5.2f}x")
    ten = [pc.Site(f"s{k}", pc.SparseTensor([[0, 0]], [1.0], (1, 1))) for k in range(10)]
    seconds = np.inf
    for _ in range(3):
        fold = Simulation(Idle(rounds=100), ten)
        fold.begin()
        begun = time.process_time()
        while fold.advance():
            pass
        seconds = min(seconds, (time.process_time() - begun) / 100)
    print(f"the loop itself, 10 sites x 200 KB: {1e3 * seconds:.2f} ms CPU a round")
