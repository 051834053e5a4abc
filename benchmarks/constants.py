"""What half and twice of the constants of the methods cost: ``python benchmarks/constants.py``.

It prints the tables of docs/benchmarks/constants.md. Fresh networks: no constant was chosen on them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import polyclinic as pc

SEEDS = (7101, 7102)
MODULES = "polyclinic.methods."
CONSTANTS = {  # file, the fits that use it, names
    "extra_columns": ("gram", "BESIDE REACH ENERGY WORTH"),
    "starts.gram": ("gram", "STARTS CORRELATION TOGETHER ROUNDING LIFT"),
    "starts.hashed_cp": ("gram", "ITERATIONS GRADIENT ENOUGH CANCELS"),
    "packed_sumals": (
        "gram wide",
        "UNSURE CAREFUL PATIENT AUDITIONED LOOSE AWAY SLACK EVERY MENDS ROUNDING RARE SEEN WORTH",
    ),
    "starts.wide": ("wide", "STEPS WIDE ROUNDING SWEEPS COMING AWAY SLACK EVERY MENDS LOOSE"),
    "trip": ("trip", "SWEEPS"),
    "rounds.sweeps": ("exact", "SWEEPS"),
    "topics.method": ("topics", "ALPHA GUIDED LEARN_ALPHA"),
    "dpfact": ("elastic", "FORCE HALFWAY"),
    "starts.choice": ("gram wide", "ARRIVED WANDERING VAGUE WEAK"),
    "starts.candidates": ("wide", "SUBSETS CANDIDATES MODELS RANDOM ENUMERATE ITERATIONS"),
    "rounds.observed_pass": ("local", "WARM BATCHES LEAST SWEEPS FLOOR"),
    "packing.packed_sums": ("gram wide", "WIDER FAR"),
}


class Cost(NamedTuple):
    """Means over networks: kB of payload a site, explained sum of squares."""

    kilobytes: float
    explained: float


Fit = tuple[Any, list[Any], int]  # method, networks, rank


def networks(patients: int) -> list[Any]:
    """Generated hospitals with a known truth."""
    return [pc.datasets.icu_network(patients=patients, seed=s) for s in SEEDS]


def cost(method: Any, several: list[Any], rank: int) -> Cost:
    """Fit on every network; factors are judged with memberships solved anew."""
    rows = []
    for seed, sites in zip(SEEDS, several):
        model = method(seed=seed, rank=rank).fit(sites)
        explained = 1 - (1 - model.quality(sites)["fit"]) ** 2
        rows.append((model.traffic_.payload_bytes_up / len(sites) / 1000, explained))
    return Cost(*np.mean(rows, axis=0))


def scaled(value: Any, by: float) -> Any:
    """Half or twice of a constant: of a share near 1 the distance to 1, of a whole number at least 1."""
    if isinstance(value, tuple):
        return tuple(scaled(v, by) for v in value)
    if isinstance(value, int):
        return max(1, round(value * by))
    if not value:
        return by - 1.25  # no slack: -0.75 and 0.75 steps
    return 1 - (1 - value) * by if 0.85 < value < 1 else value * by


@contextmanager
def changed(file: str, name: str, value: Any) -> Iterator[None]:
    """The constant with another value, in every module that imported it from its own."""
    home = import_module(MODULES + file)
    own = getattr(home, name)
    holders = [m for key, m in list(sys.modules.items()) if key.startswith(MODULES) and vars(m).get(name) is own]
    holders = [m for m in holders if m is home or f"{file} import" in Path(str(m.__file__)).read_text()]
    try:
        for m in holders:
            setattr(m, name, value)
        yield
    finally:
        for m in holders:
            setattr(m, name, own)


def change(file: str, name: str, by: float, fit: Fit, shipped: Cost) -> str:
    """Bytes and explained sum of squares with another value, against the value as it is."""
    value = scaled(getattr(import_module(MODULES + file), name), by)
    with changed(file, name, value):
        try:
            now = cost(*fit)
        except Exception as e:
            return f"fails ({type(e).__name__})"
    if now == shipped:
        return "the same"
    return f"{now.kilobytes / shipped.kilobytes - 1:+.1%}, {now.explained / shipped.explained:.4f}"


def main() -> None:
    """Print the table."""
    large, small = networks(3000), networks(300)
    fits = {
        "gram": (pc.SumALS, large, 14),
        "wide": (pc.SumALS, small, 20),
        "local": (pc.LocalTF, large, 14),
        "trip": (pc.TRIP, large, 14),
        "exact": (partial(pc.SumALS, packed=False), large, 14),
        "topics": (pc.Topics, large, 14),
        "elastic": (partial(pc.DPFact, weights="elastic"), large, 14),
    }
    shipped = {start: cost(*fit) for start, fit in fits.items()}
    for start, base in shipped.items():
        print(f"{start}: {base.kilobytes:.1f} kB, explained {base.explained:.4f}", flush=True)
    for file, (starts, names) in CONSTANTS.items():
        for name in names.split():
            value = getattr(import_module(MODULES + file), name)
            for start in starts.split():
                half, twice = (change(file, name, by, fits[start], shipped[start]) for by in (0.5, 2.0))
                place = f"`{file.replace('.', '/')}.py` `{name}`"
                print(f"| {place} | {value} | {start} | {half} | {twice} |", flush=True)


if __name__ == "__main__":
    main()
