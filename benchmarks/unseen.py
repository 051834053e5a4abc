"""Intensive-care tables nobody has looked at before: made anew from a seed, with the faults that real exports have.

    python benchmarks/unseen.py FOLDER --seed 77 [--tiny]

Writes FOLDER/files (events.csv, labels.csv), FOLDER/eicu (patient, diagnosis, treatment, medication) and a ``study.toml``
of defaults beside each. Many small units of 1 to 60 patients, rows that repeat up to thousands of times within a stay, codes
written as paths, `infinity` and impossible dates, text in the column of amounts, unknown labels. ``--tiny``: 160
hospitals of 1 to 10 patients. The syndromes are drawn at random; nothing of them is known to any setting.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SYSTEMS = [
    "cardiovascular",
    "pulmonary",
    "neurologic",
    "renal",
    "gastrointestinal",
    "infectious",
    "hematology",
    "endocrine",
    "trauma",
    "toxicology",
]
PARTS = [
    "acute",
    "chronic",
    "post-operative",
    "severe",
    "suspected",
    "recurrent",
    "drug-induced",
    "congenital",
    "traumatic",
    "mixed",
]
DRUGS = ["ol", "in", "ide", "ate", "pril", "mab", "xaban", "cillin", "azole", "statin"]


@dataclass(frozen=True)
class Stay:
    """One stay of one patient at one unit."""

    patient: int
    visit: int
    unit: int
    rows: tuple[tuple[str, str, int], ...]  # kind, code, how often
    died: str  # "1", "0" or ""


def vocabulary(rng: np.random.Generator) -> dict[str, list[str]]:
    """Codes of every kind: diagnoses and procedures as paths of three parts, drugs as names."""
    paths = [f"{a}|{a} {b} disorder|{b} {a} {k}" for a in SYSTEMS for b in PARTS for k in ("a", "b")]
    acts = [f"{a}|{b} procedure|{b} {a} line {k}" for a in SYSTEMS for b in PARTS[:6] for k in ("a", "b")]
    heads = [
        "".join(rng.choice(list("bdfklmnprstvz")) + rng.choice(list("aeiou")) for _ in range(2)) for _ in range(160)
    ]
    drugs = sorted({h + str(rng.choice(DRUGS)) for h in heads})
    return {"diagnosis": paths, "procedure": acts, "drug": drugs}


def stays(rng: np.random.Generator, sizes: list[int], syndromes: int = 12) -> list[Stay]:
    """Stays of patients with one or two syndromes each, a popular background, and a few very long records."""
    words = vocabulary(rng)
    planted = [{k: rng.choice(len(v), 7, replace=False) for k, v in words.items()} for _ in range(syndromes)]
    popular = {k: (1 / (1 + rng.permutation(len(v)))) for k, v in words.items()}
    popular = {k: p / p.sum() for k, p in popular.items()}
    deadly = rng.uniform(-2.5, 0.5, syndromes)
    out: list[Stay] = []
    patient = visit = 0
    for unit, size in enumerate(sizes):
        taste = rng.dirichlet(np.full(syndromes, 0.5)) * 0.5 + 0.5 / syndromes
        for _ in range(size):
            patient += 1
            own = rng.choice(syndromes, size=1 + int(rng.random() < 0.4), replace=False, p=taste)
            for _ in range(1 + int(rng.poisson(0.3))):
                visit += 1
                rows: list[tuple[str, str, int]] = []
                for kind, names in words.items():
                    codes = set(rng.choice(len(names), size=rng.poisson(3), p=popular[kind]).tolist())
                    for s in own:
                        codes |= {int(j) for j in planted[s][kind] if rng.random() < 0.6}
                    times = 1 + np.floor(rng.pareto(1.1, size=len(codes))).astype(int)
                    rows += [(kind, names[j], int(min(n, 4000))) for j, n in zip(sorted(codes), times)]
                risk = 1 / (1 + np.exp(-deadly[own].mean()))
                died = "" if rng.random() < 0.03 else str(int(rng.random() < risk))
                out.append(Stay(patient, visit, unit, tuple(rows), died))
    return out


def write_files(folder: Path, made: list[Stay], rng: np.random.Generator) -> None:
    """Plain files: one event table with dates, some of them impossible, and a table of labels."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "events.csv").open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["patient_id", "visit_id", "time", "kind", "code", "value", "site"])
        for s in made:
            day = f"20{10 + s.visit % 12:02d}-{1 + s.visit % 12:02d}-{1 + s.visit % 28:02d}"
            for kind, code, n in s.rows:
                for _ in range(n):
                    fault = rng.random()
                    when = "infinity" if fault < 0.001 else "20000-13-45" if fault < 0.002 else day
                    value = "half a tablet" if fault > 0.99 and kind == "drug" else ""
                    out.writerow([f"p{s.patient}", f"v{s.visit}", when, kind, code, value, f"unit {s.unit:03d}"])
    died: dict[int, str] = {}
    for s in made:
        died[s.patient] = max(died.get(s.patient, ""), s.died)
    with (folder / "labels.csv").open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(["patient_id", "label"])
        out.writerows([f"p{p}", label] for p, label in died.items())
    (folder / "study.toml").write_text(
        '[study]\nname = "unseen-files"\n[tensor]\nmodes = ["procedure", "diagnosis"]\n[labels]\noutcome = "label"\n'
        '[sites]\nsplit = true\n[sites.source]\nkind = "files"\nevents = "events.csv"\nlabels = "labels.csv"\n'
        '[method]\nname = "trip"\nrank = 10\naggregation = "masked"\n'
    )


