"""What the Gram start and packed sums cost and reach: `python benchmarks/fewsums.py icu|hidden|records [--seeds 860 870]`.

icu: bytes of payload a site (and as sent) after the start and after every sum, beside the fit over pooled CP-ALS's; masked.
hidden: the phenotype that no hospital sees alone, rank 5 of 7; two hospitals plain, three masked; likeness and fit.
records: DE-SynPUF and diabetes-130 (open data), rank 10; SumALS from the Gram and at random, TRIP; everything as sent.
"""

import argparse
from dataclasses import replace

import numpy as np

import polyclinic as pc
from polyclinic.federation.fold import Fold
from polyclinic.federation.sums.narrow import width
from polyclinic.sites.site import pooled
from polyclinic.tensors import cp, kernels
from polyclinic.tensors.matching import cosines
from polyclinic.tensors.weighting import weighted
from polyclinic_papers.trip_settings import rare_network

BEST: dict[str, float] = {}


def pooled_fit(sites, rank: int, starts: int) -> float:
    return max(pc.CPALS(rank=rank, seed=s).fit(sites).score(sites) for s in range(starts))


def fit_of(sites, public) -> float:
    error = norm = 0.0
    for site in sites:
        t = weighted(site.counts(), public.saturation)
        everyone = [cp.solve_memberships(t, public.factors), *public.factors]
        error += cp.squared_error(t.norm_squared(), everyone[0], cp.gram(everyone, 0), kernels.mttkrp(t, everyone, 0))
        norm += t.norm_squared()
    return 1 - float(np.sqrt(error / norm))


def icu(seed: int) -> None:
    sites = pc.datasets.icu_network(patients=3000, seed=seed)
    rank = sites.truth.rank + 2
    best, fold = pooled_fit(sites, rank, 3), Fold(pc.SumALS(rank=rank, seed=seed, aggregation="masked"), sites)
    words, marks = 0, []
    while (step := fold.step()) is not None:
        fold.advance()
        words += width(step, len(sites)) * step.size
        sent, down = (b / len(sites) / 1e3 for b in (fold.traffic.bytes_up, fold.traffic.bytes_down))
        if fold.public.stage in ("sweep", "score") and not fold.public.wider and step.name != "score":
            marks.append(f"{words / 1e3:.1f} kB ({sent:.1f} sent) {fit_of(sites, fold.public) / best:.4f}")
    print(seed, "; ".join(marks), f"; masked, everything as sent {sent:.1f} kB up, {down:.1f} down", flush=True)


def hidden(seed: int) -> None:
    rare, two = rare_network(2400, seed)
    union = pooled(two)
    deal = np.random.default_rng(seed).permutation(union.patients) % 3
    three = [replace(union.take(np.flatnonzero(deal == k)), name=f"h{k}") for k in range(3)]
    for sites, how in ((two, "plain"), (three, "masked")):
        best = pooled_fit(sites, 5, 5)
        for method in (pc.SumALS, pc.TRIP):
            m = method(rank=5, seed=seed, aggregation=how).fit(sites)
            like, fit = float(cosines(m.factors_, rare).max()), m.score(sites) / best
            print(seed, how, method.__name__, f"{like:.3f} {fit:.4f}", m.start_.proposed, flush=True)


def records(seed: int) -> None:
    for name, load in (("DE-SynPUF", pc.datasets.load_synpuf), ("diabetes-130", pc.datasets.load_diabetes130)):
        sites = load()
        best = BEST.setdefault(name, 0.0) or pooled_fit(sites, 10, 5)
        BEST[name] = best
        for method, more in ((pc.SumALS, {}), (pc.SumALS, {"start": "random"}), (pc.TRIP, {})):
            m = method(rank=10, seed=seed, **more).fit(sites)
            sent = m.traffic_.bytes_up / len(sites) / 1e3
            told = f"{m.score(sites) / best:.3f} of pooled, {m.traffic_.rounds} rounds, {sent:.0f} kB a site"
            print(seed, name, method.__name__, more, told, f"first gain {m.start_.gain:.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["icu", "hidden", "records"])
    parser.add_argument("--seeds", type=int, nargs=2, default=(860, 870))
    a = parser.parse_args()
    for seed in range(*a.seeds):
        {"icu": icu, "hidden": hidden, "records": records}[a.what](seed)
