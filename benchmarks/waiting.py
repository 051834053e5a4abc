"""What users wait for, in seconds of processor time: ``python benchmarks/waiting.py [--against CHECKOUT] [--only WORD ...]``.

Each row runs in a process of its own, on kernels that are on disk. With ``--against`` another checkout (with its own .venv)
runs each row in turn with this one, and the last column is that checkout's time divided by ours. Rows on open data need
POLYCLINIC_DATA. The profile attributes the time inside Python functions to what they do. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
DATA: Final = Path(os.environ.get("POLYCLINIC_DATA", HERE.parent.parent / "shared" / "data"))
NETWORK: Final = "import polyclinic as pc; s = pc.datasets.icu_network(patients=1200, seed=0); "
FITS: Final = {
    "CPALS": "pc.CPALS(rank=12, seed=0)",
    "TRIP": "pc.TRIP(rank=12, seed=0)",
    "TRIP masked": "pc.TRIP(rank=12, seed=0, aggregation='masked')",
    "SumALS masked": "pc.SumALS(rank=12, seed=0, aggregation='masked')",
    "LocalTF": "pc.LocalTF(rank=12, seed=0)",
    "DPFact": "pc.DPFact(rank=12, seed=0)",
    "DPEM": "pc.DPEM(rank=12, seed=0, privacy=pc.Privacy(2.0, delta=1e-6))",
}
STUDIES: Final = {  # a study file by open data set, as the guide writes it
    "MIMIC demo": """[tensor]
modes = ["drug", "abnormal_lab"]
window = "day"
cap = 3
top = {drug = 200, abnormal_lab = 100}
[labels]
outcome = "mortality"
[sites]
split = true
[sites.source]
kind = "mimic3"
folder = "DATA/mimic3_demo"
[method]
name = "trip"
rank = 8
aggregation = "masked"
""",
    "DE-SynPUF": """[tensor]
modes = ["procedure", "diagnosis"]
[codes.diagnosis]
to = "ccs"
[sites]
split = true
[sites.source]
kind = "synpuf"
folder = "DATA/cms_desynpuf"
[method]
name = "trip"
rank = 10
aggregation = "masked"
""",
    "diabetes-130": """[data]
dataset = "load_diabetes130"
[method]
name = "trip"
rank = 10
aggregation = "masked"
""",
}
KINDS: Final = (  # file of a profiled function -> what it does; the first that fits
    ("compiling kernels", r"numba/|llvmlite/"),
    ("importing", r"importlib|marshal|<frozen"),
    ("cryptography", r"cryptography|hashlib|_hashlib|secure/|ledger|prime_field|blake"),
    ("serialising", r"wire/|json|zlib|pickle|msgpack|struct"),
    ("reading records", r"records/|duckdb|csv|gzip|pandas|pyarrow|datasets|open_data"),
    ("disk", r"posix|tempfile|shutil|atomic|_io\.|io\."),
    ("arithmetic", r"tensors/|numpy|scipy|methods/|analysis/|models/"),
    ("report", r"report/|jinja2|markupsafe"),
)


def seconds(python: Path, code: str, folder: Path) -> float | None:
    """Processor seconds of a program and its children; None if it failed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, env={**os.environ})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(f"    {python.parents[2].name}: {done.stderr.strip().splitlines()[-1][:140]}", file=sys.stderr)
        return None
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows() -> dict[str, str]:
    """Return the name of every row and its program."""
    command = "from polyclinic.cli import main; main({!r})".format
    out = {
        "import polyclinic": "import polyclinic",
        "polyclinic --help": command(["--help"]),
        **{f"first fit: {n}": f"{NETWORK}{fit}.fit(s)" for n, fit in FITS.items()},
        **{f"two fits: {n}": f"{NETWORK}{fit}.fit(s); {fit}.fit(s)" for n, fit in FITS.items()},
        "evaluate": f"{NETWORK}pc.evaluate({FITS['SumALS masked']}.fit(s), s)",
        "replicate": f"{NETWORK}pc.replicate({FITS['SumALS masked']}, s)",
        "demo": command(["demo", "--out", "demo"]),
    }
    for name, text in STUDIES.items():
        if DATA.is_dir():
            study = f'[study]\nname = "wait"\nseed = 0\n{text}'.replace("DATA", str(DATA))
            steps = [["simulate", "study.toml", "--out", "run"], ["report", "run"]]
            calls = "".join(f"\ntry: main({s!r})\nexcept SystemExit as e: assert not e.code, e.code" for s in steps)
            out[f"simulate and report: {name}"] = (
                f"from pathlib import Path; Path('study.toml').write_text({study!r})\nfrom polyclinic.cli import main{calls}"
            )
    return out


def profile(code: str) -> str:
    """Return where the time of a program goes, in per cent by kind."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        recorded = cProfile.Profile()
        try:
            recorded.run(code)
        except SystemExit:
            pass
        finally:
            os.chdir(here)
    spent: dict[str, float] = {}
    for (file, _, function), (_, _, own, _, _) in pstats.Stats(recorded).stats.items():  # type: ignore[attr-defined]
        place = f"{file} {function}"
        kind = next((k for k, pattern in KINDS if re.search(pattern, place)), "other Python")
        spent[kind] = spent.get(kind, 0.0) + own
    whole = sum(spent.values())
    return ", ".join(f"{k} {100 * v / whole:.0f} %" for k, v in sorted(spent.items(), key=lambda kv: -kv[1]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout with a .venv, run in turn with this one")
    parser.add_argument("--only", nargs="*", default=[], help="rows with one of these words in their name")
    parser.add_argument("--profile", action="store_true", help="attribute the time of each row")
    asked = parser.parse_args()
    pythons = [Path(sys.executable)]
    if asked.against:
        pythons.append(asked.against.absolute() / ".venv" / "bin" / "python")
    print("| what | processor seconds |" + (" the other | other / ours |" if asked.against else ""))
    print("|---|---|" + ("---|---|" if asked.against else ""))
    for name, code in rows().items():
        if asked.only and not any(word in name for word in asked.only):
            continue
        taken: list[float | None] = []
        for python in pythons:
            tries = []
            for _ in range(2):  # the first of two may still compile
                with tempfile.TemporaryDirectory() as folder:
                    tries.append(seconds(python, code, Path(folder)))
            taken.append(min((t for t in tries if t is not None), default=None))
        shown = ["failed" if t is None else f"{t:.2f}" for t in taken]
        if len(taken) == 2:
            shown.append("-" if None in taken else f"{(taken[1] or 0) / (taken[0] or 1):.2f}")
        print(f"| {name} | {' | '.join(shown)} |", flush=True)
        if asked.profile:
            print(f"|   where | {profile(code)} |", flush=True)


if __name__ == "__main__":
    main()
