"""Hospitals for a rehearsal: each with its own node file, its own database file and a public list of codes.

The records are drawn from a known truth (three planted phenotypes over drugs and diagnoses, two clusters of patients in a
matrix of measurements), so nothing here is about a real patient.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

NAMES = ("east", "north", "south")
DRUGS, DIAGNOSES, COLUMNS = 30, 24, 6
EVERY_WAY = ["masked", "subspace", "plain", "median", "trimmed", "geometric", "krum", "multikrum", "bounded", "cycle"]


def hospital(
    folder: Path,
    name: str,
    *,
    patients: int = 60,
    seed: int = 0,
    policy: str = "",
    more: str = "",
    rehearsal: bool = False,
) -> Path:
    """Write one hospital's records and node file; returns the node file."""
    import duckdb

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, *name.encode()])
    planted = np.random.default_rng(7)  # the same phenotypes everywhere
    drugs = planted.dirichlet(np.full(DRUGS, 0.15), 3)
    diagnoses = planted.dirichlet(np.full(DIAGNOSES, 0.15), 3)
    events, features = [], []
    for p in range(patients):
        mix = rng.dirichlet([0.4, 0.4, 0.4])
        for visit in range(1 + int(rng.integers(3))):
            k = int(rng.choice(3, p=mix))
            when = f"2024-{1 + visit:02d}-{1 + int(rng.integers(27)):02d} 08:00:00"
            for kind, table, count in (("drug", drugs, 4), ("diagnosis", diagnoses, 3)):
                for code in sorted(set(rng.choice(table.shape[1], count, p=table[k]).tolist())):
                    events.append((f"{name}-{p}", f"{name}-{p}-{visit}", when, kind, f"{kind[:2].upper()}{code:02d}"))
        centre = np.where(mix[0] > 0.5, 1.5, -1.5)
        row = rng.normal(centre, 1.0, COLUMNS)
        features.append((f"{name}-{p}", *(float(x) for x in row), int(mix[0] > 0.5)))
    with duckdb.connect(str(folder / "records.duckdb")) as con:  # the hospital's own database
        con.execute(
            "CREATE TABLE events (patient_id VARCHAR, visit_id VARCHAR, time TIMESTAMP, kind VARCHAR, code VARCHAR)"
        )
        rows = dict(zip(("patient_id", "visit_id", "time", "kind", "code"), map(np.array, zip(*events))))
        con.register("rows", rows)
        con.execute("INSERT INTO events SELECT patient_id, visit_id, CAST(time AS TIMESTAMP), kind, code FROM rows")
        con.execute(f"COPY events TO '{folder / 'events.parquet'}' (FORMAT parquet)")
    columns = [f"x{i}" for i in range(COLUMNS)]
    with open(folder / "features.csv", "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([["patient_id", *columns, "status"], *features])
    own = np.random.default_rng([seed + 1, *name.encode()])  # apart, so that the events stay what they were
    people: list[list[object]] = [["patient_id", "label", "age", "sex", "days", "died"]]
    for p, (*_, ill) in enumerate(features):
        sick = own.random() < (0.55 if ill else 0.2)
        days = int(own.integers(1, 700))
        people.append([f"{name}-{p}", int(sick), int(own.integers(25, 95)), own.choice(["F", "M"]), days, int(sick)])
    with open(folder / "labels.csv", "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows(people)
    if not rehearsal:  # a test between hosts: every way to add, any number of exact studies
        policy += "" if "sums" in policy else f"\nsums = {json.dumps(EVERY_WAY)}"
        policy += "" if "max_e" in policy else "\nmax_exact = 1000"
    node = folder / "node.toml"
    node.write_text(
        f'[site]\nname = "{name}"\nfolder = "site"\n{"rehearsal = true" if rehearsal else ""}\n'
        '[source]\nkind = "files"\nevents = "events.parquet"\nfeatures = "features.csv"\nlabels = "labels.csv"\n'
        f"[policy]\nmin_sites = 3\n{policy}\n"
        f'[keys]\nstudies = "policy"  # signed studies of pinned sites within the policy run without a question\npace = 0  # formal studies may answer at once: these patients are not real\n{more}\n',
        encoding="utf-8",
    )
    node.chmod(0o600)
    return node


def vocabulary(folder: Path, drugs: int = DRUGS, diagnoses: int = DIAGNOSES) -> None:
    """The public lists of codes that every study names; they may be longer than what occurs."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, size in (("drug", drugs), ("diagnosis", diagnoses)):
        rows = [["code", "name"], *([f"{kind[:2].upper()}{i:02d}", f"{kind} {i}"] for i in range(size))]
        with open(folder / f"{kind}.csv", "w", newline="", encoding="utf-8") as f:
            csv.writer(f).writerows(rows)


TENSOR = """
[tensor]
modes = ["drug", "diagnosis"]
window = "visit"
vocabulary = {drug = "drug.csv", diagnosis = "diagnosis.csv"}
minimum_patients = 1  # a few made-up patients; by default codes of fewer than 11 over all sites are left out
"""
FEATURES = """
[features]
columns = ["x0", "x1", "x2", "x3", "x4", "x5"]
label = "status"
"""


def study(folder: Path, name: str, method: str, *, data: str = TENSOR, head: str = "", tail: str = "") -> Path:
    """Write a study file beside the public lists; fitted once, unless it is evaluated or says otherwise."""
    path = folder / f"{name}.toml"
    if "[evaluate]" not in tail and "replicate" not in head:
        head = f"replicate = 0\n{head}"
    path.write_text(
        f'[study]\nname = "{name}"\nseed = 3\npace = 0\nreading = 0\n{head}\n{data}\n[method]\n{method}\n{tail}\n',
        encoding="utf-8",
    )
    return path
