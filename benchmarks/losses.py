"""Losses on W1: held-out deviance and processor seconds of ours and of pyttb's generalised CP, from the same start.

    python benchmarks/losses.py [poisson|bernoulli] [--pyttb EPOCHS]

pyttb's solver for sparse tensors (Adam on sampled cells, 100 iterations an epoch) is given EPOCHS epochs; without it only
ours runs. Held out: the last 4,662 patients, placed on both models' factors by the same code. Bernoulli: pyttb is given our link,
P(present) = 1 - exp(-rate), as a loss of its user's own, so that both minimise the same deviance.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from workloads import cached

import polyclinic as pc
from polyclinic.methods.rounds.losses import begun, likelihood_step
from polyclinic.methods.starts.random import start
from polyclinic.tensors.likelihood import deviance, placed
from polyclinic.tensors.sparse import SparseTensor

RANK, LEARN = 10, 36_000


def main() -> None:
    """Print one line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("loss", nargs="?", default="poisson", choices=["poisson", "bernoulli"])
    parser.add_argument("--pyttb", type=int, default=0, metavar="EPOCHS")
    args = parser.parse_args()
    t = SparseTensor.load(cached("W1"))
    if args.loss == "bernoulli":
        t = SparseTensor.from_layout(t.rows, t.indptr, t.codes, np.ones(t.nnz), t.shape, t.axes)
    learn, held = t.take(np.arange(LEARN)), t.take(np.arange(LEARN, t.patients))
    factors = begun(start(t.shape[1:], RANK, 0))
    pc.CPALS(rank=RANK, loss=args.loss, rounds=1).fit(held, start=list(factors))  # compile
    cpu = time.process_time()
    m = pc.CPALS(rank=RANK, loss=args.loss, tol=2e-5).fit(learn, start=list(factors))
    seconds = time.process_time() - cpu
    ours = deviance(held, m.factors_, args.loss, m.transform(held))
    print(f"ours: {len(m.history_)} rounds, {seconds:.1f} processor seconds, held-out deviance {ours:,.0f}")
    if not args.pyttb:
        return
    import pyttb as ttb
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import Adam

    a, _, _ = likelihood_step(learn, factors, args.loss, None)
    size = np.cbrt(np.prod([np.linalg.norm(f, axis=0) for f in (a, *factors)], axis=0))
    init = ttb.ktensor([f / np.linalg.norm(f, axis=0) * size for f in (a, *factors)])
    link = (lambda x, m: m - x * np.log(np.expm1(m + 1e-10)), lambda x, m: 1.0 - x / -np.expm1(-(m + 1e-10)), 0.0)
    goal = Objectives.POISSON if args.loss == "poisson" else link
    cpu = time.process_time()
    found, _, _ = ttb.gcp_opt(
        ttb.sptensor(learn.coords, learn.values[:, None], learn.shape),
        RANK,
        goal,
        Adam(max_iters=args.pyttb, epoch_iters=100),
        init=init,
        printitn=0,
    )
    seconds = time.process_time() - cpu
    features = found.factor_matrices[1:]
    theirs = deviance(held, features, args.loss, placed(held, features, args.loss))
    print(
        f"pyttb: {args.pyttb} epochs, {seconds:.1f} processor seconds, held-out deviance {theirs:,.0f} ({theirs / ours:.4f})"
    )


if __name__ == "__main__":
    main()
