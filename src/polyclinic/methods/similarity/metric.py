"""A learned similarity as a scikit-learn estimator: everything that follows once the matrix W is known."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.similarity.redundancy import row_norms
from polyclinic.models.origin import Origin
from polyclinic.models.similarity import Similarity
from polyclinic.plugins import did_you_mean
from polyclinic.privacy.card.card import central_card

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from polyclinic.methods.similarity.explanation import Explanation

__all__ = ["Centre", "SimilarityMetric", "canonical", "similarity_of", "spread"]

Array = NDArray[np.float64]
Centre = Literal["zscore", "scale", "none"]


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
    named = None if columns is None else tuple(str(c) for c in columns)
    return Similarity(origin, model.components_, model.mean_, model.scale_, float(model.bias_), named, map)


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

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        """Completion and scikit-learn read the parameters of ``__init__``, not those of ``__new__``."""
        super().__init_subclass__()
        whole = inspect.signature(cls.__init__)
        cls.__signature__ = whole.replace(parameters=list(whole.parameters.values())[1:])

    def __new__(cls, *args: object, **params: object) -> Self:
        """Refuse a parameter that the estimator does not have, with the nearest one it has."""
        known = cls._get_param_names()
        wrong = [f"{p}: {did_you_mean(p, known) or 'known: ' + ', '.join(known)}" for p in params if p not in known]
        if wrong:
            raise ConfigError(f"{cls.__name__} has no such parameter", faults=wrong)
        made: Self = super().__new__(cls)
        return made

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
            each: Array = np.einsum("nr,nr->n", A, B)
            return each
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
        """Which features make two patients similar; see :func:`polyclinic.methods.similarity.explanation.explain`."""
        from polyclinic.methods.similarity.explanation import explain

        return explain(self, x, z)
