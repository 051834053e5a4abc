"""Who, when, which visits: against a brute-force count in pandas, and nothing left of who opted out."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from tests.databases import copied

from polyclinic.cli import main
from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError, DataError, PolicyRefusal
from polyclinic.records.ingest import Ingested, ingest

Find = Callable[[str], Path]
TABLES = {
    "diagnosis": ("CONDITION_OCCURRENCE", "condition_concept_id", "condition_start_date"),
    "drug": ("DRUG_EXPOSURE", "drug_concept_id", "drug_exposure_start_date"),
    "procedure": ("PROCEDURE_OCCURRENCE", "procedure_concept_id", "procedure_date"),
}
WORDS = {"inpatient": {9201, 262, 8717}, "outpatient": {9202, 5083}, "emergency": {9203, 262}}


@pytest.fixture(scope="module")
def omop(data_path: Find) -> dict[str, pd.DataFrame]:
    folder = data_path("synthea27nj_omop")
    names = ["PERSON", "VISIT_OCCURRENCE", "OBSERVATION_PERIOD", *(t for t, _, _ in TABLES.values())]
    return {n: pd.read_csv(folder / f"{n}.csv.gz", low_memory=False) for n in names}


def protocol(rng: np.random.Generator, omop: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """One random protocol: any of the restrictions, or none."""
    people = omop["PERSON"].person_id.tolist()
    out: dict[str, Any] = {"tensor": {"modes": [str(x) for x in rng.permutation(list(TABLES))[:2]], "count": "product"}}
    cohort: dict[str, Any] = {}
    time: dict[str, Any] = {}
    if rng.random() < 0.5:
        cohort["age"] = sorted(int(x) for x in rng.integers(0, 70, 2))
    if rng.random() < 0.5:
        cohort["washout"] = int(rng.integers(1, 800))
    if rng.random() < 0.5:
        kind = str(rng.choice(list(TABLES)))
        column = TABLES[kind][1]
        often = omop[TABLES[kind][0]][column].value_counts().index[:12].tolist()
        cohort["first"] = {kind: [str(x) for x in rng.choice(often, 3, replace=False)]}
        if rng.random() < 0.5:
            cohort["first"]["visits"] = [str(rng.choice(list(WORDS)))]
    if rng.random() < 0.6:
        first = date(1995, 1, 1) + timedelta(days=int(rng.integers(0, 8000)))
        time |= {"start": first, "end": first + timedelta(days=int(rng.integers(1000, 9000)))}
    if rng.random() < 0.5:
        time |= {"before": int(rng.integers(0, 3000)), "after": int(rng.integers(0, 3000))}
    if rng.random() < 0.4:
        out["visits"] = {"types": [str(x) for x in rng.choice(list(WORDS), int(rng.integers(1, 3)), replace=False)]}
    out |= {k: v for k, v in (("cohort", cohort), ("time", time)) if v}
    out["optout"] = [int(x) for x in rng.choice(people, int(rng.integers(0, 6)), replace=False)]
    return out


def brute(omop: dict[str, pd.DataFrame], asked: dict[str, Any]) -> dict[tuple[str, ...], float]:
    """The tensor by plain loops and comparisons of the tables."""
    cohort, time, kinds = asked.get("cohort"), asked.get("time") or {}, asked["tensor"]["modes"]
    low, high = (pd.Timestamp(time.get(k, d)) for k, d in (("start", "1800-01-01"), ("end", "2200-01-01")))
    visits = omop["VISIT_OCCURRENCE"].assign(day=lambda v: pd.to_datetime(v.visit_start_date))

    def of_types(types: list[str]) -> pd.Series:
        return visits.visit_concept_id.isin(set().union(*(WORDS[t] for t in types)))

    events = {}
    for kind, (table, code, day) in TABLES.items():
        e = omop[table]
        e = e[(e[code].fillna(0) != 0) & e.visit_occurrence_id.notna()]
        events[kind] = pd.DataFrame(
            {"p": e.person_id, "v": e.visit_occurrence_id, "code": e[code], "day": pd.to_datetime(e[day])}
        )
    relative = cohort is not None or "before" in time
    index: dict[int, pd.Timestamp] = {}
    if relative:
        entry = visits
        first = dict((cohort or {}).get("first", {}))
        types = first.pop("visits", asked.get("visits", {}).get("types"))
        if types:
            entry = entry[of_types(types)]
        for kind, codes in first.items():
            has = events[kind][events[kind].code.isin([int(c) for c in codes])]
            entry = entry[entry.visit_occurrence_id.isin(has.v)]
        entry = entry[(entry.day >= low) & (entry.day <= high)]
        index = entry.groupby("person_id").day.min().to_dict()
    born = omop["PERSON"].set_index("person_id").year_of_birth
    spans = omop["OBSERVATION_PERIOD"]
    kept: dict[int, list[tuple[pd.Timestamp, pd.Timestamp]]] = {}
    for p in omop["PERSON"].person_id:
        mine = spans[spans.person_id == p]
        periods = [
            (pd.Timestamp(a), pd.Timestamp(b))
            for a, b in zip(mine.observation_period_start_date, mine.observation_period_end_date)
        ]
        if p in asked["optout"] or (relative and p not in index):
            continue
        if relative:
            periods = [(a, b) for a, b in periods if a <= index[p] <= b]
        if cohort and "age" in cohort and not cohort["age"][0] <= index[p].year - born[p] <= cohort["age"][1]:
            continue
        if cohort and cohort.get("washout") and not (periods and (index[p] - periods[0][0]).days >= cohort["washout"]):
            continue
        kept[p] = periods
    allowed = set(visits[of_types(asked["visits"]["types"])].visit_occurrence_id) if "visits" in asked else None

    def stays(r: Any) -> bool:
        return (
            r.p in kept
            and low <= r.day <= high
            and (not (cohort or time) or any(a <= r.day <= b for a, b in kept[r.p]))
            and (allowed is None or r.v in allowed)
            and ("before" not in time or -time["before"] <= (r.day - index[r.p]).days <= time["after"])
        )

    left = [
        pd.DataFrame([r for r in events[k].itertuples() if stays(r)], columns=["i", "p", "v", "code", "day"])
        for k in kinds
    ]
    joined = left[0].merge(left[1], on=["p", "v"]).groupby(["p", "code_x", "code_y"]).size()
    return {(str(p), str(a), str(b)): float(n) for (p, a, b), n in joined.items()}


def run(source: dict[str, Any], asked: dict[str, Any], folder: Path) -> Ingested:
    folder.mkdir(exist_ok=True)
    (folder / "optout.csv").write_text("patient\n" + "".join(f"{p}\n" for p in asked["optout"]))
    node = Node.parse(
        {"site": {"name": "a"}, "source": {"kind": "omop", **source}, "exclude": {"patients": "optout.csv"}},
        folder=folder,
    )
    rest = {k: v for k, v in asked.items() if k != "optout"}
    return ingest(node, Study.parse({"study": {"name": "s"}, **rest}, folder=folder), folder / "out")


def agrees(source: dict[str, Any], asked: dict[str, Any], omop: dict[str, pd.DataFrame], folder: Path) -> bool:
    """Whether the tensor is the brute-force count; False where both are empty."""
    expected = brute(omop, asked)
    if not expected:
        with pytest.raises(DataError, match=r"no patient is left|nothing occurs together|no events for some modes"):
            run(source, asked, folder)
        return False
    made = run(source, asked, folder)
    t = made.site.counts()
    found = {tuple(a.label(int(i)) for a, i in zip(t.axes, x)): v for x, v in zip(t.coords, t.values.tolist())}
    assert found == expected, asked
    left = [a["rows"] for a in made.manifest["attrition"]]
    assert left == sorted(left, reverse=True)
    for s in made.manifest["steps"]:
        assert s["rows_in"] == s["rows_out"] + sum(s["dropped"].values())
    return True


@pytest.fixture(scope="module")
def database(data_path: Find, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same tables in a database: texts are parsed once, not for every protocol."""
    path = tmp_path_factory.mktemp("cdm") / "cdm.duckdb"
    with duckdb.connect(str(path)) as con:
        for file in sorted(data_path("synthea27nj_omop").glob("*.csv.gz")):
            con.execute(f"CREATE TABLE {file.name.partition('.')[0].lower()} AS SELECT * FROM read_csv('{file}')")
    return {"database": str(path)}


