"""The experiments of the UnPSL paper as functions: Tables 1 and 2, Figures 1 to 3. Plain dicts out, nothing printed.

Choices that the paper leaves open (ERRATA E3.12), the same for every method: k = 3 neighbours, by distance in the learned
space; features z-scored on the training patients; positive class = disease (Parkinson's, tumour, AML). Hyper-parameters of
UnPSL are chosen by cross-validation inside the training patients; the baselines run with the defaults of their authors and,
on the real data, once more with the best of three settings on such folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import Divergence
from polyclinic.methods.similarity.federated import ConsensusUnPSL
from polyclinic.methods.similarity.selection.folds import knn_predict
from polyclinic.methods.similarity.selection.unpsl_cv import UnPSLCV
from polyclinic.methods.similarity.unpsl import UnPSL
from polyclinic.records.sites.site import Site
from polyclinic_papers.baselines import GMML, ITML, LMNN, Cosine, Euclidean, LowRank
from polyclinic_papers.controls import PERMUTED, RANDOM, ZERO, permuted
from polyclinic_papers.knn import best_of, halves, scores, standard_error
from polyclinic_papers.planted_similarity import unpsl_synthetic
from polyclinic_papers.samples import load_colon, load_leukemia, load_parkinsons

__all__ = [
    "PAPER_TABLE_1",
    "PAPER_TABLE_2",
    "Real",
    "baseline",
    "figure1",
    "figure2",
    "figure3",
    "judged",
    "judged_tuned",
    "read",
    "summary",
    "table2_once",
    "table2_summary",
]

Array = NDArray[np.float64]
Result = dict[str, Any]
Data = Literal["parkinsons", "colon", "leukemia"]
By = Literal["sample", "subject"]
K: Final = 3
CONTROL: Final = "control: "
LITERAL: Final = "UnPSL, literal"
PAPER_TABLE_1: Final = {
    "parkinsons": {"Cosine": 0.6433, "Euclidean": 0.7753, "ITML": 0.7938, "LowRank": 0.7979, "GMML": 0.7443, "LMNN": 0.8151,
                   "R2ML": 0.7835, "UnPSL": 0.8222},
    "colon": {"Cosine": 0.6452, "Euclidean": 0.7419, "ITML": 0.8197, "LowRank": 0.7903, "GMML": 0.7903, "LMNN": 0.7581,
              "R2ML": 0.8065, "UnPSL": 0.8226},
    "leukemia": {"Cosine": 0.7059, "Euclidean": 0.7941, "ITML": 0.8824, "LowRank": 0.8824, "GMML": 0.8235, "LMNN": 0.8824,
                 "R2ML": 0.8889, "UnPSL": 0.9412},
}  # fmt: skip
PAPER_TABLE_2: Final = {
    20: {"Cosine": 0.5200, "Euclidean": 0.6144, "ITML": 0.5408, "LowRank": 0.8808, "GMML": 0.7248, "LMNN": 0.8960,
         "R2ML": 0.9107, "UnPSL": 0.9464},
    40: {"Cosine": 0.4976, "Euclidean": 0.5872, "ITML": 0.5228, "LowRank": 0.8520, "GMML": 0.6184, "LMNN": 0.8080,
         "R2ML": 0.8144, "UnPSL": 0.8712},
    60: {"Cosine": 0.4896, "Euclidean": 0.5384, "ITML": 0.5092, "LowRank": 0.8267, "GMML": 0.5704, "LMNN": 0.7840,
         "R2ML": 0.8080, "UnPSL": 0.8413},
}  # fmt: skip


# the paper's settings are unknown (E3.12); every learner gets three, chosen on folds of the training patients
SETTINGS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "ITML": ({"constraints": 200}, {"constraints": 500}, {"constraints": 1000}),
    "LowRank": (
        {"nuclear": 1e-4, "sparse": 1e-4},
        {"nuclear": 1e-3, "sparse": 1e-3},
        {"nuclear": 1e-2, "sparse": 1e-3},
    ),
    "GMML": ({"t": 0.3}, {"t": 0.5}, {"t": 0.7}),
    "LMNN": ({"k": 3, "learning_rate": 1e-4}, {"k": 5, "learning_rate": 1e-4}, {"k": 3, "learning_rate": 1e-5}),
}
NOT_RUN: Final = {"R2ML": "a metric per patient; its settings are in no paper at hand"}


def baseline(name: str, *, seed: int = 0, **setting: Any) -> Any:
    """A baseline of the paper by its name, with its authors' settings unless told otherwise."""
    if name == "ITML":
        return ITML(**{"seed": seed, "constraints": 1000, "iterations": 50, **setting})
    if name == "LMNN":
        return LMNN(**{"seed": seed, **setting})
    return {"Cosine": Cosine, "Euclidean": Euclidean, "LowRank": LowRank, "GMML": GMML}[name](**setting)


