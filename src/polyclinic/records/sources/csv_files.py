"""CSV files: delimiter and columns from the header, everything as text, no row decides how another is read."""

from __future__ import annotations

import csv
import gzip
import re
import tempfile
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Final

from polyclinic.errors import DataError
from polyclinic.records.databases.engine import Connection, literal, note_skipped, numbers

DELIMITERS: Final = ",;\t|"
SAMPLE: Final = 1 << 20  # bytes that are looked at for the encoding
# A formal study leaves out a line that is too short, too long or no text, and counts it; any other refuses the file.
SKIP: Final = "strict_mode = false, store_rejects = true, rejects_limit = 0, parallel = false"
CELL: Final = '(?>"(?:[^"]|"")*+"[^{0}]*+|(?!")[^{0}]*+)'
END: Final = re.compile('(?:[^"]|"")*+"')  # the rest of a cell and the mark that ends it
RETURNS: Final = "carriage returns without a line feed: each was read as the end of a line"


def csv_rows(con: Connection, path: Path, *, skip_faulty: bool, named: bool = False) -> str:
    """Relation of a file's rows, all cells text: the code 0389 keeps its zero. ``named``: with the column ``filename``.

    Quotes are doubled inside a cell, as in MIMIC-IV (mimic-code#1881).
    """
    encoding = _encoding(path, header_only=skip_faulty)
    path = _without_lone_returns(con, path, encoding) if skip_faulty else path
    row = con.execute(f"SELECT line FROM {csv_lines([path], encoding)} LIMIT 1").fetchone()
    header = str(row[0]).removeprefix("\ufeff") if row else ""
    delimiter = max(DELIMITERS, key=header.count)
    path = _without_unclosed(con, path, encoding, delimiter) if skip_faulty else path
    columns: list[str] = []
    for n, name in enumerate(next(csv.reader([header], delimiter=delimiter), [])):
        column = name.strip() or f"column{n}"
        columns.append(column if column not in columns else f"{column}_{n}")
    types = ", ".join(f"{literal(c)}: 'VARCHAR'" for c in columns)
    return (
        f"read_csv({literal(str(path))}, auto_detect = false, header = true, delim = {literal(delimiter)}, quote = '\"', "
        f"escape = '\"', encoding = '{encoding}', columns = {{{types}}}, {SKIP if skip_faulty else 'strict_mode = true'}"
        f"{', filename = true' if named else ''})"
    )


def _without_lone_returns(con: Connection, path: Path, encoding: str) -> Path:
    """Return the file, or a copy in which a carriage return alone ends a line.

    The engine takes it for half of a line end, and the first cells of the next line, which is another patient's, are lost.
    """
    if path.name.lower().endswith(".zst"):
        return path
    with _opened(path) as file:
        pieces = iter(lambda: file.read(SAMPLE), b"")
        returns, pairs, ends, last = 0, 0, 0, b""
        for piece in pieces:
            returns, ends = returns + piece.count(b"\r"), ends + piece.count(b"\n")
            pairs += (last + piece).count(b"\r\0\n" if encoding == "utf-16" else b"\r\n")
            last = piece[-2:] if encoding == "utf-16" else piece[-1:]
    if returns == pairs or not ends:  # or lines that all end with a carriage return
        return path
    note_skipped(con, RETURNS, returns - pairs)
    return _copied(con, path, encoding, lambda _, line: line.replace("\r\n", "\n").replace("\r", "\n"))


def _without_unclosed(con: Connection, path: Path, encoding: str, delimiter: str) -> Path:
    """Return the file, or a copy without the lines whose quotation mark is not closed: each would hide lines of others.

    A closed cell may hold line ends, so no line can be judged alone. A cell is closed by a mark before a delimiter or a line
    end. One that any other mark ends, or the file, was not meant to hold lines.
    """
    marks = "length(line) - length(replace(line, '\"', ''))"
    (odd,) = numbers(con, f"SELECT count(*) FILTER (({marks}) % 2 = 1) FROM {csv_lines([path], encoding)}")
    if not odd or path.name.lower().endswith(".zst"):
        note_skipped(con, f"lines of {path.name} that open or close a CSV cell of several lines", odd)
        return path
    unclosed, several = _open_cells(_lines(path, encoding), delimiter)
    for lines, what in (
        (several, "CSV cells of several lines in"),
        (unclosed, "unclosed CSV cells, each line left out, in"),
    ):
        note_skipped(con, f"{what} {path.name}, the first in line {min(lines, default=0)}", len(lines))
    return _copied(con, path, encoding, lambda n, line: "" if n in unclosed else line) if unclosed else path