def test_random_protocols_give_the_brute_force_count(
    omop: dict[str, pd.DataFrame], database: dict[str, Any], data_path: Find, tmp_path: Path
) -> None:
    rng = np.random.default_rng(11)
    folder = {"folder": str(data_path("synthea27nj_omop"))}
    full = [agrees(database if k else folder, protocol(rng, omop), omop, tmp_path / str(k)) for k in range(8)]
    assert sum(full) >= 4  # most of them leave somebody


@pytest.mark.slow
def test_fifty_protocols_in_duckdb_and_postgresql(
    omop: dict[str, pd.DataFrame], data_path: Find, postgres: str, tmp_path: Path
) -> None:
    psycopg: Any = pytest.importorskip("psycopg")
    with duckdb.connect(str(tmp_path / "cdm.duckdb")) as con, psycopg.connect(postgres) as link:
        copied(data_path("synthea27nj_omop"), con, link, tmp_path)
    sources = {
        "duckdb": {"database": str(tmp_path / "cdm.duckdb")},
        "postgresql": {"url": postgres, "schema": "cdm"},
    }
    rng = np.random.default_rng(2026)
    asked = [protocol(rng, omop) for _ in range(50)]
    full = {
        kind: [agrees(s, a, omop, tmp_path / f"{kind}{k}") for k, a in enumerate(asked)] for kind, s in sources.items()
    }
    assert full["duckdb"] == full["postgresql"]
    assert sum(full["duckdb"]) >= 20
    # PostgreSQL leaves rows out itself; what was left out, and why, must be the same numbers.
    for k in (k for k, made in enumerate(full["duckdb"]) if made):
        one, other = (json.loads((tmp_path / f"{kind}{k}" / "out" / "manifest.json").read_text()) for kind in sources)
        assert one["attrition"] == other["attrition"], asked[k]
        assert one["steps"] == other["steps"], asked[k]