METHODS: Final = ("Cosine", "Euclidean", "ITML", "LowRank", "GMML", "LMNN")


@dataclass(frozen=True)
class Real:
    """One of the three real data sets with its outer splits, all fixed by ``seed``."""

    X: Array
    y: NDArray[np.int64]
    subjects: NDArray[Any]
    splits: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]

    @classmethod
    def of(cls, data: Data, *, by: By = "sample", repeats: int = 20, seed: int = 0) -> Real:
        """Parkinsons: 98 training recordings, by recording (the paper's, which leaks persons) or by person. Colon: leave
        one out. Leukemia: stratified 38/34 splits of the 72 patients (the paper's one split is the first of seed 0), genes
        filtered over all patients as in the paper.
        """
        if data == "parkinsons":
            X, y, subjects, _ = load_parkinsons()
            return cls(X, y, subjects, list(halves(subjects, by=by, train=98, repeats=repeats, seed=seed)))
        if data == "colon":
            X, y, subjects, _ = load_colon()
            every = np.arange(len(y))
            return cls(X, y, subjects, [(np.delete(every, i), every[i : i + 1]) for i in every])
        X, y, subjects, _ = load_leukemia()
        fixed = [(np.arange(38), np.arange(38, 72))] if seed == 0 else []
        return cls(X, y, subjects, [*fixed, *_stratified(y, 38, repeats - len(fixed), seed)])


def judged(
    real: Real,
    split: int,
    *,
    by: By = "sample",
    ks: Sequence[int] = (K,),
    seed: int = 0,
    methods: Sequence[str] | None = None,
) -> dict[str, list[int]]:
    """What every method calls the held-out patients of one split: ``"METHOD k"`` -> classes.

    Learners are set as their authors set them. UnPSL tries two kinds of pairs and four sparse settings on five folds
    drawn twice; with more features than patients one kind on five folds.
    """
    train, _ = real.splits[split]
    X, y = real.X[train], real.y[train]
    found: dict[str, list[int]] = {}
    for name in METHODS:
        if methods is None or name in methods:
            model = baseline(name, seed=seed + split).fit(X, y)
            for k in ks:
                found[f"{name} {k}"] = _called(model, real, split, k)
    if methods is None or "UnPSL" in methods:
        groups = real.subjects[train] if by == "subject" else None
        for k in ks:
            model = UnPSLCV(k=k, seed=seed + split).fit(X, y, groups=groups)
            found[f"UnPSL {k}"] = _called(model, real, split, k)
            found |= {f"{CONTROL}{n} {k}": c for n, c in _controls(model, real, split, k).items()}
    return found


def _controls(model: Any, real: Real, split: int, k: int) -> dict[str, list[int]]:
    """What k-NN calls with permuted training labels in the learned metric, and in a random metric of five directions."""
    train, test = real.splits[split]
    X, y = real.X[train], real.y[train]
    W = np.random.default_rng([split, 5]).normal(size=(X.shape[1], 5)) / np.maximum(X.std(0), 1e-12)[:, None]
    return {
        PERMUTED: [
            int(c) for c in knn_predict(model.transform(X), permuted(y, split), model.transform(real.X[test]), k=k)
        ],
        RANDOM: [int(c) for c in knn_predict(X @ W, y, real.X[test] @ W, k=k)],
    }


