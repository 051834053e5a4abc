"""Polyclinic: many clinics, one model, no shared records.

Hospitals learn together what no one of them can see alone, and only sums cross the wire. What type checkers read is
``__init__.pyi``, which ``python tests/models/keywords.py`` writes from the tables below.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_WHERE = {
    "Axis": "polyclinic.tensors.axis",
    "CPALS": "polyclinic.methods.central.als",
    "CPSGD": "polyclinic.methods.central.sgd",
    "Classes": "polyclinic.models.mixtures.classes",
    "DPEM": "polyclinic.methods.phenotypes",
    "DPFact": "polyclinic.methods.phenotypes",
    "DistributedSGD": "polyclinic.methods.phenotypes",
    "FederatedPCA": "polyclinic.methods.moments.standardizing",
    "GaussianMixture": "polyclinic.methods.mixtures.gaussian_mixture",
    "Groups": "polyclinic.models.mixtures.groups",
    "LatentClass": "polyclinic.methods.latent_classes.latent_class",
    "LocalModel": "polyclinic.methods.phenotypes",
    "LocalTF": "polyclinic.methods.phenotypes",
    "Moments": "polyclinic.models.moments",
    "Node": "polyclinic.config",
    "PARAFAC2": "polyclinic.methods.phenotypes",
    "People": "polyclinic.records.sites.people",
    "Phenotypes": "polyclinic.models.phenotypes.phenotypes",
    "Privacy": "polyclinic.privacy.accounting.budget",
    "Similarity": "polyclinic.models.similarity",
    "Site": "polyclinic.records.sites.site",
    "Run": "polyclinic.studies.run_folder",
    "SparseTensor": "polyclinic.tensors.sparse",
    "Standardizer": "polyclinic.methods.moments.standardizing",
    "Study": "polyclinic.config",
    "SumALS": "polyclinic.methods.phenotypes",
    "Topics": "polyclinic.methods.phenotypes",
    "TRIP": "polyclinic.methods.phenotypes",
    "UnPSL": "polyclinic.methods.similarity.unpsl",
    "UnPSLCV": "polyclinic.methods.similarity.selection.unpsl_cv",
    "align": "polyclinic.alignment.union",
    "align_codes": "polyclinic.alignment.local_codes",
    "audit": "polyclinic.auditing.run",
    "check_protocol": "polyclinic.auditing.contracts.method_checks",
    "check_source": "polyclinic.auditing.contracts.source_checks",
    "check_sum": "polyclinic.auditing.contracts.aggregator_checks",
    "evaluate": "polyclinic.analysis.pipelines.evaluate",
    "forecast": "polyclinic.analysis.pipelines.evaluate",
    "follow": "polyclinic.cli.console",
    "check": "polyclinic.records.preflight",
    "from_frame": "polyclinic.records.sites.from_data",
    "from_numpy": "polyclinic.records.sites.from_data",
    "from_scipy": "polyclinic.records.sites.from_data",
    "ingest": "polyclinic.records.ingest",
    "compare": "polyclinic.studies.run_folder",
    "load": "polyclinic.studies.run_folder",
    "patient_overlap": "polyclinic.alignment.overlap",
    "recommend": "polyclinic.methods.recommend",
    "replicate": "polyclinic.analysis.replication.replicate",
    "run_study": "polyclinic.node.flare.run_study",
    "suggest_rank": "polyclinic.analysis.pipelines.suggest_rank",
    "use_device": "polyclinic.tensors.device",
    "write_report": "polyclinic.report.export.notebook",
}

_MODULES = {name: f"polyclinic.{name}" for name in ("datasets", "errors", "metrics")} | {
    "plots": "polyclinic.report.export.plots"
}

__all__ = ["__version__", *sorted(_WHERE), *sorted(_MODULES)]


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``import polyclinic`` stays fast."""
    if name in _WHERE:
        value: object = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(_MODULES[name])
    from polyclinic.plugins import did_you_mean

    near = "" if name.startswith("_") else did_you_mean(name, __all__)
    raise AttributeError(f"module 'polyclinic' has no attribute {name!r}" + (f": {near}" if near else ""))


def __dir__() -> list[str]:
    return __all__
