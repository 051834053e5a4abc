"""A learned similarity as a scikit-learn estimator: everything that follows once the matrix W is known."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.params import Centre
from polyclinic.methods.similarity.redundancy import row_norms
from polyclinic.models.origin import Origin
from polyclinic.models.similarity import Similarity
from polyclinic.plugins import did_you_mean
from polyclinic.privacy.card.card import central_card

if TYPE_CHECKING:
    from sklearn.utils import Tags

Array = NDArray[np.float64]


def spread(X: Array, how: Centre) -> tuple[Array, Array]:
    """Mean and standard deviation to standardise with, both (d,); constant features get deviation infinity.

    Dividing by infinity makes a constant feature exactly 0: its correlations are 0 and no weight can matter (ERRATA E3.6).

    >>> spread(np.array([[1.0, 5.0], [3.0, 5.0]]), "zscore")
    (array([2., 5.]), array([ 1., inf]))
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = X.mean(0), X.std(0)
    sd = np.where(np.isfinite(sd), sd, np.inf)
    # rounding of a mean leaves a spread of about 1e-16 of the values where there is none
    flat = sd <= 1e-12 * np.abs(X).max(0, initial=0.0)
    if how == "none":
        return np.zeros_like(mean), np.where(flat, np.inf, 1.0)
    return (mean if how == "zscore" else np.zeros_like(mean)), np.where(flat, np.inf, sd)


def canonical(W: Array) -> Array:
    """The one W among all W Q with the same metric (ERRATA E3.9): the symmetric root if square, principal axes if thin.

    >>> Q = np.array([[0.0, 1.0], [-1.0, 0.0]])
    >>> W = np.array([[2.0, 0.0], [1.0, 1.0]])
    >>> bool(np.allclose(canonical(W), canonical(W @ Q)))
    True
    """
    U, s, _ = np.linalg.svd(W, full_matrices=False)
    if W.shape[0] == W.shape[1]:
        root = (U * s) @ U.T
        root[row_norms(W) == 0] = 0.0  # exact zeros stay exact
        root[:, row_norms(W) == 0] = 0.0
        return np.asarray((root + root.T) / 2)
    signs = np.sign(U[np.abs(U).argmax(0), np.arange(U.shape[1])])
    thin = U * (s * np.where(signs == 0, 1.0, signs))
    thin[row_norms(W) == 0] = 0.0
    return np.asarray(thin)


def similarity_of(model: Any, origin: Origin, map: Literal["linear", "angle"] = "linear") -> Similarity:
    """The value of anything with ``components_``, ``mean_``, ``scale_`` and ``bias_``."""
    columns = model.__dict__.get("feature_names_in_")
    names = None if columns is None else tuple(str(c) for c in columns)
    return Similarity(origin, model.components_, model.mean_, model.scale_, float(model.bias_), names, map)