def write_eicu(folder: Path, made: list[Stay], rng: np.random.Generator) -> None:
    """The same stays as eICU tables: offsets in minutes (some are text), ICD-9 for half of the diagnoses only."""
    folder.mkdir(parents=True, exist_ok=True)

    def table(name: str, head: str) -> tuple[object, object]:
        f = (folder / f"{name}.csv").open("w", newline="")
        out = csv.writer(f)
        out.writerow(head.split())
        return f, out

    files = {}
    head = (
        "patientunitstayid patienthealthsystemstayid uniquepid hospitalid hospitaldischargestatus hospitaladmitoffset "
    )
    files["patient"] = table(
        "patient", head + "hospitaldischargeoffset hospitaldischargeyear unittype unitadmitsource age gender"
    )
    files["diagnosis"] = table("diagnosis", "patientunitstayid diagnosisoffset icd9code diagnosisstring")
    files["treatment"] = table("treatment", "patientunitstayid treatmentoffset treatmentstring")
    files["medication"] = table("medication", "patientunitstayid drugstartoffset drugname drugordercancelled")
    files["admissiondx"] = table("admissiondx", "patientunitstayid admitdxname")
    codes: dict[str, str] = {}
    for s in made:
        status = {"1": "Expired", "0": "Alive", "": ""}[s.died]
        age = "> 89" if rng.random() < 0.04 else str(int(rng.integers(18, 90)))
        kind = ("MICU", "SICU", "CCU")[s.unit % 3]
        files["patient"][1].writerow(  # type: ignore[attr-defined]
            [
                s.visit,
                100000 + s.visit,
                f"u{s.patient}",
                s.unit,
                status,
                -200,
                9000,
                2014 + s.visit % 2,
                kind,
                "ED",
                age,
                "F",
            ]
        )
        for what, code, n in s.rows:
            if what == "diagnosis" and code not in codes:
                codes[code] = f"{300 + len(codes)}.{len(codes) % 10}, X{len(codes)}" if rng.random() < 0.5 else ""
            for _ in range(n):
                offset = (
                    "inf" if rng.random() < 0.001 else "soon" if rng.random() < 0.001 else int(rng.integers(0, 8000))
                )
                if what == "diagnosis":
                    files["diagnosis"][1].writerow([s.visit, offset, codes[code], code])  # type: ignore[attr-defined]
                elif what == "procedure":
                    files["treatment"][1].writerow([s.visit, offset, code])  # type: ignore[attr-defined]
                else:
                    files["medication"][1].writerow([s.visit, offset, code, "No"])  # type: ignore[attr-defined]
    for f, _ in files.values():
        f.close()  # type: ignore[attr-defined]
    (folder / "study.toml").write_text(
        '[study]\nname = "unseen-eicu"\n[tensor]\nmodes = ["procedure", "diagnosis"]\n[labels]\noutcome = "mortality"\n'
        '[sites]\nsplit = true\n[sites.source]\nkind = "eicu"\nfolder = "."\n'
        '[method]\nname = "trip"\nrank = 10\naggregation = "masked"\n'
    )


def write(folder: Path, seed: int, *, tiny: bool = False) -> list[Stay]:
    """Both exports of one network of units."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 11, 160) if tiny else np.minimum(np.ceil(rng.gamma(1.1, 20, 50)), 60).astype(int)
    made = stays(rng, sizes.tolist())
    write_files(folder / "files", made, rng)
    write_eicu(folder / "eicu", made, rng)
    return made


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    made = write(given.folder, given.seed, tiny=given.tiny)
    rows = sum(n for s in made for _, _, n in s.rows)
    print(
        f"{len({s.patient for s in made})} patients, {len(made)} stays, {len({s.unit for s in made})} units, {rows} rows"
    )


if __name__ == "__main__":
    main()