HEAD = "patient_id,visit_id,time,kind,code\n"


def hospital(folder: Path, name: str, *, excluded: str = "", more: str = "") -> Path:
    """Forty patients; one of them has an identifier and codes that nobody else has."""
    rng = np.random.default_rng([*name.encode()])
    rows = [
        f"{name}{p},{name}{p}v{v},2020-01-0{1 + v},{kind},{kind[:2]}{rng.integers(6)}"
        for p in range(40)
        for v in range(2)
        for kind in ("drug", "diagnosis")
        for _ in range(3)
    ]
    rows += [f"zebra-{name},zv,2020-01-01,drug,ZEBRADRUG", f"zebra-{name},zv,2020-01-01,diagnosis,ZEBRADIAGNOSIS"]
    folder.mkdir()
    (folder / "events.csv").write_text(HEAD + "\n".join(rows) + "\n")
    (folder / "optout.csv").write_text(f"patient\n{excluded}\n")
    (folder / "node.toml").write_text(
        f'[site]\nname = "{name}"\n[source]\nkind = "files"\nevents = "events.csv"\n[exclude]\npatients = "optout.csv"\n{more}'
    )
    return folder / "node.toml"


def left_behind(folder: Path) -> bytes:
    """Every byte of every file, archives and Parquet unpacked."""
    out = b""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        out += path.read_bytes()
        if path.suffix == ".parquet":
            with duckdb.connect() as con:
                out += repr(con.execute(f"SELECT * FROM read_parquet('{path}')").fetchall()).encode()
        if path.suffix in (".npz", ".zip"):
            with zipfile.ZipFile(path) as z:
                out += b"".join(z.read(n) for n in z.namelist())
    return out


