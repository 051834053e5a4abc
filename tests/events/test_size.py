"""Five and twenty million events: bounded memory and processor time, and a bounded price over the bare count."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

MEASURE = """
import json, sys, time
from polyclinic.study import Node, Study
from polyclinic.tensors.ingest import ingest
folder = sys.argv[1]
node = Node.parse({"site": {"name": "a"}, "source": {"kind": "files", "events": f"{folder}/events.parquet"}})
study = Study.parse({"study": {"name": "s"}, "tensor": {"modes": ["procedure", "diagnosis"], "window": "visit"}})
begun = time.process_time()
made = ingest(node, study, f"{folder}/out")
work = time.process_time() - begun
high = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss would count the parent's
peak = int(high.split()[1]) * 1024
print(json.dumps({"work": work, "peak": peak, "nnz": made.site.counts().nnz, "patients": made.site.patients}))
"""
BARE = """
SELECT count(*) FROM (
    SELECT a.patient_id, a.code, b.code, count(*) FROM read_parquet($file) a JOIN read_parquet($file) b
    ON a.patient_id = b.patient_id AND a.visit_id = b.visit_id WHERE a.kind = 'procedure' AND b.kind = 'diagnosis' GROUP BY ALL)
"""


def events(folder: Path, rows: int) -> tuple[int, float]:
    """Write the events; cells of a bare group-by, and its seconds of processor."""
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
        row = con.execute(BARE, {"file": str(file)}).fetchone()
        work = time.process_time() - begun
    assert row is not None
    return int(row[0]), work


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "seconds", "times", "peak"),
    [
        pytest.param(5_000_000, 10.0, None, 700e6, id="5 million"),
        pytest.param(20_000_000, None, 1.9, 1.5e9, id="20 million"),
    ],
)
def test_millions_of_events_cost_what_was_promised(
    tmp_path: Path, rows: int, seconds: float | None, times: float | None, peak: float
) -> None:
    # Processor time: what others do on the machine is not counted.
    cells, bare = events(tmp_path, rows)
    out = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    found = json.loads(out.stdout)
    print(
        f"{rows:,} events: {found['work']:.1f} s of processor, bare count {bare:.1f} s, "
        f"peak {found['peak'] / 1e6:,.0f} MB, {found['nnz']:,} nonzeros"
    )
    assert found["nnz"] == cells
    assert found["patients"] == rows // 40
    assert found["peak"] < peak
    assert seconds is None or found["work"] < seconds
    assert times is None or found["work"] <= times * bare
