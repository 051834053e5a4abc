"""Public names, and the parameters of every estimator: what an editor completes, and what a type checker refuses.

Written by ``python tests/models/keywords.py`` from the tables of ``__init__.py`` and the declared parameters.
"""

from collections.abc import Mapping
from typing import Literal

from polyclinic import datasets as datasets
from polyclinic import errors as errors
from polyclinic import metrics as metrics
from polyclinic.alignment.local_codes import align_codes as align_codes
from polyclinic.alignment.overlap import patient_overlap as patient_overlap
from polyclinic.alignment.union import align as align
from polyclinic.analysis.pipelines.evaluate import evaluate as evaluate
from polyclinic.analysis.pipelines.evaluate import forecast as forecast
from polyclinic.analysis.pipelines.suggest_rank import suggest_rank as suggest_rank
from polyclinic.analysis.replication.replicate import replicate as replicate
from polyclinic.auditing.contracts.aggregator_checks import check_sum as check_sum
from polyclinic.auditing.contracts.method_checks import check_protocol as check_protocol
from polyclinic.auditing.contracts.source_checks import check_source as check_source
from polyclinic.auditing.run import audit as audit
from polyclinic.cli.console import follow as follow
from polyclinic.config import Node as Node
from polyclinic.config import Study as Study
from polyclinic.methods import phenotypes as _phenotypes
from polyclinic.methods.central import als as _als
from polyclinic.methods.central import sgd as _sgd
from polyclinic.methods.latent_classes import latent_class as _latent_class
from polyclinic.methods.mixtures import gaussian_mixture as _gaussian_mixture
from polyclinic.methods.moments import standardizing as _standardizing
from polyclinic.methods.recommend import recommend as recommend
from polyclinic.methods.rounds.step_size import Schedule as _Schedule
from polyclinic.methods.similarity.selection.unpsl_cv import UnPSLCV as UnPSLCV
from polyclinic.methods.similarity.unpsl import UnPSL as UnPSL
from polyclinic.models.mixtures.classes import Classes as Classes
from polyclinic.models.mixtures.groups import Groups as Groups
from polyclinic.models.moments import Moments as Moments
from polyclinic.models.phenotypes.phenotypes import Phenotypes as Phenotypes
from polyclinic.models.similarity import Similarity as Similarity
from polyclinic.node.flare.run_study import run_study as run_study
from polyclinic.privacy.accounting.budget import Privacy as Privacy
from polyclinic.records.ingest import ingest as ingest
from polyclinic.records.preflight import check as check
from polyclinic.records.sites.from_data import from_frame as from_frame
from polyclinic.records.sites.from_data import from_numpy as from_numpy
from polyclinic.records.sites.from_data import from_scipy as from_scipy
from polyclinic.records.sites.people import People as People
from polyclinic.records.sites.site import Site as Site
from polyclinic.report.export import plots as plots
from polyclinic.report.export.notebook import write_report as write_report
from polyclinic.studies.run_folder import Run as Run
from polyclinic.studies.run_folder import compare as compare
from polyclinic.studies.run_folder import load as load
from polyclinic.tensors.axis import Axis as Axis
from polyclinic.tensors.device import use_device as use_device
from polyclinic.tensors.sparse import SparseTensor as SparseTensor

__version__: str
__all__: list[str]
_WHERE: dict[str, str]
_MODULES: dict[str, str]

class CPALS(_als.CPALS):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    distinct: float
    ridge: float
    warmup: int
    sweeps: int
    threads: int
    device: Literal["cpu", "cuda", "auto"] | None
    precision: Literal["float64", "float32"]

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        distinct: float = ...,
        ridge: float = ...,
        warmup: int = ...,
        sweeps: int = ...,
        threads: int = ...,
        device: Literal["cpu", "cuda", "auto"] | None = ...,
        precision: Literal["float64", "float32"] = ...,
    ) -> None: ...

class CPSGD(_sgd.CPSGD):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None
    sparsity: float
    clip: float | None

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None = ...,
        sparsity: float = ...,
        clip: float | None = ...,
    ) -> None: ...

class DPEM(_phenotypes.DPEM):
    rounds: int | None
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int | None
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    planning_size: int | None
    background: bool
    smoothing: float
    regroup: bool | None
    anneal: bool | None
    prune: bool
    fdr: float
    prior: object
    prior_is_public: bool

    def __init__(
        self,
        *,
        rounds: int | None = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int | None = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        planning_size: int | None = ...,
        background: bool = ...,
        smoothing: float = ...,
        regroup: bool | None = ...,
        anneal: bool | None = ...,
        prune: bool = ...,
        fdr: float = ...,
        prior: object = ...,
        prior_is_public: bool = ...,
    ) -> None: ...

class DPFact(_phenotypes.DPFact):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    local_passes: int
    learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    start: object
    weights: Literal["elastic", "energy", "uniform", "nonzeros"] | None
    elastic: float
    server_step: float

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        local_passes: int = ...,
        learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None = ...,
        sparsity: float | Mapping[str, float] = ...,
        start: object = ...,
        weights: Literal["elastic", "energy", "uniform", "nonzeros"] | None = ...,
        elastic: float = ...,
        server_step: float = ...,
    ) -> None: ...

class DistributedSGD(_phenotypes.DistributedSGD):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    local_passes: int
    learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    start: object
    weights: Literal["energy", "uniform", "nonzeros"] | None
    elastic: float

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        local_passes: int = ...,
        learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None = ...,
        sparsity: float | Mapping[str, float] = ...,
        start: object = ...,
        weights: Literal["energy", "uniform", "nonzeros"] | None = ...,
        elastic: float = ...,
    ) -> None: ...

