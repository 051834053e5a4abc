"""Polyclinic: many clinics, one model, no shared patients.

Hospitals learn together what no one of them can see alone, and only sums cross the wire.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "Axis": "polyclinic.tensors.axis",
    "CPALS": "polyclinic.phenotypes.als",
    "CPSGD": "polyclinic.phenotypes.sgd",
    "DPEM": "polyclinic.phenotypes.dpem",
    "DPFact": "polyclinic.phenotypes.dpfact",
    "DistributedSGD": "polyclinic.phenotypes.localtf",
    "FederatedPCA": "polyclinic.federation.moments",
    "GaussianMixture": "polyclinic.mixtures.em",
    "Groups": "polyclinic.learned.groups",
    "LocalModel": "polyclinic.phenotypes.local",
    "LocalTF": "polyclinic.phenotypes.localtf",
    "Moments": "polyclinic.learned.moments",
    "Node": "polyclinic.study",
    "People": "polyclinic.tensors.people",
    "Phenotypes": "polyclinic.learned.phenotypes",
    "Privacy": "polyclinic.privacy.budget",
    "Similarity": "polyclinic.learned.similarity",
    "Site": "polyclinic.tensors.site",
    "Run": "polyclinic.run",
    "SparseTensor": "polyclinic.tensors.sparse",
    "Standardizer": "polyclinic.federation.moments",
    "Study": "polyclinic.study",
    "SumALS": "polyclinic.phenotypes.sumals",
    "TRIP": "polyclinic.phenotypes.trip",
    "UnPSL": "polyclinic.similarity.unpsl",
    "UnPSLCV": "polyclinic.similarity.selection",
    "align": "polyclinic.alignment.union",
    "audit": "polyclinic.evaluation.audit",
    "check_protocol": "polyclinic.federation.battery",
    "evaluate": "polyclinic.findings.evaluate",
    "follow": "polyclinic.cli.console",
    "from_frame": "polyclinic.tensors.doors",
    "from_numpy": "polyclinic.tensors.doors",
    "from_scipy": "polyclinic.tensors.doors",
    "load": "polyclinic.run",
    "replicate": "polyclinic.findings.replicate",
    "suggest_rank": "polyclinic.phenotypes.rank",
}

_ROOMS = {name: f"polyclinic.{name}" for name in ("datasets", "errors", "metrics")} | {
    "plots": "polyclinic.report.plots"
}

__all__ = ["__version__", *sorted(_WHERE), *sorted(_ROOMS)]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import polyclinic`` stays fast."""
    if name in _WHERE:
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(_ROOMS[name])
    raise AttributeError(f"module 'polyclinic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
