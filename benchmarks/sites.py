"""Sums and methods over 10, 100 and 1,000 sites in one process: processor time, memory, growth.

    python benchmarks/sites.py                 masked sums of 5,000 numbers: a site's processor, n = 3, 10, 30, 100
    python benchmarks/sites.py --thousand      the same with 1,000 sites
    python benchmarks/sites.py --tag           what checking the total costs, at 20 kB and 10 MB
    python benchmarks/sites.py --methods N     TRIP, DPEM and a mixture over N sites of 30 patients: plain, masked, median
    python benchmarks/sites.py --peers N       a sum of 500 numbers among N neighbours without a coordinator (PDMM)

Times are of the processor (``time.process_time``), the smallest of some repeats where repeats are cheap. "a site" is what the side of ONE site
does in a sum: encode, keys, shares, masks, votes, unmasking, checking the total; keys once a run are spread over ``--sums`` sums.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import polyclinic as pc
from polyclinic.aggregation.secure.masked import Masked
from polyclinic.aggregation.secure.total_check import TotalCheck, TotalTag
from polyclinic.protocol.interfaces import Contribution, Roster, Step, least_threshold
from polyclinic.protocol.loop import Simulation
from polyclinic_papers.decentralised.subspace import Subspace

GOALS = {3: 0.3, 10: 0.6, 30: 1.5, 100: 2.0, 1000: 5.0}  # ms of a site


def one_sum(adder: Masked, roster: Roster, step: Step, parts: dict[str, Contribution]) -> tuple[float, float]:
    """Processor seconds of all sites together, and of the coordinator, in one masked sum with everybody checking it.

    Reading the processor's clock costs up to 0.3 ms here, more than a letter: it is read once, and shared out by the wall clock.
    """
    wall = time.perf_counter
    spent = [0.0, 0.0]
    sides: dict[str, Any] = {}
    queue: deque[Any] = deque()
    whole, begin = time.process_time(), wall()
    for s in roster.sites:
        sides[s] = adder.exchange(s, roster, step, parts[s])
        queue.extend(sides[s].start())
    spent[0] += wall() - begin
    office: Any = adder.exchange("coordinator", roster, step, None)
    while queue:
        m = queue.popleft()
        begin = wall()
        queue.extend((office if m.to == "coordinator" else sides[m.to]).receive(m))
        spent[m.to == "coordinator"] += wall() - begin
    begin = wall()
    for s in roster.sites:
        sides[s].check(office.opened, office.members)
    spent[0] += wall() - begin
    used = time.process_time() - whole
    truth = sum(parts[s].arrays["x"] for s in roster.sites)
    if not np.allclose(office.result().arrays["x"], truth, rtol=0, atol=1e-9 * len(roster.sites)):
        raise SystemExit("the masked sum is not the sum")
    return used * spent[0] / sum(spent), used * spent[1] / sum(spent)


@dataclass(frozen=True)
class Sums:
    """What a run of masked sums cost: ms of a site's processor a sum (``each``: the keys' share in it; ``steady``: after the first);
    seconds of everybody in one process (``whole``: after the first)."""

    each: float
    steady: float
    whole: float
    first: float


def run_of_sums(n: int, size: int, count: int) -> Sums:
    """A run of masked sums over n sites."""
    rng = np.random.default_rng(0)
    names = tuple(f"s{i:04d}" for i in range(n))
    step = Step(1, "factors", {"x": (size,)}, bound=1.0)
    parts = {s: Contribution({"x": rng.uniform(-1, 1, size)}) for s in names}
    adder = Masked()
    roster = adder.enrol(Roster(names, threshold=least_threshold(n)))
    runs = [one_sum(adder, roster, replace(step, round=k + 1), parts) for k in range(count)]
    sites, office = np.array(runs).T
    each, all_ = 1e3 * sites / n, sites + office
    return Sums(float(each.mean()), float(each[1:].mean()), float(all_[1:].mean()), float(all_[0]))


def sums(n: int, size: int, count: int) -> None:
    """Print one."""
    r = run_of_sums(n, size, count)
    print(
        f"{n:5d} sites  {size} numbers   a site {r.each:6.2f} ms a sum over {count} sums (goal {GOALS.get(n, 0):.1f}), {r.steady:.2f} after the "
        f"first; all in one process {r.whole:.2f} s a sum, the first {r.first:.2f}; memory {peak():.0f} MB",
        flush=True,
    )


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tag() -> None:
    """Tag of the own vector and check of the total, beside the rest of a site's masked sum."""
    for size in (2_500, 1_250_000):
        for n in (3, 10):
            rng = np.random.default_rng(0)
            names = tuple(f"s{i}" for i in range(n))
            step = Step(1, "factors", {"x": (size,)}, bound=1.0)
            parts = {s: Contribution({"x": rng.uniform(-1, 1, size)}) for s in names}
            adder = Masked()
            roster = adder.enrol(Roster(names, threshold=least_threshold(n)))
            whole = min(one_sum(adder, roster, replace(step, round=k + 1), parts)[0] / n for k in range(6))
            t, words = TotalTag(bytes(32), names), rng.integers(-(2**50), 2**50, size + 1).view(np.uint64)
            word = t.word(words, "s0")
            costs = []
            for _ in range(5):
                begin = time.process_time()
                made = TotalTag(bytes(32), names)
                made.word(words, "s0")
                TotalCheck.read(made.over(names).raw, n).accepts(words, word)
                costs.append(time.process_time() - begin)
            cost = min(costs)
            print(
                f"{8 * size / 1e6:6.2f} MB, {n:2d} sites: a site's masked sum {1e3 * whole:8.2f} ms, of which tag and check "
                f"{1e3 * cost:6.3f} ms = {100 * cost / whole:.1f} %",
                flush=True,
            )


