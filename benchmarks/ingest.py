"""Ingestion at size: processor seconds and memory of 5 and 20 million events, against a bare DuckDB group-by.

    python benchmarks/ingest.py            # 5 million
    python benchmarks/ingest.py 20000000

The events lie in one Parquet file, as a hospital would export them; ``ingest`` writes tensor, events, labels and manifest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

MEASURE = """
import json, sys, time
from polyclinic.config import Node, Study
from polyclinic.records.ingest import ingest
folder, count = sys.argv[1:]
node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": f"{folder}/events.parquet"}})
study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["procedure", "diagnosis"], "count": count}})
begun = time.process_time()
made = ingest(node, study, f"{folder}/out-{count}")
work = time.process_time() - begun
high = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
# ru_maxrss would count the parent's
cells, patients = made.site.counts().nnz, made.site.patients
print(json.dumps({"work": work, "peak": int(high.split()[1]) * 1024, "cells": cells, "patients": patients}))
"""
BARE = """
SELECT count(*) FROM (
    SELECT a.patient_id, a.code, b.code, count(*) FROM read_parquet($file) a JOIN read_parquet($file) b
    ON a.patient_id = b.patient_id AND a.visit_id = b.visit_id WHERE a.kind = 'procedure' AND b.kind = 'diagnosis' GROUP BY ALL)
"""


def events(folder: Path, rows: int) -> tuple[int, float]:
    """Write ``events.parquet``; cells of a bare group-by over it, and its seconds of processor."""
    file = folder / "events.parquet"
    with duckdb.connect() as con:
        con.execute("SET memory_limit = '2GB'")
        con.execute(f"SET temp_directory = '{folder}/spill'")
        con.execute(
            f"""COPY (SELECT 'p' || (i // 40) AS patient_id, 'v' || (i // 8) AS visit_id,
            TIMESTAMP '2020-01-01' + (i // 8 % 1000) * INTERVAL 1 DAY AS time,
            CASE WHEN i % 8 < 3 THEN 'procedure' ELSE 'diagnosis' END AS kind,
            CAST(hash(i) % (CASE WHEN i % 8 < 3 THEN 500 ELSE 2000 END) AS VARCHAR) AS code
            FROM range({rows}) t(i)) TO '{file}' (FORMAT parquet)"""
        )
        begun = time.process_time()
        cells = con.execute(BARE, {"file": str(file)}).fetchone()
        return (int(cells[0]) if cells else 0), time.process_time() - begun


def measured(folder: Path, count: str = "visits") -> dict[str, float]:
    """Ingest them in a process of its own: ``work`` (seconds of processor), ``peak`` (bytes), ``cells``, ``patients``."""
    command = [sys.executable, "-c", MEASURE, str(folder), count]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(out.stdout))


def main(rows: int) -> None:
    """Make the events, count them barely, ingest them twice; print one line each."""
    with tempfile.TemporaryDirectory() as folder:
        cells, bare = events(Path(folder), rows)
        print(f"{rows:,} events, bare group-by: {bare:.1f} s of processor, {cells:,} cells")
        for count in ("visits", "product"):
            found = measured(Path(folder), count)
            print(
                f"ingest, count = {count}: {found['work']:.1f} s of processor ({found['work'] / bare:.2f} x), "
                f"peak {found['peak'] / 1e6:,.0f} MB, {found['cells']:,} cells"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
