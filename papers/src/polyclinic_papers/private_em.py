"""Experiments of the private EM paper (Li et al., subspace perturbation): its figures as functions that return plain values.

Figure 2: log-likelihood over iterations on the Parkinson voice data, 80 nodes. Figure 3: how much of an honest node's record
corrupt neighbours learn under federated, cycle and subspace EM. The inversion is ours: what the exact sums give away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.methods.mixtures.gaussian_mixture import GaussianMixture
from polyclinic.methods.moments.standardizing import FederatedPCA, Standardizer
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.release import Array
from polyclinic.records.sites.site import Site
from polyclinic_papers.attacks import em_inversion
from polyclinic_papers.leakage import How, ksg, leak
from polyclinic_papers.samples import load_parkinsons

__all__ = ["figure_2", "figure_3", "inversion", "voices"]

NAMES = "12345"
CORRUPT = "24"
EDGES = frozenset({("1", "2"), ("2", "3"), ("3", "4"), ("4", "5"), ("1", "5"), ("1", "3"), ("3", "5")})  # ERRATA E4.12
SUMMED = {  # which honest nodes' statistics reach the corrupt ones only as a sum (eq. 10-12, E4.11)
    "federated": {"1": "1", "3": "3", "5": "5"},
    "cycle": {"1": "15", "3": "3", "5": "15"},
    "subspace": {"1": "135", "3": "135", "5": "135"},
}


def voices(path: str | Path | None = None, *, nodes: int = 80, seed: int = 0) -> list[Site]:
    """The 195 recordings dealt to ``nodes`` nodes at random, at least one each; 22 features, raw units."""
    X = load_parkinsons(path).X
    order = np.random.default_rng(seed).permutation(len(X))
    return [Site(f"node-{i:02d}", features=X[part]) for i, part in enumerate(np.array_split(order, nodes))]


def figure_2(
    path: str | Path | None = None,
    *,
    nodes: int = 80,
    components: int = 3,
    iterations: int = 30,
    seed: int = 0,
    ways: Sequence[str] = ("plain", "cycle", "subspace"),
) -> dict[str, Any]:
    """Log-likelihood per iteration on the Parkinson data; the paper says that subspace and cycle coincide.

    Standardised and projected on two principal components by sums over the nodes (ERRATA E4.13; the number of
    components is not stated there). Every way starts from the same public start.

    Returns
    -------
    dict
        ``curves`` (way -> summed log-likelihood per iteration), ``difference`` between ``cycle`` and ``subspace`` (largest,
        over iterations), ``parameters`` (largest difference of any mean or covariance to ``plain``), ``explained`` variance.
    """
    sites = voices(path, nodes=nodes, seed=seed)
    standard = Standardizer(aggregation=ways[-1]).fit(sites)
    pca = FederatedPCA(n_components=2, aggregation=ways[-1]).fit(standard.transform(sites))
    flat = pca.transform(standard.transform(sites))
    n = sum(s.patients for s in flat)
    fits = {
        way: GaussianMixture(
            n_components=components, rounds=iterations, tol=0.0, seed=seed, start="box", aggregation=way
        ).fit(flat)
        for way in ways
    }
    printed = GaussianMixture(
        n_components=components,
        rounds=iterations,
        tol=0.0,
        seed=seed,
        start="box",
        aggregation="plain",
        variant="paper",
    ).fit(flat)
    curves = {way: [float(n * h["lower_bound"]) for h in m.history_] for way, m in fits.items()}

    def apart(a: str, b: str) -> float | None:
        if a not in curves or b not in curves:
            return None
        return float(np.abs(np.subtract(curves[a], curves[b])).max())

    reference = fits[ways[0]]
    return {
        "nodes": nodes,
        "records": n,
        "components": components,
        "curves": curves,
        "literal": [float(n * h["lower_bound"]) for h in printed.history_],
        "difference": apart("cycle", "subspace"),
        "parameters": {
            way: float(
                max(
                    np.abs(m.means_ - reference.means_).max(),
                    np.abs(m.covariances_ - reference.covariances_).max(),
                    np.abs(m.weights_ - reference.weights_).max(),
                )
            )
            for way, m in fits.items()
        },
        "falls": {way: float(min(0.0, np.diff(c).min(initial=0.0))) for way, c in curves.items()},
        "explained": [float(v) for v in pca.explained_variance_ratio_],
        "guarantee": {way: m.privacy_.guarantee for way, m in fits.items()},
    }


def _draw(runs: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The paper's law: records X ~ N(0, 1), responsibilities A uniform and divided by their sum; (runs, 5) each."""
    a = rng.random((runs, 5))
    return rng.standard_normal((runs, 5)), a / a.sum(1, keepdims=True)