class SimilarityMetric(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What every similarity can do: s(x, z) = x'WW'z in standardised features, a map for k-NN, and pairs.

    Attributes
    ----------
    components_
        (n_components, d) the map: ``transform(X) = ((X - mean_) / scale_) @ components_.T``.
    metric_
        (d, d) M = W W', positive semidefinite.
    mean_, scale_
        (d,) of the training patients; ``scale_`` is infinite for constant features, which never count.
    bias_
        The threshold b: two patients are called similar when s >= b.
    """

    components_: Array
    mean_: Array
    scale_: Array
    bias_: float
    n_features_in_: int

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _training(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
        """Checked patients and labels as whole numbers (``classes_`` names them)."""
        from sklearn.utils.multiclass import check_classification_targets

        patients, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"all {len(codes)} patients have 1 class ({self.classes_[0]}): a similarity needs at least two classes",
                hint="give patients of two classes, or judged pairs to fit_pairs",
            )
        if len(self.classes_) == len(codes):
            raise DataError(
                f"every one of the {len(codes)} patients has a class of its own: no pair is similar",
                hint="give class labels, not identifiers or measurements",
            )
        return np.asarray(patients), codes.astype(np.int64)

    def _standardised(self, X: ArrayLike) -> Array:
        check_is_fitted(self, "components_")
        patients = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray((patients - self.mean_) / self.scale_)

    map_: ClassVar[Literal["linear", "angle"]] = "linear"

    @property
    def result_(self) -> Similarity:
        """The learned similarity as a frozen value: no patient in it."""
        check_is_fitted(self, "components_")
        card = self.__dict__.get("privacy_") or central_card(type(self).__name__.lower())
        history = self.__dict__.get("history_", ())
        return similarity_of(
            self, Origin.of(type(self).__name__.lower(), 1, self.get_params(), card, history), self.map_
        )

    def save(self, path: str | Path) -> Path:
        """Write the similarity to one file, ``*.similarity``, without a patient in it; ``pc.load`` reads it."""
        return self.result_.save(path)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    @property
    def metric_(self) -> Array:
        """(d, d) M = W W'."""
        check_is_fitted(self, "components_")
        return np.asarray(self.components_.T @ self.components_)

    @property
    def feature_weights_(self) -> Array:
        """(d,) length of every feature's row of W, eq. (3.5): how much the feature counts; 0 for constant ones."""
        check_is_fitted(self, "components_")
        return np.where(np.isinf(self.scale_), 0.0, row_norms(self.components_.T))

    @property
    def selected_features_(self) -> NDArray[np.int64]:
        """Positions of the features that count at all."""
        return np.flatnonzero(self.feature_weights_ > 0)

    def transform(self, X: ArrayLike) -> Array:
        """Patients as points (n, n_components) whose inner product is the similarity; any k-NN works on them."""
        return np.asarray(self._standardised(X) @ self.components_.T)

    def similarity(self, X: ArrayLike, Z: ArrayLike | None = None) -> Array:
        """(n, m) similarity of every patient of X with every patient of Z (default: X itself), eq. (2.1)."""
        A = self.transform(X)
        return np.asarray(A @ (A if Z is None else self.transform(Z)).T)

    def score_pairs(self, X: ArrayLike, Z: ArrayLike, y: ArrayLike | None = None) -> Array | float:
        """(n,) similarity of row i of X with row i of Z; with judgements ``y`` (+1, -1) the share called rightly."""
        A, B = self.transform(X), self.transform(Z)
        if A.shape != B.shape:
            raise DataError(f"pairs need as many rows in X as in Z, got {len(A)} and {len(B)}")
        if y is None:
            products: Array = np.einsum("nr,nr->n", A, B)
            return products
        truth = np.asarray(y)
        if truth.shape != (len(A),) or not np.isin(truth, (-1, 1)).all():
            raise DataError(
                f"judgements must be {len(A)} values +1 (similar) or -1, got shape {truth.shape}",
                faults=[f"values: {', '.join(str(v) for v in np.unique(truth)[:5])}"],
            )
        return float(np.mean(self.predict_pairs(X, Z) == truth))

    def predict_pairs(self, X: ArrayLike, Z: ArrayLike) -> NDArray[np.int64]:
        """(n,) +1 where row i of X and row i of Z are called similar, else -1."""
        return np.where(self.score_pairs(X, Z) >= self.bias_, 1, -1).astype(np.int64)

    def predict_proba_pairs(self, X: ArrayLike, Z: ArrayLike) -> Array:
        """(n, 2) probability of not similar and of similar, eq. (3.2)."""
        from scipy.special import expit

        p = expit(self.score_pairs(X, Z) - self.bias_)
        return np.column_stack([1.0 - p, p])

    def explain(self, x: ArrayLike, z: ArrayLike) -> Explanation:
        """Which features make two patients similar; see :func:`explain`."""
        return explain(self, x, z)


class DeclaredMetric(SimilarityMetric):
    """A similarity whose parameters are the fields of ``Params``, the first three by position too; checked when it is fitted."""

    Params: ClassVar[type[BaseModel]]

    def __init_subclass__(cls) -> None:
        """Give the class an ``__init__`` with the signature that completion and scikit-learn read."""
        super().__init_subclass__()
        fields = cls.Params.model_fields
        parameters = [
            Parameter(name, Parameter.KEYWORD_ONLY if n > 2 else Parameter.POSITIONAL_OR_KEYWORD, default=field.default)
            for n, (name, field) in enumerate(fields.items())
        ]
        signature = Signature(parameters)

        def __init__(self: DeclaredMetric, *args: object, **params: object) -> None:
            faults = [
                f"{p}: {did_you_mean(p, fields) or 'known: ' + ', '.join(fields)}" for p in params if p not in fields
            ]
            if faults:
                raise ConfigError(f"{cls.__name__} has no such parameter", faults=faults)
            bound = signature.bind(*args, **params)
            bound.apply_defaults()
            self.__dict__.update(bound.arguments)

        __init__.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *parameters])  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    if TYPE_CHECKING:

        def __init__(self, *args: Any, **params: Any) -> None: ...


