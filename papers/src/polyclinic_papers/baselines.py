"""The paper's baselines with the same interface: Euclidean, cosine, LMNN, ITML, GMML, Low-Rank (section 5).

R2ML (Huang et al. 2013, several local reduced-rank metrics gated per patient) is not here: it learns a metric per patient,
has no single M to show, and neither its code nor its settings are published in the paper.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.methods.similarity.metric import SimilarityMetric, canonical, spread
from polyclinic.methods.similarity.pairs import LabelPairs, ListedPairs, Pairs, pair_loss
from polyclinic.methods.similarity.params import Centre
from polyclinic.util.threads import one_thread

__all__ = ["GMML", "ITML", "LMNN", "Cosine", "Euclidean", "LowRank"]

Array = NDArray[np.float64]


class Baseline(SimilarityMetric):
    """A baseline: standardise, learn W, and choose the threshold that calls the training pairs best.

    The paper does not say how a distance calls a pair similar; here every metric's similarity x'Mz is compared with the
    threshold that is right most often on the training pairs, which favours the baselines.
    """

    def __init__(self, *, standardize: Centre = "zscore") -> None:
        self.standardize = standardize

    def fit(self, X: ArrayLike, y: ArrayLike) -> Any:
        """Learn from labelled patients."""
        patients, codes = self._training(X, y)
        return self._learn(patients, LabelPairs.of(codes), codes)

    def fit_pairs(self, X: ArrayLike, pairs: ArrayLike, y: ArrayLike) -> Any:
        """Learn from judged pairs."""
        from sklearn.utils.validation import validate_data

        patients = np.asarray(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        return self._learn(patients, ListedPairs.of(pairs, y, patients=len(patients)), None)

    def _learn(self, X: Array, pairs: Pairs, codes: NDArray[np.int64] | None) -> Any:
        self.mean_, self.scale_ = spread(X, self.standardize)
        Z = (X - self.mean_) / self.scale_
        with one_thread():
            self.components_ = self._root(Z, pairs, codes).T
            self.bias_ = _threshold(self._embed(Z), pairs)
        return self

    def _embed(self, Z: Array) -> Array:
        return np.asarray(Z @ self.components_.T)

    def _root(self, Z: Array, pairs: Pairs, codes: NDArray[np.int64] | None) -> Array:
        raise NotImplementedError


def _listed(pairs: Pairs, *, limit: int | None = None) -> ListedPairs:
    """Pairs one by one, at most ``limit`` of them (evenly thinned)."""
    if isinstance(pairs, LabelPairs):
        i, j = np.triu_indices(len(pairs.codes), 1)
        sign = np.where(pairs.codes[i] == pairs.codes[j], 1.0, -1.0)
        pairs = ListedPairs(i, j, sign, np.full(len(i), 1.0 / max(len(i), 1)))
    if limit is None or len(pairs.left) <= limit:
        return pairs
    keep = np.linspace(0, len(pairs.left) - 1, limit).astype(np.int64)
    return ListedPairs(pairs.left[keep], pairs.right[keep], pairs.sign[keep], pairs.weight[keep])


def _threshold(A: Array, pairs: Pairs) -> float:
    """The threshold of s = <a_i, a_j> that calls most training pairs rightly."""
    p = _listed(pairs, limit=200_000)
    s = np.einsum("pr,pr->p", A[p.left], A[p.right])
    order = np.argsort(-s, kind="stable")
    right = np.concatenate([[0.0], np.cumsum(p.sign[order])])  # gained by calling one more pair similar
    best = int(np.argmax(right))
    if best == 0:
        return float(s.max()) + 1.0
    return float(s[order[best - 1]]) if best == len(s) else float(0.5 * (s[order[best - 1]] + s[order[best]]))


class Euclidean(Baseline):
    """Plain distance of standardised features: W = I.

    Examples
    --------
    >>> Euclidean().fit([[0.0], [1.0], [3.0]], [0, 0, 1]).metric_
    array([[1.]])
    """

    def _root(self, Z: Array, pairs: Pairs, codes: NDArray[np.int64] | None) -> Array:
        return np.eye(Z.shape[1])


class Cosine(Euclidean):
    """Angle between standardised patients: W = I after every patient is scaled to length 1."""

    map_ = "angle"

    def _embed(self, Z: Array) -> Array:
        return np.asarray(Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-300))

    def transform(self, X: ArrayLike) -> Array:
        """Patients on the unit sphere."""
        return self._embed(self._standardised(X))


class GMML(Baseline):
    """Geometric mean metric learning (Zadeh et al. 2016): A = S^-1 #_t D in closed form, with a ridge on S and D.

    S and D sum (x_i - x_j)(x_i - x_j)' over similar and dissimilar pairs; ``t`` is the position on the geodesic.
    """

    def __init__(self, *, t: float = 0.5, ridge: float = 0.1, standardize: Centre = "zscore") -> None:
        super().__init__(standardize=standardize)
        self.t = t
        self.ridge = ridge

    def _root(self, Z: Array, pairs: Pairs, codes: NDArray[np.int64] | None) -> Array:
        # with fewer patients than features everything happens in their span; outside it both matrices are the ridge
        n, d = Z.shape
        basis = np.linalg.svd(Z, full_matrices=False)[2].T if n < d else np.eye(d)
        Y = Z @ basis
        p = _listed(pairs)
        scatter = []
        for sign in (1.0, -1.0):
            D = Y[p.left[p.sign == sign]] - Y[p.right[p.sign == sign]]
            scatter.append(D.T @ D / max(len(D), 1))
        k = Y.shape[1]
        S, D = (m + self.ridge * np.trace(m) / k * np.eye(k) + 1e-12 * np.eye(k) for m in scatter)
        w, V = np.linalg.eigh(S)
        half, inverse = (V * np.sqrt(w)) @ V.T, (V / np.sqrt(w)) @ V.T
        w, V = np.linalg.eigh(half @ D @ half)
        A = inverse @ ((V * np.maximum(w, 0.0) ** self.t) @ V.T) @ inverse
        w, V = np.linalg.eigh((A + A.T) / 2)
        return np.asarray(basis @ (V * np.sqrt(np.maximum(w, 0.0))))


class LowRank(Baseline):
    """Low-rank sparse similarity (after Zhan et al. 2016): mean logistic loss + nuclear norm + row sparsity of M.

    Minimised over M >= 0 by proximal gradients: eigenvalues shrink (the nuclear norm of a positive semidefinite M is its
    trace), then rows and columns. The threshold is 1, as in UnPSL.
    """

    def __init__(
        self, *, nuclear: float = 1e-3, sparse: float = 1e-3, iterations: int = 150, standardize: Centre = "zscore"
    ) -> None:
        super().__init__(standardize=standardize)
        self.nuclear = nuclear
        self.sparse = sparse
        self.iterations = iterations

    def _root(self, Z: Array, pairs: Pairs, codes: NDArray[np.int64] | None) -> Array:
        if Z.shape[1] > 500:  # the loss sees M only through the span of the patients; rows of M there are not features
            basis = np.linalg.svd(Z, full_matrices=False)[2].T
            return np.asarray(basis @ self._solve(Z @ basis, pairs, 0.0))
        return self._solve(Z, pairs, self.sparse)

    def _solve(self, Z: Array, pairs: Pairs, sparse: float) -> Array:
        k = Z.shape[1]
        step = 4.0 / max(float(np.linalg.norm(Z, 2)) ** 4 / len(Z) ** 2, 1e-12)
        W = np.eye(k) * 0.3
        for _ in range(self.iterations):
            _, G = pair_loss(Z @ W, pairs, 1.0)
            # dL/dM = X'CX; (C + C')XW = G and X'G = 2 X'CX W, so X'CX is recovered in the column space of W
            gradient = 0.5 * Z.T @ G @ np.linalg.pinv(W)
            M = W @ W.T - step * 0.5 * (gradient + gradient.T)
            norms = np.linalg.norm(M, axis=1)
            keep = np.maximum(0.0, 1 - step * sparse / np.maximum(norms, 1e-300))
            M = M * np.sqrt(np.outer(keep, keep))
            w, V = np.linalg.eigh(M)
            W = V * np.sqrt(np.maximum(w - step * self.nuclear, 0.0) + 1e-12)
        return np.asarray(W)


class LMNN(Baseline):
    """Large margin nearest neighbours (Weinberger et al. 2006), from metric-learn; needs labels.

    With more than 50 features, in the leading 50 principal directions, as its authors advise.
    """

    def __init__(
        self,
        *,
        k: int = 3,
        iterations: int = 100,
        learning_rate: float = 1e-4,
        seed: int = 0,
        standardize: Centre = "zscore",
    ) -> None:
        super().__init__(standardize=standardize)
        self.k = k
        self.iterations = iterations
        self.learning_rate = learning_rate  # metric-learn's own 1e-7 leaves the Euclidean metric where it was
        self.seed = seed

    def _root(self, Z: Array, pairs: Pairs, codes: NDArray[np.int64] | None) -> Array:
        if codes is None:
            raise DataError("LMNN learns from neighbours of the same class: it needs labels, not judged pairs")
        Reference = _reference("LMNN")
        basis = _leading(Z, 50)
        k = max(1, min(self.k, int(np.bincount(codes).min()) - 1))
        rate, seed = self.learning_rate, self.seed
        learner = Reference(
            n_neighbors=k, max_iter=self.iterations, learn_rate=rate, random_state=seed, init="identity"
        )
        learner.fit(Z @ basis, codes)
        return np.asarray(basis @ canonical(np.asarray(learner.components_).T))


class ITML(Baseline):
    """Information-theoretic metric learning (Davis et al. 2007), from metric-learn, on at most ``constraints`` pairs."""

    def __init__(
        self, *, constraints: int = 2000, iterations: int = 200, seed: int = 0, standardize: Centre = "zscore"
    ) -> None:
        super().__init__(standardize=standardize)
        self.constraints = constraints
        self.iterations = iterations
        self.seed = seed

    def _root(self, Z: Array, pairs: Pairs, codes: NDArray[np.int64] | None) -> Array:
        import warnings

        Reference = _reference("ITML")
        basis = _leading(Z, 50)
        p = _listed(pairs)
        pick = np.random.default_rng(self.seed).permutation(len(p.left))[: self.constraints]
        Y = Z @ basis
        apart = (
            np.linalg.norm(Y[p.left[pick]] - Y[p.right[pick]], axis=1) > 1e-9
        )  # identical patients constrain nothing
        pick = pick[apart]
        learner = Reference(max_iter=self.iterations, random_state=self.seed, prior="identity")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learner.fit(np.stack([Y[p.left[pick]], Y[p.right[pick]]], 1), p.sign[pick].astype(int))
        return np.asarray(basis @ np.asarray(learner.components_).T)


def _reference(name: str) -> Any:
    """A class of metric-learn, whose 0.7 still calls scikit-learn's checks by an argument name that 1.8 dropped."""
    import metric_learn  # here: it takes half a second
    from metric_learn import _util

    for check in ("check_array", "check_X_y"):
        present = getattr(_util, check)
        if not getattr(present, "adapted", False) and "force_all_finite" not in inspect.signature(present).parameters:
            setattr(_util, check, _renamed(present))
    return getattr(metric_learn, name)


def _renamed(check: Any) -> Any:
    def adapted(*args: Any, **kwargs: Any) -> Any:
        if "force_all_finite" in kwargs:
            kwargs["ensure_all_finite"] = kwargs.pop("force_all_finite")
        return check(*args, **kwargs)

    adapted.adapted = True  # type: ignore[attr-defined]
    return adapted


def _leading(Z: Array, most: int) -> Array:
    """Leading principal directions (d, k), or the identity where there are few features."""
    if Z.shape[1] <= most:
        return np.eye(Z.shape[1])
    _, s, V = np.linalg.svd(Z, full_matrices=False)
    return np.asarray(V[: min(most, int((s > 1e-9 * s[0]).sum()))].T)
