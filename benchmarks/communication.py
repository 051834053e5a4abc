"""Rounds and bytes until a federated model is as good as the pooled one: `python benchmarks/communication.py`.

For every method: the first round at which the RMSE over all cells of its global factors (memberships solved anew) is
within 1 % (icu_network) or 3 % (DE-SynPUF, five samples as sites) of pooled CPALS's, and the bytes that crossed the
sites' walls until then (serialised, both directions), over five seeds. "not reached" is a valid entry. Every method
runs with the papers' settings and with the best of a small grid of its own.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import polyclinic as pc
from polyclinic.sites.site import pooled
from polyclinic_papers.reach import reach

SETTINGS = {
    "TRIP": (pc.TRIP, {"warmup": 0}, [{}, {"warmup": 0}, {"warmup": 0, "penalty": 0.3}]),
    "TRIP, literal": (pc.TRIP, {"variant": "paper"}, [{"variant": "paper"}, {"variant": "paper", "penalty": 0.3}]),
    "LocalTF": (
        pc.LocalTF,
        {"zeros": "missing", "learning_rate": 0.01},
        [{}, {"local_passes": 2}, {"local_passes": 4}],
    ),
    "DPFact": (
        pc.DPFact,
        {"variant": "paper", "zeros": "missing", "elastic": 5.0, "learning_rate": 0.01, "sparsity": 1.0},
        [{"sparsity": 0.0}, {"sparsity": 0.0, "elastic": 0.3}, {"sparsity": 0.0, "elastic": 3.0}],
    ),
    "distributed SGD": (pc.DistributedSGD, {"zeros": "missing", "learning_rate": 0.01}, [{}]),
    "SumALS": (pc.SumALS, {"warmup": 0}, [{}, {"warmup": 0}, {"warmup": 5}]),
}

OLD = {
    "start": "random",
    "tol": 0.0,
}  # this page compares rounds from random starts; the Gram start: benchmarks/fewsums.py


def table(sites, rank: int, margin: float, seeds: int, rounds: int) -> list[dict]:
    union = pooled(sites).counts()
    unit = 8 * rank * sum(union.shape[1:]) * len(sites)  # one set of feature factors at every site
    rows = []
    for name, (cls, paper, grid) in SETTINGS.items():
        for label, options in (("papers' settings", [paper]), ("best of its grid", grid)):
            tried = []
            for setting in options:
                found = [
                    reach(
                        cls(
                            rank=rank, rounds=rounds, seed=s, **(OLD if cls in (pc.TRIP, pc.SumALS) else {}), **setting
                        ),
                        sites,
                        rank,
                        s,
                        margin,
                    )
                    for s in range(seeds)
                ]
                hits = [f for f in found if f is not None]
                cost = float(np.median([f["bytes"] if f else np.inf for f in found]))
                tried.append((cost, setting, found, hits))
            cost, setting, found, hits = min(tried, key=lambda t: (t[0], -len(t[3])))
            rows.append(
                {
                    "method": name,
                    "settings": label,
                    "chosen": setting,
                    "reached": f"{len(hits)} of {seeds}",
                    "rounds": float(np.median([f["rounds"] if f else np.inf for f in found]))
                    if np.isfinite(cost)
                    else None,
                    "bytes": cost if np.isfinite(cost) else None,
                    "units": cost / unit if np.isfinite(cost) else None,
                }
            )
            print(rows[-1], flush=True)
    return rows


def markdown(title: str, rows: list[dict]) -> str:
    out = [
        f"### {title}",
        "",
        "| method | settings | reached | rounds | MB, both ways | units |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [
            "not reached" if r["rounds"] is None else f"{r['rounds']:g}",
            "-" if r["bytes"] is None else f"{r['bytes'] / 1e6:.2f}",
            "-" if r["units"] is None else f"{r['units']:.1f}",
        ]
        out.append(
            f"| {r['method']} | {r['settings']} `{json.dumps(r['chosen'])}` | {r['reached']} | {' | '.join(cells)} |"
        )
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--patients", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--real", action="store_true", help="also DE-SynPUF (needs the open data)")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    network = pc.datasets.icu_network(patients=a.patients, seed=0)
    text = markdown(
        f"icu_network, {a.patients} patients, 6 sites, within 1 % of pooled",
        table(network, network.truth.rank + 2, 0.01, a.seeds, a.rounds),
    )
    if a.real:
        real = pc.datasets.load_synpuf()
        text += "\n" + markdown(
            "DE-SynPUF, 5 samples as sites, within 3 % of pooled", table(real, 10, 0.03, a.seeds, a.rounds)
        )
    print(text)
    if a.out:
        a.out.write_text(text)
