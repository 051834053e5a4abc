"""First contact: a folder of tables of a known kind, all defaults, and what a newcomer must find in the report.

    python tests/acceptance/first_contact.py FOLDER [--kind mimic3] [--out DIR] [--named 4] [--shown 0.5]

Writes a study with defaults only, runs ``polyclinic simulate`` and ``polyclinic report --export`` as a user would, and ends
with exit code 1 and a list of what is missing if the report lacks names, the outcome that was asked for (or the reason why
it cannot be shown), the table of who was left out, or a reason for what is hidden. Nothing is tuned to a data set.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "mimic3": {"modes": ["drug", "diagnosis"], "codes": {"diagnosis": "ccs"}, "split": True},
    "mimic4": {"modes": ["drug", "diagnosis"], "codes": {}, "split": True},
    "eicu": {"modes": ["drug", "diagnosis"], "codes": {}, "split": True},
    "synpuf": {"modes": ["procedure", "diagnosis"], "codes": {"diagnosis": "ccs"}, "split": True},
    "omop": {"modes": ["drug", "diagnosis"], "codes": {}, "split": False},
    "diabetes130": {"modes": ["medication", "diagnosis"], "codes": {"diagnosis": "ccs"}, "split": True},
}
TABLES = {  # a table that only this kind has
    "mimic3": "diagnoses_icd.csv",
    "mimic4": "hosp",
    "eicu": "admissiondx.csv",
    "omop": "condition_occurrence.csv",
    "diabetes130": "diabetic_data.csv",
    "synpuf": "sample_01",
}
DRUGS = (
    "metformin repaglinide nateglinide chlorpropamide glimepiride acetohexamide glipizide glyburide tolbutamide pioglitazone "
    "rosiglitazone acarbose miglitol troglitazone tolazamide examide citoglipton insulin glyburide-metformin "
    "glipizide-metformin glimepiride-pioglitazone metformin-rosiglitazone metformin-pioglitazone"
)


@dataclass
class Contact:
    """What a newcomer found."""

    folder: Path
    out: Path
    missing: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def kind_of(folder: Path) -> str:
    """The kind of tables, by the table that only it has."""
    names = {p.name.lower().removesuffix(".gz") for p in folder.iterdir()}
    found = [k for k, table in TABLES.items() if table in names]
    if not found:
        raise SystemExit(f"{folder}: no known kind of tables; known: {', '.join(TABLES)} (use --kind)")
    return found[0]


def study_of(folder: Path, kind: str, method: str) -> dict[str, Any]:
    """A study with defaults only."""
    rule = KINDS[kind]
    source: dict[str, Any] = {"kind": kind, "folder": str(folder.resolve())}
    outcome = "mortality"
    if kind == "diabetes130":
        file = next(p for p in folder.iterdir() if p.name.startswith("diabetic_data.csv"))
        source = {
            "kind": "files",
            "events": str(file.resolve()),
            "missing": ["?"],
            "columns": {
                "patient_id": "patient_nbr",
                "visit_id": "encounter_id",
                "time": "",
                "site": "admission_source_id",
            },
            "label": "readmitted",
            "positive": ["<30"],
            "systems": {"diagnosis": "icd9cm"},
            "wide": {
                "diagnosis": {"columns": ["diag_1", "diag_2", "diag_3"]},
                "medication": {"columns": DRUGS.split(), "code": "column", "without": ["No"]},
            },
        }
        outcome = "readmitted"
    aggregation = "masked" if rule["split"] else "plain"
    return {
        "study": {"name": f"first-contact-{kind}"},
        "tensor": {"modes": rule["modes"]},
        "codes": {mode: {"to": to} for mode, to in rule["codes"].items()},
        "labels": {"outcome": outcome},
        "sites": {"split": rule["split"], "source": source},
        "method": {"name": method, "rank": 10, "aggregation": aggregation},
    }


def toml(values: dict[str, Any], at: str = "") -> str:
    """TOML of nested tables of texts, numbers, booleans and lists."""
    plain = {k: v for k, v in values.items() if not isinstance(v, dict)}
    lines = [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in plain.items()]
    for k, v in values.items():
        if isinstance(v, dict):
            name = f"{at}.{json.dumps(k)}" if at else json.dumps(k)
            lines += [f"[{name}]", toml(v, name)]
    return "\n".join(lines) + "\n"


def run(folder: Path, out: Path, *, kind: str | None = None, method: str = "trip") -> Contact:
    """Simulate and report by the command line, then look for what a newcomer needs."""
    out.mkdir(parents=True, exist_ok=True)
    study = out / "study.toml"
    study.write_text(toml(study_of(folder, kind or kind_of(folder), method)), encoding="utf-8")
    return look(study, out)


def look(study: Path, out: Path) -> Contact:
    """Run a study file, and list what its report lacks."""
    made = Contact(study.parent, out)
    place = out / "run"
    for command in (["simulate", str(study), "--out", str(place), "--json"], ["report", str(place), "--export"]):
        done = subprocess.run([sys.executable, "-m", "polyclinic.cli", *command], capture_output=True, text=True)
        if done.returncode:
            made.missing.append(f"polyclinic {command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
            return made
    judge(place, made)
    return made


def judge(place: Path, made: Contact) -> None:
    """What the run folder's report lacks."""
    page = (place / "report.html").read_text(encoding="utf-8")
    metrics = json.loads((place / "metrics.json").read_text())
    asked = json.loads((place / "study.json").read_text())
    about = list(csv.DictReader((place / "exports" / "phenotypes.csv").open(encoding="utf-8")))
    named = [r for r in about if r["codes may name it"] == "True"]
    made.figures |= {
        "sites": len(asked["sites"]),
        "phenotypes": len(about),
        "named": len(named),
        "names": [r["suggested name"] for r in named],
        "outcome_unknown": metrics.get("outcome_unknown"),
        "auc": metrics.get("auc"),
        "shown": _median_shown(place),
    }
    if metrics.get("phenotypes_named") != len(named):
        made.missing.append(f"metrics.json says {metrics.get('phenotypes_named')} named, phenotypes.csv {len(named)}")
    for row in about:
        if row["codes may name it"] != "True" and not row["why no name is suggested"]:
            made.missing.append(f"phenotype {row['phenotype']} has no name and no reason")
    if any(row["codes may name it"] != "True" for row in about) and "cannot be named here" not in page:
        made.missing.append("the report hides names and does not say so at the top")
    if any(int(row["codes not shown"]) for row in about) and "What would help" not in page and len(named) < len(about):
        made.missing.append("the report does not say what would help")
    if asked["study"].get("labels"):
        findings = place / "findings.json"
        outcome = json.loads(findings.read_text()).get("outcome") if findings.is_file() else None
        if outcome is None or 'id="panel-findings"' not in page:
            made.missing.append("the outcome that was asked for has no place in the report")
        else:
            made.figures["outcome"] = outcome["name"]
            if not outcome["effects"] and not outcome["note"]:
                made.missing.append("the outcome has neither figures nor a reason")
            elif not outcome["effects"] and outcome["note"] not in page:
                made.missing.append("the report does not print why the outcome cannot be shown")
    if "Who was left out" not in page:
        made.missing.append("the table of who was left out, step by step, is not in the report")
    if not (place / "exports" / "codes.csv").is_file():
        made.missing.append("exports/codes.csv was not written")


