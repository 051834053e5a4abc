"""Check that a contribution with noise is a sum over patients: a formal study leaves out one bad record by this."""

from __future__ import annotations

import numpy as np

from polyclinic.protocol.interfaces import Arrays, Method, Step, seeds
from polyclinic.protocol.loop import Simulation
from polyclinic.records.sites.site import Site


def check_additive(method: Method, site: Site, fold: Simulation) -> None:
    """Raise AssertionError at the first sum of a run that is not, bit for bit, the sum over two groups of patients.

    Each group starts anew at the public state of that sum, so a method that remembers patients is found, too.
    """
    third, patients = site.patients // 3, np.arange(site.patients)
    while (step := fold.step()) is not None:
        groups = (patients, patients[:third], patients[third:])
        whole, first, second = (_part(method, step, site.take(who), fold.public) for who in groups)
        differ = [n for n in step.shapes if not np.array_equal(whole[n], first[n] + second[n])]
        assert not differ, f"step {step.name!r}: {', '.join(differ)} of all patients is not the sum of two groups"
        fold.advance()


def _part(method: Method, step: Step, site: Site, public: object) -> Arrays:
    seed = method.params.seed
    private = method.init_site(site, public, seeds(seed, site.name, "open"))
    rng = seeds(seed, site.name, step.round, step.name)
    return method.contribute(step, site, private, public, rng)[1].arrays
