"""Three attacks, each against the variant that it breaks and the one that stops it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polyclinic.auditing.attacks import Attack
from polyclinic.auditing.run import Insider, audit
from polyclinic.methods.phenotypes import DPEM
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Site
from polyclinic_papers.attacks import em_inversion
from polyclinic_papers.attacks.gradient_span import attack


def insider(seed: int) -> Iterator[Attack]:
    """A hospital takes its own noise off the totals that it sees: the rest must still be what was booked."""
    for sites, lost in ((4, 0), (5, 1)):
        method = DPEM(rank=1, rounds=1, background=False, privacy=Privacy(2.0), aggregation="masked")
        found = audit(method, canaries=3000, patients=50, seed=seed, insider=Insider(sites, lost))
        yield Attack(
            "a hospital subtracts its own noise",
            f"DPEM, patient-level epsilon 2 at delta 1e-6, formal, masked, {sites} sites, {lost} lost",
            not found.passed,
            False,
            f"mu {found.mu_hat:.3f} (se {found.mu_se:.3f}), ledger {found.mu:.3f}: {found.verdict}",
        )


def mixture(seed: int) -> Iterator[Attack]:
    """Three honest sites of one record each: exact sums give them away, however they were added."""
    centres = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    honest = ("n0", "n1", "n2")
    exact: dict[str, Any] = {"rounds": 2, "tol": 0, "aggregation": "masked", "start": "box"}
    paid: dict[str, Any] = {"radius": 10.0, "aggregation": "masked", "privacy": Privacy(4.0, 1e-6), "starts": 6}
    for label, crowd, more, expected in (
        ("mixture, exact sums, masked", 21, exact, True),
        ("mixture, patient-level epsilon 4 at delta 1e-6, formal", 600, paid, False),
    ):
        x = centres[np.arange(3 + crowd) % 3] + seeds(seed, "em inversion").normal(size=(3 + crowd, 2))
        sites = [*(Site(n, features=x[i : i + 1]) for i, n in enumerate(honest)), Site("z", features=x[3:])]
        result = em_inversion.run(sites, honest, seed=seed, n_components=3, **more)
        yield Attack(
            "EM inversion: records from sums",
            label,
            result.succeeded,
            expected,
            f"largest error {result.error:.2g} of a spread of {result.spread:.2g}",
        )


def similarity(seed: int) -> Iterator[Attack]:
    """UnPSL: a message of a hospital with fewer patients than features spans exactly its patients."""
    rng, d = seeds(seed, "gradient span"), 40
    mix = rng.normal(size=(d, d)) / np.sqrt(d) + np.eye(d)
    for label, each, victim, expected in (
        ("UnPSL, plain, 12 patients", 12, "h1", True),
        ("UnPSL, masked, 90 patients", 30, None, False),
    ):
        x = rng.normal(size=(3 * each + 60, d)) @ mix
        y = (x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0).astype(int)
        parts = [slice(k * each, (k + 1) * each) for k in range(3)]
        sites = [Site(f"h{k}", features=x[p], labels=y[p]) for k, p in enumerate(parts)]
        seen = attack(sites, x[3 * each :], victim=victim, l2=0.0, inner=80)
        yield Attack(
            "UnPSL gradient span: who is a patient", label, seen.auc > 0.95, expected, f"membership AUC {seen.auc:.3f}"
        )
