"""What TRIP's plain messages tell a curious coordinator (ERRATA E2.8).

Eq. 9 reads A_k G = M + omega A + H with ONE R x R matrix G = Pi'Pi + omega I for all codes, and M (the MTTKRP) zero for a code
that nobody has. R absent codes give G, G gives M, and M shows every code that has a single carrier (attack 1). A patient who
is the only carrier of a code, with that procedure alone, is recovered whole from a few rounds of M (attack 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

import polyclinic.tensors.cp as cp
from polyclinic.auditing.attacks import Attack
from polyclinic.methods.phenotypes import TRIP, LocalTF
from polyclinic.methods.trip import TRIPPrivate
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Site
from polyclinic.tensors.kernels.mttkrp import mttkrp
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.attacks.tap import Tapped, listen

Array = NDArray[np.float64]
VICTIM = "a"
CODE = 5  # the rare procedure; exactly one patient of the victim has it, and no other procedure
RECORD = {0: 3.0, 5: 3.0, 10: 3.0, 14: 2.0, 19: 1.0, 25: 2.0}  # what that patient has


def hospitals(seed: int = 0, patients: int = 150, procedures: int = 40, diagnoses: int = 30) -> list[Site]:
    """Three hospitals; the victim lacks the last ten procedures and has one patient with a rare one."""
    out = []
    for name in ("a", "b", "c"):
        rng = seeds(seed, "trip attack", name)
        n = patients * 12
        who, d = rng.integers(0, patients, n), rng.integers(0, diagnoses, n)
        p = rng.integers(0, procedures - (10 if name == VICTIM else 0), n)
        if name == VICTIM:
            p[p == CODE] = CODE + 1
            keep = who != 0
            who, p, d = who[keep], p[keep], d[keep]
            rare = np.array([[0, CODE, k] for k in RECORD])
            coords = np.concatenate([rare, np.column_stack([who, p, d])])
            values = np.concatenate([list(RECORD.values()), rng.poisson(1.0, len(who)) + 1.0])
        else:
            coords, values = np.column_stack([who, p, d]), rng.poisson(1.0, n) + 1.0
        out.append(Site(name, SparseTensor(coords, values, (patients, procedures, diagnoses))))
    return out


def _view(seen: Tapped) -> tuple[Array, Array]:
    """A_k and omega A + H of the first feature mode, as well as the coordinator has them."""
    arrays = seen.contribution(VICTIM)
    omega = seen.before.omega[0]
    return arrays["mode1"], omega * (seen.before.factors[0] + arrays["dual1"])


def recover_mttkrp(seen: Tapped, absent: Sequence[int]) -> tuple[Array, Array]:
    """G and M from one message, given some codes that the victim lacks (attack 1)."""
    own, target = _view(seen)
    g = np.asarray(np.linalg.lstsq(own[list(absent)], target[list(absent)], rcond=None)[0], np.float64)
    return g, own @ g - target


def recover_record(heard: Sequence[Tapped], absent: Sequence[int], diagnoses: int) -> Array:
    """The record of the sole carrier of ``CODE``: least squares over several rounds of M (attack 2)."""
    rounds, own = [], None
    for seen in heard:
        if seen.step.name != "sweep":
            continue
        b, c = seen.before.factors
        inverse = np.linalg.inv(cp.gram([b[:0], b, c], 0))
        rounds.append((b[CODE], c, c if own is None else own, inverse, recover_mttkrp(seen, absent)[1][CODE]))
        own = seen.contribution(VICTIM)["mode2"]  # Pi_k of the next round has it (E2.12), and it was sent

    def residual(o: Array) -> Array:
        return np.concatenate([((b * (c.T @ o)) @ inverse) * (own.T @ o) - m for b, c, own, inverse, m in rounds])

    fits = [
        least_squares(residual, np.full(diagnoses, x), bounds=(0, np.inf), xtol=1e-15, ftol=1e-15) for x in (0.3, 1.0)
    ]
    best: Array = min(fits, key=lambda f: f.cost).x
    return best


def support(arrays: Mapping[str, NDArray[np.float64]]) -> set[int]:
    """Codes whose row of the first feature factor is not zero but for roundings: the codes that the site has."""
    rows = np.abs(arrays["mode1"]).max(1)
    return set(np.flatnonzero(rows > 1e-12 * rows.max()).tolist())


def run(seed: int = 0) -> list[Attack]:
    """Attack TRIP's literal messages in the clear, and the same study under masked sums."""
    sites = hospitals(seed)
    tensor = sites[0].counts()
    present = set(np.unique(tensor.codes[0]).tolist())
    absent = [j for j in range(tensor.shape[1]) if j not in present]
    out = []
    for aggregation in ("plain", "masked"):
        literal = TRIP(rank=8, rounds=12, seed=seed, variant="paper", nonnegative=False, aggregation=aggregation)
        heard = [s for s in listen(literal, sites) if s.step.name == "sweep"]
        clear = aggregation == "plain"
        _, found = recover_mttkrp(heard[0], absent)
        nothing_solved = TRIPPrivate(np.zeros((tensor.patients, 8)))
        patients, _ = literal.solve_patients(sites[0], nothing_solved, heard[0].before)
        truth = mttkrp(tensor, [patients, *heard[0].before.factors], 1)
        error = float(np.abs(found - truth).max() / np.abs(truth).max())
        shown = set(np.flatnonzero(np.abs(found).max(1) > 1e-9 * np.abs(truth).max()).tolist())
        out.append(
            Attack(
                "TRIP 1: Gram, MTTKRP, sole carriers",
                f"TRIP literal, {aggregation}",
                error < 1e-6 and shown == present,
                clear,
                f"MTTKRP to {error:.0e}; {len(shown & present)} of {len(present)} codes seen, {len(shown - present)} wrong",
            )
        )
        record = recover_record(heard, absent, tensor.shape[2])
        truth_record = np.zeros(tensor.shape[2])
        truth_record[list(RECORD)] = list(RECORD.values())
        miss = float(np.abs(record - truth_record).max())
        out.append(
            Attack(
                "TRIP 2: a patient's whole record",
                f"TRIP literal, {aggregation}",
                miss < 0.1,
                clear,
                f"largest error of a count {miss:.2g}",
            )
        )
        local = listen(LocalTF(rank=4, rounds=12, seed=seed, aggregation=aggregation, weighting="none"), sites)
        seen = support(
            local[-2].contribution(VICTIM) if local[-1].step.name == "score" else local[-1].contribution(VICTIM)
        )
        out.append(
            Attack(
                "zero rows: which codes a site has",
                f"LocalTF, {aggregation}",
                seen == present,
                clear,
                f"{len(seen & present)} of {len(present)} codes right, {len(seen - present)} wrong",
            )
        )
    return out
