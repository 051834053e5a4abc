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
    from polyclinic.analysis.evaluate import evaluate as evaluate
    from polyclinic.analysis.evaluate import forecast as forecast
    from polyclinic.analysis.replication.replicate import replicate as replicate
    from polyclinic.analysis.replication.suggest_rank import suggest_rank as suggest_rank
    from polyclinic.auditing.contracts.aggregator_checks import check_sum as check_sum
    from polyclinic.auditing.contracts.source_checks import check_source as check_source
    from polyclinic.auditing.contracts.with_report import check_protocol as check_protocol
    from polyclinic.auditing.run import audit as audit
    from polyclinic.cli.console import follow as follow
    from polyclinic.config import Node as Node
    from polyclinic.config import Study as Study
    from polyclinic.methods.central.als import CPALS as CPALS
    from polyclinic.methods.central.sgd import CPSGD as CPSGD
    from polyclinic.methods.dpem.method import DPEM as DPEM
    from polyclinic.methods.dpfact import DPFact as DPFact
    from polyclinic.methods.latent_classes.latent_class import LatentClass as LatentClass
    from polyclinic.methods.local_model import LocalModel as LocalModel
    from polyclinic.methods.localtf import DistributedSGD as DistributedSGD
    from polyclinic.methods.localtf import LocalTF as LocalTF
    from polyclinic.methods.mixtures.gaussian_mixture import GaussianMixture as GaussianMixture
    from polyclinic.methods.moments.standardizing import FederatedPCA as FederatedPCA
    from polyclinic.methods.moments.standardizing import Standardizer as Standardizer
    from polyclinic.methods.parafac2 import PARAFAC2 as PARAFAC2
    from polyclinic.methods.similarity.selection.unpsl_cv import UnPSLCV as UnPSLCV
    from polyclinic.methods.similarity.unpsl import UnPSL as UnPSL
    from polyclinic.methods.sumals import SumALS as SumALS
    from polyclinic.methods.trip import TRIP as TRIP
    from polyclinic.models.mixtures.classes import Classes as Classes
    from polyclinic.models.mixtures.groups import Groups as Groups
    from polyclinic.models.moments import Moments as Moments
    from polyclinic.models.phenotypes.phenotypes import Phenotypes as Phenotypes
    from polyclinic.models.similarity import Similarity as Similarity
    from polyclinic.node.run_study import run_study as run_study
    from polyclinic.privacy.accounting.budget import Privacy as Privacy
    from polyclinic.records.ingest import ingest as ingest
    from polyclinic.records.preflight import check as check
    from polyclinic.records.sites.from_data import from_frame as from_frame
    from polyclinic.records.sites.from_data import from_numpy as from_numpy
    from polyclinic.records.sites.from_data import from_scipy as from_scipy
    from polyclinic.records.sites.people import People as People
    from polyclinic.records.sites.site import Site as Site
    from polyclinic.report.charts import plots as plots
    from polyclinic.studies.run_folder import Run as Run
    from polyclinic.studies.run_folder import compare as compare
    from polyclinic.studies.run_folder import load as load
    from polyclinic.tensors.axis import Axis as Axis
    from polyclinic.tensors.device import use_device as use_device
    from polyclinic.tensors.sparse import SparseTensor as SparseTensor

__version__ = "0.1.0"

_WHERE = {
    "Axis": "polyclinic.tensors.axis",
    "CPALS": "polyclinic.methods.central.als",
    "CPSGD": "polyclinic.methods.central.sgd",
    "Classes": "polyclinic.models.mixtures.classes",
    "DPEM": "polyclinic.methods.dpem.method",
    "DPFact": "polyclinic.methods.dpfact",
    "DistributedSGD": "polyclinic.methods.localtf",
    "FederatedPCA": "polyclinic.methods.moments.standardizing",
    "GaussianMixture": "polyclinic.methods.mixtures.gaussian_mixture",
    "Groups": "polyclinic.models.mixtures.groups",
    "LatentClass": "polyclinic.methods.latent_classes.latent_class",
    "LocalModel": "polyclinic.methods.local_model",
    "LocalTF": "polyclinic.methods.localtf",
    "Moments": "polyclinic.models.moments",
    "Node": "polyclinic.config",
    "PARAFAC2": "polyclinic.methods.parafac2",
    "People": "polyclinic.records.sites.people",
    "Phenotypes": "polyclinic.models.phenotypes.phenotypes",
    "Privacy": "polyclinic.privacy.accounting.budget",
    "Similarity": "polyclinic.models.similarity",
    "Site": "polyclinic.records.sites.site",
    "Run": "polyclinic.studies.run_folder",
    "SparseTensor": "polyclinic.tensors.sparse",
    "Standardizer": "polyclinic.methods.moments.standardizing",
    "Study": "polyclinic.config",
    "SumALS": "polyclinic.methods.sumals",
    "TRIP": "polyclinic.methods.trip",
    "UnPSL": "polyclinic.methods.similarity.unpsl",
    "UnPSLCV": "polyclinic.methods.similarity.selection.unpsl_cv",
    "align": "polyclinic.alignment.union",
    "audit": "polyclinic.auditing.run",
    "check_protocol": "polyclinic.auditing.contracts.with_report",
    "check_source": "polyclinic.auditing.contracts.source_checks",
    "check_sum": "polyclinic.auditing.contracts.aggregator_checks",
    "evaluate": "polyclinic.analysis.evaluate",
    "forecast": "polyclinic.analysis.evaluate",
    "follow": "polyclinic.cli.console",
    "check": "polyclinic.records.preflight",
    "from_frame": "polyclinic.records.sites.from_data",
    "from_numpy": "polyclinic.records.sites.from_data",
    "from_scipy": "polyclinic.records.sites.from_data",
    "ingest": "polyclinic.records.ingest",
    "compare": "polyclinic.studies.run_folder",
    "load": "polyclinic.studies.run_folder",
    "replicate": "polyclinic.analysis.replication.replicate",
    "run_study": "polyclinic.node.run_study",
    "suggest_rank": "polyclinic.analysis.replication.suggest_rank",
    "use_device": "polyclinic.tensors.device",
}

_ROOMS = {name: f"polyclinic.{name}" for name in ("datasets", "errors", "metrics")} | {
    "plots": "polyclinic.report.charts.plots"
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
