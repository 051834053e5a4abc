"""Local codes put right by ``pc.align_codes`` (docs/dev/decisions/0019-codes-by-co-occurrence.md).

    python benchmarks/local_codes.py CASE [SEED ...]

POLYCLINIC_DATA names the folder with diabetes130 and cms_desynpuf. A case is diabetes130 or synpuf (two halves of the patients by
the seed), or shift (all of diabetes130 against all of DE-SynPUF), with the share of renamed codes and perhaps epsilon, as in
``synpuf:0.3`` and ``synpuf:0.3:8``. Codes are diagnosis rubrics that at least 100 patients have in both halves (shift: 200). That choice
uses no privacy budget. ``null`` permutes all local labels, so that what is proposed is wrong. ``apart`` renames codes that the other side
lacks, so that no local code has a counterpart. With ``mixed`` half of them have one. ``attack`` is the same with a released model (Topics, 30 columns, masked sums over three
hospitals with half of the patients) in place of the common table: a party with the other half names codes of the model. ``fms`` fits
Topics with 10 columns on both hospitals after all proposals are accepted, and compares it with the fit on the true codes.
"""

from __future__ import annotations

import csv
import gzip
import os
import sys
import time
import warnings
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

import polyclinic as pc
from polyclinic.alignment.local_codes import CodePairs
from polyclinic.alignment.matching import Directions, match
from polyclinic.records.events.code_maps import CodePair
from polyclinic.tensors.matching import factor_match_score

COLUMNS = 10  # of the joint models
DATA = Path(os.environ.get("POLYCLINIC_DATA", "../shared/data"))


def rubric(code: str) -> str:
    """The category of an ICD-9 code."""
    code = code.split(".")[0].strip()
    return "" if code in ("", "?") else code[:4] if code[0] == "E" else code[:3].zfill(3)


@cache
def records(name: str) -> tuple[csr_matrix, list[str]]:
    """(patients, codes) which rubrics a patient has."""
    if name == "diabetes130":
        files, patient, columns = [DATA / name / "diabetic_data.csv.gz"], "patient_nbr", ["diag_1", "diag_2", "diag_3"]
    else:
        files = sorted(DATA.glob("cms_desynpuf/sample_*/inpatient_claims.csv.gz"))
        patient, columns = "DESYNPUF_ID", [f"ICD9_DGNS_CD_{k}" for k in range(1, 11)]
    who, what = [], []
    for file in files:
        with gzip.open(file, "rt") as f:
            for row in csv.DictReader(f):
                codes = [c for c in (rubric(row[k] or "") for k in columns) if c]
                who += [f"{file.parent.name}/{row[patient]}"] * len(codes)
                what += codes
    people, i = np.unique(who, return_inverse=True)
    listed, j = np.unique(what, return_inverse=True)
    present = csr_matrix((np.ones(len(i)), (i, j)), (len(people), len(listed)))
    present.data[:] = 1.0
    return present, listed.tolist()


def parts(name: str, rng: np.random.Generator) -> tuple[list[csr_matrix], list[str]]:
    """Two tables of patients over the same codes, those with enough patients in both."""
    if name == "shift":
        (a, first), (b, second) = records("diabetes130"), records("synpuf")
        common = sorted(set(first) & set(second))
        tables, least = [a[:, [first.index(c) for c in common]], b[:, [second.index(c) for c in common]]], 200
    else:
        present, common = records(name)
        half = rng.integers(0, 2, present.shape[0])
        tables, least = [present[half == 0], present[half == 1]], 100
    kept = np.flatnonzero(np.minimum(*(np.asarray(t.sum(0)).ravel() for t in tables)) >= least)
    return [t[:, kept] for t in tables], [common[k] for k in kept]


def site(name: str, present: csr_matrix, codes: list[str]) -> pc.Site:
    """A hospital with these patients."""
    entries = present.tocoo()
    axis = pc.Axis("diagnosis", tuple(codes), vocabulary="public")
    coords = np.column_stack([entries.row, entries.col])
    return pc.Site(name, pc.SparseTensor(coords, entries.data, entries.shape, ["patient", axis]))


