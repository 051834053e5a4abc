"""What comes back, and whether it is true: `python benchmarks/replicate.py planted|records [--key fresh] [--seeds 0 4] [--repeats 3] [--control]`.

planted: flagged phenotypes that were planted (every mode's cosine at least .8), and planted ones that are flagged, over
backgrounds, ranks and seeds; every seed has its own key. records: DE-SynPUF, diabetes-130, MIMIC demo, one line a key: flagged,
their cosine between halves (of several halvings the median), kB a site and halving beside those of a single fit. `--control` does the same with permuted codes.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import polyclinic as pc
from polyclinic.analysis.replication.negative_control import permuted
from polyclinic.records.sites.site import Sites

TRUE = 0.8  # cosine with the planted column, in every mode
LAWS: tuple[tuple[str, int, float, float], ...] = (  # name, planted, background, events
    ("no background", 8, 0.0, 28.5),
    ("30 % background", 8, 0.3, 28.5),
    ("50 % background", 8, 0.5, 28.5),
    ("50 % background, 8 events", 12, 0.5, 8.0),
)
RECORDS: dict[str, Callable[[], Sites]] = {
    "DE-SynPUF": pc.datasets.load_synpuf,
    "diabetes-130": pc.datasets.load_diabetes130,
    "MIMIC demo": pc.datasets.load_mimic3_demo,
}


def likeness(factors: list[np.ndarray], truth: list[np.ndarray]) -> np.ndarray:
    """(R, planted) the weakest mode's cosine."""
    unit = [[x / np.maximum(np.linalg.norm(x, axis=0), 1e-300) for x in side] for side in (factors, truth)]
    return np.min([a.T @ b for a, b in zip(*unit)], axis=0)


def planted(seed: int, key: str, control: bool, ranks: list[int], repeats: int) -> None:
    for name, true, background, events in LAWS:
        sites = pc.datasets.planted_counts(
            3000, 60, 80, phenotypes=true, codes=(6, 8), sites=4, seed=seed, background=background, events=events
        )
        truth = list(sites.truth.factors)
        for rank in [r + true - 8 for r in ranks]:
            began = time.process_time()
            found = pc.replicate(
                pc.SumALS(rank=rank, seed=seed), permuted(sites, seed) if control else sites, repeats, key=key
            )
            flags = np.array(found.table["replicable"], bool)
            like = likeness(found.model.factors_, truth)[flags]
            right, hit = int((like.max(1, initial=0) >= TRUE).sum()), int((like.max(0, initial=0) >= TRUE).sum())
            told = f"{len(flags)} columns, flagged {flags.sum()}, of them true {right}; planted {true}, flagged {hit}"
            false = [f"{x.max():.2f}" for x in like if x.max() < TRUE]
            print(seed, name, f"rank {rank}:", told, *false, f"({time.process_time() - began:.0f} s)", flush=True)


def records(name: str, seed: int, key: str, control: bool, rank: int, repeats: int) -> None:
    sites = RECORDS[name]()
    sites = permuted(sites, seed) if control else sites
    began = time.process_time()
    single = pc.SumALS(rank=rank, seed=seed).fit(sites).traffic_.bytes_up / len(sites) / 1e3
    found = pc.replicate(pc.SumALS(rank=rank, seed=seed), sites, repeats, key=key)
    sent = found.outcome.traffic.bytes_up / len(sites) / 1e3
    good = [r for r in found.table if r["replicable"]]
    linked = sum(bool(r["holds_together"]) for r in found.table)
    told = f"{len(good)} of {len(found.table)} replicable, {linked} linked, cosines {[round(r['halves'], 2) for r in good]}"
    more = (sent - single) / single / repeats
    print(
        name,
        key,
        told,
        f"{sent:.0f} kB a site, {more:.2f}x more a halving ({time.process_time() - began:.0f} s)",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["planted", *RECORDS])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 3))
    parser.add_argument("--key", default="halving")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+", default=[10, 12])
    parser.add_argument("--repeats", type=int, default=1)
    a = parser.parse_args()
    for seed in range(*a.seeds):
        if a.what == "planted":
            planted(seed, f"{a.key} {seed}", a.control, a.ranks, a.repeats)
        else:
            records(a.what, seed, f"{a.key} {seed}", a.control, a.ranks[0], a.repeats)
