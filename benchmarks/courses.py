"""PARAFAC2 beside MatCoupLy's AO-ADMM on the same planted courses: processor seconds for equally many iterations, and errors.

    python benchmarks/courses.py [--patients 5000] [--iterations 20]

Both begin at random with the same constraints (courses, memberships and codes at least 0, no smoothing), rank 6. One processor.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from numpy.typing import NDArray

import polyclinic as pc
from polyclinic.tensors.kernels.parafac2 import visits_of

RANK = 6
Matrix = NDArray[np.float64]


def matrices(sites: list[pc.Site]) -> list[Matrix]:
    """(visits, codes) of every patient."""
    out: list[Matrix] = []
    for s in sites:
        v = visits_of(s.counts(), 1)
        dense = np.zeros((len(v.place), s.counts().shape[2]))
        dense[np.repeat(np.arange(len(v.place)), np.diff(v.indptr)), v.codes] = v.values
        out += [dense[a:b] for a, b in zip(v.first[:-1], v.first[1:])]
    return out


def main() -> None:
    """Print one line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--patients", type=int, default=5000)
    parser.add_argument("--iterations", type=int, default=20)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    from matcouply.decomposition import parafac2_aoadmm

    sites = pc.datasets.planted_courses(patients=args.patients, seed=500, sites=1)
    X = matrices(list(sites))
    total = sum(float(np.square(x).sum()) for x in X)
    m = pc.PARAFAC2(rank=RANK, weighting="none", smooth=0, tol=0, rounds=args.iterations, seed=0)
    m.with_params(rounds=1).fit(sites)  # compile
    for name, model in (("ours", m), ("ours, defaults", pc.PARAFAC2(rank=RANK, weighting="none", seed=0))):
        cpu = time.process_time()
        model.fit(sites)
        seconds = time.process_time() - cpu
        error = (1 - model.score(sites)) ** 2 * total
        found = pc.metrics.recovery(sites.truth.factors, [model.factors_[1]])
        rounds = model.traffic_.rounds
        print(
            f"{name}: {rounds} rounds, {seconds:.1f} processor s, squared error {error:.0f}, FMS {found.recall:.3f}, precision {found.precision:.3f}",
            flush=True,
        )
    cpu = time.process_time()
    found = parafac2_aoadmm(X, RANK, n_iter_max=args.iterations, non_negative=True, random_state=0, tol=0)
    seconds = time.process_time() - cpu
    A, B, C = found[1] if isinstance(found, tuple) and len(found) == 2 else found.factors
    error = float(sum(np.square(x - (b * a) @ C.T).sum() for x, a, b in zip(X, A, B)))
    score = pc.metrics.recovery(sites.truth.factors, [np.maximum(C, 0)])
    print(
        f"MatCoupLy: {args.iterations} iterations, {seconds:.1f} processor s, squared error {error:.0f}, FMS {score.recall:.3f}, precision {score.precision:.3f}"
    )


if __name__ == "__main__":
    main()
