"""Twenty million events: bounded memory, and a bounded price over the bare count."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

ROWS = 20_000_000
MEASURE = """
import json, sys, time
from polyclinic.study import Node, Study
from polyclinic.tensors.ingest import ingest
folder = sys.argv[1]
node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": f"{folder}/events.parquet"}})
study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["procedure", "diagnosis"], "window": "visit"}})
start, begun = time.perf_counter(), time.process_time()
made = ingest(node, study, f"{folder}/out")
seconds, work = time.perf_counter() - start, time.process_time() - begun
high = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss would count the parent's
peak = int(high.split()[1]) * 1024
print(json.dumps({"seconds": seconds, "work": work, "peak": peak, "nnz": made.site.counts().nnz, "patients": made.site.patients}))
"""
BARE = """
SELECT count(*) FROM (
    SELECT a.patient_id, a.code, b.code, count(*) FROM read_parquet($file) a JOIN read_parquet($file) b
    ON a.patient_id = b.patient_id AND a.visit_id = b.visit_id WHERE a.kind = 'procedure' AND b.kind = 'diagnosis' GROUP BY ALL)
"""


@pytest.mark.slow
def test_twenty_million_events_need_less_than_4_gb_and_3_times_the_bare_count(tmp_path: Path) -> None:
    file = tmp_path / "events.parquet"
    with duckdb.connect() as con:
        con.execute("SET memory_limit = '2GB'")
        con.execute(f"SET temp_directory = '{tmp_path}/spill'")
        con.execute(
            f"""COPY (SELECT 'p' || (i // 40) AS patient_id, 'v' || (i // 8) AS visit_id,
            TIMESTAMP '2020-01-01' + (i // 8 % 1000) * INTERVAL 1 DAY AS time,
            CASE WHEN i % 8 < 3 THEN 'procedure' ELSE 'diagnosis' END AS kind,
            CAST(hash(i) % (CASE WHEN i % 8 < 3 THEN 500 ELSE 2000 END) AS VARCHAR) AS code
            FROM range({ROWS}) t(i)) TO '{file}' (FORMAT parquet)"""
        )
        start, begun = time.perf_counter(), time.process_time()
        row = con.execute(BARE, {"file": str(file)}).fetchone()
        bare, work = time.perf_counter() - start, time.process_time() - begun
    out = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    found = json.loads(out.stdout)
    print(
        f"{ROWS:,} events: {found['seconds']:.1f} s ({found['work']:.1f} of processor), bare count {bare:.1f} s ({work:.1f}), "
        f"peak {found['peak'] / 1e9:.2f} GB, {found['nnz']:,} nonzeros"
    )
    assert row is not None
    assert found["nnz"] == row[0]
    assert found["patients"] == ROWS // 40
    assert found["peak"] < 4e9
    assert found["seconds"] <= 3 * bare  # on a quiet machine: both use all cores
