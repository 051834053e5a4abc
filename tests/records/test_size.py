"""Five and twenty million events: bounded memory. ``benchmarks/ingest.py`` prints the time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("bench", Path(__file__).parents[2] / "benchmarks" / "ingest.py")
assert _spec is not None and _spec.loader is not None
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "peak"), [pytest.param(5_000_000, 700e6, id="5 million"), pytest.param(20_000_000, 1.5e9, id="20 million")]
)
def test_millions_of_events_need_no_more_memory_than_promised(tmp_path: Path, rows: int, peak: float) -> None:
    cells, bare = bench.events(tmp_path, rows)
    found = bench.measured(tmp_path)
    print(
        f"{rows:,} events: {found['work']:.1f} s of processor, bare count {bare:.1f} s, "
        f"peak {found['peak'] / 1e6:,.0f} MB, {found['cells']:,} nonzeros"
    )
    assert found["cells"] == cells
    assert found["patients"] == rows // 40
    assert found["peak"] < peak