def read(real: Real, split: int, *, by: By = "sample", seed: int = 0) -> dict[str, dict[str, float]]:
    """What few features cost on one split: ``prefer`` of UnPSLCV -> accuracy, features used, features with 90 % of the weight."""
    train, test = real.splits[split]
    groups = real.subjects[train] if by == "subject" else None
    found = {}
    for prefer in ("accuracy", "few"):
        model = UnPSLCV(prefer=prefer, seed=seed + split).fit(real.X[train], real.y[train], groups=groups)
        weight = np.sort(model.feature_weights_)[::-1]
        called = np.asarray(_called(model, real, split, K))
        found[prefer] = {
            "accuracy": float(np.mean(called == real.y[test])),
            PERMUTED: float(np.mean(called == permuted(real.y[test], split))),
            "majority": _majority(real.y[test]),
            "features": float(np.count_nonzero(weight)),
            "heavy": float(np.count_nonzero(weight.cumsum() < 0.9 * weight.sum()) + 1),
        }
    return found


def _majority(y: NDArray[np.int64]) -> float:
    """Accuracy of calling everybody by the most frequent class."""
    return float(np.unique(y, return_counts=True)[1].max() / len(y))


def judged_literal(real: Real, split: int, *, k: int = K) -> dict[str, list[int]]:
    """The same for Algorithm 1 as printed: 60 iterations, rho 3000 and both lambda 1, fixed on other splits (seed 1000)."""
    train, _ = real.splits[split]
    model = UnPSL(variant="paper", penalty=3000.0, iterations=60, tol=0.0, l1=1.0, l2=1.0, seed=split)
    return {f"{LITERAL} {k}": _called(model.fit(real.X[train], real.y[train]), real, split, k)}


def judged_tuned(real: Real, split: int, *, by: By = "sample", k: int = K, seed: int = 0) -> dict[str, list[int]]:
    """The same for ``"METHOD tuned k"``: the best of a learner's three settings on five folds of the training patients."""
    train, _ = real.splits[split]
    groups = real.subjects[train] if by == "subject" else None
    found = {}
    for name, settings in SETTINGS.items():
        several = [baseline(name, seed=seed + split, **s) for s in settings]
        model = best_of(several, real.X[train], real.y[train], k=k, groups=groups, seed=seed + split)
        found[f"{name} tuned {k}"] = _called(model, real, split, k)
    return found


def _called(model: Any, real: Real, split: int, k: int) -> list[int]:
    train, test = real.splits[split]
    A, B = model.transform(real.X[train]), model.transform(real.X[test])
    return [int(c) for c in knn_predict(A, real.y[train], B, k=k)]


def summary(real: Real, calls: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, dict[str, Any]]:
    """``"METHOD k"`` -> accuracy, its standard error, recall, F1, F2, and the accuracies of the repetitions.

    Where one patient is left out at a time, figures are of all patients together and the error is over patients.
    """
    splits = real.splits[: len(calls)]
    alone = all(len(test) == 1 for _, test in splits)
    table = {}
    for name in calls[0]:
        each = [np.asarray(c[name]) for c in calls]
        truths = [real.y[test] for _, test in splits]
        right = [float(np.mean(c == t)) for c, t in zip(each, truths)]
        if alone:
            figures = scores(np.concatenate(truths), np.concatenate(each))
        else:
            per = [scores(t, c) for t, c in zip(truths, each)]
            figures = {key: float(np.mean([p[key] for p in per])) for key in per[0]}
        table[name] = {**figures, "accuracy_se": spread(right), "accuracies": right}
    return table


def spread(values: Sequence[float]) -> float | None:
    """Standard error of the mean; of one repetition it is not known.

    >>> spread([1.0, 3.0]), spread([1.0])
    (1.0, None)
    """
    return standard_error(values) if len(values) > 1 else None