@pytest.mark.parametrize("opted", [True, False])
def test_nothing_of_who_opted_out_is_in_any_file_that_is_left(tmp_path: Path, opted: bool) -> None:
    names = ("east", "west")
    nodes = [hospital(tmp_path / n, n, excluded=f"zebra-{n}" if opted else "") for n in names]
    study = tmp_path / "study.toml"
    study.write_text(
        '[study]\nname = "s"\nreplicate = 0\n[tensor]\nmodes = ["drug", "diagnosis"]\nminimum_patients = 1\n'
        '[method]\nname = "trip"\nrank = 2\nrounds = 2\naggregation = "plain"\n'
        f"[sites]\nnodes = {json.dumps([str(n) for n in nodes])}\n"
    )
    for command in (
        ["simulate", str(study), "--out", str(tmp_path / "run")],
        ["ingest", str(nodes[0]), "--study", str(study), "--out", str(tmp_path / "out")],
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    found = left_behind(tmp_path / "run") + left_behind(tmp_path / "out")
    for n in names:
        site = left_behind(tmp_path / n / "site") if (tmp_path / n / "site").exists() else b""
        assert (b"zebra" in found.lower() + site.lower()) is not opted
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["attrition"][0]["patients"] - manifest["attrition"][1]["patients"] == (1 if opted else 0)
    digest = hashlib.sha256((tmp_path / "east" / "optout.csv").read_bytes()).hexdigest()
    assert manifest["source"]["read"]["opt-out sha256"] == digest


@pytest.fixture
def with_cohort(omop: dict[str, pd.DataFrame], data_path: Find, tmp_path: Path) -> dict[str, Any]:
    """Synthea with a COHORT table: two definitions, one patient twice."""
    here = tmp_path / "cdm"
    here.mkdir()
    for file in data_path("synthea27nj_omop").glob("*.csv.gz"):
        (here / file.name).symlink_to(file)
    (here / "cohort.csv").write_text(
        "cohort_definition_id,subject_id,cohort_start_date,cohort_end_date\n"
        + "".join(f"7,{p},{d},2022-01-01\n" for p, d in ((1, "2015-06-01"), (1, "2012-03-01"), (2, "2016-01-01")))
        + "8,3,2010-01-01,2022-01-01\n"
    )
    return {"folder": str(here)}


def test_rows_of_the_cohort_table_and_the_owners_sql_are_the_same_cohort(
    with_cohort: dict[str, Any], tmp_path: Path
) -> None:
    text = "SELECT subject_id, cohort_start_date, cohort_end_date FROM cohort WHERE cohort_definition_id = '7'"
    (tmp_path / "hf.sql").write_text(text + ";\n")
    digest = hashlib.sha256((tmp_path / "hf.sql").read_bytes()).hexdigest()
    rule = {
        "study": {"name": "s"},
        "tensor": {"modes": ["procedure", "diagnosis"]},
        "time": {"before": 2000, "after": 2000},
    }

    def made(cohort: dict[str, Any], policy: dict[str, Any], name: str) -> Ingested:
        values = {"site": {"name": "a"}, "source": {"kind": "omop", **with_cohort}, "policy": policy}
        asked = Study.parse({**rule, "cohort": cohort}, folder=tmp_path)
        return ingest(Node.parse(values, folder=tmp_path), asked, tmp_path / name)

    by_table = made({"definition": 7}, {}, "a")
    assert set(by_table.site.counts().axes[0].labels or ()) <= {"1", "2"}
    by_sql = made({"sql": "hf.sql", "sha256": digest}, {"cohorts": ["hf.sql"]}, "b")
    assert by_sql.site.counts() == by_table.site.counts()
    with pytest.raises(PolicyRefusal, match="not one that this site runs"):
        made({"sql": "hf.sql", "sha256": digest}, {}, "c")
    with pytest.raises(PolicyRefusal, match="not one that this site runs"):
        made({"sql": "hf.sql", "sha256": "0" * 64}, {"cohorts": ["hf.sql"]}, "d")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT 1; SELECT 2",
        "COPY cohort TO '/tmp/x.csv'",
        "SELECT person_id FROM person",
        "WITH c AS (SELECT * FROM glob('/*')) SELECT * FROM c",
        "SELECT subject_id, cohort_start_date, cohort_end_date FROM information_schema.tables",
    ],
)
def test_an_owners_sql_reads_the_sources_tables_and_nothing_else(
    with_cohort: dict[str, Any], tmp_path: Path, text: str
) -> None:
    (tmp_path / "x.sql").write_text(text)
    digest = hashlib.sha256((tmp_path / "x.sql").read_bytes()).hexdigest()
    values = {
        "site": {"name": "a"},
        "source": {"kind": "omop", **with_cohort},
        "policy": {"cohorts": ["x.sql"]},
    }
    asked = {
        "study": {"name": "s"},
        "tensor": {"modes": ["procedure", "diagnosis"]},
        "cohort": {"sql": "x.sql", "sha256": digest},
    }
    with pytest.raises(DataError, match=r"x\.sql"):
        ingest(Node.parse(values, folder=tmp_path), Study.parse(asked, folder=tmp_path), tmp_path / "out")


