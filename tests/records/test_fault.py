"""Errors of the engine are passed on without the cell that they quote."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from polyclinic.errors import DataError
from polyclinic.records.databases.engine import reading
from polyclinic.util.database_errors import UNSAID, said

QUERIES = (
    "SELECT CAST('SECRET' AS INTEGER)",
    "SELECT CAST('SEC\"RET' AS TIMESTAMP)",
    "SELECT CAST('it''s SECRET' AS DATE)",
    "SELECT '2020-99-77'::DATE",
    "SELECT CAST(77712 AS TINYINT)",
    "SELECT 2147483647::INTEGER + 77712::INTEGER",
    "SELECT strptime('SECRET', '%Y-%m')",
    "SELECT CAST('[SECRET' AS INTEGER[])",
    "SELECT CAST('{SECRET' AS JSON)",
    "SELECT error('SECRET 77712')",
    "SELECT * FROM read_csv('t.csv', columns={'x': 'INTEGER', 'y': 'INTEGER'})",
    "SELECT * FROM read_csv('wide.csv', columns={'x': 'VARCHAR', 'y': 'VARCHAR'}, header=true, strict_mode=true)",
    "SELECT * FROM read_json('t.jsonl', columns={'a': 'INTEGER'})",
    "SELECT * FROM read_json('cut.jsonl', columns={'a': 'VARCHAR'})",
    "SELECT pid FROM read_csv('bare.csv')",
    "SELECT * FROM read_parquet('t.csv')",
)


@pytest.mark.parametrize("query", QUERIES)
def test_no_error_quotes_a_cell(query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "t.csv": "x,y\n1,SECRET\n",
        "wide.csv": "x,y\nSECRET,77712,SEC,RET\n",
        "bare.csv": "SECRET,77712\nSECRET,77712\n",
        "t.jsonl": '{"a": 1}\n{"a": "SECRET"}\n',
        "cut.jsonl": '{"a": "SECRET\n',
    }.items():
        (tmp_path / name).write_text(text)
    with duckdb.connect() as con, pytest.raises(DataError) as found, reading("here"):
        con.execute(query).fetchall()
    text = str(found.value)
    assert not any(word in text for word in ("SECRET", "SEC", "RET", "77712", "2147483647", "2020-99"))
    assert found.value.__suppress_context__  # nor does a traceback's chain


def test_what_an_owner_needs_is_still_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,2\n3,SECRET\n")
    with duckdb.connect() as con:
        with pytest.raises(duckdb.Error) as e:
            con.execute(
                f"SELECT * FROM read_csv('{tmp_path}/t.csv', columns={{'x': 'INTEGER', 'y': 'INTEGER'}})"
            ).fetchall()
        assert said(e.value) == f'Conversion Error: CSV Error on Line: 3, converting column "y" {UNSAID}'
        with pytest.raises(duckdb.Error) as e:
            con.execute("SELECT pid FROM (SELECT 1 AS who)")
        assert said(e.value) == 'Binder Error: Referenced column "pid" not found in FROM clause!'