def _stratified(y: NDArray[np.int64], train: int, repeats: int, seed: int) -> list[tuple[Any, Any]]:
    found = []
    for r in range(repeats):
        rng = np.random.default_rng([seed, r, 1])
        chosen: list[int] = []
        for c in np.unique(y):
            rows = rng.permutation(np.flatnonzero(y == c))
            chosen += rows[: round(train * len(rows) / len(y))].tolist()
        inside = np.isin(np.arange(len(y)), chosen)
        found.append((np.flatnonzero(inside), np.flatnonzero(~inside)))
    return found


def table2_once(
    d: int,
    repeat: int,
    *,
    n: int = 400,
    seed: int = 0,
    variant: Literal["paper", "corrected"] = "paper",
    methods: Sequence[str] | None = None,
) -> Result:
    """One repetition of Table 2: ``methods`` -> scores, and what UnPSL chose."""
    data = unpsl_synthetic(d, n, seed + repeat, variant=variant)
    order = np.random.default_rng([seed, repeat]).permutation(n)
    train, test = order[: n // 2], order[n // 2 :]
    pairs, sign = data.pairs(train)
    held, truth = data.pairs(test)
    X, Z = data.features[train], data.features[test]
    models = {m: baseline(m, seed=seed + repeat) for m in METHODS if m != "LMNN"}
    models["UnPSL"] = UnPSLCV(seed=seed + repeat)
    found: Result = {"methods": {}}
    for name, model in models.items():
        if methods is not None and name not in methods:
            continue
        model.fit_pairs(X, pairs, sign)
        A = model.transform(Z)
        s = np.einsum("pr,pr->p", A[held[:, 0]], A[held[:, 1]])
        called = np.where(s >= model.bias_, 1, -1)
        found["methods"][name] = scores(truth, called)
        if name == "UnPSL":
            weight = model.feature_weights_
            W = np.random.default_rng([d, repeat]).normal(size=(Z.shape[1], 5))
            guess = np.einsum("pr,pr->p", (Z @ W)[held[:, 0]], (Z @ W)[held[:, 1]])
            rows = np.linalg.norm(W, axis=1)
            found["controls"] = {
                PERMUTED: {"accuracy": float(np.mean(permuted(truth, repeat) == called))},
                RANDOM: {
                    "accuracy": float(np.mean(truth == np.where(guess >= np.median(guess), 1, -1))),
                    "weight": float(rows[data.redundant].sum() / rows.sum()),
                },
                ZERO: {"accuracy": float(np.mean(truth == -1)), "weight": 0.0},
            }
            found["weight_on_redundant"] = float(weight[data.redundant].sum() / weight.sum())
            found["chosen"] = model.best_params_
    return found


def table2_summary(once: Sequence[Mapping[str, Any]]) -> Result:
    """Means over repetitions."""
    table = {}
    for name in once[0]["methods"]:
        rows = [o["methods"][name] for o in once]
        right = [r["accuracy"] for r in rows]
        table[name] = {**{key: float(np.mean([r[key] for r in rows])) for key in rows[0]},
                       "accuracy_se": spread(right), "accuracies": right}  # fmt: skip
    return {
        "methods": table, "weight_on_redundant": [o.get("weight_on_redundant") for o in once],
        "chosen": [o.get("chosen") for o in once], "not_run": {"LMNN": "needs class labels", **NOT_RUN},
    }  # fmt: skip


def figure1() -> Result:
    """Cumulative share of feature pairs by absolute correlation on the three real data sets (Figure 1)."""
    grid = np.linspace(0.0, 1.0, 21)
    curves, shuffled = {}, {}
    for name, load in (("colon", load_colon), ("parkinsons", load_parkinsons), ("leukemia", load_leukemia)):
        R = np.abs(np.corrcoef(load().X.T))
        r = R[np.triu_indices(len(R), 1)]
        curves[name] = [float(np.mean(r <= g + 1e-12)) for g in grid]
        apart = np.abs(np.corrcoef(np.random.default_rng(0).permuted(load().X.T, axis=1)))
        shuffled[name] = float(np.mean(apart[np.triu_indices(len(apart), 1)] > 0.5))
    return {"experiment": "figure1", "correlation": grid.tolist(), "share": curves, "permuted": shuffled}


def figure2(*, iterations: int = 60, trials: int = 3, seed: int = 0) -> Result:
    """Primal residuals of Algorithm 1 on Parkinsons, 98 random training recordings per trial (Figure 2)."""
    X, y, subjects, _ = load_parkinsons()
    curves: list[list[float]] = []
    gains: list[float] = []
    none: list[float] = []
    for train, test in halves(subjects, by="sample", train=98, repeats=trials, seed=seed):
        model = UnPSL(iterations=iterations, tol=0.0, penalty=3.0, inner=10).fit(X[train], y[train])
        curves.append([h["primal_residual"] for h in model.history_])
        for out, W in ((gains, model.transform), (none, np.zeros_like)):
            called = knn_predict(W(X[train]), y[train], W(X[test]), k=K)
            out.append(float(np.mean(called == y[test])) - _majority(y[test]))
    return {"experiment": "figure2", "iteration": list(range(1, iterations + 1)), "primal_residual": curves,
            "gain": gains, "zero_gain": none}  # fmt: skip


def figure3(
    data: Literal["parkinsons", "synthetic"] = "parkinsons", *, rounds: int = 60, seed: int = 0, **params: Any
) -> Result:
    """How far the consensus of 3 hospitals is from the centre, |M_t - M*| / |M*|, round by round (Figure 3).

    The centre minimises the same within-hospital pairs with the same correlations (E3.8); metrics are compared, not W,
    which is known up to a rotation only (E3.9).
    """
    from polyclinic.protocol.loop import Simulation
    from polyclinic.util.threads import one_thread

    rng = np.random.default_rng(seed)
    if data == "parkinsons":
        X, y, _, _ = load_parkinsons()
        where = rng.permutation(len(X)) % 3
        sites = [Site("abc"[k], features=X[where == k], labels=y[where == k]) for k in range(3)]
        judged: dict[str, Any] = {}
        centre = UnPSL(iterations=3000, inner=20, tol=1e-5, penalty=3.0, **params).fit(X, y, groups=where)
    else:
        planted = unpsl_synthetic(10, 600, seed)
        X, where = planted.features, rng.permutation(600) % 3
        sites = [Site("abc"[k], features=X[where == k]) for k in range(3)]
        judged = {"abc"[k]: planted.pairs(np.flatnonzero(where == k)) for k in range(3)}
        rows = {"abc"[k]: np.flatnonzero(where == k) for k in range(3)}
        index = np.concatenate([rows[s][p] for s, (p, _) in judged.items()])
        sign = np.concatenate([v for _, v in judged.values()])
        centre = UnPSL(iterations=600, inner=10, tol=1e-5, penalty=1.0, **params).fit_pairs(X, index, sign)
    if not centre.converged_:
        raise Divergence(
            "the central comparator did not settle, so there is nothing to compare with", hint="larger l1, l2"
        )
    target = centre.metric_
    method = ConsensusUnPSL(rounds=rounds, **params)
    method.judged = judged
    fold, gaps = Simulation(method, sites), []
    with one_thread():
        while fold.advance():
            if fold.public.round:
                W = method.root(fold.public)
                M = W @ W.T
                gaps.append(float(np.linalg.norm(M - target) / np.linalg.norm(target)))
    random = (G := rng.normal(size=target.shape)) @ G.T
    random *= np.trace(target) / np.trace(random)
    away = {ZERO: 1.0, RANDOM: float(np.linalg.norm(random - target) / np.linalg.norm(target))}
    return {"experiment": "figure3", "data": data, "controls": away, "round": list(range(1, len(gaps) + 1)), "gap": gaps,
            "rounds_to_1e-3": next((t + 1 for t, g in enumerate(gaps) if g < 1e-3), None)}  # fmt: skip
