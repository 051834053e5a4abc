"""Presence from totals: does anybody among all patients have this code? Shadow runs teach the coordinator what to look for.

Under ``masked`` the coordinator sees sums only; but the row of a code that ONE patient has is that patient's row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from polyclinic.auditing.attacks import Attack
from polyclinic.protocol.interfaces import Method, seeds
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.attacks.tap import listen

SHAPE = (60, 80)
SITES, EACH = 3, 150
SHADOWS, TRIALS = 8, 12


def network(rng: np.random.Generator, present: bool) -> list[Site]:
    """Hospitals in which nobody has the last code of each mode, but for one patient at the first of them."""
    axes = [Axis("patient"), Axis("a", vocabulary="public"), Axis("b", vocabulary="public")]
    i, j = SHAPE
    target = np.array([[EACH, i - 1, j - 1], [EACH, i - 1, 7], [EACH, i - 1, 33], [EACH, 12, j - 1]])
    sites = []
    for k in range(SITES):
        who = np.repeat(np.arange(EACH), rng.poisson(15, EACH) + 3)
        coords = np.column_stack([who, rng.integers(0, i - 1, len(who)), rng.integers(0, j - 1, len(who))])
        here = present and k == 0
        coords = np.vstack([coords, target]) if here else coords
        sites.append(Site(f"h{k}", SparseTensor(coords, np.ones(len(coords)), (EACH + here, i, j), axes)))
    return sites


def _seen(method: Method, sites: list[Site]) -> float:
    """What the coordinator looks at: the largest entry of the code's row in the last totals that have one."""
    found = -700.0
    for s in listen(method, sites):
        for a in s.total.arrays.values() if s.total is not None else ():
            if a.ndim == 2 and a.shape[0] in (SHAPE[0], sum(SHAPE)):  # of the first mode, or all modes in one
                found = float(np.log(np.abs(a[SHAPE[0] - 1]).max() + 1e-300))
    return found


def right_guesses(make: Callable[[], Method], seed: int) -> int:
    """How many of the trials the coordinator gets right, with a threshold learnt on shadow runs of its own."""
    rng = seeds(seed, "presence")
    looks = [(t % 2 == 0, _seen(make(), network(rng, t % 2 == 0))) for t in range(SHADOWS + TRIALS)]
    shadows, trials = looks[:SHADOWS], looks[SHADOWS:]
    yes, no = (float(np.mean([v for p, v in shadows if p is side])) for side in (True, False))
    return sum(((v > (yes + no) / 2) == (yes > no)) == p for p, v in trials)


def run(seed: int = 0) -> Iterator[Attack]:
    """Exact totals tell, paid ones do not."""
    from polyclinic.methods.phenotypes import DPEM, LocalTF, SumALS
    from polyclinic.privacy.accounting.budget import Privacy

    size = f"{SITES} sites of {EACH} patients"
    kinds: tuple[tuple[str, Callable[[], Method], bool], ...] = (
        (f"SumALS, exact totals, masked, {size}", lambda: SumALS(rank=4, rounds=2, aggregation="masked"), True),
        (
            f"LocalTF, exact totals, masked, {size}",
            lambda: LocalTF(rank=4, rounds=3, aggregation="masked", zeros="missing", learning_rate=1e-3),
            True,
        ),
        (
            f"DPEM, patient-level epsilon 1 at delta 1e-6, formal, masked, {size}",
            lambda: DPEM(rank=4, rounds=2, privacy=Privacy(1.0), aggregation="masked"),
            False,
        ),
    )
    for label, make, expected in kinds:
        right = right_guesses(make, seed)
        yield Attack(
            "presence of the only carrier of a code",
            label,
            right >= TRIALS - 1,
            expected,
            f"{right} of {TRIALS} right after {SHADOWS} shadow runs",
        )
