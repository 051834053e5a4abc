"""A lift that only follows live buckets, against the lift over all codes: `python benchmarks/hashladder.py planted|synpuf [--seeds 3101 3103]`.

Codes are hashed to nested buckets: 8, 64, 512, ... up to the codes. Phenotypes are found over 8 x 8 cells; then, level by level, only the
children of buckets that are alive for a phenotype (above 1.5 standard deviations of the rounding) are summed, one number for each.
Sums are those of all patients with the noise that rounding costs (.3 % of the explained energy a level, as in the lift), nothing is sent.
Printed: numbers of the ladder and of the lift, what is lost of the pooled fit after each, and after one and three exact sweeps on
the codes that each left alive (a code that a dead bucket hides stays hidden).
"""

import argparse

import numpy as np

import polyclinic as pc
from polyclinic.methods.starts.hashed_cp import coarse
from polyclinic.methods.starts.rounding import roots, solve_rounded
from polyclinic.records.sites.site import pooled
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted

TOP, BRANCH, SHARE = 8, 8, 0.003


def levels(codes: int) -> list[int]:
    out = [TOP]
    while out[-1] * BRANCH < codes:
        out.append(out[-1] * BRANCH)
    return [*out, codes]


def hashed(t: SparseTensor, maps: list[np.ndarray], sizes: list[int]) -> SparseTensor:
    who = np.repeat(t.rows, np.diff(t.indptr))
    coords = np.column_stack([who, *(m[c] for m, c in zip(maps, t.codes))])
    return SparseTensor(coords, t.values, (t.shape[0], *sizes))


def lost(t: SparseTensor, factors: list[np.ndarray], best: float) -> float:
    unit, _ = cp.normalise([np.where(f.sum(0) > 0, f, 1e-12) for f in factors])
    everyone = [cp.solve_memberships(t, unit), *unit]
    error = cp.squared_error(t.norm_squared(), everyone[0], cp.gram(everyone, 0), kernels.mttkrp(t, everyone, 0))
    return (error - best) / (t.norm_squared() - best)


def swept(t: SparseTensor, factors: list[np.ndarray], sweeps: int) -> list[np.ndarray]:
    """Exact sweeps; what is 0 in the beginning stays 0."""
    alive = [f > 0 for f in factors]
    unit, _ = cp.normalise([np.where(f.sum(0) > 0, f, 1e-12) for f in factors])
    a = cp.solve_memberships(t, unit)
    for _ in range(sweeps):
        for m in range(1, len(unit) + 1):
            everyone = [a, *unit]
            new = cp.hals(unit[m - 1], cp.gram(everyone, m), kernels.mttkrp(t, everyone, m), sweeps=3) * alive[m - 1]
            length = np.linalg.norm(new, axis=0)
            unit[m - 1], a = new / np.where(length > 0, length, 1.0), a * length
        everyone = [a, *unit]
        a = cp.hals(a, cp.gram(everyone, 0), kernels.mttkrp(t, everyone, 0), sweeps=3)
    return list(unit)


def run(t: SparseTensor, rank: int, seed: int, best: float) -> None:
    rng = np.random.default_rng(seed)
    place = [rng.permutation(n) for n in t.shape[1:]]
    at = [lambda n, m=m: place[m] * n // t.shape[m + 1] for m in range(len(place))]
    tops = [h(TOP) for h in at]
    small = hashed(t, tops, [TOP] * len(tops))
    cells = np.zeros((t.shape[0], TOP ** len(tops)))
    flat = np.ravel_multi_index(tuple(small.codes), [TOP] * len(tops))
    np.add.at(cells, (np.repeat(small.rows, np.diff(small.indptr)), flat), small.values)
    found = coarse(cells.T @ cells, [TOP] * len(tops), rank, seed=seed, cancelling=False)
    own = cp.solve_memberships(small, list(found.factors), sweeps=30)
    explained = float(np.square(cells).sum()) - found.error
    for name in ("ladder", "lift"):
        sent, factors = 0, []
        for m in range(len(tops)):
            steps = levels(t.shape[m + 1])
            alive, before = np.ones((TOP, rank), bool), TOP
            for n in steps[1:] if name == "ladder" else steps[-1:]:
                parents = np.zeros(n, np.int64)
                parents[at[m](n)] = at[m](before)
                alive = alive[parents] if name == "ladder" else np.ones((n, rank), bool)
                sent += int(alive.sum())
                maps = [at[m](n) if q == m else h for q, h in enumerate(tops)]
                part = hashed(t, maps, [n if q == m else TOP for q in range(len(tops))])
                everyone = [own, *(np.zeros((n, rank)) if q == m else f for q, f in enumerate(found.factors))]
                g, right = cp.gram(everyone, m + 1), kernels.mttkrp(part, everyone, m + 1)
                _, root = roots(g)
                noise = float(np.sqrt(SHARE * explained / max(int(alive.sum()), 1)))
                right = right + noise * rng.standard_normal(right.shape) @ root
                b = np.where(alive, solve_rounded(g, right, noise, 20), 0.0)
                alive, before = b > 0, n
            factors.append(b[place[m]])  # buckets of one code each, back in the order of codes
        after = [lost(t, swept(t, factors, k), best) for k in (0, 1, 3)]
        live = [round(float((f > 0).mean()), 3) for f in factors]
        print(
            seed,
            name,
            f"{sent} numbers; lost after 0, 1, 3 sweeps",
            *(f"{x:.3f}" for x in after),
            "alive",
            live,
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=["planted", "synpuf"])
    parser.add_argument("--seeds", type=int, nargs=2, default=(3101, 3103))
    a = parser.parse_args()
    for seed in range(*a.seeds):
        if a.data == "planted":
            sites, rank = pc.datasets.planted_counts(3000, 2000, 3000, phenotypes=9, sites=3, seed=seed), 9
        else:
            sites, rank = pc.datasets.load_synpuf(procedures=None, diagnoses=None), 10
        models = [pc.CPALS(rank=rank, seed=s).fit(sites) for s in range(3)]
        data = weighted(pooled(sites).counts(), models[0].saturation_)
        error = min((1 - m.score(sites)) ** 2 for m in models) * data.norm_squared()
        run(data, rank, seed, error)
