"""A small table: rows with named columns, for people; no data-frame library needed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, overload

from polyclinic.safe_text import one_line

if TYPE_CHECKING:
    from pandas import DataFrame


class Table(Sequence[Mapping[str, Any]]):
    """Rows with named columns. ``table["code"]`` is a column, ``table[0]`` a row, ``table.to_pandas()`` a frame.

    Examples
    --------
    >>> t = Table(["code", "weight"], [["428.0", 0.9], ["401.9", 0.1]])
    >>> t["code"], t[0]["weight"], len(t)
    (['428.0', '401.9'], 0.9, 2)
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(r) for r in rows]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> Table: ...
    def __getitem__(self, key: str | int | slice) -> object:
        if isinstance(key, str):
            column = self._at(key)
            return [r[column] for r in self.rows]
        if isinstance(key, slice):
            return Table(self.columns, self.rows[key])
        return dict(zip(self.columns, self.rows[key]))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (dict(zip(self.columns, r)) for r in self.rows)

    def where(self, **equal: object) -> Table:
        """Rows whose columns equal the given values."""
        conditions = [(self._at(k), v) for k, v in equal.items()]
        return Table(self.columns, [r for r in self.rows if all(r[i] == v for i, v in conditions)])

    def from_one(self, *columns: str) -> Table:
        """The table for people: numbers of the named columns that it has count from 1, not from 0 as an index does.

        >>> Table(["phenotype", "code"], [[0, "428.0"], [None, "401.9"]]).from_one("phenotype", "group").rows
        [(1, '428.0'), (None, '401.9')]
        """
        positions = {i for i, c in enumerate(self.columns) if c in columns}
        return Table(
            self.columns,
            [[v + 1 if i in positions and isinstance(v, int) else v for i, v in enumerate(row)] for row in self.rows],
        )

    def _at(self, column: str) -> int:
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return list(self.columns).index(column)

    def to_pandas(self) -> DataFrame:
        """The table as a pandas DataFrame (extra ``frames``)."""
        try:
            import pandas as pd
        except ImportError:
            from polyclinic.errors import MissingExtra

            raise MissingExtra("pandas", "frames", "Table.to_pandas") from None
        return pd.DataFrame(self.rows, columns=list(self.columns))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table for any library that reads Arrow (polars, duckdb, pandas 3, R): ``polars.DataFrame(table)``."""
        try:
            import pyarrow
        except ImportError:
            from polyclinic.errors import MissingExtra

            raise MissingExtra("pyarrow", "frames", "Table.__arrow_c_stream__") from None
        return pyarrow.table({c: list(self[c]) for c in self.columns}).__arrow_c_stream__(requested_schema)

    def to_csv(self) -> str:
        """The table as CSV text; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([spreadsheet_cell(c) for c in self.columns])
        writer.writerows([spreadsheet_cell(v) for v in row] for row in self.rows)
        return out.getvalue()

    def __repr__(self) -> str:
        head = [self.columns, *([_text(v) for v in r] for r in self.rows[:20])]
        widths = [max(len(str(r[i])) for r in head) for i in range(len(self.columns))]
        lines = ["  ".join(str(v).ljust(w) for v, w in zip(r, widths)).rstrip() for r in head]
        return "\n".join([*lines, *([f"... {len(self) - 20} more rows"] if len(self) > 20 else [])])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(c)}</th>" for c in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(_text(v))}</td>" for v in r) + "</tr>" for r in self.rows[:200])
        return f"<table><tr>{head}</tr>{body}</table>"


FORMULA: Final = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"  # spreadsheets read the wide ones, too


def spreadsheet_cell(value: object) -> object:
    """The value; a text that a spreadsheet would take for a formula with an apostrophe before it.

    A carriage return is a blank: a writer of CSV does not quote it, and a spreadsheet begins a row there.
    """
    if not isinstance(value, str) or not value:
        return value
    text = value.replace("\r", " ")
    return f"'{text}" if value[0] in FORMULA else text


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(value)