def _median_shown(place: Path) -> float | None:
    """Median over phenotypes and modes of the share of the five heaviest codes' weight that is shown."""
    import numpy as np

    with np.load(place / "outcome.npz") as whole, np.load(place / "exports" / "outcome.npz") as shown:
        names = [k for k in whole.files if k.startswith("factor")]
        shares = []
        for name in names:
            full, left = np.abs(whole[name]), np.abs(shown[name])
            for r in range(full.shape[1]):
                top = np.argsort(-full[:, r])[:5]
                shares.append(float((left[top, r] > 0).mean()))
    return float(np.median(shares)) if shares else None


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=sorted(KINDS))
    parser.add_argument("--method", default="trip")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--named", type=int, default=1, help="least number of phenotypes with a name")
    parser.add_argument("--shown", type=float, default=0.0, help="least median share of the five heaviest codes")
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="first-contact-"))
    made = run(given.folder, out, kind=given.kind, method=given.method)
    if not made.missing and made.figures["named"] < given.named:
        made.missing.append(f"{made.figures['named']} phenotypes have a name, asked for {given.named}")
    if not made.missing and (made.figures["shown"] or 0.0) < given.shown:
        made.missing.append(f"median share of shown top codes {made.figures['shown']}, asked for {given.shown}")
    print(json.dumps({"out": str(out), "figures": made.figures, "missing": made.missing}, indent=1))
    return 1 if made.missing else 0


if __name__ == "__main__":
    sys.exit(main())
