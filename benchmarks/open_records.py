"""Phenotype methods on open records: hidden codes, outcome, agreement of halves (docs/explanation/records.md).

    python benchmarks/open_records.py DATA [SEED ...] [--rank 10] [--methods topics trip ...] [--halves]

DATA is synpuf, diabetes130 or mimic3demo (POLYCLINIC_DATA names the folder). A fifth of the patients is held out by the seed.
Of every mode a third of the codes of a held-out patient is hidden. Recall@10 is the share of hidden codes among the ten codes
with the highest expected count, codes that were shown left out. AUC is a ridge logistic regression of the outcome on
memberships, learned on the other patients. Halves is the factor match score of fits on two halves of the patients.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import polyclinic as pc
from polyclinic.tensors.matching import factor_match_score
from polyclinic.tensors.side_by_side import side_by_side
from polyclinic_papers.prediction import predict, split

TOP, HIDDEN, BLOCK = 10, 3, 4096
LOADS: dict[str, Callable[[], Sequence[pc.Site]]] = {
    "synpuf": pc.datasets.load_synpuf,
    "diabetes130": pc.datasets.load_diabetes130,
    "mimic3demo": pc.datasets.load_mimic3_demo,
}
METHODS: dict[str, Callable[[int, int], Any]] = {
    "topics": lambda rank, seed: pc.Topics(rank=rank, seed=seed),
    "trip": lambda rank, seed: pc.TRIP(rank=rank, seed=seed),
    "sumals": lambda rank, seed: pc.SumALS(rank=rank, seed=seed),
    "dpem": lambda rank, seed: pc.DPEM(rank=rank, seed=seed, privacy=None),
}


def hidden_codes(tensor: pc.SparseTensor, mode: int, rng: np.random.Generator) -> tuple[pc.SparseTensor, np.ndarray]:
    """The cells without a third of every patient's codes of a mode, and (patients, codes) what was hidden."""
    size = tensor.shape[mode + 1]
    owner = np.repeat(tensor.rows, np.diff(tensor.indptr)).astype(np.int64)
    cell = owner * size + tensor.codes[mode]
    pairs = np.unique(cell)
    shuffled = rng.permutation(len(pairs))
    order = shuffled[np.argsort(pairs[shuffled] // size, kind="stable")]
    who = pairs[order] // size
    first = np.r_[True, who[1:] != who[:-1]]
    place = np.arange(len(who)) - np.maximum.accumulate(np.where(first, np.arange(len(who)), 0))
    number = np.bincount(who, minlength=tensor.patients)[who]
    hidden = np.sort(pairs[order][place < number // HIDDEN])
    stay = ~np.isin(cell, hidden)
    coords = np.column_stack([owner, *tensor.codes])[stay]
    truth = np.zeros((tensor.patients, size), bool)
    truth[hidden // size, hidden % size] = True
    return pc.SparseTensor(coords, tensor.values[stay], tensor.shape, tensor.axes), truth


def recall_at_ten(model: Any, tensor: pc.SparseTensor, mode: int, rng: np.random.Generator) -> float:
    """Share of hidden codes among the ten that the model expects most."""
    seen, truth = hidden_codes(tensor, mode, rng)
    patients, *factors = model.result_.placing.model(seen, model.factors_)
    for n, f in enumerate(factors):
        patients = patients if n == mode else patients * f.sum(0)
    rows = side_by_side(seen)
    first = sum(tensor.shape[1 : mode + 1])
    known = (rows.codes >= first) & (rows.codes < first + tensor.shape[mode + 1])
    shown = np.zeros(truth.shape, bool)
    shown[rows.owner[known], rows.codes[known] - first] = True
    hits = 0
    for a in range(0, len(truth), BLOCK):
        score = np.where(shown[a : a + BLOCK], -np.inf, patients[a : a + BLOCK] @ factors[mode].T)
        best = np.argpartition(-score, TOP, axis=1)[:, :TOP]
        hits += int(np.take_along_axis(truth[a : a + BLOCK], best, axis=1).sum())
    return hits / max(int(truth.sum()), 1)


def figures(name: str, sites: Sequence[pc.Site], rank: int, seed: int, halves: bool) -> dict[str, float]:
    """Every figure of one method on one split."""
    learn, test = split(sites, 0.8, seed)
    began = time.process_time()
    model = METHODS[name](rank, seed).fit(learn)
    row = {"seconds": time.process_time() - began}
    tensor = pc.SparseTensor.stack([s.counts() for s in test])
    for mode in range(tensor.ndim - 1):
        row[f"recall {tensor.axes[mode + 1].name}"] = recall_at_ten(model, tensor, mode, np.random.default_rng(seed))
    if all(s.labels is not None for s in sites):
        risks = [np.concatenate([model.transform(s) for s in part]) for part in (learn, test)]
        risks = [np.log1p(np.maximum(r, 0.0)) for r in risks]
        labels = [np.concatenate([np.asarray(s.labels) for s in part]) for part in (learn, test)]
        row["AUC"] = predict(risks[0], labels[0], risks[1], labels[1]).auc
    if halves:
        parts = split(sites, 0.5, seed + 1000)
        fits = [METHODS[name](rank, seed).fit(part).factors_ for part in parts]
        row["halves"] = factor_match_score(*fits)
    return row


def main() -> None:
    """Print one line a method and seed."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("data", choices=sorted(LOADS))
    ask.add_argument("seeds", nargs="*", type=int, default=[0])
    ask.add_argument("--rank", type=int, default=10)
    ask.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=["topics", "trip", "sumals", "dpem"])
    ask.add_argument("--halves", action="store_true")
    given = ask.parse_args()
    sites = LOADS[given.data]()
    for seed in given.seeds:
        for name in given.methods:
            row = figures(name, sites, given.rank, seed, given.halves)
            print(given.data, "seed", seed, name, *(f"{k} {v:.3f}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
