"""Open claims and admissions as sites: who had which two codes in the same stay, and how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError, MissingExtra
from polyclinic.records.databases.engine import Connection
from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site, Sites
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.open_data import open_data

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEDICATIONS: Final = (
    *("metformin", "repaglinide", "nateglinide", "chlorpropamide", "glimepiride", "acetohexamide", "glipizide"),
    *("glyburide", "tolbutamide", "pioglitazone", "rosiglitazone", "acarbose", "miglitol", "troglitazone"),
    *("tolazamide", "examide", "citoglipton", "insulin", "glyburide-metformin", "glipizide-metformin"),
    *("glimepiride-pioglitazone", "metformin-rosiglitazone", "metformin-pioglitazone"),
)
DEATH: Final = "('11', '19', '20', '21')"  # discharge dispositions of the diabetes table

# Codes are ranked among stays that hold both kinds: a code that never meets the other kind adds no cell.
RANKED: Final = """
    SELECT {column} AS code FROM pair GROUP BY {column}
    ORDER BY {by} DESC, {column} {limit}
"""


def load_synpuf(
    path: str | Path | None = None,
    *,
    samples: Sequence[int] = (1, 2, 3, 4, 5),
    procedures: int | None = 202,
    diagnoses: int | None = 316,
) -> Sites:
    """Read CMS DE-SynPUF inpatient claims, one sample a site: patients x procedures x diagnoses of the same claim.

    Parameters
    ----------
    path
        Folder with ``sample_01`` ...
    samples
        Which samples.
    procedures, diagnoses
        Keep the most frequent codes over all samples (202 and 316 in DPFact); None keeps all. The choice looks at the
        data, so axes are marked ``vocabulary="data"``.

    Returns
    -------
    Sites
        Label 1 = died 2008 to 2010. Many procedure fields of this synthetic file hold diagnosis codes, therefore only
        procedure codes of three or four digits count.
    """
    folder = _folder("cms_desynpuf", path)
    parts = [folder / f"sample_{k:02d}" for k in samples]
    if not parts or not all(p.is_dir() for p in parts):
        raise DataError(
            "DE-SynPUF: samples are missing", faults=[f"no folder {p.name}" for p in parts if not p.is_dir()]
        )
    con = _connect()
    con.execute(
        f"""
        CREATE TABLE claim AS
        SELECT *, DESYNPUF_ID AS patient, CLM_ID || '-' || SEGMENT AS stay, regexp_extract(filename, 'sample_([0-9]+)', 1) AS site
        FROM read_csv({_list(p / "inpatient_claims.csv.gz" for p in parts)}, all_varchar = true, filename = true)
        """
    )
    _codes(con, "first", "claim", [f"ICD9_PRCDR_CD_{k}" for k in range(1, 7)], "'^[0-9]{3,4}$'")
    _codes(con, "second", "claim", [f"ICD9_DGNS_CD_{k}" for k in range(1, 11)], "'.'")
    con.execute(
        f"""
        CREATE TABLE person AS
        SELECT DESYNPUF_ID AS patient, max(coalesce(BENE_DEATH_DT, '') <> '')::INT AS outcome
        FROM read_csv({_list(p / f"beneficiary_{y}.csv.gz" for p in parts for y in (2008, 2009, 2010))},
                      all_varchar = true, union_by_name = true)
        GROUP BY DESYNPUF_ID
        """
    )
    return _sites(con, ("procedure", "diagnosis"), (procedures, diagnoses), by="count(DISTINCT stay)", prefix="sample ")


def load_diabetes130(
    path: str | Path | None = None,
    *,
    diagnoses: int | None = 200,
    digits: Literal[3, 5] = 3,
    sites: int = 5,
    outcome: Literal["readmitted", "died"] = "readmitted",
) -> Sites:
    """Read the UCI diabetes table (130 US hospitals): patients x diagnoses x medications of the same encounter.

    Parameters
    ----------
    path
        Folder with ``diabetic_data.csv.gz``.
    diagnoses
        Keep the most frequent; None keeps all.
    digits
        3: the category of the code (``250.83`` counts as ``250``); 5: as written.
    sites
        The table names no hospital, so patients are dealt to so many sites by a hash of their number.
    outcome
        ``readmitted``: within 30 days after any encounter; ``died``: discharged dead.

    Returns
    -------
    Sites
        With people: age (the middle of its ten years) and sex at the first encounter.
    """
    if digits not in (3, 5) or outcome not in ("readmitted", "died") or sites < 1:
        raise ConfigError(f"load_diabetes130: digits {digits}, outcome {outcome!r}, sites {sites}")
    folder = _folder("diabetes130", path)
    con = _connect()
    hit = "readmitted = '<30'" if outcome == "readmitted" else f"discharge_disposition_id IN {DEATH}"
    con.execute(
        f"""
        CREATE TABLE claim AS
        SELECT *, patient_nbr AS patient, encounter_id AS stay,
               lpad((('0x' || md5(patient_nbr)[1:8])::BIGINT % {sites} + 1)::VARCHAR, 2, '0') AS site
        FROM read_csv({_list([folder / "diabetic_data.csv.gz"])}, all_varchar = true)
        """
    )
    _codes(con, "first", "claim", ["diag_1", "diag_2", "diag_3"], "'^[^?]'", cut=digits == 3)
    drug_cells = [f"CASE WHEN \"{m}\" <> 'No' THEN '{m}' END" for m in MEDICATIONS]
    _codes(con, "second", "claim", drug_cells, "'.'")
    con.execute(
        f"""
        CREATE TABLE person AS
        SELECT patient, max({hit})::INT AS outcome,
               arg_min(regexp_extract(age, '^.([0-9]+)', 1)::DOUBLE + 5, stay::BIGINT) AS age,
               arg_min(CASE gender WHEN 'Female' THEN 'F' WHEN 'Male' THEN 'M' ELSE '' END, stay::BIGINT) AS sex
        FROM claim GROUP BY 1
        """
    )
    return _sites(
        con, ("diagnosis", "medication"), (diagnoses, None), by="count(*)", prefix="site ", people=("age", "sex")
    )


def load_mimic3_demo(path: str | Path | None = None) -> Sites:
    """Read the MIMIC-III demo (100 patients): patients x procedures x diagnoses of the same admission, by care unit.

    Parameters
    ----------
    path
        Folder with ``ADMISSIONS.csv.gz`` ...

    Returns
    -------
    Sites
        One site a care unit, each patient at the unit of the first ICU stay; label 1 = died in hospital.
    """
    folder = _folder("mimic3_demo", path)

    def table(name: str) -> str:
        return f"read_csv({_list([folder / f'{name}.csv.gz'])}, all_varchar = true)"

    con = _connect()
    con.execute(
        f"""
        CREATE TABLE home AS
        SELECT subject_id AS patient, arg_min(first_careunit, intime) AS site FROM {table("ICUSTAYS")} GROUP BY 1
        """
    )
    for side, name in (("first", "PROCEDURES_ICD"), ("second", "DIAGNOSES_ICD")):
        con.execute(
            f"""
            CREATE TABLE {side} AS
            SELECT DISTINCT t.subject_id AS patient, t.hadm_id AS stay, home.site, t.icd9_code AS code
            FROM {table(name)} t JOIN home ON home.patient = t.subject_id WHERE t.icd9_code IS NOT NULL
            """
        )
    con.execute(
        f"""
        CREATE TABLE person AS
        SELECT subject_id AS patient, max(hospital_expire_flag = '1')::INT AS outcome
        FROM {table("ADMISSIONS")} GROUP BY 1
        """
    )
    names = {
        axis: dict(con.execute(f"SELECT icd9_code, long_title FROM {table(name)}").fetchall())
        for axis, name in (("procedure", "D_ICD_PROCEDURES"), ("diagnosis", "D_ICD_DIAGNOSES"))
    }
    return _sites(con, ("procedure", "diagnosis"), (None, None), names=names)


def _connect() -> DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:  # pragma: no cover - duckdb is a core dependency
        raise MissingExtra("duckdb", "all", "reading open data") from error
    return duckdb.connect()


def _folder(name: str, path: str | Path | None) -> Path:
    folder = open_data(name) if path is None else Path(path)
    if not folder.is_dir():
        raise DataError(f"{name}: no folder {folder}")
    return folder


def _list(files: Iterable[object]) -> str:
    return "[" + ", ".join("'" + str(f).replace("'", "''") + "'" for f in files) + "]"


def _codes(con: Connection, name: str, source: str, columns: list[str], shape: str, *, cut: bool = False) -> None:
    """A table of (patient, stay, site, code), each code once a stay, codes of the given shape only."""
    code = "split_part(raw, '.', 1)" if cut else "raw"
    con.execute(
        f"""
        CREATE TABLE {name} AS
        SELECT DISTINCT patient, stay, site, {code} AS code
        FROM (SELECT patient, stay, site, unnest([{", ".join(columns)}]) AS raw FROM {source})
        WHERE regexp_matches(raw, {shape})
        """
    )


def _sites(
    con: Connection,
    modes: tuple[str, str],
    keep: tuple[int | None, int | None],
    *,
    by: str = "count(*)",
    prefix: str = "",
    names: Mapping[str, Mapping[str, str]] | None = None,
    people: tuple[str, ...] = (),
) -> Sites:
    """Pairs of codes in the same stay -> one tensor a site, all over the same two axes."""
    con.execute(
        """
        CREATE TABLE pair AS
        SELECT a.patient, a.site, a.stay, a.code AS one, b.code AS two
        FROM first a JOIN second b USING (patient, stay)
        """
    )
    limits = ["" if n is None else f"LIMIT {int(n)}" for n in keep]
    codes = [
        sorted(r[0] for r in con.execute(RANKED.format(column=c, by=by, limit=l)).fetchall())
        for c, l in zip(("one", "two"), limits)
    ]
    if not all(codes):
        raise DataError(
            "no stay holds both kinds of code", faults=[f"{m}: {len(c)} codes" for m, c in zip(modes, codes)]
        )
    axes = tuple(
        Axis(mode, tuple(c), None if names is None else tuple(names[mode].get(x, x) for x in c), "data")
        for mode, c in zip(modes, codes)
    )
    for table, listed in (("left_code", codes[0]), ("right_code", codes[1])):
        con.execute(
            f"CREATE TABLE {table} AS SELECT unnest($1::VARCHAR[]) AS code, unnest(range(len($1))) AS place", [listed]
        )
    extra_columns = "".join(f", any_value(q.{c}) AS {c}" for c in people)
    rows: dict[str, NDArray[np.generic]] = con.execute(
        f"""
        SELECT p.site, p.patient, l.place AS one, r.place AS two, count(*) AS n, any_value(coalesce(q.outcome, 0)) AS y{extra_columns}
        FROM pair p JOIN left_code l ON l.code = p.one JOIN right_code r ON r.code = p.two
        LEFT JOIN person q USING (patient)
        GROUP BY ALL ORDER BY p.site, p.patient, one, two
        """
    ).fetchnumpy()
    sites = []
    for place in np.unique(rows["site"].astype(str)):
        in_site = rows["site"].astype(str) == place
        patients, first, index = np.unique(rows["patient"][in_site].astype(str), return_index=True, return_inverse=True)
        coords = np.column_stack([index, rows["one"][in_site], rows["two"][in_site]]).astype(np.int64)
        tensor = SparseTensor(coords, rows["n"][in_site], (len(patients), *map(len, codes)), axes)
        covariates = {
            c: np.ma.filled(rows[c][in_site][first], np.nan if rows[c].dtype.kind == "f" else "") for c in people
        }
        labels = rows["y"][in_site][first].astype(np.int64)
        sites.append(Site(f"{prefix}{place}", tensor, labels=labels, people=People(covariates) if covariates else None))
    return Sites(sites)