def figure_3(*, runs: int = 10_000, iterations: int = 3, sd: float = 1e3, seed: int = 0) -> dict[str, Any]:
    """What corrupt nodes 2 and 4 learn of honest nodes 1, 3, 5, per iteration; normalised as in the paper.

    I(X; X) of a continuous record is infinite, so the paper's normalised information is a matter of the estimator
    (ERRATA E4.12): ``self_information`` is the nearest-neighbour estimate of I(X; X) at this number of runs, and
    everything is divided by it. Beside the estimates stand exact bits: of one linear sum with equal weights and masks of
    ``sd`` (``exact_equal_weights``), and with the drawn weights known to the adversary (``exact_known_weights``).

    Returns
    -------
    dict
        ``nmi[way][node]``: one value per iteration, estimated from ``(a, b, C)``; ``bits[way][node]`` the same in bits;
        the exact values; ``order_holds``: federated >= cycle >= subspace for every node.
    """
    rng = np.random.default_rng(seed)
    x, _ = _draw(runs, rng)
    own = ksg(x[:, 0], x[:, 0])
    bits: dict[str, dict[str, list[float]]] = {way: {node: [] for node in nodes} for way, nodes in SUMMED.items()}
    known: dict[str, dict[str, float]] = {way: {} for way in SUMMED}
    for _ in range(iterations):
        _, a = _draw(runs, rng)  # fresh responsibilities in every iteration, the same records
        for way, nodes in SUMMED.items():
            for node, group in nodes.items():
                at = [NAMES.index(g) for g in group]
                i = NAMES.index(node)
                if len(at) == 1:  # b / a is the record itself
                    bits[way][node].append(own)
                    known[way][node] = float("inf")
                    continue
                views = np.stack([(a * x**p)[:, at].sum(1) for p in range(3)], 1)
                bits[way][node].append(ksg(x[:, i], views))
                square = a[:, at] ** 2
                known[way][node] = float(np.mean(0.5 * np.log2(square.sum(1) / (square.sum(1) - a[:, i] ** 2))))
    ways: tuple[How, ...] = ("federated", "cycle", "subspace", "ideal")
    exact = {way: leak(way, NAMES, EDGES, CORRUPT, sd=sd, order=NAMES) for way in ways}
    estimated = {
        way: {
            node: ksg(x[:, NAMES.index(node)], x[:, [NAMES.index(g) for g in group]].sum(1))
            for node, group in nodes.items()
        }
        for way, nodes in SUMMED.items()
        if way != "federated"
    }
    nmi = {way: {node: [b / own for b in v] for node, v in nodes.items()} for way, nodes in bits.items()}
    mean = {way: {node: float(np.mean(v)) for node, v in nodes.items()} for way, nodes in nmi.items()}
    other = rng.permutation(x[:2000])  # records of other runs: what the views say of somebody else

    def seen(group: str) -> Array:
        at = [NAMES.index(g) for g in group]
        return x[:2000, at] if len(at) == 1 else np.stack([(a * x**p)[:2000, at].sum(1) for p in range(3)], 1)

    permuted = {
        way: {node: [ksg(other[:, NAMES.index(node)], seen(group)) / own] for node, group in nodes.items()}
        for way, nodes in SUMMED.items()
    }
    return {
        "permuted": permuted,
        "eavesdropper": {way: leak(way, NAMES, EDGES, (), sd=sd, order=NAMES) for way in ways},
        "runs": runs,
        "iterations": iterations,
        "self_information": own,
        "nmi": nmi,
        "bits": bits,
        "exact_equal_weights": exact,
        "ksg_equal_weights": estimated,
        "exact_known_weights": known,
        "order_holds": all(mean["federated"][n] >= mean["cycle"][n] >= mean["subspace"][n] for n in "135"),
    }


def inversion(*, seed: int = 0, epsilon: float = 4.0, crowd: int = 600, starts: int = 6) -> dict[str, Any]:
    """Three honest nodes of one record each: found exactly from exact sums, not found from paid ones (E4.8)."""
    rng = np.random.default_rng(seed)
    centres = np.array([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    honest = ("n0", "n1", "n2")

    def network(others: int) -> list[Site]:
        x = centres[np.arange(3 + others) % 3] + rng.normal(size=(3 + others, 2))
        return [*(Site(n, features=x[i : i + 1]) for i, n in enumerate(honest)), Site("z", features=x[3:])]

    exact = em_inversion.run(network(21), honest, seed=seed, n_components=3, rounds=2, tol=0.0, start="box")
    paid = em_inversion.run(
        network(crowd),
        honest,
        seed=seed,
        starts=starts,
        n_components=3,
        radius=10.0,
        aggregation="masked",
        privacy=Privacy(epsilon=epsilon, delta=1e-6),
    )
    return {
        "exact": {"error": exact.error, "spread": exact.spread, "succeeded": exact.succeeded},
        "paid": {
            "error": paid.error,
            "guess": paid.guess,
            "spread": paid.spread,
            "succeeded": paid.succeeded,
            "adjacency": "patient",
            "epsilon": epsilon,
            "delta": 1e-6,
        },
    }
