"""Polyclinic: many clinics, one model, no shared patients.

Hospitals learn together what no one of them can see alone, and only sums cross the wire.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for editors and type checkers; a test keeps both lists equal
    from polyclinic import datasets as datasets
    from polyclinic import errors as errors
    from polyclinic import metrics as metrics
    from polyclinic.alignment.union import align as align
    from polyclinic.cli.console import follow as follow
    from polyclinic.evaluation.audit import audit as audit
    from polyclinic.evaluation.suggest import suggest_rank as suggest_rank
    from polyclinic.federation.standardizing import FederatedPCA as FederatedPCA
    from polyclinic.federation.standardizing import Standardizer as Standardizer
    from polyclinic.federation.sumbattery import check_sum as check_sum
    from polyclinic.findings.evaluate import evaluate as evaluate
    from polyclinic.findings.evaluate import forecast as forecast
    from polyclinic.findings.replicate import replicate as replicate
    from polyclinic.learned.classes import Classes as Classes
    from polyclinic.learned.groups import Groups as Groups
    from polyclinic.learned.moments import Moments as Moments
    from polyclinic.learned.phenotypes import Phenotypes as Phenotypes
    from polyclinic.learned.similarity import Similarity as Similarity
    from polyclinic.mixtures.em import GaussianMixture as GaussianMixture
    from polyclinic.mixtures.latentclass import LatentClass as LatentClass
    from polyclinic.phenotypes.als import CPALS as CPALS
    from polyclinic.phenotypes.dpem import DPEM as DPEM
    from polyclinic.phenotypes.dpfact import DPFact as DPFact
    from polyclinic.phenotypes.local import LocalModel as LocalModel
    from polyclinic.phenotypes.localtf import DistributedSGD as DistributedSGD
    from polyclinic.phenotypes.localtf import LocalTF as LocalTF
    from polyclinic.phenotypes.parafac2 import PARAFAC2 as PARAFAC2
    from polyclinic.phenotypes.sgd import CPSGD as CPSGD
    from polyclinic.phenotypes.sumals import SumALS as SumALS
    from polyclinic.phenotypes.trip import TRIP as TRIP
    from polyclinic.privacy.budget import Privacy as Privacy
    from polyclinic.report import plots as plots
    from polyclinic.report.battery import check_protocol as check_protocol
    from polyclinic.run import Run as Run
    from polyclinic.run import compare as compare
    from polyclinic.run import load as load
    from polyclinic.similarity.selection import UnPSLCV as UnPSLCV
    from polyclinic.similarity.unpsl import UnPSL as UnPSL
    from polyclinic.sites.checkup import check as check
    from polyclinic.sites.doors import from_frame as from_frame
    from polyclinic.sites.doors import from_numpy as from_numpy
    from polyclinic.sites.doors import from_scipy as from_scipy
    from polyclinic.sites.ingest import ingest as ingest
    from polyclinic.sites.people import People as People
    from polyclinic.sites.site import Site as Site
    from polyclinic.sites.sourcebattery import check_source as check_source
    from polyclinic.studies import run_study as run_study
    from polyclinic.study import Node as Node
    from polyclinic.study import Study as Study
    from polyclinic.tensors.axis import Axis as Axis
    from polyclinic.tensors.device import use_device as use_device
    from polyclinic.tensors.sparse import SparseTensor as SparseTensor

__version__ = "0.1.0"

_WHERE = {
    "Axis": "polyclinic.tensors.axis",
    "CPALS": "polyclinic.phenotypes.als",
    "CPSGD": "polyclinic.phenotypes.sgd",
    "Classes": "polyclinic.learned.classes",
    "DPEM": "polyclinic.phenotypes.dpem",
    "DPFact": "polyclinic.phenotypes.dpfact",
    "DistributedSGD": "polyclinic.phenotypes.localtf",
    "FederatedPCA": "polyclinic.federation.standardizing",
    "GaussianMixture": "polyclinic.mixtures.em",
    "Groups": "polyclinic.learned.groups",
    "LatentClass": "polyclinic.mixtures.latentclass",
    "LocalModel": "polyclinic.phenotypes.local",
    "LocalTF": "polyclinic.phenotypes.localtf",
    "Moments": "polyclinic.learned.moments",
    "Node": "polyclinic.study",
    "PARAFAC2": "polyclinic.phenotypes.parafac2",
    "People": "polyclinic.sites.people",
    "Phenotypes": "polyclinic.learned.phenotypes",
    "Privacy": "polyclinic.privacy.budget",
    "Similarity": "polyclinic.learned.similarity",
    "Site": "polyclinic.sites.site",
    "Run": "polyclinic.run",
    "SparseTensor": "polyclinic.tensors.sparse",
    "Standardizer": "polyclinic.federation.standardizing",
    "Study": "polyclinic.study",
    "SumALS": "polyclinic.phenotypes.sumals",
    "TRIP": "polyclinic.phenotypes.trip",
    "UnPSL": "polyclinic.similarity.unpsl",
    "UnPSLCV": "polyclinic.similarity.selection",
    "align": "polyclinic.alignment.union",
    "audit": "polyclinic.evaluation.audit",
    "check_protocol": "polyclinic.report.battery",
    "check_source": "polyclinic.sites.sourcebattery",
    "check_sum": "polyclinic.federation.sumbattery",
    "evaluate": "polyclinic.findings.evaluate",
    "forecast": "polyclinic.findings.evaluate",
    "follow": "polyclinic.cli.console",
    "check": "polyclinic.sites.checkup",
    "from_frame": "polyclinic.sites.doors",
    "from_numpy": "polyclinic.sites.doors",
    "from_scipy": "polyclinic.sites.doors",
    "ingest": "polyclinic.sites.ingest",
    "compare": "polyclinic.run",
    "load": "polyclinic.run",
    "replicate": "polyclinic.findings.replicate",
    "run_study": "polyclinic.studies",
    "suggest_rank": "polyclinic.evaluation.suggest",
    "use_device": "polyclinic.tensors.device",
}

_ROOMS = {name: f"polyclinic.{name}" for name in ("datasets", "errors", "metrics")} | {
    "plots": "polyclinic.report.plots"
}

__all__ = ["__version__", *sorted(_WHERE), *sorted(_ROOMS)]


if not TYPE_CHECKING:  # else every misspelt name would be an Any

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, so that ``import polyclinic`` stays fast."""
        if name in _WHERE:
            value = getattr(import_module(_WHERE[name]), name)
            globals()[name] = value
            return value
        if name in _ROOMS:
            return import_module(_ROOMS[name])
        from polyclinic.plugins import did_you_mean

        near = "" if name.startswith("_") else did_you_mean(name, __all__)
        raise AttributeError(f"module 'polyclinic' has no attribute {name!r}" + (f": {near}" if near else ""))


def __dir__() -> list[str]:
    return __all__