@dataclass(frozen=True, eq=False)
class Explanation:
    """The similarity of two patients, feature by feature.

    Parameters
    ----------
    names
        The features.
    first, second
        (d,) the two patients, in standardised units.
    contributions
        (d,) parts that add up to ``similarity``.
    similarity, bias, probability
        s(x, z), the threshold b, and the probability of (3.2) that the two are similar.
    """

    names: tuple[str, ...]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    contributions: NDArray[np.float64]
    similarity: float
    bias: float
    probability: float

    def table(self, top: int | None = None) -> list[dict[str, object]]:
        """One row per feature, largest part first."""
        order = np.argsort(-np.abs(self.contributions), kind="stable")[:top]
        return [
            {
                "feature": self.names[k],
                "first": float(self.first[k]),
                "second": float(self.second[k]),
                "contribution": float(self.contributions[k]),
            }
            for k in order
        ]


def explain(metric: SimilarityMetric, x: ArrayLike, z: ArrayLike) -> Explanation:
    """Split s(x, z) = x'Mz into one part per feature: c_k = (x_k (Mz)_k + z_k (Mx)_k) / 2, so that sum_k c_k = s.

    Symmetric in the two patients; a feature that was not selected has the part 0.

    Examples
    --------
    >>> from polyclinic.methods.similarity.unpsl import UnPSL
    >>> metric = UnPSL(seed=0).fit([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.5]], [0, 1, 1, 0])
    >>> parts = explain(metric, [1.0, 2.0], [3.0, 4.0])
    >>> bool(np.isclose(parts.contributions.sum(), parts.similarity))
    True
    """
    from scipy.special import expit

    a, b = ((_row(metric, patient) - metric.mean_) / metric.scale_ for patient in (x, z))
    W = metric.components_.T
    parts = 0.5 * (a * (W @ (W.T @ b)) + b * (W @ (W.T @ a)))
    s = float(parts.sum())
    names = vars(metric).get("feature_names_in_")
    labels = tuple(str(n) for n in names) if names is not None else tuple(f"x{k}" for k in range(len(a)))
    return Explanation(labels, a, b, parts, s, float(metric.bias_), float(expit(s - metric.bias_)))


def _row(metric: SimilarityMetric, patient: Any) -> Array:
    """One patient as (d,) numbers in the metric's order of features; names, where both have them, must be the same."""
    names = vars(metric).get("feature_names_in_")
    row = np.asarray(patient, float).reshape(-1)
    if names is not None and hasattr(patient, "iloc"):  # a row of a frame, or a frame of one row
        row = row[_positions([str(n) for n in names], [str(n) for n in getattr(patient, "columns", patient.index)])]
    if len(row) != metric.n_features_in_:
        raise DataError(f"a patient has {len(row)} features, the metric was learned on {metric.n_features_in_}")
    if not np.isfinite(row).all():
        gaps = ", ".join(str(names[k]) if names is not None else f"x{k}" for k in np.flatnonzero(~np.isfinite(row)))
        raise DataError(f"a patient's values are not finite: {gaps}", hint="fill in or leave out what is missing")
    return row


def _positions(names: list[str], columns: list[str]) -> list[int]:
    """Where each of the metric's features stands among a patient's columns."""
    if sorted(names) != sorted(columns):
        raise DataError(
            "a patient's features are not those that the metric was learned on",
            faults=[f"missing: {n}" for n in sorted(set(names) - set(columns))]
            + [f"unknown: {n}" for n in sorted(set(columns) - set(names))],
        )
    return [columns.index(n) for n in names]
