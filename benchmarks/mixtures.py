"""One EM iteration over ten sites against scikit-learn's on the pooled records, side by side in one process.

python benchmarks/mixtures.py [rows] [features] [components] [sites]
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np

import polyclinic as pc


def start(x: np.ndarray, k: int, kind: str) -> dict[str, np.ndarray]:
    d = x.shape[1]
    eye = {
        "full": np.stack([np.eye(d)] * k),
        "tied": np.eye(d),
        "diag": np.ones((k, d)),
        "spherical": np.ones(k),
    }
    return {"weights_init": np.full(k, 1 / k), "means_init": x[:k].copy(), "precisions_init": eye[kind]}


def theirs(x: np.ndarray, k: int, kind: str) -> float:
    """Seconds of one E-step and M-step; the best of two."""
    from sklearn.mixture import GaussianMixture

    m = GaussianMixture(k, covariance_type=kind, tol=0, max_iter=1, **start(x, k, kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m.fit(x[: 100 * k])
    spent = []
    for _ in range(2):
        begin = time.perf_counter()
        _, log_resp = m._e_step(x)
        m._m_step(x, log_resp)
        spent.append(time.perf_counter() - begin)
    return min(spent)


def ours(x: np.ndarray, k: int, kind: str, sites: int) -> float:
    """Seconds of one round of the fold, sums and wire included; the best of three after the first."""
    parts = [pc.Site(f"s{i:02d}", features=p) for i, p in enumerate(np.array_split(x, sites))]
    method = pc.GaussianMixture(n_components=k, covariance_type=kind, tol=0, rounds=4, **start(x, k, kind))
    moments: list[float] = []
    method.fit(parts, progress=lambda e: moments.append(time.perf_counter()) if e.kind == "round" else None)
    return float(np.diff(moments)[:-1].min())  # the last one holds the final score too


def main() -> None:
    rows, d, k, sites = (int(a) for a in (sys.argv[1:] + ["1000000", "20", "10", "10"][len(sys.argv) - 1 :])[:4])
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(k, d)) * 2
    x = centres[rng.integers(k, size=rows)] + rng.normal(size=(rows, d))
    for kind in ("full", "diag"):
        runs = [
            (ours(x, k, kind, sites), theirs(x, k, kind)) for _ in range(2)
        ]  # interleaved: the machine may be shared
        a, b = min(r[0] for r in runs), min(r[1] for r in runs)
        print(
            f"{kind:9s} {rows:,} x {d}, {k} components, {sites} sites: {a:.2f} s, pooled sklearn {b:.2f} s, ratio {a / b:.2f}"
        )


if __name__ == "__main__":
    main()
