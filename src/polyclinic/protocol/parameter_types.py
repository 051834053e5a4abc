"""Parameters of every estimator as types: what an editor completes, and what a type checker refuses.

Written by ``python tests/models/keywords.py`` from the declared parameters; a test keeps it equal to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

if TYPE_CHECKING:
    from polyclinic.methods.rounds.step_size import Schedule
    from polyclinic.privacy.accounting.budget import Privacy

__all__ = [
    "CPALSKeywords",
    "CPALSTyped",
    "CPSGDKeywords",
    "CPSGDTyped",
    "DPEMKeywords",
    "DPEMTyped",
    "DPFactKeywords",
    "DPFactTyped",
    "DistributedSGDKeywords",
    "DistributedSGDTyped",
    "FederatedPCAKeywords",
    "FederatedPCATyped",
    "GaussianMixtureKeywords",
    "GaussianMixtureTyped",
    "LatentClassKeywords",
    "LatentClassTyped",
    "LocalModelKeywords",
    "LocalModelTyped",
    "LocalTFKeywords",
    "LocalTFTyped",
    "PARAFAC2Keywords",
    "PARAFAC2Typed",
    "StandardizerKeywords",
    "StandardizerTyped",
    "SumALSKeywords",
    "SumALSTyped",
    "TRIPKeywords",
    "TRIPTyped",
]


class CPALSKeywords(TypedDict, total=False):
    """What ``CPALS(...)`` takes."""

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
    loss: Literal["squares", "poisson", "bernoulli"]
    distinct: float
    ridge: float
    warmup: int
    sweeps: int
    threads: int
    device: Literal["cpu", "cuda", "auto"] | None
    precision: Literal["float64", "float32"]


class CPALSTyped:
    """What ``CPALS`` was given."""

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
    loss: Literal["squares", "poisson", "bernoulli"]
    distinct: float
    ridge: float
    warmup: int
    sweeps: int
    threads: int
    device: Literal["cpu", "cuda", "auto"] | None
    precision: Literal["float64", "float32"]

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[CPALSKeywords]) -> None: ...


class CPSGDKeywords(TypedDict, total=False):
    """What ``CPSGD(...)`` takes."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float
    clip: float | None


class CPSGDTyped:
    """What ``CPSGD`` was given."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float
    clip: float | None

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[CPSGDKeywords]) -> None: ...


class DPEMKeywords(TypedDict, total=False):
    """What ``DPEM(...)`` takes."""

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


class DPEMTyped:
    """What ``DPEM`` was given."""

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

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[DPEMKeywords]) -> None: ...


class DPFactKeywords(TypedDict, total=False):
    """What ``DPFact(...)`` takes."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    weights: Literal["elastic", "energy", "uniform", "nonzeros"] | None
    elastic: float
    server_step: float


class DPFactTyped:
    """What ``DPFact`` was given."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    weights: Literal["elastic", "energy", "uniform", "nonzeros"] | None
    elastic: float
    server_step: float

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[DPFactKeywords]) -> None: ...


class DistributedSGDKeywords(TypedDict, total=False):
    """What ``DistributedSGD(...)`` takes."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    weights: Literal["energy", "uniform", "nonzeros"] | None


class DistributedSGDTyped:
    """What ``DistributedSGD`` was given."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    weights: Literal["energy", "uniform", "nonzeros"] | None

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[DistributedSGDKeywords]) -> None: ...


class FederatedPCAKeywords(TypedDict, total=False):
    """What ``FederatedPCA(...)`` takes."""

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


class FederatedPCATyped:
    """What ``FederatedPCA`` was given."""

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

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[FederatedPCAKeywords]) -> None: ...


class GaussianMixtureKeywords(TypedDict, total=False):
    """What ``GaussianMixture(...)`` takes."""

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


class GaussianMixtureTyped:
    """What ``GaussianMixture`` was given."""

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

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[GaussianMixtureKeywords]) -> None: ...


class LatentClassKeywords(TypedDict, total=False):
    """What ``LatentClass(...)`` takes."""

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


class LatentClassTyped:
    """What ``LatentClass`` was given."""

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

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[LatentClassKeywords]) -> None: ...


class LocalModelKeywords(TypedDict, total=False):
    """What ``LocalModel(...)`` takes."""

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


class LocalModelTyped:
    """What ``LocalModel`` was given."""

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

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[LocalModelKeywords]) -> None: ...


class LocalTFKeywords(TypedDict, total=False):
    """What ``LocalTF(...)`` takes."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    weights: Literal["energy", "uniform", "nonzeros"] | None


class LocalTFTyped:
    """What ``LocalTF`` was given."""

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
    learning_rate: float | tuple[float, ...] | Schedule | Mapping[str, float] | None
    sparsity: float | Mapping[str, float]
    weights: Literal["energy", "uniform", "nonzeros"] | None

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[LocalTFKeywords]) -> None: ...


class PARAFAC2Keywords(TypedDict, total=False):
    """What ``PARAFAC2(...)`` takes."""

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


class PARAFAC2Typed:
    """What ``PARAFAC2`` was given."""

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

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[PARAFAC2Keywords]) -> None: ...


class StandardizerKeywords(TypedDict, total=False):
    """What ``Standardizer(...)`` takes."""

    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    radius: float | None
    center: tuple[float, ...] | None
    max_patients: int


class StandardizerTyped:
    """What ``Standardizer`` was given."""

    rounds: int
    tol: float
    seed: int
    aggregation: str
    variant: Literal["corrected", "paper"]
    privacy: Privacy | None
    radius: float | None
    center: tuple[float, ...] | None
    max_patients: int

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[StandardizerKeywords]) -> None: ...


class SumALSKeywords(TypedDict, total=False):
    """What ``SumALS(...)`` takes."""

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
    loss: Literal["squares", "poisson", "bernoulli"]
    start: Literal["gram", "random"] | tuple[object, ...]
    buckets: int | None
    warmup: int
    packed: bool
    half: bool


class SumALSTyped:
    """What ``SumALS`` was given."""

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
    loss: Literal["squares", "poisson", "bernoulli"]
    start: Literal["gram", "random"] | tuple[object, ...]
    buckets: int | None
    warmup: int
    packed: bool
    half: bool

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[SumALSKeywords]) -> None: ...


class TRIPKeywords(TypedDict, total=False):
    """What ``TRIP(...)`` takes."""

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
    start: Literal["gram", "random"] | tuple[object, ...]
    buckets: int | None
    penalty: float | None
    penalty_growth: float
    warmup: int
    distinct: float
    packed: bool


class TRIPTyped:
    """What ``TRIP`` was given."""

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
    start: Literal["gram", "random"] | tuple[object, ...]
    buckets: int | None
    penalty: float | None
    penalty_growth: float
    warmup: int
    distinct: float
    packed: bool

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[TRIPKeywords]) -> None: ...
