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
from polyclinic.studies.registry import read_study

PAGE = Path(__file__).parent.parent / "howto" / "troubleshooting.md"


class Mistake(NamedTuple):
    """What a newcomer does, the code that does it, and words that the answer must have."""

    title: str
    code: str
    words: str


HEADER = "patient_id,visit_id,time,kind,code"
TABLES = (
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
    Mistake("The table is empty", 'pc.from_frame({"id": [], "drug": []}, patient="id", modes=["drug"])', "has no rows"),
    Mistake(
        "A patient has two ages", 'read(age=[40.0, 60.0] * 120, covariates="age")', "20 patients have several values"
    ),
    Mistake("Counts are not numbers", 'read(n=["many"] * 240, count="n")', "n: not numbers"),
)
FITS = (
    Mistake("A table is given to fit", "pc.TRIP(rank=3).fit(table)", "call pc.from_frame"),
    Mistake("No sites are given", "pc.TRIP(rank=3).fit([])", "pc.from_frame"),
    Mistake("A parameter is given to fit", "pc.Topics().fit(sites, rank=3)", "Topics(rank=...).fit(sites)"),
    Mistake("A result is read before the fit", "pc.TRIP(rank=3).phenotypes_", "call .fit(sites) first"),
    Mistake("Privacy is given as a number", "pc.DPEM(rank=3, privacy=1.0)", "pc.Privacy(epsilon=1.0"),
    Mistake("Epsilon is 100", "pc.Privacy(epsilon=100.0, delta=1e-6)", "epsilon 100 is above 20"),
    Mistake("The rank has another library's name", "pc.TRIP(n_components=3)", "did you mean 'rank'"),
    Mistake("The rank is above what the codes allow", "pc.TRIP(rank=250).fit(sites)", "rank 250 is above"),
    Mistake("A parameter is given without its name", "pc.TRIP(12)", "TRIP(rank=12)"),
    Mistake("Classes are given without their name", "pc.LatentClass(6)", "LatentClass(n_components=6)"),
    Mistake("Privacy has an unknown parameter", "pc.Privacy(1.0, epsilom=2.0)", "epsilom: not a parameter of Privacy"),
    Mistake("The rank is 0", "pc.TRIP(rank=0)", "at least 1"),
    Mistake("A method is misspelt", "pc.Trip", "did you mean 'TRIP'"),
    Mistake("A parameter is misspelt", "pc.TRIP(rnak=3)", "rnak: not a parameter of TRIP; did you mean 'rank'"),
    Mistake("An aggregation is misspelt", 'pc.TRIP(rank=3, aggregation="maskd").fit(sites)', "did you mean 'masked'"),
    Mistake(
        "Secure aggregation with two sites", 'pc.TRIP(rank=3, aggregation="masked").fit(sites[:2])', "at least 3 sites"
    ),
    Mistake(
        "A method without noise is asked for privacy", "pc.TRIP(rank=3, privacy=pc.Privacy(1.0)).fit(sites)", "use DPEM"
    ),
    Mistake("Epsilon is a word", 'pc.Privacy(epsilon="one")', "Privacy: wrong parameters"),
    Mistake("The random seed has another library's name", "pc.TRIP(rank=3, random_state=0)", "did you mean 'seed'"),
    Mistake("Trajectories without a time", "pc.PARAFAC2(rank=3).fit(sites)", 'pc.from_frame(..., time="...")'),
    Mistake(
        "A guide names an unknown code", 'pc.Topics(rank=3, guides={"x": ["Z99"]}).fit(sites)', "no mode has 'Z99'"
    ),
)
MODELS = (
    Mistake(
        "All hospitals are given to transform", "fitted.transform(sites)", "[model.transform(site) for site in sites]"
    ),
    Mistake("A table is given to transform", "fitted.transform(table)", "call pc.from_frame"),
    Mistake(
        "New patients have unknown codes",
        'fitted.transform(read(drug=["new"] * 240)[0])',
        'unseen="drop"',
    ),
    Mistake(
        "Adjustment for a column that no site has",
        'pc.evaluate(fitted, sites, adjust="age")',
        "no site has the covariate 'age'",
    ),
    Mistake(
        "A model that is not fitted is evaluated",
        "pc.evaluate(pc.SumALS(rank=3), sites)",
        "fit a phenotype method first",
    ),
    Mistake("Method and sites are swapped", "pc.replicate(sites, fitted)", "then the sites"),
    Mistake("The sites are given before the model", "pc.evaluate(sites, fitted)", "pc.evaluate(model, sites)"),
    Mistake("A model is compared with a number", "pc.compare(fitted, 3)", "3 is of type int, expected a model"),
    Mistake(
        "A model is given for its factors",
        "pc.metrics.factor_match_score(fitted.factors_, fitted)",
        "the second model is of type SumALS",
    ),
    Mistake(
        "A model is reported for other hospitals", "pc.write_report(fitted, sites[:1])", "was fitted on s0, s1, s2"
    ),
    Mistake("A model file is missing", 'pc.load("icu.phenotypes")', "no such file"),
    Mistake("A model is saved with another ending", 'fitted.save("icu.pkl")', "icu.phenotypes"),
    Mistake("A method without privacy is audited", "pc.audit(pc.TRIP(rank=3))", "nothing to audit"),
)
STUDIES = (
    Mistake(
        "A key of the study file is misspelt", 'Study.parse({"study": {"name": "icu", "sead": 1}})', "sead: unknown key"
    ),
    Mistake("The study file is missing", 'Study.read("study.toml")', "check the path"),
    Mistake("A text without quotation marks", 'written("[study]\\nname = icu")', "double quotes"),
    Mistake(
        "A study does not name its aggregation",
        'Study.parse({"study": {"name": "icu"}, "method": {"name": "trip", "rank": 3}})',
        "method.aggregation is missing",
    ),
    Mistake(
        "A data set is misspelt",
        'Study.parse({"study": {"name": "icu"}, "data": {"dataset": "icu_netwrk"}})',
        "did you mean 'icu_network'",
    ),
    Mistake("A study file is given for a node file", 'Node.parse({"study": {"name": "icu"}})', "a study file"),
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
    Mistake(
        "A method and its aggregation are misspelt",
        'written(\'[study]\\nname = "icu"\\n[tensor]\\nmodes = ["drug", "diagnosis"]\\n[method]\\nname = "tripp"\\nagregation = "maskd"\')',
        "did you mean 'trip'",
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
PARTS = {
    "Reading a table": TABLES,
    "Fitting a model": FITS,
    "Using a model": MODELS,
    "Study files and event files": STUDIES,
}
MISTAKES = tuple(m for part in PARTS.values() for m in part)
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


def written(text: str) -> Any:
    """A study of a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.toml").write_text(text)
        try:
            return read_study(Path(folder) / "study.toml")
        except PolyclinicError as e:
            raise type(e)(e.what.replace(folder + "/", ""), faults=list(e.faults), hint=e.hint) from None


def answer(mistake: Mistake) -> str:
    """Make the mistake. Returns the error, or else the warnings."""
    names = {"pc": pc, "Study": Study, "Node": pc.Node, "HEADER": HEADER, "table": TABLE}
    names |= {"read": read, "files": files, "written": written}
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        if "sites" in mistake.code or "fitted" in mistake.code:
            names["sites"] = read()
            names["fitted"] = pc.SumALS(rank=3, rounds=3, seed=0).fit(names["sites"])
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
        f"After this page you can find the cause of an error message and the fix. It shows {len(MISTAKES)} mistakes of newcomers and what",
        "Polyclinic answers. Search the page for a word of your message. The answers are real: `python docs/reference/troubleshooting.py`",
        "makes each mistake, and a test repeats it.",
        "",
        "An answer has a code (`[PC300]`), what failed, each fault on a line of its own, and what to do. A *UserWarning* does not stop the run.",
        "",
        "| code | cause | exit code of a command |",
        "|---|---|---|",
        "| PC200, PC210, PC220 | a parameter, a study file or a node file; a missing package; a fit that diverged | 2 |",
        "| PC300 | the data | 3 |",
        "| PC400, PC401, PC410 | a refusal by the owner's policy, by the list of sites, by the ledger check | 4 |",
        "| PC500, PC510 | a site that does not answer, a secure sum that was aborted | 5 |",
        "| PC600, PC610 | two parties with different versions or codes, a message that was refused | 2, 5 |",
        "",
        "The names in the code blocks:",
        "",
        "- `table` has 60 patients of three sites, with four rows each. Its columns are `patient`, `drug`, `diagnosis`, `site` and `died`.",
        "- `read(column=...)` replaces columns and calls `pc.from_frame`.",
        "- `sites` is the same table after `pc.from_frame`. `fitted` is a model of three phenotypes of it.",
        "- `files(rows)` writes a file of events and reads it by a study. `written(text)` writes and reads a study file.",
    ]
    for part, mistakes in PARTS.items():
        lines += ["", f"## {part}"]
        for mistake in mistakes:
            lines += [
                "",
                f"### {mistake.title}",
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