def methods(n: int, rounds: int) -> None:
    """TRIP, DPEM and a mixture over n sites of 30 patients."""
    sites = network(n)
    rng = np.random.default_rng(0)
    rows = [pc.Site(s.name, features=rng.normal(size=(30, 4)) + 3 * rng.integers(0, 3, (30, 1))) for s in sites]
    made: list[tuple[str, Any, Any]] = [
        ("TRIP", pc.TRIP(rank=3, rounds=rounds, tol=0.0, seed=0), sites),
        ("DPEM", pc.DPEM(rank=3, rounds=rounds, privacy=pc.Privacy(4.0, 1e-6), seed=0), sites),
        ("mixture", pc.GaussianMixture(n_components=3, rounds=rounds, start="box", seed=0), rows),
    ]
    for name, method, data in made:
        for how in ("plain", "masked", "median"):
            if how == "median" and name == "DPEM":
                continue
            begin = time.process_time()
            outcome = Simulation(method.with_params(aggregation=how), data).run()
            spent = time.process_time() - begin
            print(
                f"{n:5d} sites  {name:8s} {how:7s} {len(outcome.releases):3d} sums {spent:8.2f} s, {1e3 * spent / n / len(outcome.releases):6.2f} "
                f"ms a site and sum, memory {peak():.0f} MB",
                flush=True,
            )


def peers(n: int, size: int) -> None:
    """Consensus of n nodes: what follows from the graph (once a run), and one sum."""
    rng = np.random.default_rng(0)
    names = tuple(f"s{i:04d}" for i in range(n))
    adder = Subspace()
    begin = time.process_time()
    roster = adder.enrol(Roster(names, threshold=n))
    plan = adder.plan(roster)
    planned = time.process_time() - begin
    step = Step(1, "factors", {"x": (size,)}, bound=1.0)
    parts = {s: Contribution({"x": rng.uniform(-1, 1, size)}) for s in names}
    begin = time.process_time()
    total = adder.aggregate_local(roster, step, parts).arrays["x"]
    spent = time.process_time() - begin
    off = float(np.abs(total - sum(parts[s].arrays["x"] for s in names)).max())
    print(
        f"{n:5d} nodes  {len(plan.edges):,} edges, masks of {plan.sd:.3g}, {plan.slots} iterations: the plan {planned:.1f} s once a run, a sum of "
        f"{size} numbers {spent:.1f} s = {1e3 * spent / n:.2f} ms a node; off by {off:.1e}; memory {peak():.0f} MB",
        flush=True,
    )


def network(n: int) -> list[Any]:
    """Sites of 30 patients from one planted data set."""
    whole = pc.datasets.icu_network(patients=30 * n, seed=0)
    sites = []
    for s in whole:
        for k in range(0, s.patients - 29, 30):
            if len(sites) < n:
                sites.append(replace(s.take(np.arange(k, k + 30)), name=f"s{len(sites):04d}"))
    return sites


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sums", type=int, default=40)
    parser.add_argument("--size", type=int, default=5_000)
    parser.add_argument("--thousand", action="store_true")
    parser.add_argument("--tag", action="store_true")
    parser.add_argument("--methods", type=int, metavar="N")
    parser.add_argument("--peers", type=int, metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    if a.tag:
        tag()
    elif a.peers:
        peers(a.peers, min(a.size, 500))
    elif a.methods:
        methods(a.methods, a.rounds)
    else:
        run_of_sums(3, 100, 2)
        run_of_sums(100, 100, 2)  # compile
        for n in (1000,) if a.thousand else (3, 10, 30, 100):
            sums(n, a.size, a.sums)


if __name__ == "__main__":
    main()