def hospitals(case: str, seed: int) -> tuple[list[pc.Site], list[str], dict[str, str]]:
    """Two hospitals, the codes of the first, and the true code of every renamed one."""
    name, share, *more = case.split(":")
    rng = np.random.default_rng(seed)
    tables, codes = parts(name, rng)
    m = len(codes)
    renamed = rng.permutation(m)[: round(float(share) * m)]
    truth = {f"local {k}": codes[k] for k in renamed}
    labels = [f"local {k}" if k in set(renamed.tolist()) else c for k, c in enumerate(codes)]
    if "null" in more:
        labels = [labels[k] for k in rng.permutation(m)]
    if {"apart", "mixed"} & set(more):
        apart = renamed if "apart" in more else renamed[: 2 * len(renamed) // 3]
        first, second = apart[: len(apart) // 2], apart[len(apart) // 2 :]
        kept = [np.setdiff1d(np.arange(m), x) for x in (second, first)]
        tables = [t[:, k] for t, k in zip(tables, kept)]
        codes, labels = [codes[k] for k in kept[0]], [labels[k] for k in kept[1]]
    order = np.argsort(labels)  # places say nothing
    local = site("local", tables[1][:, order], [labels[k] for k in order])
    return [site("common", tables[0], codes), local], codes, truth


def trial(case: str, seed: int) -> dict[str, float]:
    """Shares: of the renamed codes with a counterpart right, and right among the first two; of all and of the others proposed."""
    sites, codes, truth = hospitals(case, seed)
    labels = sites[1].counts().axes[1].labels or ()
    epsilon = next((float(x) for x in case.split(":")[2:] if x[0].isdigit()), None)
    privacy = None if epsilon is None else pc.Privacy(epsilon, 1e-6)
    began = time.process_time()
    found = pc.align_codes(sites, ["local"], privacy=privacy, seed=seed)
    matched = {x for x in labels if truth.get(x) in codes}
    return {
        "right": sum(truth.get(p.local) == p.code for p in found) / max(len(matched), 1),
        "first two": sum(truth.get(p.local) in (p.code, p.runner_up) for p in found) / max(len(matched), 1),
        "proposed": len(found) / len(found.open + found.pairs),
        "without a counterpart": sum(p.local not in matched for p in found)
        / max(len(set(labels) & set(truth) - matched), 1),
        "codes": len(codes),
        "seconds": time.process_time() - began,
    }


def joint(case: str, seed: int) -> dict[str, float]:
    """Factor match of the model on aligned codes to the model on the true codes. A code that stays local is a code of its own."""
    sites, _, truth = hospitals(case, seed)
    pairs = pc.align_codes(sites, ["local"], seed=seed)
    true = CodePairs(tuple(CodePair("diagnosis", x, c, accept="yes") for x, c in truth.items()))
    fits = [
        columns(s) for s in (true.apply(sites, ["local"]), pairs.confirm().apply(sites, ["local"]), pc.align(sites))
    ]
    every = sorted({c for fit in fits for c in fit})
    empty = np.zeros(COLUMNS)
    harmonised, aligned, apart = (np.array([fit.get(c, empty) for c in every]) for fit in fits)
    return {
        "fms": factor_match_score([harmonised], [aligned]),
        "fms without alignment": factor_match_score([harmonised], [apart]),
        "right": sum(truth.get(p.local) == p.code for p in pairs) / len(truth),
    }


def columns(sites: list[pc.Site]) -> dict[str, np.ndarray]:
    """Code -> its row of a joint model."""
    model = pc.Topics(rank=COLUMNS, aggregation="plain", seed=0).fit(sites)
    return dict(zip(sites[0].counts().axes[1].labels or (), model.factors_[0], strict=True))


def attack(case: str, seed: int) -> dict[str, float]:
    """Share of unknown codes that a party with similar patients names from the model."""
    name, share, *_ = case.split(":")
    rng = np.random.default_rng(seed)
    tables, codes = parts(name, rng)
    deal = rng.integers(0, 3, tables[0].shape[0])
    sites = [site(f"h{k}", tables[0][deal == k], codes) for k in range(3)]
    columns = pc.Topics(rank=30, aggregation="masked", seed=seed).fit(sites).factors_[0]
    unknown = rng.permutation(len(codes))[: round(float(share) * len(codes))]
    known = np.setdiff1d(np.arange(len(codes)), unknown)
    own = tables[1].multiply(1 / np.maximum(tables[1].sum(1), 1)).tocsr()
    pairs = [columns @ columns.T, (tables[1].T @ own).toarray()]
    for q in pairs:
        np.fill_diagonal(q, 0.0)
    shown = Directions.of(pairs[0] * pairs[1].sum() / pairs[0].sum())
    rows, places, found = match(shown, Directions.of(pairs[1]), (known, known), np.ones_like(pairs[0], bool))
    return {"named": float((rows[found.rows] == places[found.columns]).mean()), "chance": 1 / len(unknown)}


def main() -> None:
    """Print the mean of every case."""
    case, *seeds = sys.argv[1:]
    kind = attack if "attack" in case else joint if "fms" in case else trial
    rows = [kind(case, int(s)) for s in seeds or ["0"]]
    print(case, "seeds", *seeds, *(f"{k} {np.mean([r[k] for r in rows]):.3f}" for k in rows[0]), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