class FederatedPCA(_standardizing.FederatedPCA):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    radius: float | None
    center: tuple[float, ...] | None
    max_patients: int
    n_components: int
    standardize: bool

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        radius: float | None = ...,
        center: tuple[float, ...] | None = ...,
        max_patients: int = ...,
        n_components: int = ...,
        standardize: bool = ...,
    ) -> None: ...

class GaussianMixture(_gaussian_mixture.GaussianMixture):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    n_components: int
    covariance_type: Literal["full", "tied", "diag", "spherical"]
    reg_covar: float
    n_starts: int
    start: Literal["votes", "box"]
    weights_init: object
    means_init: object
    precisions_init: object
    radius: float | None
    center: object
    max_patients: int
    min_patients: int
    paid_rounds: int
    start_share: float

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        n_components: int = ...,
        covariance_type: Literal["full", "tied", "diag", "spherical"] = ...,
        reg_covar: float = ...,
        n_starts: int = ...,
        start: Literal["votes", "box"] = ...,
        weights_init: object = ...,
        means_init: object = ...,
        precisions_init: object = ...,
        radius: float | None = ...,
        center: object = ...,
        max_patients: int = ...,
        min_patients: int = ...,
        paid_rounds: int = ...,
        start_share: float = ...,
    ) -> None: ...

class LatentClass(_latent_class.LatentClass):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    n_components: int
    kinds: Mapping[str, object]
    bounds: Mapping[str, tuple[float, float]]
    shares: Literal["together", "site"]
    smoothing: float
    reg_covar: float
    weights_init: tuple[float, ...] | None
    profiles_init: tuple[tuple[float, ...], ...] | None
    max_patients: int
    min_patients: int
    paid_rounds: int

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        n_components: int = ...,
        kinds: Mapping[str, object] = ...,
        bounds: Mapping[str, tuple[float, float]] = ...,
        shares: Literal["together", "site"] = ...,
        smoothing: float = ...,
        reg_covar: float = ...,
        weights_init: tuple[float, ...] | None = ...,
        profiles_init: tuple[tuple[float, ...], ...] | None = ...,
        max_patients: int = ...,
        min_patients: int = ...,
        paid_rounds: int = ...,
    ) -> None: ...

class LocalModel(_phenotypes.LocalModel):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
    ) -> None: ...

class LocalTF(_phenotypes.LocalTF):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    local_passes: int
    learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    start: object
    weights: Literal["energy", "uniform", "nonzeros"] | None
    elastic: float

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        local_passes: int = ...,
        learning_rate: float | tuple[float, ...] | _Schedule | Mapping[str, float] | None = ...,
        sparsity: float | Mapping[str, float] = ...,
        start: object = ...,
        weights: Literal["energy", "uniform", "nonzeros"] | None = ...,
        elastic: float = ...,
    ) -> None: ...

class PARAFAC2(_phenotypes.PARAFAC2):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    order: str | None
    warmup: int
    coupling: float
    smooth: float

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        order: str | None = ...,
        warmup: int = ...,
        coupling: float = ...,
        smooth: float = ...,
    ) -> None: ...

class Standardizer(_standardizing.Standardizer):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    radius: float | None
    center: tuple[float, ...] | None
    max_patients: int

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        radius: float | None = ...,
        center: tuple[float, ...] | None = ...,
        max_patients: int = ...,
    ) -> None: ...

class SumALS(_phenotypes.SumALS):
    rounds: int
    tol: float | None
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int | Literal["auto"]
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    start: object
    buckets: int | None
    warmup: int
    packed: bool
    half: bool

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float | None = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int | Literal["auto"] = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        start: object = ...,
        buckets: int | None = ...,
        warmup: int = ...,
        packed: bool = ...,
        half: bool = ...,
    ) -> None: ...

class TRIP(_phenotypes.TRIP):
    rounds: int
    tol: float | None
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int | Literal["auto"]
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    weighting: Literal["saturating", "none"]
    saturation: float | None
    start: object
    buckets: int | None
    penalty: float | None
    penalty_growth: float
    warmup: int
    distinct: float
    packed: bool

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float | None = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int | Literal["auto"] = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        weighting: Literal["saturating", "none"] = ...,
        saturation: float | None = ...,
        start: object = ...,
        buckets: int | None = ...,
        penalty: float | None = ...,
        penalty_growth: float = ...,
        warmup: int = ...,
        distinct: float = ...,
        packed: bool = ...,
    ) -> None: ...

class Topics(_phenotypes.Topics):
    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    rank: int | Literal["auto"]
    nonnegative: bool
    zeros: Literal["observed", "missing"]
    n_starts: int
    balance: float
    start: object
    guides: Mapping[str, tuple[str, ...]] | None

    def __init__(
        self,
        *,
        rounds: int = ...,
        tol: float = ...,
        seed: int = ...,
        aggregation: str = ...,
        variant: Literal["corrected", "paper"] = ...,
        privacy: Privacy | None = ...,
        rank: int | Literal["auto"] = ...,
        nonnegative: bool = ...,
        zeros: Literal["observed", "missing"] = ...,
        n_starts: int = ...,
        balance: float = ...,
        start: object = ...,
        guides: Mapping[str, tuple[str, ...]] | None = ...,
    ) -> None: ...
