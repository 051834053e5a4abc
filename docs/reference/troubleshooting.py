"""Write docs/howto/troubleshooting.md by making every mistake for real: ``python docs/reference/troubleshooting.py``."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polyclinic as pc
from polyclinic.config import Study
from polyclinic.errors import PolyclinicError
from polyclinic.records.ingest import read_sites

PAGE = Path(__file__).parent.parent / "howto" / "troubleshooting.md"


class Mistake(NamedTuple):
    """What somebody does, the code that does it, and words that the answer must have."""

    title: str
    code: str
    words: str


HEADER = "patient_id,visit_id,time,kind,code"
MISTAKES = (
    Mistake(
        "The outcome is coded yes and no",
        'read(died=["no"] * 120 + ["yes"] * 120)',
        "which of 'no', 'yes' is the event",
    ),
    Mistake("The outcome is coded 1 and 2", "read(died=[1] * 120 + [2] * 120)", "which of 1, 2 is the event"),
    Mistake("Everybody has the same outcome", "read(died=[0] * 240)", "the outcome is 0 for everybody"),
    Mistake("A patient has two outcomes", "read(died=[0, 1] * 120)", "patients with several outcomes"),
    Mistake("ICD-9 and ICD-10 in one mode", 'read(diagnosis=["4280", "I50", "25000", "E11"] * 60)', "look like ICD-9"),
    Mistake("Leading zeros are lost in some rows", 'read(diagnosis=["038", "38"] * 120)', "read the column as text"),
    Mistake("The row number is taken for the patient", "read(patient=list(range(240)))", "a row number"),
    Mistake("Age 999 stands for unknown", 'read(age=[999.0] * 40 + [50.0] * 200, covariates=["age"])', "above 120"),
    Mistake("Dates are taken for codes", 'read(diagnosis=["2020-01-31", "2020-02-01"] * 120)', "most codes are dates"),
    Mistake("A site is written in two ways", 'read(site=["North"] * 120 + ["north"] * 120)', "differ by case"),
    Mistake(
        "Sites use different code systems",
        'read(site=["a"] * 120 + ["b"] * 120, diagnosis=["I50", "E11"] * 60 + ["428", "250"] * 60)',
        "the same code system",
    ),
    Mistake("A site has 2 patients", 'read(site=["small"] * 8 + ["large"] * 232)', "fewer than 3 patients"),
    Mistake("Rows have no site", 'read(site=[None] * 4 + ["north"] * 236)', "4 of 240 rows are empty"),
    Mistake(
        "A column is misspelt",
        'pc.from_frame(table, patient="pateint", modes=["drug", "diagnosis"])',
        "did you mean 'patient'",
    ),
    Mistake("One mode is given as text", 'pc.from_frame(table, patient="patient", modes="drug")', "a list of columns"),
    Mistake(
        "A file name is given for a table",
        'pc.from_frame("records.csv", patient="id", modes=["drug"])',
        "read the file first",
    ),
    Mistake("A table is given to fit", "pc.TRIP(rank=3).fit(table)", "call pc.from_frame"),
    Mistake("The table is empty", 'pc.from_frame({"id": [], "drug": []}, patient="id", modes=["drug"])', "has no rows"),
    Mistake("Counts are not numbers", 'read(n=["many"] * 240, count="n")', "n: not numbers"),
    Mistake("Privacy is given as a number", "pc.DPEM(rank=3, privacy=1.0)", "pc.Privacy(epsilon=1.0"),
    Mistake("Epsilon is 100", "pc.Privacy(epsilon=100.0, delta=1e-6)", "epsilon 100 is above 20"),
    Mistake("The rank has another library's name", "pc.TRIP(n_components=3)", "did you mean 'rank'"),
    Mistake("The rank is above what the codes allow", "pc.TRIP(rank=250).fit(sites)", "rank 250 is above"),
    Mistake("The rank is 0", "pc.TRIP(rank=0)", "at least 1"),
    Mistake("A method is misspelt", "pc.Trip", "did you mean 'TRIP'"),
    Mistake("A parameter is misspelt", "pc.TRIP(rnak=3)", "did you mean 'rank'"),
    Mistake("An aggregation is misspelt", 'pc.TRIP(rank=3, aggregation="maskd").fit(sites)', "did you mean 'masked'"),
    Mistake(
        "Secure aggregation with two sites", 'pc.TRIP(rank=3, aggregation="masked").fit(sites[:2])', "at least 3 sites"
    ),
    Mistake(
        "A key of the study file is misspelt", 'Study.parse({"study": {"name": "icu", "sead": 1}})', "sead: unknown key"
    ),
    Mistake(
        "A mode of the study is not in the data",
        'files(["1,1,2020-12-31,drug,a", "1,1,2020-12-31,diagnosis,x"], modes=["drug", "diagnoses"])',
        "diagnoses",
    ),
    Mistake(
        "Times are written in an unknown way",
        'files(["1,1,2020W53,drug,a", "1,1,2020W53,diagnosis,x"])',
        "time_format",
    ),
    Mistake(
        "Times can be read in two ways",
        'files(["1,1,01/02/2020,drug,a", "1,1,01/02/2020,diagnosis,x"])',
        "every time fits",
    ),
    Mistake("A file lacks a column", 'files(["1,a"], header="patient_id,code")', "column visit_id missing"),
    Mistake(
        "Semicolons separate the columns",
        'files(["1;1;2020-12-31;drug;a", "1;1;2020-12-31;diagnosis;x"], header=HEADER.replace(",", ";"))',
        "No error",
    ),
    Mistake(
        "The file is in Latin-1",
        'files(["1,1,2020-12-31,drug,a", "1,1,2020-12-31,diagnosis,Ménière"], encoding="latin-1")',
        "No error",
    ),
)
TABLE: dict[str, list[Any]] = {
    "patient": [p for p in range(60) for _ in range(4)],
    "drug": [f"d{(p * 7 + k) % 6}" for p in range(60) for k in range(4)],
    "diagnosis": [f"x{(p * 5 + k * k) % 6}" for p in range(60) for k in range(4)],
    "site": [f"s{p % 3}" for p in range(60) for _ in range(4)],
    "died": [int(p % 4 == 0) for p in range(60) for _ in range(4)],
}


def read(*, count: str | None = None, covariates: Sequence[str] = (), **columns: list[Any]) -> Any:
    """The table with other columns, as sites."""
    modes = ["drug", "diagnosis"]
    return pc.from_frame(
        {**TABLE, **columns},
        patient="patient",
        modes=modes,
        site="site",
        outcome="died",
        count=count,
        covariates=covariates,
    )


def files(
    rows: list[str], *, header: str = HEADER, modes: Sequence[str] = ("drug", "diagnosis"), encoding: str = "utf-8"
) -> Any:
    """The same from a file of events, by a study."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "events.csv").write_text("\n".join([header, *rows]), encoding=encoding)
        study = {
            "study": {"name": "demo"},
            "tensor": {"modes": list(modes), "minimum_patients": 1},
            "sites": {"source": {"kind": "files", "events": "events.csv"}},
        }
        try:
            return read_sites(Study.parse(study, folder=Path(folder)))
        except PolyclinicError as e:
            raise type(e)(
                e.what.replace(folder + "/", ""), faults=[f.replace(folder + "/", "") for f in e.faults], hint=e.hint
            ) from None


