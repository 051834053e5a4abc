"""CMS DE-SynPUF (synthetic Medicare claims): diagnoses and procedures by claim, one sample one site."""

from __future__ import annotations

from dataclasses import replace

from polyclinic.config import Node
from polyclinic.records.databases.engine import Connection
from polyclinic.records.sources.base import OpenedSource, Tabular
from polyclinic.records.sources.tables import SourceTable

CLAIM = "desynpuf_id clm_id segment clm_from_dt clm_thru_dt in_folder"
DIAGNOSES = " ".join(f"icd9_dgns_cd_{k}" for k in range(1, 11))
PROCEDURES = " ".join(f"icd9_prcdr_cd_{k}" for k in range(1, 7))
HCPCS = " ".join(f"hcpcs_cd_{k}" for k in range(1, 46))
CELLS = {"diagnosis": 10, "procedure": 6, "hcpcs": 45}

SYNPUF = Tabular(
    "synpuf",
    tables=(
        SourceTable("inpatient_claims", f"{CLAIM} {DIAGNOSES} {PROCEDURES}", HCPCS, optional=True),
        SourceTable("outpatient_claims", f"{CLAIM} {DIAGNOSES} {PROCEDURES}", HCPCS, optional=True),
        *(
            SourceTable(
                f"beneficiary_{y}",
                "desynpuf_id bene_death_dt in_folder",
                "bene_birth_dt bene_sex_ident_cd",
                optional=True,
            )
            for y in (2008, 2009, 2010)
        ),
    ),
    events=(),
    visits=("beneficiary_2008", "desynpuf_id"),
    people=("beneficiary_2008", "desynpuf_id"),
)

BIRTHS = " UNION ALL ".join(
    f"SELECT desynpuf_id AS patient_id, TRY_CAST(substr(CAST(bene_birth_dt AS VARCHAR), 1, 4) AS INTEGER) AS year FROM beneficiary_{y}"
    for y in (2008, 2009, 2010)
)  # three files tell it of most people, the same each time


def open_source(con: Connection, node: Node, outcome: str | None) -> OpenedSource:
    """Open the claims; what is counted are cells (claims x code columns), for the table is wide."""
    source = SYNPUF.open(con, node, outcome)
    rows = {
        f"{table}.{cells}": f"SELECT count(*) * {n} FROM {table}"
        for table in ("inpatient_claims", "outpatient_claims")
        if table in source.inputs
        for cells, n in CELLS.items()
    }
    births = f"SELECT patient_id, min(year) AS year FROM ({BIRTHS}) GROUP BY 1"
    return replace(
        source, rows=rows, births=births if any(t.startswith("beneficiary") for t in source.inputs) else None
    )