def test_bins_of_relative_time_are_a_mode(tmp_path: Path) -> None:
    rows = "".join(
        f"a,v{k},{d},{kind},{kind[:2]}{k}\n"
        for k, d in enumerate(("2020-01-01", "2020-03-01", "2020-04-10"))
        for kind in ("drug", "diagnosis")
    )
    (tmp_path / "e.csv").write_text(HEAD.replace("code", "code,flag") + rows.replace("\n", ",1\n"))
    source = {"kind": "files", "events": "e.csv", "label": "flag"}
    node = Node.parse({"site": {"name": "x"}, "source": source}, folder=tmp_path)
    asked = {
        "study": {"name": "s"},
        "tensor": {"modes": ["drug", "diagnosis", "time"]},
        "cohort": {"first": {"drug": ["dr1"]}},
        "time": {"bins": [-90, -30, 0, 60]},
    }
    t = ingest(node, Study.parse(asked), tmp_path / "out").site.counts()
    found = {tuple(a.label(int(i)) for a, i in zip(t.axes[1:], x[1:])): v for x, v in zip(t.coords, t.values.tolist())}
    assert found == {
        ("dr0", "di0", "-90 to -31 days"): 1.0,
        ("dr1", "di1", "0 to 60 days"): 1.0,
        ("dr2", "di2", "0 to 60 days"): 1.0,
    }
    with pytest.raises(ConfigError, match="belong together"):
        Study.parse({**asked, "tensor": {"modes": ["drug", "diagnosis"]}})


def test_what_a_source_does_not_know_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(HEAD + "a,v,2020-01-01,drug,x\na,v,2020-01-01,diagnosis,y\n")
    node = Node.parse({"site": {"name": "x"}, "source": {"kind": "files", "events": "e.csv"}}, folder=tmp_path)
    asked = Study.parse(
        {
            "study": {"name": "s"},
            "tensor": {"modes": ["drug", "diagnosis"]},
            "cohort": {"age": [18, 90], "washout": 30, "definition": 3},
            "visits": {"types": ["inpatient"]},
        }
    )
    with pytest.raises(ConfigError, match="lacks what the study asks for") as e:
        ingest(node, asked, tmp_path / "out")
    assert len(e.value.faults) == 3  # a patient is observed since the first visit where no period is written down