def answer(mistake: Mistake) -> str:
    """Make the mistake. Returns the error, or else the warnings."""
    names = {"pc": pc, "Study": Study, "HEADER": HEADER, "read": read, "files": files, "table": TABLE}
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        if "sites" in mistake.code:
            names["sites"] = read()
        try:
            eval(mistake.code, names)
        except (PolyclinicError, AttributeError) as e:
            return f"{type(e).__name__}: {e}"
    said = dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in remarks)
    return "\n".join(said) or "No error: the file is read as it is meant."


def reference() -> str:
    """The page."""
    lines = [
        "# Troubleshooting",
        "",
        f"Find your message here. These are {len(MISTAKES)} mistakes that newcomers make, and what Polyclinic answers. The page is made by",
        "making each of them (`python docs/reference/troubleshooting.py`), and a test repeats it.",
        "",
        "- `table` has 60 patients of three sites, with four rows each. Its columns are `patient`, `drug`, `diagnosis`, `site` and `died`.",
        "- `read(column=...)` replaces columns and calls `pc.from_frame`.",
        "- `files(rows)` writes a file of events and reads it by a study.",
    ]
    for n, mistake in enumerate(MISTAKES, start=1):
        lines += [
            "",
            f"## {n}. {mistake.title}",
            "",
            "```text",
            mistake.code,
            "```",
            "",
            "```text",
            answer(mistake),
            "```",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