def _open_cells(lines: Iterator[tuple[int, str]], delimiter: str) -> tuple[set[int], set[int]]:
    """Lines that open a cell that is not closed, and lines that open a cell of several lines.

    >>> text = ['7,"a', '8,b', '9,"c"', '10,"d', 'e"']
    >>> _open_cells(enumerate(text, start=1), ",")
    ({1}, {4})
    """
    unclosed, several = set(), set()
    cell = CELL.format(re.escape(delimiter))
    whole = re.compile(f"{cell}(?:{re.escape(delimiter)}{cell})*+")  # a line without an open cell
    marked = ((n, line.rstrip("\r\n")) for n, line in lines if '"' in line)
    again: deque[tuple[int, str]] = deque()

    def following() -> tuple[int, str] | None:
        return again.popleft() if again else next(marked, None)

    while opening := following():
        if whole.fullmatch(opening[1]):
            continue
        since, end = list[tuple[int, str]](), None
        while end is None and (line := following()):
            since.append(line)
            end = END.match(line[1])
        rest = since[-1][1][end.end() :] if end is not None else None
        if rest is not None and rest[:1] in ("", delimiter):
            several.add(opening[0])
            again.appendleft((since[-1][0], rest[1:]))
        else:
            unclosed.add(opening[0])
            again.extendleft(reversed(since))
    return unclosed, several


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, str]]:
    """Return the lines of a file with their numbers; a byte that is no text stays as it is."""
    with _opened(path) as file:
        yield from enumerate(TextIOWrapper(file, encoding, errors="surrogateescape", newline="\n"), start=1)


def _copied(con: Connection, path: Path, encoding: str, change: Callable[[int, str], str]) -> Path:
    """Copy a file to the session's own folder, each line changed."""
    (spill,) = con.execute("SELECT current_setting('temp_directory')").fetchone() or ("",)
    copy = Path(tempfile.mkdtemp(dir=Path(spill).parent)) / path.parent.name / path.name.lower().removesuffix(".gz")
    copy.parent.mkdir()
    with open(copy, "w", encoding=encoding, errors="surrogateescape", newline="") as out:
        out.writelines(change(n, line) for n, line in _lines(path, encoding))
    return copy


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


def csv_lines(paths: list[Path], encoding: str = "utf-8") -> str:
    """Relation of the lines of text files: the column ``line``. A line that is no text or above 16 MB is left out."""
    files = ", ".join(literal(str(p)) for p in paths)
    return (
        f"read_csv([{files}], auto_detect = false, header = false, delim = '\x01', quote = '', escape = '', "
        f"encoding = '{encoding}', columns = {{'line': 'VARCHAR'}}, max_line_size = 16777216, {SKIP})"
    )


def _encoding(path: Path, *, header_only: bool) -> str:
    """UTF-8, UTF-16 by its first bytes, or else Latin-1. A formal study looks at the header only."""
    if path.name.lower().endswith(".zst"):
        return "utf-8"
    try:
        with _opened(path) as file:
            sample = file.read(SAMPLE)
    except (OSError, EOFError) as e:
        raise DataError(
            f"{path}: cannot be read", faults=[str(e)], hint="is the file whole, and may it be read?"
        ) from None
    if sample.startswith(BOM_UTF16_BE):
        raise DataError(f"{path}: the encoding is UTF-16 (big-endian)", hint="save the file with the encoding UTF-8")
    if sample.startswith(BOM_UTF16_LE):
        return "utf-16"
    try:
        getincrementaldecoder("utf-8")().decode(sample.partition(b"\n")[0] if header_only else sample)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"
